"""What flight-recorder dumps, stacks and logs say of a hung job: one vocabulary for all three."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from unhang.diagnose.phrases import ABOUT

RUNNING, GONE = "running", "gone"
"""States of a process."""
SPEAKER = -1
"""A rank of a statement: whoever says it, while nobody knows that rank."""
_KINDS = (
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "reduce", "broadcast", "gather", "scatter", "send",
    "recv", "coalesced",
)  # fmt: skip
_MOST = 8
"""So many runs of ranks, or processes, are named: a large job would fill the screen."""


def span(ranks: Collection[int]) -> str:
    """Return ranks as people write them: ``0, 2-5, 8``. Of many runs, the first ones, the last, and their number."""
    runs: list[list[int]] = []
    for rank in sorted({*ranks}):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    texts = ["-".join(map(str, run)) for run in runs]
    if len(texts) <= _MOST:
        return ", ".join(texts)
    return f"{', '.join(texts[: _MOST - 1])}, ... {texts[-1]} ({len(ranks)} ranks)"


def spoken(ranks: Collection[int]) -> str:
    """Return ranks as a sentence has them: ``ranks 4-7``."""
    return f"rank{'' if len({*ranks}) == 1 else 's'} {span(ranks)}"


def kind_of(operation: str) -> str:
    """Return what we call an operation, given torch's name of it in a record or a log: ``_ALLGATHER_BASE``."""
    letters = operation.lower().replace("_", "")
    if "barrier" in letters:
        return "barrier"
    if operation not in (operation.lower(), operation.upper()):  # `ALLGATHER_coalesced`, as the recorder ends a batch
        letters = letters[-len("coalesced") :]
    return next((kind for kind in _KINDS if letters.startswith(kind.replace("_", ""))), operation.lower())


class Frame(NamedTuple):
    """One frame of a stack."""

    function: str  # as the source names it: with its class by py-spy on Python 3.11 and later, else without
    file: str
    line: int  # 0 if it is not known


class Group(NamedTuple):
    """A process group. What is not known is empty."""

    name: str  # torch's own name, a number: equal on all ranks of a group, and of one group only
    description: str  # `default_pg`, or what Megatron calls it (`EXPERT_DATA_PARALLEL_GROUP`)
    members: tuple[int, ...] = ()  # the global ranks, ascending


class Operation(NamedTuple):
    """A collective, or an operation between two ranks, as one rank issued it. None is what a source does not say."""

    rank: int
    group: Group
    sequence: int | None  # the number in its group, of collectives or of operations between two ranks, from 1 on
    kind: str  # a word of torch's functions, such as `all_reduce`; `coalesced`; or the recorder's own
    inputs: tuple[tuple[int, ...], ...] | None = None  # the sizes of each tensor
    outputs: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None  # of the inputs, in torch's C++ words: `Float`, `BFloat16`
    elements: int | None = None  # how many elements the inputs have in all: logs say no more of sizes
    done: bool = False
    frames: tuple[Frame, ...] = ()  # where it was issued, innermost first
    source: str = ""  # the file, and the line or entry in it: here as below
    peer: int | None = None  # of send and recv: the global rank at the other end
    begun: bool = False  # whether the device is in it; False also where torch does not time devices


class Stack(NamedTuple):
    """What one thread of a rank does."""

    thread: str
    frames: tuple[Frame, ...]  # innermost first
    idle: bool | None
    source: str
    moved: bool | None = None  # whether an earlier stack of it differs; None where there is no earlier one
    gil: bool = False  # whether it holds the interpreter's lock: what waits for a device lets go of it
    native: tuple[str, ...] = ()  # the native functions of which it is known what waits in them, innermost first


class Message(NamedTuple):
    """A line of a log that says why a rank waits or died."""

    text: str
    source: str
    frames: tuple[Frame, ...] = ()  # where it was raised, innermost first, if a traceback stands before it
    at: float | None = None  # in seconds since the year began, as far as lines say it: half of the formats have no year
    uncaught: bool = False  # whether torch's hook wrote it, for what nobody caught: its rank does not go on
    survived: bool = False  # whether lines after it, or the one above it, show that its process went on


class Move(NamedTuple):
    """One operation of a rank, as far as its place among those of others is concerned."""

    group: str
    kind: str  # `send` or `recv`; empty of a collective
    number: int  # the global rank at the other end; of a collective, its number
    done: bool
    order: int = 0  # its number among all operations in its group


