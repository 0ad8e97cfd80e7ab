"""A journal that unhang did not write is refused, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.transactions import stop_in_the_middle
from unhang.errors import UnhangError
from unhang.store import journal, state
from unhang.store.lock import exclusive
from unhang.store.recovery import recover


def test_what_is_rendered_is_parsed() -> None:
    files = [("/a/b.py", "0" * 64, "1" * 64, False), ("/a/new/c", None, "2" * 64, False), ("/d", "3" * 64, None, True)]
    written = journal.compose("0123456789abcdef", files, ["/a/new"])
    assert journal.parse(journal.render(written), "x") == written
    assert written.files[1].temp == "/a/new/.unhang-0123456789abcdef-1.new"
    assert written.folders() == ["/", "/a", "/a/new"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda j: b"{",
        lambda j: {**j, "schema": 2},
        lambda j: {**j, "schema": True},
        lambda j: {**j, "token": "../../../../x"},
        lambda j: {**j, "files": None},
        lambda j: {**j, "files": [{**j["files"][0], "path": "a/one.py"}]},
        lambda j: {**j, "files": [{**j["files"][0], "path": "/"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": "xyz"}]},
        lambda j: {**j, "files": [{**j["files"][0], "old": None, "new": None}]},
        lambda j: {**j, "files": [{"path": "/x"}]},
        lambda j: {**j, "files": j["files"] * 2},
        lambda j: {**j, "made": ["/home"]},
        lambda j: {**j, "made": "/"},
        lambda j: {**j, "made": ["/"]},
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
