"""Made-up evidence of hung jobs, as NCCL's dumps, py-spy and logs give it."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank, Stack

SITE = "/opt/venv/lib/python3.11/site-packages/"
C10D = "torch/distributed/distributed_c10d.py::all_reduce"
IDLE = ("ray/_private/worker.py::main_loop",)


def group(name: str, description: str, *members: int) -> Group:
    """Return a process group, by default of four ranks."""
    return Group(name, description, members or (0, 1, 2, 3))


WORLD = group("0", "default_pg")


class HungJob(NamedTuple):
    """What a job leaves, and what `unhang diagnose` says of it. A fix's test module has a list of these: ``HANGS``.

    Each hang of the fix's signature is in one of them at least; what only looks like it is there too.
    """

    name: str
    job: Job
    sure: str = "known"
    """The answer of the fix, in an environment that needs every fix: ``known``, ``also`` or nothing."""


def frames(*places: str) -> tuple[Frame, ...]:
    """Return frames, innermost first: each place is ``file::function``, as a manifest names it."""
    return tuple(
        Frame(function.rpartition(".")[2], f"{'/' if file.startswith('job') else SITE}{file}", 7)
        for file, function in (one.split("::") for one in places)
    )


def issued(
    group: Group,
    number: int,
    kind: str,
    *sizes: int,
    dtype: str = "Float",
    at: Sequence[str] = (),
    done: bool = False,
    outputs: Sequence[int] | None = None,
) -> Operation:
    """Return a collective of one input. ``job`` fills in the rank."""
    inputs = (tuple(sizes),)
    out = inputs if outputs is None else (tuple(outputs),)
    source, elements = "dump: entry 1", prod(sizes)
    return Operation(-1, group, number, kind, inputs, out, (dtype,), elements, done, frames(*at), source)


def rank(*operations: Operation, at: Sequence[str] = (), lines: Iterable[Message] = (), recorded: bool = True) -> Rank:
    """Return what is known of a rank: its operations, and the stack of its main thread."""
    stacks = (Stack("MainThread", frames(*at), None, "stack"),) if at else ()
    waiting = tuple(one for one in operations if not one.done)
    last = tuple(one for one in operations if one.done)
    return Rank(-1, waiting, last, stacks, tuple(lines), recorded=recorded)


def job(ranks: Sequence[Rank | None], size: int | None = None) -> Job:
    """Return a job of these ranks; of one that is None there is no file."""
    found = {}
    for number, one in enumerate(ranks):
        if one is not None:
            waiting, last = (tuple(it._replace(rank=number) for it in same) for same in (one.waiting, one.last))
            found[number] = one._replace(rank=number, waiting=waiting, last=last)
    groups = {it.group.name: it.group for one in found.values() for it in (*one.waiting, *one.last) if it.group.name}
    return Job(found, groups, size or len(ranks), len(found))


def sizes(group: Group, kind: str, at: Sequence[str], *lengths: int, number: int = 1) -> Job:
    """Return a job whose ranks issue a collective of these sizes."""
    return job([rank(issued(group, number, kind, length, at=at)) for length in lengths])


def failing(text: str, *at: str) -> list[Message]:
    """Return the line with which a rank fails, raised there."""
    return [Message(text, "log:9", frames(*at))]


def without_frames(whole: Job) -> Job:
    """Return the same job without frames, stacks and lines."""

    def bare(operations: Iterable[Operation]) -> tuple[Operation, ...]:
        return tuple(one._replace(frames=()) for one in operations)

    ranks = {
        number: one._replace(waiting=bare(one.waiting), last=bare(one.last), stacks=(), messages=())
        for number, one in whole.ranks.items()
    }
    return whole._replace(ranks=ranks)


def without(whole: Job, *missing: int) -> Job:
    """Return the same job without the files of these ranks."""
    return whole._replace(ranks={number: one for number, one in whole.ranks.items() if number not in missing})
