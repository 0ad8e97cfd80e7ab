"""What NCCL's RAS says: who does not answer, who is behind, and that one answer in order acquits nobody."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from unhang.diagnose import logs, ras, statements
from unhang.diagnose.evidence import Statement

TABLE = """\
NCCL version 2.28.9 compiled with CUDA 13.0

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH
"""
SIX_BEHIND = """
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation {top}
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 483074 on node 10.0.0.1
  Rank 7 -- GPU 7 managed by process 483079 on node 10.0.0.1
"""
STOPPED = """
{word}
  {what}
  Process 3487984 on node 10.0.0.3 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
SILENT = STOPPED.format(word="INCOMPLETE", what="Missing communicator data from 1 job process")
DEAD = STOPPED.format(word="DEAD", what="1 job process is considered dead (unreachable via the RAS network)")
GROUPS = """
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         4         1         8         8        32   RUNNING  MISMATCH
#0-2 (1f) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 12
  Rank 3 has launched up to operation 9 -- GPU 3 managed by process 77 on node 10.0.0.9
"""


def said(text: str) -> list[Statement]:
    return [it for one in logs.read(io.BytesIO(text.encode()), "ras.txt") for it in one.statements]


def of_json(*answers: Any, indent: int | None = 2) -> list[Statement]:
    text = "\n".join(json.dumps(one, indent=indent) for one in answers)
    return [it for one in ras.read(io.BytesIO(text.encode()), "ras.json") for it in one.statements]


def answer(*comms: Sequence[Mapping[str, Any] | None], hash_of: str = "0xa") -> dict[str, Any]:
    """Return RAS's JSON of communicators, given what each of their ranks has launched; None: it does not answer."""
    return {"nccl_version": "2.29.1", "timestamp": "2026-01-01 00:00:00", "communicators": [
        {"hash": f"{hash_of}{at}", "size": len(counts), "ranks_count": len(counts), "ranks": [
            {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank + 10 * at, "cuda_dev": rank,
             "status": {"init_state": 0, "async_error": 0, "abort_flag": False}, "collective_counts": own}
            for rank, own in enumerate(counts) if own is not None],
         "missing_ranks": [
            {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank + 10 * at, "cuda_dev": rank,
             "status": {"unresponsive": True, "considered_dead": False}}
            for rank, own in enumerate(counts) if own is None]}
        for at, counts in enumerate(comms)]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "culprits", "processes", "words"),
    [
        (TABLE + SIX_BEHIND.format(top=6655), (0, 2, 7), 3, "up to 6649, 26 up to 6655"),
        ((TABLE + SIX_BEHIND.format(top=6650)) * 2, (0, 2, 7), 3, "behind"),
        (SIX_BEHIND.format(top=6650) * 2, (0, 2, 7), 3, "6 ranks have launched collective up to 6649"),
        (SIX_BEHIND.format(top=6655).partition("\n#")[2].partition("\n")[2], (), 3, "up to 6649, 26 up to 6655"),
        (SILENT, (21,), 1, "no answer from rank 21 (pid 3487984 on 10.0.0.3)"),
        (DEAD, (21,), 1, "RAS calls rank 21 (pid 3487984 on 10.0.0.3) dead"),
        (GROUPS, (), 1, "rank 3 of its communicator (pid 77 on 10.0.0.9) behind"),
        ("[2026-01-01] PEER_DEAD: Process 15 on node 10.0.0.4 managing GPU 1", (), 1, "pid 15 on 10.0.0.4"),
        (GROUPS.replace("has launched up to operation 9", "has not launched any operations"), (), 1, "to 0"),
        ("#0-0 (1f) ERROR\n  Rank 3 reported Unhandled CUDA error -- GPU 3 managed by process 9 on node h",
         (3,), 1, "CUDA"),
    ],
)  # fmt: skip
def test_it_says_who_is_behind_or_does_not_answer(
    text: str, culprits: tuple[int, ...], processes: int, words: str
) -> None:
    prefixed = ["".join(f"{prefix}{it}\n" for it in text.split("\n")) for prefix in ("[pod/a-0/main] ", "> ", "gpu7: ")]
    for way in (text, text.replace("\n", "\r\n"), *prefixed):
        (found,) = said(way)
        assert (found.culprits, len(found.processes)) == (culprits, processes)
        assert words in found.words


