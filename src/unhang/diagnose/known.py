"""What the code is at which ranks wait or fail: functions of a fix's signature, and what explains the hang before it.

That such a function needs its fix here is a fact about the job's code. Whether it hung the job is seen from the other
ranks: where they are, in what they differ, and whether one of them has failed or is held up by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import takewhile
from os.path import join
from typing import NamedTuple, Protocol

from unhang import packs
from unhang.diagnose import collectives, where
from unhang.diagnose.collectives import Meeting
from unhang.diagnose.evidence import Count, Frame, Message, Operation, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.fixes import Chain, Error, Hang, Place, Signature
from unhang.diagnose.where import is_of_framework, is_of_user
from unhang.diagnose.who import DEVICE, TOGETHER, Who

_LOGGER = "torch/distributed/c10d_logger.py"
"""What stands around each of torch's collectives; in between may be a decorator's frame."""
SHIMS = "unhang/prove/"
"""What stands for torch, or for the rest of a framework, where we record hangs."""


class Source(Protocol):
    """Tells in which function a line is."""

    def is_at(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function; None if that is not known."""


class Sources:
    """The sources below some folders of the import path."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._roots = tuple(roots)

    def is_at(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function, by its line; None if no source here tells."""
        called = _bare(frame)
        for root in self._roots:
            named = [name for first, last, name in _functions(join(root, place.file)) if first <= frame.line <= last]
            if named and named[-1].rpartition(".")[2] == called:
                return named[-1] == place.function or named[-1].endswith(f".{place.function}")
        return None


def _bare(frame: Frame) -> str:
    """Return the name of a frame's function alone, without its class."""
    return frame.function.rpartition(".")[2]


