"""Where the ranks of a job are, in words, with the entries, frames and lines that say so."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from unhang.diagnose import match
from unhang.diagnose.answer import Place
from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank
from unhang.diagnose.signature import Chain

_SHOWN = 2
"""So many ranks of a place are shown with their lines."""
_LINES = 3
_NEAR = 8
"""A collective is this near to the end of a stack: further out, FSDP calls the model."""
_FOLLOWS = (
    "timed out", "timeout", "connection reset", "connection closed", "watchdog", "broken pipe", "dump signal",
    "exitcode  : -6", "fatal python error: aborted", "terminate called", "monitoredbarrier", "communicator was aborted",
    "keyboardinterrupt", "cancelled", "ncclremoteerror", "sigabrt",
)  # fmt: skip
"""What a rank says, in lower case, whose peers are late or gone."""
_DISAGREES = ("op.preamble", "detected mismatch between")
"""What gloo, or torch with TORCH_DISTRIBUTED_DEBUG=DETAIL, says where ranks disagree on a size or a collective."""


def merged(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return places with the ranks that do the same together; the lines are those of the first ones."""
    ranks: dict[str, list[int]] = defaultdict(list)
    lines: dict[str, list[str]] = defaultdict(list)
    for place in places:
        if len(ranks[place.doing]) < _SHOWN:
            lines[place.doing] += place.evidence
        ranks[place.doing] += place.ranks
    return tuple(
        Place(tuple(sorted({*same})), doing, tuple(dict.fromkeys(lines[doing]))) for doing, same in ranks.items()
    )


def of_waiting(job: Job) -> tuple[Place, ...]:
    """Return where the ranks wait that wait."""
    return merged(waits(rank) for rank in job.ranks.values() if rank.waiting)


def waits(rank: Rank) -> Place:
    """Return where a rank waits: in the first of its operations."""
    return Place((rank.rank,), f"waiting in {_named(rank.waiting[0])}", _lines(rank, rank.waiting[0], ()))


def elsewhere(rank: Rank) -> Place:
    """Return where a rank is that others wait for."""
    if rank.waiting:
        return waits(rank)
    if rank.stacks:
        place = in_stack(rank, ())
        return place._replace(evidence=(*place.evidence, *failing(rank.rank, failures(rank)).evidence))
    last = [one for one in rank.last if one.kind]
    if not rank.recorded:
        return Place((rank.rank,), "in no collective that a file tells of", ())
    if not last:
        return Place((rank.rank,), "waiting in no collective, and none is recorded", ())
    return Place((rank.rank,), "waiting in no collective", (f"{last[-1].source}: last {_named(last[-1])}",))


def issued(rank: Rank, operation: Operation, chain: Chain) -> Place:
    """Return that a rank waits in an operation, or is past it, with the frames of a signature."""
    verb = "past" if operation.done else "waiting in"
    return Place((rank.rank,), f"{verb} {_named(operation)}", _lines(rank, operation, chain))


def in_stack(rank: Rank, chain: Chain) -> Place:
    """Return where a rank is by its stacks: by the one with these frames, else by one in a collective."""
    stacks = sorted(rank.stacks, key=lambda one: (not match.has_frames(one.frames, chain), not _is_call(one.frames)))
    stack = stacks[0]
    frames = _shown(stack.frames, chain)
    inner = frames[0].function if frames else "no frame of Python"
    torch = next((frame.function for frame in stack.frames[:_NEAR] if _is_distributed(frame)), inner)
    doing = f"in {torch}, called by {inner}" if torch != inner else f"in {inner}"
    return Place((rank.rank,), doing, (f"{stack.source}: {_path(frames)}",))


def _lines(rank: Rank, operation: Operation, chain: Chain) -> tuple[str, ...]:
    """Return the entry of an operation, with its frames, else with those of the rank's stack."""
    frames = operation.frames
    lines = [f"{operation.source}: {_path(_shown(frames, chain))}" if frames else operation.source]
    if not frames and rank.stacks:
        lines += in_stack(rank, chain).evidence
    return tuple(line for line in lines if line)


def _shown(frames: Sequence[Frame], chain: Chain) -> list[Frame]:
    """Return the frames of a signature, else the innermost ones outside of torch."""
    named = [
        frame for frame in frames if any(match.has_frames([frame], ((place,),)) for step in chain for place in step)
    ]
    outside = [frame for frame in frames if not _is_torch(frame)] or list(frames)
    return (named or outside)[:_LINES]


def _path(frames: Sequence[Frame]) -> str:
    return " < ".join(f"{frame.function} ({_short(frame.file)}:{frame.line})" for frame in frames)


def _short(file: str) -> str:
    """Return a path from its package on, else the end of it."""
    installed = re.search(r"(?:site|dist)-packages/(.+)", file)
    return installed[1] if installed else "/".join(file.split("/")[-3:])


def _is_torch(frame: Frame) -> bool:
    return "/torch/" in f"/{frame.file}"


def _is_distributed(frame: Frame) -> bool:
    return "/torch/distributed/" in f"/{frame.file}"


def _is_call(frames: Sequence[Frame]) -> bool:
    """Return whether a stack is in a collective of torch."""
    return any(map(_is_distributed, frames[:_NEAR]))


def call(rank: Rank) -> str:
    """Return the call of a collective in which a rank is by its stacks; empty if it is in none."""
    for stack in rank.stacks:
        if _is_call(stack.frames):
            return _path(_shown(stack.frames, ())[:1]) or "?"
    return ""


def _named(operation: Operation) -> str:
    """Return an operation in words: `all_reduce 12 of default_pg, [2] Float`."""
    number = "" if operation.sequence is None else f" {operation.sequence}"
    group = f" of {label(operation.group)}" if operation.group.name or operation.group.description else ""
    if operation.inputs:
        sizes = ", ".join(str(list(one)) for one in operation.inputs[:2])
        more = ", ..." if len(operation.inputs) > 2 else ""
        size = f", {sizes}{more} {operation.dtypes[0] if operation.dtypes else ''}"
    else:
        size = f", {operation.elements} elements" if operation.elements else ""
    return f"{operation.kind}{number}{group}{size}".rstrip()


def label(group: Group) -> str:
    """Return a group as people know it: by its description, else by its name."""
    return group.description or f"group {group.name}"


def failing(number: int, messages: Sequence[Message]) -> Place:
    """Return that a rank fails with these lines."""
    return Place((number,), "failing", tuple(f"{one.source}: {one.text}" for one in messages[:_LINES]))


def failures(rank: Rank) -> list[Message]:
    """Return the lines with which a rank fails by itself, and not since its peers are late or gone."""
    return [one for one in rank.messages if not _has(one, (*_FOLLOWS, *_DISAGREES))]


def disagreements(rank: Rank) -> list[Message]:
    """Return the lines that say that ranks disagree on a size or a collective."""
    return [one for one in rank.messages if _has(one, _DISAGREES)]


def _has(message: Message, words: Sequence[str]) -> bool:
    return any(word in message.text.lower() for word in words)
