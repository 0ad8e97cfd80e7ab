"""Pages of torch's debug server, as curl saves them, say what each rank answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recorder_dumps import as_json, dump, entry
from unhang.diagnose import intake
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


def read(folder: Path, *sections: str) -> Job:
    (folder / "page.html").write_text(PAGE.format("".join(sections)))
    return intake.read([str(folder / "page.html")], silent)


def test_the_stacks_of_each_rank_are_read(tmp_path: Path) -> None:
    escaped = FAULT.format("step").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    job = read(tmp_path, *map(ANSWER.format, range(3), (FAULT.format("load"), FAULT.format("step"), escaped)))
    found = {number: [frame.function for frame in rank.stacks[0].frames] for number, rank in job.ranks.items()}
    assert found == {0: ["load", "<module>"], 1: ["step", "<module>"], 2: ["step", "<module>"]}
    assert (job.size, job.files, job.unread, job.unranked) == (3, 1, (), ())
    line = (
        (tmp_path / "page.html").read_text().splitlines().index("Thread 0x00007f8c3e5d1b80 (most recent call first):")
    )
    assert job.ranks[0].stacks[0].source == f"{tmp_path}/page.html:{line + 1}"


def test_a_rank_that_did_not_answer_is_named_and_has_not_failed(tmp_path: Path) -> None:
    job = read(tmp_path, ANSWER.format(0, FAULT.format("step")), LOST.format(1, "refused"), LOST.format(2, "refused"))
    assert ([*job.ranks], job.size) == ([0], 3)
    assert [one.why for one in job.unread] == ["nothing came of ranks 1, 2: ConnectionError: refused"]
    assert job.unread[0].partly


def test_the_dumps_of_each_rank_are_read(tmp_path: Path) -> None:
    hung = as_json(dump([entry(0), entry(1, state="started")], {"0": ("default_pg", (0, 1, 2))})).decode()
    job = read(tmp_path, ANSWER.format(0, hung), ANSWER.format(1, hung), ANSWER.format(2, '{"entries": [1, 2]}'))
    assert {number: (rank.recorded, len(rank.waiting)) for number, rank in job.ranks.items()} == dict.fromkeys(
        (0, 1), (True, 1)
    )
    assert job.ranks[1].waiting[0].source == f"{tmp_path}/page.html: rank 1: entry 1"
    assert [one.why.partition(": ")[0] for one in job.unread] == ["nothing came of rank 2"]


@pytest.mark.parametrize("section", ["", "<h2>Groups</h2><table></table>", ANSWER.format(0, '{"a": {"count": 6}}')])
def test_a_page_without_either_says_which_ones_to_save(section: str, tmp_path: Path) -> None:
    job = read(tmp_path, section)
    assert not job.ranks
    assert "save the pages /stacks and /fr_trace_json" in job.unread[0].why