@lru_cache(maxsize=64)
def _functions(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return the first line, the last line and the qualified name of each function, the outer ones first."""
    try:
        return tuple(_within(ast.parse(packs.read(path)), ""))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()


def _within(node: ast.AST, above: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = above
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield child.lineno, child.end_lineno or child.lineno, name
        yield from _within(child, name)


class Match(NamedTuple):
    """A hang in whose functions ranks wait, or with whose error one has failed."""

    fix: str
    hang: Hang
    inside: Mapping[int, Operation | None]
    """The ranks that wait there: in which operation, or None if their stack alone tells."""
    errors: tuple[tuple[int, Message], ...]
    """The lines that it names, with their ranks; -1 where nobody knows the rank."""
    before: tuple[str, ...]
    """What explains the hang before it, each in a sentence."""
    is_sure: bool
    """Whether the function is told from those of the same name in other classes."""


def matches(facts: Facts, who: Who, signatures: Iterable[Signature], source: Source) -> tuple[Match, ...]:
    """Return for each fix the hang that the files show best, those first that nothing else explains."""
    found: dict[str, Match] = {}
    if facts.goes_on:
        return ()
    for signature in signatures:
        rewritten = [_match(facts, who, signature.fix, hang, _Paths(source)) for hang in signature.hangs]
        if best := sorted((one for one in rewritten if one), key=_order)[:1]:
            found[signature.fix] = best[0]
    return tuple(sorted(found.values(), key=_order))


def _order(match: Match) -> tuple[bool, bool, bool]:
    return bool(match.before), not match.is_sure, not match.errors


class _Paths:
    """Looks for functions in stacks."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.steps = cache(self._steps)  # the ranks of a job are in few places

    def _at(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function; None if it may be one of that name in another class or file.

        A user's module may have the same name, and py-spy cuts paths.
        """
        called = f".{frame.function.replace('<locals>.', '')}"
        if not called.endswith(f".{place.function}") and not f".{place.function}".endswith(called):
            return False
        file, told = frame.file.replace("\\", "/"), self._source.is_at(frame, place)
        is_whole = f"/{file}".endswith(f"/{place.file}") or file == packs.below_namespace(place.file)
        if told is not None or not (is_whole or f"/{place.file}".endswith(f"/{file}")):
            return bool(told) and (is_whole or f"/{place.file}".endswith(f"/{file}"))
        return True if is_whole and ("." in frame.function or "." not in place.function) else None

    def _steps(self, frames: Sequence[Frame], chain: Chain) -> tuple[tuple[int, bool], ...]:
        """Return for each step of a chain where in a stack it is, or -1, and whether that is sure."""
        found = []
        for step in chain:
            told = [[self._at(frame, place) for place in step] for frame in frames]
            sure = next((at for at, several in enumerate(told) if True in several), -1)
            found.append(
                (sure, True) if sure >= 0 else (next((n for n, it in enumerate(told) if None in it), -1), False)
            )
        return tuple(found)

    def has(self, frames: Sequence[Frame], chain: Chain) -> bool:
        """Return whether a stack has one place of each step of a chain."""
        return bool(chain) and all(at >= 0 for at, _ in self.steps(frames, chain))

    def is_sure(self, frames: Sequence[Frame], chain: Chain) -> bool:
        """Return whether the functions that a stack has are surely these: all of them, or one of a class, by which the
        others are told from their namesakes.
        """
        found = [(sure, step) for (at, sure), step in zip(self.steps(frames, chain), chain) if at >= 0]
        is_told = any(sure and all("." in place.function for place in step) for sure, step in found)
        return is_told or (bool(found) and all(sure for sure, _ in found))

    def waits(self, frames: Sequence[Frame], chain: Chain, *, is_call: bool) -> bool:
        """Return whether a rank that waits with this stack does so in these functions, and not in a user's code that
        they call. A host that waits for its device may have left the innermost of them.
        """
        steps, own = [at for at, _ in self.steps(frames, chain)], issuers(frames)
        if not chain or not own:
            return False
        if not is_call and len(chain) > 1 and steps[0] < 0 <= min(steps[1:]):
            return frames[steps[1]] == own[0]
        above = takewhile(lambda it: it != frames[steps[0]], own)
        return min(steps) >= 0 and not any(_is_of_user(it, chain) for it in above)


def issuers(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames outside of torch of a rank that waits, the innermost first. FSDP waits for who calls it."""
    logged = [at for at, frame in enumerate(frames) if frame.file.endswith(_LOGGER)]
    frames = frames[logged[-1] :] if logged else frames
    fsdp = [frame for frame in frames if "/torch/" in f"/{frame.file}" and "/fsdp/" in frame.file][:1]
    return [*fsdp, *(it for it in frames if not where.is_torch(it) and SHIMS not in it.file)]


def _match(facts: Facts, who: Who, fix: str, hang: Hang, paths: _Paths) -> Match | None:
    """Return how a hang is shown; None if no rank is in its functions, or the others are where it leaves nobody."""
    inside = dict(_inside(facts, hang, paths))
    errors = tuple(_errors(facts, hang, paths))
    if not (inside or errors):
        return None
    meetings = [one for one in facts.meetings if not one.operations.keys().isdisjoint(inside)]
    meetings = [it for it in meetings if any(it.operations.get(n) == inside[n] for n in inside if inside[n])]
    if not errors and _is_refuted(facts, hang, inside, meetings, paths):
        return None
    before = tuple(dict.fromkeys(_before(facts, who, hang, inside, errors, meetings, paths)))
    shown = [it for number in inside for it in _shown(facts.job.ranks[number])]
    named = [(one.frames, it.frames) for _, one in errors for it in hang.errors if _is_named(one, it, paths)]
    is_sure = any(paths.is_sure(*it) for it in named) if errors else any(paths.is_sure(it, hang.waits) for it in shown)
    return Match(fix, hang, inside, errors, before, is_sure)


def _inside(facts: Facts, hang: Hang, paths: _Paths) -> Iterator[tuple[int, Operation | None]]:
    """Yield the ranks that wait in a hang's functions, by what they wait in first, else by their stacks."""
    for number, rank in facts.job.ranks.items():
        first = {one.group.name: one for one in reversed(rank.waiting)}
        issued = [one for one in first.values() if one.frames and paths.waits(one.frames, hang.waits, is_call=True)]
        if issued:
            yield number, issued[0]
        elif not (rank.waiting and all(one.frames for one in rank.waiting)) and where.waits_by_stack(rank):
            call = where.waiting_stack(rank)
            if paths.waits(call.frames, hang.waits, is_call=bool(facts.calls[number])):
                yield number, next((one for one in rank.waiting if not one.frames), None)


def _errors(facts: Facts, hang: Hang, paths: _Paths) -> Iterator[tuple[int, Message]]:
    """Yield the lines that a hang names, but for those of a rank that went on after them."""
    told = [(number, one) for number, lines in facts.errors.items() for one in lines]
    devices = {one.by for one in facts.job.statements if one.cause == "cuda-error"}
    for number, message in [*told, *((-1, one) for one in facts.strangers)]:
        is_other = number in devices and "cuda error" in message.text  # NCCL's word for an error that a line tells
        if not is_other and any(_is_named(message, error, paths) for error in hang.errors):
            yield number, message


def _is_named(message: Message, error: Error, paths: _Paths) -> bool:
    """Return whether a line is that error. Its words are whole, so a size of 0 is no other that begins so."""
    if not re.search(rf"(?<!\w){re.escape(error.text)}(?!\w|\.\d)", message.text):
        return False
    if not message.frames:  # its traceback is cut off: it may be of another place
        return True
    if not paths.has(message.frames, error.frames):
        return False
    own = [frame.file for frame in message.frames if not where.is_torch(frame)]
    return error.called or own[0] == message.frames[paths.steps(message.frames, error.frames)[0][0]].file


def _is_refuted(
    facts: Facts, hang: Hang, inside: Mapping[int, object], meetings: Sequence[Meeting], paths: _Paths
) -> bool:
    """Return whether ranks are where this hang does not leave them, or agree where they must differ."""
    ranks, rest = facts.job.ranks, _rest(facts, inside, meetings)
    differ = {name for one in meetings for name in one.differ}
    absent = [number for one in meetings for number in one.absent]
    if hang.types:
        types = {it for one in meetings for op in one.operations.values() for it in op.dtypes or ()}
        is_other = bool(types - {*hang.types}) or any(_is_turned(one, hang.types) for one in meetings)
        return is_other or _agrees(meetings, differ, {"dtype"}, absent)
    if hang.differ in ("size", "order"):
        if hang.first and any((one.sequence or 0) > 1 and "size" in one.differ for one in meetings):
            return True
        is_other = hang.differ == "order" and not _is_reordered(facts, hang, meetings, paths)
        return is_other or _agrees(meetings, differ, {"size"}, absent)
    if hang.differ == "empty":
        newest = [_newest(ranks[number], one) for one in meetings for number in rest]
        return any(one is not None and one.inputs is not None and not _is_empty(one) for one in newest)
    if hang.few and len(inside) > len({*rest, *facts.unseen}):
        return True
    if any(one.agrees for one in meetings) or (facts.job.size and not rest and len(inside) == facts.job.size):
        return True  # all have come
    waiting = [it for it in rest if where.is_waiting(facts.calls, ranks[it]) and not where.ends_groups(ranks[it])]
    return hang.peers is not None and any(
        not any(paths.has(it, hang.peers) for it in _shown(ranks[number])) for number in waiting
    )


def _is_turned(meeting: Meeting, types: Sequence[str]) -> bool:
    """Return whether the source of a broadcast, the first rank of its group, has the type that the receivers have."""
    one = meeting.operations.get(meeting.group.members[0]) if meeting.group.members else None
    return one is not None and one.kind == "broadcast" and (one.dtypes or ())[:1] not in ((), (types[0],))


def _agrees(meetings: Sequence[Meeting], differ: set[str], wanted: set[str], absent: Sequence[int]) -> bool:
    """Return whether ranks agree where a hang needs them to differ; where some have not come, they need not."""
    if differ & wanted:
        return False
    return bool(differ or absent) or any(one.agrees for one in meetings)


def _shown(rank: Rank) -> list[tuple[Frame, ...]]:
    """Return the paths by which a rank came to where it waits."""
    return [one.frames for one in rank.waiting[:1] if one.frames] or [one.frames for one in rank.stacks]


def _rest(facts: Facts, inside: Mapping[int, object], meetings: Sequence[Meeting]) -> list[int]:
    """Return the ranks that have a part in it and are not inside: those of the group, or all that left something."""
    members = {number for one in meetings for number in collectives.members(facts.job, one.group)}
    known = {number for one in meetings for number in (*one.operations, *one.absent)} if meetings else set()
    around = (members | known) if meetings and (members or known - inside.keys()) else {*facts.job.ranks}
    return sorted(number for number in around - inside.keys() if number in facts.job.ranks)


def _newest(rank: Rank, meeting: Meeting) -> Operation | None:
    """Return a rank's newest collective in a group."""
    own = [one for one in (*rank.last, *rank.waiting) if one.group.name == meeting.group.name and one.kind]
    return max(own, key=lambda one: one.sequence or 0, default=None)


def _is_empty(operation: Operation) -> bool:
    return any(0 in sizes for sizes in (*(operation.inputs or ()), *(operation.outputs or ())))


def _is_reordered(facts: Facts, hang: Hang, meetings: Sequence[Meeting], paths: _Paths) -> bool:
    """Return whether ranks may issue the same in another order: those that have gone on issued equally many."""
    for one in meetings:
        ended = {
            one.operations[number].group.name and facts.counts.get(one.group.name, {}).get(number, Count()).enqueued
            for number in one.operations
            if (stacks := facts.job.ranks[number].stacks)
            if not any(paths.has(it.frames, hang.waits) for it in stacks)
        }
        if len(ended) > 1:
            return False
    return True


def _before(
    facts: Facts,
    who: Who,
    hang: Hang,
    inside: Mapping[int, object],
    errors: Sequence[tuple[int, Message]],
    meetings: Sequence[Meeting],
    paths: _Paths,
) -> Iterator[str]:
    """Yield what explains the hang first: an error, a process that is gone, a device, or a rank held up by itself."""
    ranks, called, named = facts.job.ranks, facts.job.called, {message.text for _, message in errors}
    for number, lines in (*facts.errors.items(), (-1, facts.strangers)):
        whose = "a process" if number == -1 else called([number])
        yield from [f"{whose} failed by itself: {one.text}" for one in lines if one.text not in named][:1]
    yield from (f"{called([number])}: its process is {one.process}" for number, one in ranks.items() if one.process)
    if who.rule in (DEVICE, TOGETHER):
        is_told = bool(hang.differ in ("size", "order") or hang.types)
        yield from (
            f"{called([number])}: {why}" for number, why in who.why.items() if not (is_told and number in inside)
        )
    if len(_ways(ranks, inside, hang, paths)) > 1:
        yield "these ranks came to the function by different calls"
    failed = {number for number, _ in errors}
    absent = {number for one in meetings for number in one.absent}
    for number in _rest(facts, inside, meetings):
        rank = ranks[number]
        if number in failed or where.is_done(rank) or where.ends_groups(rank):
            continue
        if hang.peers == () and where.is_idle(rank):
            continue
        if not (hang.differ or hang.types or hang.peers or errors) and any(
            paths.has(it, hang.waits[-1:]) for it in _shown(rank)
        ):
            yield f"{called([number])} has yet to come: it is in {hang.waits[-1][0].function}"
        elif where.is_waiting(facts.calls, rank):
            is_here = any(number in one.waiting for one in meetings)
            if frame := next(
                (one for shown in _shown(rank) if (one := _called_back(shown, is_called=not is_here))), None
            ):
                yield f"{called([number])} waits in a user's code: {frame.function} ({frame.file}:{frame.line})"
        elif number in who.why and rank.stacks:
            yield f"{called([number])} is held up {where.in_stack(rank).doing}"
        elif number in absent and not rank.stacks and (hang.differ or hang.types or hang.peers):
            yield f"{called([number])} waits in nothing: it may be late"
    for number in () if hang.differ or hang.types else inside:
        for shown in _shown(ranks[number]):
            if frame := _called_back(shown, hang.waits):
                yield f"{called([number])} came there by a user's code: {frame.function} ({frame.file}:{frame.line})"
    yield from _others_are_past(facts, hang, meetings)


def _called_back(frames: Sequence[Frame], chain: Chain = (), *, is_called: bool = True) -> Frame | None:
    """Return the frame of a user's code that a framework has called, but for the functions of a fix; without
    ``is_called``, also that of a user's code which waits itself.
    """
    own = issuers(frames)
    if not is_called and own and is_of_user(own[0]):
        return own[0]
    called = (it for at, it in enumerate(own) if any(map(is_of_framework, own[at + 1 :])))
    return next((it for it in called if _is_of_user(it, chain)), None)


def _is_of_user(frame: Frame, chain: Chain) -> bool:
    """Return whether a frame is of a user's code: py-spy may have cut the path of one of these functions' files."""
    files = {place.file.rpartition("/")[2] for step in chain for place in step}
    return is_of_user(frame) and frame.file not in files


def _ways(ranks: Mapping[int, Rank], inside: Iterable[int], hang: Hang, paths: _Paths) -> set[tuple[object, ...]]:
    """Return the calls by which ranks came to the function, where they must differ in nothing but what they issue."""
    found: set[tuple[object, ...]] = set()
    for number in inside if hang.types else ():
        for frames in (one.frames for one in ranks[number].waiting[:1]):
            if paths.has(frames, hang.waits):
                first = paths.steps(frames, hang.waits)[0][0]
                found.add(tuple(where.alike(it)[:2] for it in frames[first:] if not where.is_torch(it)))
    return found


def _others_are_past(facts: Facts, hang: Hang, meetings: Sequence[Meeting]) -> Iterator[str]:
    """Yield that other groups of that kind are done with what these ranks disagree on: the code is the same there."""
    for one in meetings if hang.differ in ("size", "order") or hang.types else ():
        alike = [it for it in facts.job.groups.values() if it.description == one.group.description and it.members]
        for group in alike if one.group.members and one.sequence else ():
            counts = facts.counts.get(group.name, {})
            if group.members != one.group.members and all(
                number in counts and counts[number].completed >= (one.sequence or 0) for number in group.members
            ):
                yield f"other groups are past collective {one.sequence} of {where.label(one.group)}"
                return