class Recent(NamedTuple):
    """One of the newest entries of a rank's dump, as far as a picture shows it."""

    group: str  # the group's description, or its name
    kind: str  # the recorder's own word
    sequence: int
    created: int  # when the host issued it, in nanoseconds
    ended: int  # when it was seen to be done; 0 if that is not known
    waits: bool


class Count(NamedTuple):
    """How far one rank is in one group: numbers of collectives. -1 is what no file says."""

    enqueued: int = -1  # the newest one that the host has issued
    completed: int = -1  # the newest one that the device has done
    shared: bool = True  # whether all ranks of the group count alike: sends and receives have numbers of their own
    device: bool = True  # whether a device runs them, apart from the host; gloo has none


class Statement(NamedTuple):
    """What a line, or a few, say about ranks or processes."""

    cause: str  # one of ``phrases.CODES``
    words: str  # for the reader: a sentence without its full stop
    source: str
    culprits: tuple[int, ...] = ()  # the ranks that it blames
    processes: tuple[str, ...] = ()  # whom it blames without a rank, as the user would recognise them
    waits: tuple[int, ...] = ()  # the ranks that merely wait, by what it says
    by: int = SPEAKER  # the rank that says it
    speaker: str = ""  # who says it, where the rank is not known; empty if nothing tells
    at: float | None = None
    weight: str = ABOUT  # ``OWN``, ``ABOUT``, ``WAITS``, ``FOLLOWS`` or ``ENDS``, as in ``phrases``
    do: str = ""  # what to do about it, where that is more than what its cause's page says
    text: str = ""  # the line itself, or its beginning
    key: str = ""  # the name of its phrase
    values: tuple[tuple[str, str], ...] = ()  # what else the line tells, by the names of the phrase's groups


class Rank(NamedTuple):
    """All that is known of one rank."""

    rank: int  # -1 if a part of a file does not say it
    waiting: tuple[Operation, ...] = ()  # what is not done, in the order of issue: the oldest 16 of each group
    last: tuple[Operation, ...] = ()  # the newest one of each kind in each group that is done, in that order
    stacks: tuple[Stack, ...] = ()
    messages: tuple[Message, ...] = ()
    counts: Mapping[str, Count] = {}  # by the group's name
    recorded: bool = False  # whether there is a whole dump of it: only then `waiting` says all
    moves: Sequence[Move] = ()  # its newest operations in order, if it sends or receives
    process: str = ""  # `stopped` or `gone`, where that was seen of its process; `running` only in what one file says
    ended: bool = False  # whether a line of its own says that it has done all
    timed_out: bool = False  # whether a line of its own says that an operation of it timed out: it was there then
    cpu: float | None = None  # the share of a CPU that its main thread used between two stacks; None: not measured
    recent: tuple[Recent, ...] = ()
    statements: tuple[Statement, ...] = ()  # what a text says of ranks: only in a part of a file, of no rank
    name: str = ""  # what its process is called, where its stacks say it: ``pid 1003``, ``ray::IDLE (pid 7)``, a pod


class Unread(NamedTuple):
    """A file of which nothing, or only a part, could be read."""

    file: str
    why: str
    partly: bool  # whether some of it was read


class Job(NamedTuple):
    """All that the given files say."""

    ranks: Mapping[int, Rank]  # also processes of which nobody knows the rank, by numbers below -1, see ``names``
    groups: Mapping[str, Group]  # by name, with members where some dump lists them
    size: int | None  # how many ranks the job has, if some file says so
    files: int  # how many files were read, whole or in part
    unread: tuple[Unread, ...] = ()
    unranked: tuple[str, ...] = ()  # files of which nobody knows the rank
    strangers: tuple[Message, ...] = ()  # the errors of processes of which nobody knows the rank
    spoken: frozenset[int] = frozenset()  # others whose lines say neither where they wait nor why they died
    running: frozenset[int] = frozenset()  # those that `--live` has seen to run to the end; some are not in ``ranks``
    statements: tuple[Statement, ...] = ()  # what texts say about ranks and processes
    names: Mapping[int, str] = {}  # what processes of unknown rank are called, by their numbers

    def called(self, numbers: Collection[int]) -> str:
        """Return ranks and processes as a sentence has them: ``ranks 4-7``, ``pid 1003 (stacks.txt)``."""
        told = [self.names[number] for number in sorted(numbers, reverse=True) if number in self.names]
        told += ["a process"] if SPEAKER in numbers else []
        ranks = [number for number in numbers if number >= 0]
        shown = [*told[:_MOST], *([f"and {len(told) - _MOST} more"] if len(told) > _MOST else [])]
        return ", ".join([*([spoken(ranks)] if ranks else []), *shown])
