"""The commits of a made-up upstream, by what they have in the targets' files."""

import pytest

from support.fake_clone import git
from support.gates import ONE, RUN, STOP
from support.histories import EDITED, LACKS, History
from unhang.compat.sweep import commits

pytest.importorskip("git")


def test_commits_are_told_apart_by_version_and_target_files(history: History) -> None:
    history(None)
    history("0.9")
    history("1.0rc1")  # as old as the floor is to `unhang check`
    history("not a version")
    first = [history("1.1rc1"), history("1.1rc1", other="more")]
    git(history.folder, "checkout", "-qb", "side", day="2026-01-02")
    side = history("1.1rc1", one=EDITED)
    git(history.folder, "checkout", "-q", "main")
    again = history("2.0")
    git(history.folder, "merge", "-qm", "merged", "side")
    merge = git(history.folder, "rev-parse", "HEAD")
    git(history.folder, "checkout", "-qb", "unread")
    history("2.0", two=LACKS)
    found = commits.of_upstream("verl", history.clone())
    assert (found.older, found.commits) == (4, 5)
    expected = {("1.1rc1", frozenset(first)), ("1.1rc1", frozenset([side]))}
    expected |= {("2.0", frozenset([again])), ("2.0", frozenset([merge]))}
    assert {(tree.version, frozenset(tree.commits)) for tree in found.trees} == expected
    run, stop = (list(commits.contents(found, [target])) for target in (RUN, STOP))
    assert {item.content.data.decode(): {*item.commits} for item in run} == {
        ONE: {*first, again},
        EDITED: {side, merge},
    }
    assert [item[1:] for item in stop] == [item[1:] for item in run]
