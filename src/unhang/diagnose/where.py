"""Where the ranks of a job are, in words, with the entries, frames and lines that say so."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang.diagnose import stacks
from unhang.diagnose.evidence import Frame, Group, Job, Message, Operation, Rank, Stack
from unhang.diagnose.phrases import LISTS, WAITS_FOR
from unhang.diagnose.stacks import MAIN, NOBODY
from unhang.plugins import packs
from unhang.tell import console

_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/python3\.\d+/")
_SHOWN = 2  # so many ranks of a place are shown with their lines
_LINES = 3
_BUSY = 0.05  # so much of a CPU is used by a thread that works; one that only looks now and then takes less
_COLLECTIVES, _HOST = frozenset(LISTS["collectives"]), frozenset(LISTS["host"])
_PAIRED = frozenset({"batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list"})
_DEVICE = ("torch/cuda/", "torch/accelerator/", "torch_npu/npu/")
"""Where a host waits for all that its device is to do. `.item()` and `.cpu()` do so too, without a frame."""
_OF_GROUPS = (stacks.COLLECTIVE, stacks.SET_UP, stacks.ENDS, stacks.STORE)  # what waits for other ranks
_NEAR = 8
_IDLE = ("ray/_private/worker.py", "ray/worker.py")
"""Where `main_loop` waits for the job's next call, with Python's waiting alone in so many frames above it."""
_DONE = ("unhang/prove/ranks/gloo.py", "_rank")
"""What waits so once all has gone well: a rank of ours that fails says it."""
_MODULES = LISTS["modules"]
_FOLLOWS, _LAUNCHERS, _DISAGREES = (LISTS[it] for it in ("follows", "launchers", "disagrees"))
_FATAL, _OWN = (*LISTS["fatal"], "exitcode"), (*LISTS["fatal"], *LISTS["own"])
_RAISED_WAITING = re.compile(
    r"(?:[\w.]*\.)?(?:Runtime|Dist\w*|System|OS|BrokenPipe|Connection\w*|Timeout|EOF|Ray\w+|Actor\w+|Signal\w*)"
    r"(?:Error|Exception)\b|(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|GetTimeoutError)\b"
)
"""What is raised where ranks wait for others. Another one, raised outside of torch, is its own, whatever its words."""


class Place(NamedTuple):
    """Some ranks that do the same, and the lines that say so."""

    ranks: tuple[int, ...]  # ascending
    doing: str  # such as `waiting in all_reduce 12 of default_pg, [2] Float` or `in all_reduce, called by step`
    evidence: tuple[str, ...]  # frames, entries or lines, with their file; a few of them


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


def places(job: Job, errors: Mapping[int, Sequence[Message]]) -> tuple[Place, ...]:
    """Return where all ranks are, those at the same place together, the most first."""
    found = merged(
        failing(number, errors[number]) if number in errors else elsewhere(rank) for number, rank in job.ranks.items()
    )
    return tuple(sorted(found, key=lambda one: (-len(one.ranks), one.ranks)))


def issued(rank: Rank, operation: Operation) -> Place:
    """Return that a rank waits in an operation: with its entry, and its frames, else with those of its stack."""
    lines = tuple(filter(None, [operation.source])) + (in_stack(rank).evidence if rank.stacks else ())
    if operation.frames:
        lines = (f"{operation.source}: {path(_shown(operation.frames))}",)
    return Place((rank.rank,), f"waiting in {_named(operation)}", lines)


def elsewhere(rank: Rank) -> Place:
    """Return where a rank is that others wait for."""
    if rank.waiting:
        return issued(rank, rank.waiting[0])
    if rank.process and not rank.stacks:
        return Place((rank.rank,), f"its process is {rank.process}", ())
    if rank.stacks:
        place = in_stack(rank)
        return place._replace(evidence=(*place.evidence, *failing(rank.rank, failures(rank)).evidence))
    last = [one for one in rank.last if one.kind]
    if not rank.recorded:
        return Place((rank.rank,), "in no collective that a file shows", ())
    if not last:
        return Place((rank.rank,), "waiting in no collective, and none is recorded", ())
    return Place((rank.rank,), "waiting in no collective", (f"{last[-1].source}: last {_named(last[-1])}",))


def in_stack(rank: Rank) -> Place:
    """Return where a rank is by its stacks: by the one that waits."""
    stack = waiting_stack(rank)
    frames = _shown(stack.frames)
    outside = [it for it in stack.frames if not (is_torch(it) or _is_of_host(it))]  # and do not merely wait
    inner = next((it.function for it in (*outside, *frames)), "no frame of Python")
    torch = next((frame.function for frame in stack.frames if _is_collective(frame)), inner)
    doing = f"in {torch}, called by {inner}" if torch != inner else f"in {inner}"
    if stack.native:
        doing = f"in {_native(stack)}{f', called by {inner}' if frames else ''}"
    elif is_idle(rank):
        doing += ": it is idle, and waits for its next task"
    elif is_controller(rank):
        doing += ": it waits for what it has called"
    if rank.process:
        doing += f", and its process is {rank.process}"
    elif stack.moved is not None:
        pace = "on a CPU: it works there, or waits in a loop" if _is_on_cpu(rank, stack) else ""
        pace = f"its two stacks are alike, {pace}" if pace else "does not move: its two stacks are alike"
        doing += f", and {'moves: its two stacks differ' if stack.moved else pace}"
    outer = [one for one in rank.stacks if one.thread == MAIN and one is not stack]  # where autograd's thread waits
    lines = [
        f"{one.source}: {path(_shown(one.frames)) or ' < '.join(one.native[:_LINES])}" for one in (stack, *outer[:1])
    ]
    return Place((rank.rank,), doing, tuple(lines))


def _native(stack: Stack) -> str:
    """Return what native code waits for: by its innermost known function, and the next one that tells more."""
    kinds = {stacks.native(one): one for one in reversed(stack.native)}
    inner = stacks.native(stack.native[0])
    outer = next((one for one in (stacks.ALLOCATOR, *_OF_GROUPS) if one in kinds and one != inner), "")
    more = f", within {kinds[outer]}" if outer else ""
    more += f": {WAITS_FOR[outer]}" if more and outer != stacks.COLLECTIVE else ""
    return f"{kinds[inner]}: {WAITS_FOR[inner]}{more}"


def waiting_stack(rank: Rank) -> Stack:
    """Return the stack in which a rank waits: one in a collective, else its main thread's, or autograd's below that."""
    is_outer = any("torch/autograd/" in one.frames[0].file for one in rank.stacks if one.thread == MAIN and one.frames)
    inner = [one for one in rank.stacks if is_outer and one.thread != MAIN and not stacks.is_helper(one)]
    return min((*inner, *rank.stacks), key=lambda one: (not _is_in_call(one), not inner and one.thread != MAIN))


def is_waiting(calls: Mapping[int, str], rank: Rank) -> bool:
    """Return whether a rank waits for others, by what it has issued, or by the calls in which ranks are."""
    return bool(rank.waiting or calls.get(rank.rank)) or (bool(rank.stacks) and waits_for_device(rank))


def waits_by_stack(rank: Rank) -> bool:
    """Return whether a rank may wait by its stack: in a collective, or where it lets go of Python's lock."""
    if not rank.stacks or waits_on_host(rank):
        return False
    stack = waiting_stack(rank)
    return _is_in_call(stack) or (not stack.moved and not stack.gil and stack.idle is not True)


