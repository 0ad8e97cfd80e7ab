"""A dump of torch's recorder: every format, whole or not, from friend or foe."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.recorder_dumps import FORMATS, FRAMES, as_json, as_pickle, dump, entry
from unhang.diagnose import recorder
from unhang.diagnose.evidence import Count, Frame, Group, Operation, Rank

WORLD = {"0": ("default_pg", (0, 1, 2, 3)), "5": ("PIPELINE_MODEL_PARALLEL_GROUP", (1, 3))}
HUNG = [entry(0), entry(1, state="started"), entry(2, state="scheduled")]


def read(made: object, named: int | None = 1, *, write: Callable[[Any], bytes] = as_pickle) -> recorder.Dump:
    return recorder.read(write(made), "dump_1", named)


def status(enqueued: object, completed: object) -> dict[str, object]:
    return {"last_enqueued_collective": enqueued, "last_completed_collective": completed}


def numbers(operations: tuple[Operation, ...]) -> list[tuple[str, int | None]]:
    return [(operation.kind, operation.sequence) for operation in operations]


@pytest.mark.parametrize("write", [as_pickle, as_json, pickle.dumps])
@pytest.mark.parametrize("version", FORMATS)
def test_every_format_says_the_same(version: str, write: Callable[[Any], bytes]) -> None:
    found = read(dump(HUNG, WORLD, version), write=write)
    world = Group("0", "default_pg", (0, 1, 2, 3))
    frames = () if write is as_json else tuple(Frame(*frame) for frame in FRAMES)
    first = Operation(1, world, 2, "all_reduce", ((2,),), ((2,),), ("Float",), 2, False, frames, "dump_1: entry 1")
    assert found.rank.waiting[0] == first._replace(begun=True)
    assert numbers(found.rank.waiting) == [("all_reduce", 2), ("all_reduce", 3)]
    assert numbers(found.rank.last) == [("all_reduce", 1)]
    assert found.rank.last[0].done
    assert (found.rank.rank, found.rank.recorded, found.broken) == (1, True, "")
    assert found.groups == (world, Group("5", "PIPELINE_MODEL_PARALLEL_GROUP", (1, 3)))


def test_gloo_has_neither_states_nor_groups() -> None:
    entries = [entry(n, "gloo:all_reduce", state="scheduled", retired=n < 2, frames=None) for n in range(3)]
    found = read(dump(entries, {}))
    assert found.groups == ()
    assert found.rank.waiting[0].group == Group("0", "default_pg")
    assert numbers(found.rank.waiting) == [("all_reduce", 3)]
    assert numbers(found.rank.last) == [("all_reduce", 2)]


SEND, RECEIVE = "nccl:send 0->1", "nccl:recv 0<-1"
STAGE = {"group": ("5", "PIPELINE_MODEL_PARALLEL_GROUP"), "p2p": True, "retired": False}


def batch(number: int, sequence: int, titles: list[str], state: str) -> list[dict[str, Any]]:
    members = [entry(number + n, title, seq=sequence, state="scheduled", **STAGE) for n, title in enumerate(titles)]
    return [*members, entry(number + 8, "nccl:coalesced", seq=sequence, state=state, sizes=[], dtypes=[], **STAGE)]


@pytest.mark.parametrize(
    ("entries", "waiting", "last"),
    [
        # done; waits; the second one waits; active ones only, two and one; cut, done and waiting; no batch; timed out
        (batch(0, 1, [SEND, RECEIVE], "completed"), [], ("recv", 1)),
        (batch(0, 1, [SEND, RECEIVE], "started"), [("send", 1), ("recv", 1)], None),
        (batch(0, 1, [SEND], "completed") + batch(9, 2, [RECEIVE], "started"), [("recv", 2)], ("send", 1)),
        (batch(0, 1, [SEND, RECEIVE], "completed")[:2] + batch(9, 2, [SEND], "started"), [("send", 2)], ("recv", 1)),
        (batch(0, 1, [SEND], "completed")[:1] + batch(9, 2, [SEND], "started"), [("send", 2)], ("send", 1)),
        (batch(0, 1, [SEND, RECEIVE], "completed")[2:], [], ("coalesced", 1)),
        (batch(0, 1, [SEND, RECEIVE], "started")[2:], [("coalesced", 1)], None),
        ([entry(0, SEND, seq=1, state="started", **STAGE)], [("send", 1)], None),
        ([entry(0, state="started", retired=True)], [("all_reduce", 1)], None),
    ],
)  # fmt: skip
def test_members_of_a_batch_have_the_state_of_its_end(
    entries: list[dict[str, Any]], waiting: list[tuple[str, int]], last: tuple[str, int] | None
) -> None:
    found = read(dump(entries, WORLD)).rank
    assert numbers(found.waiting) == waiting
    assert numbers(found.last)[-1:] == ([last] if last else [])


def test_a_batch_is_kept_whole_and_its_end_tells_whether_it_has_begun() -> None:
    """The moves have each operation in order, and that the record begins with them."""
    titles = [SEND, RECEIVE] * 12
    odd = entry(40, "nccl:recv 0<-7", seq=3, state="started", **STAGE)
    entries = [entry(0, seq=1), *batch(1, 1, [SEND], "completed"), *batch(10, 2, titles, "started"), odd]
    found = read(dump(entries, WORLD)).rank
    assert [one.peer for one in found.waiting] == [3] * len(titles), "of a peer beyond the group nothing is known"
    assert all(one.begun for one in found.waiting)
    assert [move[:4] for move in found.moves[:4]] == [
        ("", "", 0, True), ("0", "", 1, True), ("5", "send", 3, True), ("5", "send", 3, False),
    ]  # fmt: skip


def test_each_group_keeps_its_oldest_ones() -> None:
    entries = [entry(n, state="scheduled", seq=n // 2 + 1, group=[("0", ""), ("5", "")][n % 2]) for n in range(200)]
    found = read(dump(entries, WORLD)).rank
    assert [(o.group.name, o.sequence) for o in found.waiting] == [(g, n + 1) for n in range(16) for g in "05"]
    assert {name: count.enqueued for name, count in found.counts.items()} == {"0": 100, "5": 100}


@pytest.mark.parametrize(
    ("entries", "groups", "named", "rank"),
    [
        ([], {}, 7, 7),
        ([], {}, None, -1),
        ([], WORLD, 3, 3),
        ([], WORLD, 2, -1),
        ([], {"0": ("", (2, 3)), "1": ("", (1, 3))}, None, 3),
        ([], {"0": ("", (2, 3)), "1": ("", (0, 1))}, 3, -1),
        ([entry(0, RECEIVE, **STAGE)], WORLD, 3, 1),
        ([entry(0, "nccl:recv 1<-0", **STAGE)], WORLD, None, 3),
        ([entry(0, "nccl:recv 1<-0", **STAGE), entry(1, RECEIVE, **STAGE)], WORLD, 3, 3),
        ([entry(0, "nccl:recv 9<-0", **STAGE)], WORLD, None, -1),
        ([entry(0, RECEIVE, **STAGE)], {}, 5, 5),
    ],
)
def test_the_rank_comes_from_the_dump_else_from_the_name(
    entries: list[Any], groups: dict[str, Any], named: int | None, rank: int
) -> None:
    assert read(dump(entries, groups), named).rank.rank == rank


@pytest.mark.parametrize(
    ("ranks", "members"),
    [
        ("[3, 0, 1]", (0, 1, 3)),
        ([1, 0, 0], (0, 1)),
        ("[]", ()),
        ("[0, -1, 1.5, true, 99999999999, [2], 2]", (0, 2)),
        ("[" * 100_000, ()),
        ("0, 1", ()),
        ({"0": 1}, ()),
        (None, ()),
    ],
)
def test_members_are_ranks(ranks: object, members: tuple[int, ...]) -> None:
    made = dump([]) | {"pg_config": {"0": {"name": "0", "desc": "x", "ranks": ranks}}}
    assert read(made, write=pickle.dumps).groups == (Group("0", "x", members),)


@pytest.mark.parametrize("write", [as_pickle, as_json, lambda made: pickle.dumps(made, 2)])
def test_what_stands_before_a_cut_is_read(write: Callable[[Any], bytes]) -> None:
    many = [entry(n, state="completed" if n < 1190 else "scheduled") for n in range(1200)]
    whole = write(dump(many, WORLD))
    for share in (0.2, 0.5, 0.9):
        data = whole[: int(len(whole) * share)]
        found = recorder.read(data, "dump_1", 1)
        assert "breaks off" in found.broken
        assert not found.rank.recorded, "the newest entries are lost"
        assert share * 1200 - 90 < (found.rank.last[0].sequence or 0) < share * 1200 + 90


@pytest.mark.parametrize("write", [as_pickle, as_json])
def test_no_cut_is_taken_for_something_else(write: Callable[[Any], bytes]) -> None:
    data = write(dump(HUNG) | {"nccl_comm_state": {"0": {"rank": "1", "nranks": "4"}}})
    whole, read_in_part = [("all_reduce", 2), ("all_reduce", 3)], 0
    for end in range(len(data)):
        try:
            found = recorder.read(data[:end], "dump_1", 1)
        except ValueError as error:
            assert str(error)
        else:
            read_in_part += 1
            assert found.broken
            assert set(numbers(found.rank.waiting)) <= {*whole}
    assert read_in_part > 100
    assert numbers(found.rank.waiting) == whole, "a cut behind the entries loses none"


@pytest.mark.parametrize(
    "odd",
    [
        *({**entry(1), "process_group": group} for group in (5, (), [["0"], ""], (7, ""))),
        *({**entry(1), "collective_seq_id": number} for number in ("2", None, 10**30)),
        *({**entry(1), "profiling_name": title} for title in (None, ["nccl:all_reduce"])),
        {},
        None,
        "entry",
    ],
)
def test_an_entry_of_a_wrong_type_is_left_out(odd: object) -> None:
    found = read(dump([]) | {"entries": [entry(0), odd]}, write=pickle.dumps)
    assert found.broken == "1 of its 2 entries cannot be read"
    assert numbers(found.rank.last) == [("all_reduce", 1)]


STATUSES: list[object] = [None, 5, [], {"0": None}, {"0": status("9" * 5000, 1)}, {"9" * 5000: status(1, 1)}, {"x": []}]


@pytest.mark.parametrize(
    "odd",
    [
        {"frames": 3, "record_id": [], "input_sizes": [["2"]], "output_sizes": "x", "time_created_ns": "now"},
        {"input_sizes": [3], "output_sizes": [[2**62] * 200], "input_dtypes": None},
        {"frames": [None, {"name": 3, "line": "x"}, {"filename": "a" * 5000}], "output_dtypes": 7},
        {"process_group": ("0", None), "retired": "yes", "is_p2p": "no"},
        {"process_group": "0", "frames": [{}] * 100_000},
        *({"record_id": number, "time_created_ns": number, "input_sizes": [[number]]} for number in (10**30, 10**5000)),
        *({"pg_status": status} for status in STATUSES),
    ],
)
def test_a_wrong_type_at_the_edge_costs_no_entry(odd: dict[str, Any]) -> None:
    found = read(dump([]) | {"entries": [entry(0, state="started") | odd], **odd}, write=pickle.dumps)
    assert found.broken == ""
    assert (numbers(found.rank.waiting), found.rank.counts["0"].enqueued) == ([("all_reduce", 1)], 1)
    assert len(repr(found)) < 50_000


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([1, 2]),
        pickle.dumps({"a": 1}),
        pickle.dumps({"entries": 5}),
        pickle.dumps({"entries": [], "pg_config": []}),
        pickle.dumps({"entries": [{"seq_id": 1}], "version": "1.5"}),
        b'{"entries": 5}',
        b'{"entries": [',
        b'{"a": ' + b"[" * 100_000,
        b"{" * 100_000,
        b'{"entries": [{"a": ' + b"9" * 10_000,
        b"\x80\x02}(X\x07\x00\x00\x00entries](}(",
        b"\x80\x02}(X\x07\x00\x00\x00entries](}(X\xff\x00\x00\x00abc",
    ],
)
def test_what_is_no_dump_says_why(data: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        recorder.read(data, "dump_1", 1)
    assert 5 < len(str(caught.value)) < 200


def test_what_is_shown_has_no_control_characters() -> None:
    bad = "\x1b[2J\r\n\u202e\udc80x"
    frames = ((bad, bad, 3),)
    groups = {"0": (bad, (0, 1))}
    made = entry(0, f"nccl:{bad}", state="started", frames=frames, dtypes=[bad], group=("0", bad))
    found = read(dump([made], groups), 0, write=lambda made: pickle.dumps(made, 2))
    texts = [*found.rank.waiting[0].frames[0][:2], found.rank.waiting[0].kind, found.groups[0].description]
    assert all(text.isprintable() and "x" in text for text in texts)
    assert found.rank.waiting[0].dtypes[0].isprintable()  # type: ignore[index]


def test_a_dump_is_known_by_its_beginning_and_an_empty_one_is_one() -> None:
    assert all(map(recorder.recognizes, [as_pickle(dump([])), as_json(dump([entry(0)])), b"\x80\x05"]))
    others = (b'{"level": "info", "message": "x"}', b'[{"pid": 1}]', b"Process 12: python", b"")
    assert not any(map(recorder.recognizes, others))
    assert read(dump([]), write=as_json).rank == Rank(1, counts={"0": Count()}, recorded=True)


@pytest.mark.parametrize("write", [as_pickle, as_json])
def test_the_status_of_a_group_goes_by_the_numbers_that_the_process_gives(write: Callable[[Any], bytes]) -> None:
    groups = {"0": WORLD["0"], "35": ("TENSOR_MODEL_PARALLEL_GROUP", (1, 2)), "112": ("x", (1,))}
    pending = entry(0, seq=41, state="scheduled", group=("35", "TENSOR_MODEL_PARALLEL_GROUP")) | {"pg_id": 5}
    made = dump([pending], groups) | {"pg_status": {"0": status(9, 9), "5": status(44, 40), "17": status(3, 3)}}
    counts = read(made, write=write).rank.counts
    assert counts == {"0": Count(9, 9), "35": Count(44, 40), "112": Count(3, 3)}


PENDING = entry(0, seq=1, state="scheduled")
SENT = entry(0, SEND, seq=7, state="scheduled", **STAGE) | {"pg_id": 5}
GLOO = entry(0, "gloo:barrier", seq=4, state="scheduled", retired=False)


@pytest.mark.parametrize(
    ("entries", "groups", "said", "counts"),
    [
        # one that goes with no group is left out; what is pending is not completed; sends count by themselves
        ([entry(0, seq=41, state="scheduled") | {"pg_id": 5}], {"0": WORLD["0"]},
         {"5": status(44, 40), "6": status(3, 3)}, {"0": Count(44, 40)}),
        (HUNG, WORLD, {"0": status(3, 3)}, {"0": Count(3, 1)}),
        ([SENT], WORLD, {"0": status(1, 1), "5": status(7, 6)}, {"0": Count(1, 1), "5": Count(7, 6, shared=False)}),
        # a group in which nothing is done yet
        ([PENDING], {"0": WORLD["0"]}, {"0": status(1, -1)}, {"0": Count(1, 0)}),
        ([PENDING], {"0": WORLD["0"]}, {"0": status(-1, -1)}, {"0": Count(1, -1)}),
        # gloo's counts sends and receives too
        ([GLOO], {}, {"0": status(11, 3)}, {"0": Count(4, 3, device=False)}),
        ([GLOO], {}, {"0": status(1, -1)}, {"0": Count(4, -1, device=False)}),
    ],
)  # fmt: skip
def test_how_far_a_rank_is(
    entries: list[Any], groups: dict[str, Any], said: dict[str, object], counts: dict[str, Count]
) -> None:
    assert read(dump(entries, groups) | {"pg_status": said}).rank.counts == counts


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_pickle_runs(tmp_path: Path, protocol: int) -> None:
    runs = type("Runs", (), {"__reduce__": lambda _: (os.mkdir, (str(tmp_path / "ran"),))})()
    data = pickle.dumps({"entries": [entry(0), entry(1)], "x": runs}, protocol)
    with pytest.raises(ValueError, match=r"it names \w+.mkdir"):
        recorder.unpickled(data)
    with pytest.raises(ValueError, match=r"it names \w+.mkdir" if protocol > 1 else "Expecting value"):
        recorder.read(data, "dump_1", 1)
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists(), "the same pickle, read by pickle"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps(OrderedDict(a=1)), "it names collections.OrderedDict"),
        (b"(icollections\nOrderedDict\n.", "it names collections.OrderedDict"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "it names posix.system"),
        (b"\x80\x02Pname\n.", "persistent"),
        (b"\x80\x02\x82\x07.", "extension"),
        (b"\x80\x05\x97.", "buffer"),
        (b"\x80\x02}", "Ran out of input"),
        (b"\x80\x02X\xff\xff\xff\x7fx.", "truncated"),
        (b"", "Ran out of input"),
        (b"\xff\x00", "opcode|load key"),
    ],
)
def test_what_is_no_data_says_why(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        recorder.unpickled(data)
