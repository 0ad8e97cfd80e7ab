"""A journal that unhang did not write is refused, and nothing is changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.transactions import stop_in_the_middle
from unhang.errors import UnhangError
from unhang.store import journal, state
from unhang.store.disk import Link
from unhang.store.lock import exclusive
from unhang.store.recovery import recover


def test_what_is_rendered_is_parsed() -> None:
    files = [("a/b.py", "0" * 64, "1" * 64, False), ("a/new/c", None, "2" * 64, False), ("d", "3" * 64, None, True)]
    written = journal.compose("/top", "0123456789abcdef", files, ["a/new"])
    assert b"/top" not in journal.render(written)
    assert journal.parse(journal.render(written), "x", "/top") == written
    assert written.files[1].temp == "/top/a/new/.unhang-0123456789abcdef-1.new"
    assert written.folders() == ["/top", "/top/a", "/top/a/new"]


def test_a_journal_reaches_nothing_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "a").symlink_to("../elsewhere")
    for files, made in (([("a/b.py", "0" * 64, None, True)], []), ([("a/c/d", None, "0" * 64, False)], ["a/c"])):
        written = journal.compose(str(tmp_path / "top"), "0123456789abcdef", files, made)
        with pytest.raises(UnhangError, match="a link is on the way") as caught:
            journal.parse(journal.render(written), "x", str(tmp_path / "top"))
        assert caught.value.code == "bad-journal"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda j: b"{",
        lambda j: {**j, "schema": 2},
        lambda j: {**j, "schema": True},
        lambda j: {**j, "token": "../../../../x"},
        lambda j: {**j, "files": None},
        lambda j: {**j, "files": [{**j["files"][0], "path": "../one.py"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "/etc/passwd"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": "xyz"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "\ud800"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": None, "new": None}]},
        lambda j: {**j, "files": [{"path": "x"}]},
        lambda j: {**j, "files": j["files"] * 2},
        lambda j: {**j, "made": ["home"]},
        lambda j: {**j, "made": "/"},
        lambda j: {**j, "made": ["."]},
        lambda j: {**j, "made": [7]},
    ],
)
@pytest.mark.parametrize("stage", [state.INTENT, state.READY, state.DONE])
def test_a_journal_that_is_not_ours_is_refused(tmp_path: Path, stage: str, spoil: Callable[[Any], Any]) -> None:
    case = stop_in_the_middle(tmp_path)
    path = Path(case.state, state.READY)
    spoiled = spoil(json.loads(path.read_bytes()))
    path.unlink()
    Path(case.state, stage).write_bytes(spoiled if isinstance(spoiled, bytes) else json.dumps(spoiled).encode())
    before = (case.look(), case.names())
    with exclusive(case.state), pytest.raises(UnhangError) as caught:
        recover(case.state)
    assert (caught.value.code, caught.value.path) == ("bad-journal", str(Path(case.state, stage)))
    assert (case.look(), case.names()) == before


def test_a_link_and_a_file_of_its_text_are_not_the_same(tmp_path: Path) -> None:
    assert journal.digest(Link("x")) == f"link:{journal.digest(b'x')}"
    one = journal.compose(
        str(tmp_path), "0" * 16, [("x.py", journal.digest(Link("../y")), journal.digest(b"x"), False)], []
    )
    assert journal.parse(journal.render(one), "journal", str(tmp_path)) == one
    for odd in ("link:", "link:" + "0" * 63, "link:link:" + "0" * 64, "other:" + "0" * 64):
        with pytest.raises(UnhangError):
            journal.parse(
                journal.render(one).replace(str(journal.digest(Link("../y"))).encode(), odd.encode()),
                "journal",
                str(tmp_path),
            )