def moved(rank: Rank) -> bool | None:
    """Return whether a rank's main thread has moved between two stacks; None if there are no two."""
    return next((one.moved for one in rank.stacks if one.thread == MAIN), None)


def is_busy(rank: Rank) -> bool:
    """Return whether a rank's main thread moves, or is on a CPU."""
    return any(one.moved or _is_on_cpu(rank, one) for one in rank.stacks if one.thread == MAIN)


def _is_on_cpu(rank: Rank, stack: Stack) -> bool:
    """Return whether a thread uses a CPU: by what it has used between two stacks, else by py-spy, at the last one."""
    is_measured = rank.cpu is not None and stack.thread == MAIN
    return (rank.cpu or 0.0) >= _BUSY if is_measured else stack.idle is False


def _shown(frames: Sequence[Frame]) -> list[Frame]:
    """Return the innermost frames outside of torch."""
    return ([frame for frame in frames if not is_torch(frame)] or list(frames))[:_LINES]


def path(frames: Sequence[Frame]) -> str:
    """Return frames as people read them: each path from its package on, else the end of it."""
    files = [re.split("(?:site|dist)-packages/", one.file, maxsplit=1) for one in frames]
    short = [one[1] if one[1:] else "/".join(one[0].split("/")[-3:]) for one in files]
    return " < ".join(f"{frame.function} ({file}:{frame.line})" for frame, file in zip(frames, short))


