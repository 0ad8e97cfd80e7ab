"""Two jobs, or two times of one, in one folder tree: one is read, and the other is told of."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.diagnose.evidence import Group, Job, Message, Rank
from unhang.diagnose.job import Told, merged
from unhang.diagnose.recorder import Dump

HOUR = 3600 * 10**9
MINUTE = 60 * 10**9


def apart(job: Job) -> list[str]:
    return [f"{one.file}: {one.why}" for one in job.unread]


def run_of(folder: str, ranks: Iterable[int], world: int, began: int) -> list[Told]:
    """Return the dumps of a job's ranks, which hang 20 minutes after it began."""
    group = Group("0", "default_pg", tuple(range(world)))
    return [
        Told(f"{folder}/rank_{rank}", (Dump(Rank(rank, recorded=True), (group,), began + 20 * MINUTE + rank, ""),))
        for rank in ranks
    ]


def test_two_jobs_of_the_same_groups_are_told_apart_though_a_dump_of_the_later_one_is_lost() -> None:
    earlier, later = run_of("hang/a/dumps", range(4), 4, HOUR), run_of("hang/b/dumps", range(3), 4, HOUR + 5 * MINUTE)
    lines = [
        Told(f"hang/{name}/job.log", parts=(Rank(2, messages=(Message(f"ValueError: {name}", "log:9"),)),))
        for name in "ab"
    ]
    shared = Told("hang/node.log", parts=(Rank(3, messages=(Message("ValueError: n", "log:9"),)),))
    job = merged([*earlier, *later, *lines, shared])
    assert {it.text for rank in job.ranks.values() for it in rank.messages} == {"ValueError: a", "ValueError: n"}
    assert apart(job) == [
        *(f"hang/b/dumps/rank_{n}: hang/a/dumps/rank_* is read for the same ranks: it has more" for n in range(3)),
        "hang/b/job.log: it lies beside the dumps of another job or time",
    ]
    assert [*job.ranks] == [0, 1, 2, 3]


def test_of_two_jobs_on_two_nodes_one_is_read_for_all_ranks_though_it_lost_dumps() -> None:
    parts = [(name, node) for name in "ab" for node in (0, 1)]
    dumps = [
        one
        for name, node in parts
        for one in run_of(f"{name}/node{node}", range(2 * node, 2 * node + 2), 4, HOUR + (name == "b") * 5 * MINUTE)
        if one.file != "a/node0/rank_0"
    ]
    out = {line.partition(":")[0] for line in apart(merged(dumps))}
    assert out == {"a/node0/rank_1", "a/node1/rank_2", "a/node1/rank_3"}


def test_the_trainer_is_read_and_not_the_engines_beside_it() -> None:
    """As verl leaves them: the engines' dumps are newer, and have other groups."""
    for folders in (("trainer", "vllm"), ("one", "one/engines"), ("x/job_", "x/vllm_")):
        trainer, engines = run_of(folders[0], range(4), 4, HOUR), run_of(folders[1], range(2), 2, HOUR + MINUTE)
        job = merged([*trainer, *engines])
        assert ([*job.ranks], job.size) == ([0, 1, 2, 3], 4)
        assert {line.partition(": ")[2] for line in apart(job)} == {
            "it is of another job: its groups have other members than in most dumps"
        }


def test_of_two_times_the_later_one_is_read_unless_it_has_fewer_ranks() -> None:
    for ranks, left in (range(4), "t1"), (range(3), "t2"):
        job = merged([*run_of("t1", range(4), 4, HOUR), *run_of("t2", ranks, 4, HOUR + MINUTE)])
        assert [*job.ranks] == [0, 1, 2, 3]
        assert [line.partition(":")[0] for line in apart(job)] == [f"{left}/rank_{rank}" for rank in ranks]
    job = merged([*run_of("old", range(4), 4, HOUR), *run_of("new", range(2), 4, 30 * HOUR)])
    assert [*job.ranks] == [0, 1], "one long over does not count, however many ranks it had"


def test_a_dump_without_any_active_operation_is_of_the_same_process_as_the_whole_one() -> None:
    whole = run_of("dumps", range(4), 4, HOUR)
    group = Group("0", "default_pg", (0, 1, 2, 3))
    active = [Told(f"active/rank_{n}", (Dump(Rank(n, recorded=True), (group,), 0, ""),)) for n in range(4)]
    job = merged([*whole, *active])
    assert [*job.ranks] == [0, 1, 2, 3]
    assert [line.partition(":")[0] for line in apart(job)] == [f"active/rank_{n}" for n in range(4)]
