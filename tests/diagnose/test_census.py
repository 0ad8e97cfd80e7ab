"""What a node's notes say, and what of them is not believed."""

from __future__ import annotations

import json

import pytest

from unhang.diagnose import census


def told(**content: object) -> tuple[list[tuple[int, str]], int | None, str]:
    one = census.read(json.dumps({"unhang-live": 1, "node": "n1", **content}).encode(), "x/ranks.json")
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
            ([(2, "stopped"), (3, "gone")], 8, ""),
        ),
        ({"notes": ["a\x1b[2J", *"bcdefg"]}, ([], None, r"a\x1b[2J; b; c; d; e; and 2 more")),
        (
            {"size": -1, "ranks": [7, {"rank": "2"}, {"rank": -1, "state": "gone"}, {"rank": 2, "state": ["x"]}]},
            ([], None, ""),
        ),
        ({"size": 10**9, "ranks": "x", "notes": {}}, ([], None, "")),
    ],
)
def test_what_notes_say(content: dict[str, object], expected: object) -> None:
    assert told(**content) == expected