def is_torch(frame: Frame) -> bool:
    """Return whether a frame is torch's, but for its data loader, which is where a rank waits for its own data."""
    return "/torch/" in f"/{frame.file}" and "torch/utils/data/" not in frame.file


def is_of_framework(frame: Frame) -> bool:
    """Return whether a frame may be of an upstream's package: py-spy begins a path below a namespace package."""
    own, upstreams = f"/{frame.file}".replace("\\", "/"), packs.upstreams().values()
    is_below = own.startswith(tuple(f"/{one.module.rpartition('.')[2]}/" for one in upstreams if one.above))
    return is_below or any(f"/{one.module.partition('.')[0]}/" in own for one in upstreams)


def is_of_user(frame: Frame) -> bool:
    """Return whether a frame is surely of a user's code: of no installed package, and of no framework."""
    name = frame.file.rpartition("/")[2].removesuffix(".py")
    if name in sys.stdlib_module_names or not frame.file.endswith(".py"):
        return False
    if name == frame.file.removesuffix(".py"):  # so py-spy names what stands in a folder on the path
        return True
    return frame.file.startswith("/") and not _INSTALLED.search(frame.file) and not is_of_framework(frame)


def _is_collective(frame: Frame) -> bool:
    return frame.function in _COLLECTIVES and f"/{frame.file}".endswith(tuple(f"/{one}" for one in _MODULES))


def _is_in_call(stack: Stack) -> bool:
    """Return whether a stack waits for other ranks: in torch's call of a collective, or in native code."""
    return any(map(_is_collective, stack.frames)) or any(stacks.native(one) in _OF_GROUPS for one in stack.native)


def collectives(rank: Rank) -> list[str]:
    """Return the functions of torch in which a rank waits for others by its stacks."""
    return [frame.function for one in rank.stacks for frame in one.frames if _is_collective(frame)]


def is_idle(rank: Rank) -> bool:
    """Return whether a rank waits to be told more, after a call that went well or failed."""
    return any(_waits_in(rank, file, "main_loop") for file in _IDLE)


def is_controller(rank: Rank) -> bool:
    """Return whether a process waits for calls that it has made of Ray's workers, by its main thread."""
    ray = [f.function for f in ((rank.stacks and main(rank).frames) or ())[:_NEAR] if f.file.endswith(_IDLE)]
    return not {"get", "get_objects", "wait"}.isdisjoint(ray)


def is_done(rank: Rank) -> bool:
    """Return whether a rank has done all that it was to do; it may have left its script, and wait for its threads."""
    outer = [alike(one.frames[-1])[:2] for one in rank.stacks if one.thread == MAIN and one.frames]
    has_left = ("_shutdown", "threading.py") in outer
    return has_left or _waits_in(rank, *_DONE) or (rank.ended and not (rank.waiting or rank.stacks))


def _waits_in(rank: Rank, file: str, function: str) -> bool:
    return any(
        frame.function.rpartition(".")[2] == function
        and f"/{frame.file}".endswith(f"/{file}")
        and all(_is_of_host(above) for above in stack.frames[:at])
        for stack in rank.stacks
        for at, frame in enumerate(stack.frames[:_NEAR])
    )


def call(rank: Rank) -> str:
    """Return the call of a collective in which a rank is by its stacks; empty if it is in none."""
    stack = next(filter(_is_in_call, rank.stacks), None)
    if stack is None or not stack.frames:
        return "" if stack is None else _native(stack)
    return "{} ({}:{})".format(*alike(_shown(stack.frames)[0]))


def ends_groups(rank: Rank) -> bool:
    """Return whether a rank, which waits in nothing else, ends its groups: it has done its part of the job."""
    return not rank.waiting and collectives(rank)[:1] == ["destroy_process_group"]


def have_peers(job: Job) -> bool:
    """Return whether some rank sends or receives by its stack: the stages of a pipeline are in different calls."""
    return any(not _PAIRED.isdisjoint(collectives(rank)) for rank in job.ranks.values())


def alike(frame: Frame) -> tuple[str, str, int]:
    """Return what a frame shares with that of another rank: py-spy cuts paths, and sources leave out classes."""
    return frame.function.rpartition(".")[2], frame.file.rpartition("/")[2], frame.line


def main(rank: Rank) -> Stack:
    """Return the stack of a rank's main thread."""
    return next((one for one in rank.stacks if one.thread == MAIN), rank.stacks[0])


def path_to(rank: Rank) -> tuple[tuple[str, str, int], ...]:
    """Return the whole stack of a rank's main thread, to compare it with others."""
    return tuple(map(alike, main(rank).frames))


