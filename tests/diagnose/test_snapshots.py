"""Snapshots of a job say what each rank answers, and what of them is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.recorder_dumps import as_json, dump, entry
from unhang.diagnose import intake, snapshots
from unhang.diagnose.evidence import Job
from unhang.tell.progress import silent

PAGE = """

<!doctype html>
<head>
    <title>Stacks - PyTorch Distributed</title>
</head>
<nav>
    <h1>Torch Distributed Debug Server</h1>
    <a href="/">Home</a>
</nav>

<section class="content">
    <h1>Stacks</h1>
{}
</section>
"""
ANSWER = """
        <h2>Rank {}: http://vm:42665/handler/dump_traceback?</h2>

            <pre>{}</pre>

"""
LOST = """
        <h2>Rank {}: http://vm:42666/handler/dump_traceback?</h2>

            <p>Failed to fetch: status=503</p>
            <pre>ConnectionError: {}
</pre>

"""
FAULT = """\
Current thread 0x00007f8c0ffff6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f8c3e5d1b80 (most recent call first):
  File "/job/train.py", line 6 in {}
  File "/job/train.py", line 31 in <module>
"""


def read_page(folder: Path, *sections: str) -> Job:
    (folder / "page.html").write_text(PAGE.format("".join(sections)))
    return intake.read([str(folder / "page.html")], silent)


def test_the_stacks_of_each_rank_are_read(tmp_path: Path) -> None:
    escaped = FAULT.format("step").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    job = read_page(tmp_path, *map(ANSWER.format, range(3), (FAULT.format("load"), FAULT.format("step"), escaped)))
    found = {number: [frame.function for frame in rank.stacks[0].frames] for number, rank in job.ranks.items()}
    assert found == {0: ["load", "<module>"], 1: ["step", "<module>"], 2: ["step", "<module>"]}
    assert (job.size, job.files, job.unread, job.unranked) == (3, 1, (), ())
    line = (
        (tmp_path / "page.html").read_text().splitlines().index("Thread 0x00007f8c3e5d1b80 (most recent call first):")
    )
    assert job.ranks[0].stacks[0].source == f"{tmp_path}/page.html:{line + 1}"


def test_a_rank_that_did_not_answer_is_named_and_has_not_failed(tmp_path: Path) -> None:
    job = read_page(
        tmp_path, ANSWER.format(0, FAULT.format("step")), LOST.format(1, "refused"), LOST.format(2, "refused")
    )
    assert ([*job.ranks], job.size) == ([0], 3)
    assert [one.why for one in job.unread] == ["nothing came of ranks 1, 2: ConnectionError: refused"]
    assert job.unread[0].partly


def test_the_dumps_of_each_rank_are_read(tmp_path: Path) -> None:
    hung = as_json(dump([entry(0), entry(1, state="started")], {"0": ("default_pg", (0, 1, 2))})).decode()
    job = read_page(tmp_path, ANSWER.format(0, hung), ANSWER.format(1, hung), ANSWER.format(2, '{"entries": [1, 2]}'))
    assert {number: (rank.recorded, len(rank.waiting)) for number, rank in job.ranks.items()} == dict.fromkeys(
        (0, 1), (True, 1)
    )
    assert job.ranks[1].waiting[0].source == f"{tmp_path}/page.html: rank 1: entry 1"
    assert [one.why.partition(": ")[0] for one in job.unread] == ["nothing came of rank 2"]


@pytest.mark.parametrize("section", ["", "<h2>Groups</h2><table></table>", ANSWER.format(0, '{"a": {"count": 6}}')])
def test_a_page_without_either_says_which_ones_to_save(section: str, tmp_path: Path) -> None:
    job = read_page(tmp_path, section)
    assert not job.ranks
    assert "save the pages /stacks and /fr_trace_json" in job.unread[0].why


def told(**content: object) -> tuple[list[tuple[int, str]], int | None, str]:
    one = snapshots.states(json.dumps({"unhang-live": 1, "node": "n1", **content}).encode(), "x/ranks.json")
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
    assert [part.cpu for part in snapshots.states(json.dumps(notes).encode(), "x").parts] == [cpu]


@pytest.mark.parametrize(
    ("letter", "states"), [("T (stopped)", ["stopped"]), ("Z (zombie)", ["gone"]), ("S (sleeping)", [])]
)
def test_a_copy_of_proc_s_status_says_whether_the_rank_in_its_name_is_stopped(letter: str, states: list[str]) -> None:
    text = f"Name:\tpython\nUmask:\t0022\nState:\t{letter}\nTgid:\t7\n".encode()
    assert snapshots.is_state(text)
    found = snapshots.states(text, "rank_3", 3)
    assert ([part.process for part in found.parts], found.named) == (states, 3)
