"""What a node's notes say, and what of them is not believed."""

from __future__ import annotations

import json

import pytest

from unhang.diagnose import process_states


def told(**content: object) -> tuple[list[tuple[int, str]], int | None, str]:
    one = process_states.read(json.dumps({"unhang-live": 1, "node": "n1", **content}).encode(), "x/ranks.json")
    return [(part.rank, part.process) for part in one.parts], one.size, one.why


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, ([], None, "")),
        (
            {
                "size": 8,
                "ranks": [
                    {"rank": 1, "state": "running"},
                    {"rank": 2, "state": "stopped"},
                    {"rank": 3, "state": "gone"},
                ],
            },
            ([(1, "running"), (2, "stopped"), (3, "gone")], 8, ""),
        ),
        ({"notes": ["a\x1b[2J", *"bcdefg"]}, ([], None, r"a\x1b[2J; b; c; d; e; and 2 more")),
        (
            {"size": -1, "ranks": [7, {"rank": "2"}, {"rank": -1, "state": "gone"}, {"rank": 2, "state": ["x"]}]},
            ([], None, ""),
        ),
        # who has no process was reckoned: not beyond the size
        (
            {
                "size": 2,
                "ranks": [
                    {"rank": 1, "state": "gone"},
                    {"rank": 2, "state": "gone"},
                    {"rank": 3, "pid": 9, "state": "gone"},
                ],
            },
            ([(1, "gone"), (3, "gone")], 2, ""),
        ),
        ({"size": 10**9, "ranks": "x", "notes": {}}, ([], None, "")),
    ],
)
def test_what_notes_say(content: dict[str, object], expected: object) -> None:
    assert told(**content) == expected


@pytest.mark.parametrize(("said", "cpu"), [(0.25, 0.25), (None, None), (-1.0, None), ("x", None), ({}, None)])
def test_what_a_rank_uses_of_a_cpu_is_a_number(said: object, cpu: float | None) -> None:
    notes = {"unhang-live": 1, "ranks": [{"rank": 0, "pid": 7, "state": "running", "cpu": said}]}
    assert [part.cpu for part in process_states.read(json.dumps(notes).encode(), "x").parts] == [cpu]


@pytest.mark.parametrize(
    ("letter", "states"), [("T (stopped)", ["stopped"]), ("Z (zombie)", ["gone"]), ("S (sleeping)", [])]
)
def test_a_copy_of_proc_s_status_says_whether_the_rank_in_its_name_is_stopped(letter: str, states: list[str]) -> None:
    text = f"Name:\tpython\nUmask:\t0022\nState:\t{letter}\nTgid:\t7\n".encode()
    assert process_states.recognizes(text)
    found = process_states.read(text, "rank_3", 3)
    assert ([part.process for part in found.parts], found.named) == (states, 3)