def waits_for_device(rank: Rank) -> bool:
    """Return whether a rank's main thread waits for its device, and does not move, by its innermost frame."""
    stack = main(rank)
    if stack.native:
        return not stack.moved and stacks.native(stack.native[0]) == stacks.DEVICE
    return not stack.moved and any(
        frame.function.rpartition(".")[2] == "synchronize" and any(f"/{one}" in f"/{frame.file}" for one in _DEVICE)
        for frame in stack.frames[:1]
    )


def waits_on_host(rank: Rank) -> bool:
    """Return whether a rank's main thread waits for what no device does: a lock, a queue, a process, a file."""
    stack = main(rank)
    file = stack.frames[0].file if stack.frames else ""
    return bool(stack.frames and _is_of_host(stack.frames[0])) or "torch/utils/data/" in file


def _is_of_host(frame: Frame) -> bool:
    return frame.file.rpartition("/")[2] in _HOST or frame.function == "_get_next_task_from_local_scheduler"


def _named(operation: Operation) -> str:
    """Return an operation in words: `all_reduce 12 of default_pg, [2] Float`."""
    number = "" if operation.sequence is None else f" {operation.sequence}"
    group = f" of {label(operation.group)}" if operation.group.name or operation.group.description else ""
    if operation.inputs:
        sizes = ", ".join(str(list(one)) for one in operation.inputs[:2])
        more = ", ..." if len(operation.inputs) > 2 else ""
        size = f", {sizes}{more} {operation.dtypes[0] if operation.dtypes else ''}"
    else:
        size = f", {console.count(operation.elements, 'element')}" if operation.elements else ""
    return f"{operation.kind or 'collective'}{number}{group}{size}".rstrip()


def label(group: Group) -> str:
    """Return a group as people know it: by its description, else by its name."""
    return group.description or (f"group {group.name}" if group.name else "a group")


def failing(number: int, messages: Sequence[Message]) -> Place:
    """Return that a rank fails with these lines."""
    return Place((number,), "failing", tuple(f"{one.source}: {one.text}" for one in messages[:_LINES]))


def failures(rank: Rank) -> list[Message]:
    """Return the lines with which a rank fails by itself, and not since its peers are late or gone."""
    own = [one for one in rank.messages if _is_own(one) or not _has(one, (*_FOLLOWS, *_DISAGREES))]
    said = [one for one in own if not one.text.startswith("exitcode")]
    followed = any(_has(one, _FOLLOWS) and not _is_own(one) for one in rank.messages)
    return said or [one for one in own if not followed or "-9" in one.text]


def has_ended(rank: Rank, errors: Sequence[Message]) -> bool:
    """Return whether a rank's process has ended with its errors: what it had issued, its device is still to do."""
    if any(_has(one, _FATAL) for one in errors):
        return True
    was_there = rank.timed_out or any(_has(one, _FOLLOWS) and not _is_own(one) for one in rank.messages)
    # a traceback goes back to the script: one that is caught begins where that is done
    outer = [[it for it in one.frames if not it.file.endswith("<frozen runpy>")][-1:] for one in errors]
    is_uncaught = any(it.function == "<module>" and it.file != "<string>" for one in outer for it in one)
    is_over = is_uncaught or any(one.text.startswith("exitcode") for one in rank.messages)
    return is_over and not was_there


def failures_of_strangers(messages: Sequence[Message]) -> list[Message]:
    """Return the lines with which a process of unknown rank fails by itself; launchers tell of others, so last."""
    join = "torch/multiprocessing/spawn.py"  # torch's launcher tells there what a process has raised
    raised = [
        one for one in messages if not any(it.file.endswith(join) and it.function.endswith("join") for it in one.frames)
    ]
    own = [
        one
        for one in failures(Rank(NOBODY, messages=tuple(raised)))
        if (one.frames and not _has(one, _LAUNCHERS)) or _has(one, _OWN)
    ]
    return sorted(own, key=lambda one: _has(one, _LAUNCHERS))


def _is_own(message: Message) -> bool:
    """Return whether a rank says it of itself, whether others are late or not."""
    is_raised = message.frames and re.match(r"[\w.]+:", message.text) and not _RAISED_WAITING.match(message.text)
    return _has(message, _OWN) or bool(is_raised and not any(is_torch(frame) for frame in message.frames))


def _has(message: Message, words: Sequence[str]) -> bool:
    return any(word in message.text.lower() for word in words)