AHEAD = """\
#0-0 (fa) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 649
  Rank 12 -- GPU 4 managed by process 32 on node 10.0.0.3
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AHEAD * 2, "rank 12 (pid 32 on 10.0.0.3) ahead, and the others are behind"),
        (TABLE + SIX_BEHIND.format(top=6650), "a second answer"),
        (TABLE, "RAS shows MISMATCH, and what is given of its answer does not say of whom"),
        (TABLE + SIX_BEHIND.format(top=6655) + TABLE + SIX_BEHIND.format(top=6700), "the job goes on"),
        (SIX_BEHIND.format(top=6655) + SIX_BEHIND.format(top=6700), "the job goes on"),
        (TABLE.replace("MISMATCH", "      OK"), "acquits nobody"),
        ("#0-0 (9e) MISMATCH\n  Communicator ranks have different status\n  26 ranks have status NOCOMM\n"
         "  4 ranks have status RUNNING\n  Rank 0 -- GPU 0 managed by process 5 on node h\n", "26 NOCOMM, 4 RUNNING"),
    ],
)  # fmt: skip
def test_what_one_answer_does_not_decide_is_a_note(text: str, words: str) -> None:
    (found,) = {one.words: one for one in said(text)}.values()
    assert (found.weight, statements.blamed([found])) == ("note", [])
    assert words in found.words


def test_two_files_that_say_the_same_are_two_answers() -> None:
    text = TABLE + SIX_BEHIND.format(top=6650)
    one, other = said(text), said(text.replace("operation 66", "operation 77"))
    assert {it.culprits for it in statements.blamed(statements.agreed([*one, *one]))} == {(0, 2, 7)}
    assert statements.blamed(statements.agreed([*one, *other])) == []


def test_a_document_is_read_whole_compact_and_cut() -> None:
    late = answer([{"AllReduce": 9}, {"AllReduce": 9}, {"AllReduce": 5}, None])
    for found in (of_json(late), of_json(late, indent=None), of_json(late, late)):
        assert [(one.cause, one.culprits, one.processes) for one in found] == [
            ("process-died", (3,), ("pid 103 on 10.0.0.1",)),
            ("never-arrived", (2,), ("pid 102 on 10.0.0.1",)),
        ]
    text = json.dumps(late, indent=2)
    cut = text[: text.index('"missing_ranks": [')]
    (part,) = ras.read(io.BytesIO(f"SERVER PROTOCOL 2\nOK\n{cut}".encode()), "ras.json")
    assert [one.culprits for one in part.statements] == [(2,)]
    with pytest.raises(ValueError, match="not an answer"):
        of_json({"communicators": 1})


def test_a_group_s_rank_is_the_job_s_by_its_process_in_the_largest_communicator() -> None:
    same = {"AllReduce": 9}
    found = answer([same] * 4, [same, {"AllReduce": 3}])
    found["communicators"][1]["ranks"][1]["pid"] = 103
    assert [one.culprits for one in of_json(found)] == [(3,)]
    found["communicators"][1]["ranks"][1]["pid"] = 999
    assert [(one.culprits, one.processes) for one in of_json(found)] == [((), ("pid 999 on 10.0.0.1",))]


def test_one_that_is_behind_in_a_call_and_ahead_in_another_called_another() -> None:
    most, other = {"AllReduce": 9, "Broadcast": 2}, {"AllReduce": 8, "Broadcast": 3}
    (found,) = of_json(answer([most, most, other]))
    assert (found.cause, found.culprits) == ("mismatch", (2,))


def test_a_report_that_is_cut_anywhere_is_read_as_far_as_it_goes() -> None:
    whole = TABLE + SILENT + SIX_BEHIND.format(top=6655) + GROUPS
    whole += "#0-0 (9e) MISMATCH\n  Communicator ranks have different status\n  26 ranks have status NOCOMM\n"
    lines = whole.split("\n")
    for at in range(len(lines)):
        for text in ("\n".join(lines[at:]), "\n".join([*lines[:at], *lines[at + 1 :]]), whole[: at * 9]):
            assert {rank for one in said(text) for rank in one.culprits} <= {0, 2, 3, 7, 21}
    odd = answer([{"AllReduce": 9}, {"AllReduce": None, "x": 10**30}])
    assert [one.culprits for one in of_json(odd)] == [()]
