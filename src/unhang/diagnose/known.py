"""What is known of the code in which ranks wait or fail: functions of a fix's signature, and what explains it first.

That such a function needs its fix here is a fact about the job's code. Whether it hung the job is seen from the other
ranks: where they are, in what they differ, and whether one of them has failed or is held up by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import takewhile
from os.path import join
from typing import NamedTuple

from unhang.diagnose import causes, collectives, facts, where, who
from unhang.diagnose.causes import Cause
from unhang.diagnose.collectives import Meeting
from unhang.diagnose.evidence import Count, Frame, Job, Message, Operation, Rank
from unhang.diagnose.facts import Facts
from unhang.diagnose.fixes import Chain, Error, Hang, Place, Signature, Standing
from unhang.diagnose.statements import before_waiting
from unhang.diagnose.where import is_of_framework, is_of_user
from unhang.diagnose.who import DEVICE, TOGETHER, Who
from unhang.job.strikes import CANNOT
from unhang.judge.decide import NEEDED, SETTLED
from unhang.plugins import packs

ANSWERS = ("known", "also", "possible", "not-here")  # the best first
_LOGGER = "torch/distributed/c10d_logger.py"
"""What stands around each of torch's collectives; in between may be a decorator's frame."""
_ENDS = ("process-died", "cuda-error", "loader-died", "rendezvous", "network")
"""Causes that lines tell, and that make the others wait wherever they are."""
SHIMS = "unhang/prove/"  # what stands for torch, or for the rest of a framework, where we record hangs


class Answer(NamedTuple):
    """What is to be said of one fix."""

    answer: str  # one of ANSWERS, as docs/diagnose.md has them
    fix: str
    summary: str  # what happens in such a hang, in one sentence
    places: tuple[where.Place, ...] = ()  # where the ranks are that wait or failed there
    before: tuple[str, ...] = ()  # what explains the hang before it
    question: str = ""  # what decides, where the answer is `possible`
    lacks: bool = False  # whether others must be elsewhere for it, and no other rank is known


class Diagnosis(NamedTuple):
    """What is known of a hung job."""

    facts: Facts
    who: Who
    places: tuple[where.Place, ...]  # where all ranks are: those at the same place together
    causes: tuple[Cause, ...] = ()  # why it hangs, the best first


def diagnose(job: Job) -> Diagnosis:
    """Return who is to be looked at, where all ranks are, and why."""
    found = facts.of(job)
    first = who.of(found)
    return Diagnosis(found, first, where.places(found.job, found.errors), causes.of(found, first))


def answers(
    found: Diagnosis, signatures: Collection[Signature], source: Source, stands: Mapping[str, Sequence[Standing]]
) -> tuple[Answer, ...]:
    """Return what is to be said of the fixes in whose functions ranks wait or fail, the best answer first.

    ``stands`` has the verdicts on each fix in an environment, none where there is no copy of its upstream.
    """
    paths, shown = _Paths(source), list[tuple[_Shown, Signature]]()
    for signature in signatures if not found.facts.goes_on else ():
        hangs = [_Shown(found, hang, paths) for hang in signature.hangs]
        best = min((one for one in hangs if one.is_it), key=_Shown.order, default=None)
        shown += [(best, signature)] if best else []
    shown.sort(key=lambda one: one[0].order())
    told = [_answer(one, signature, stands.get(signature.fix, ())) for one, signature in shown]
    told.sort(key=lambda one: ANSWERS.index(one.answer))
    return tuple(one for one in told if told[0].answer != "known" or one.answer == "known")


def explained(found: Diagnosis, told: Sequence[Answer]) -> Diagnosis:
    """Return a diagnosis without the guess at a GPU or the network, where a known defect explains the hang."""
    if not any(one.answer == "known" for one in told):
        return found
    return found._replace(causes=tuple(one for one in found.causes if one.code != "network"))


def _answer(shown: _Shown, signature: Signature, stands: Sequence[Standing]) -> Answer:
    hang, word = shown.hang, "possible"
    needed = [one for one in stands if one.verdict == NEEDED and (not hang.shapes or one.shape in hang.shapes)]
    if shown.is_sure and any(one.strikes != CANNOT for one in needed):
        word = "also" if shown.before else "known"
    elif stands and not needed and all(one.verdict in (NEEDED, *SETTLED) for one in stands):
        return Answer("not-here", signature.fix, hang.summary)
    question = signature.asks if word == "possible" else ""
    places = where.merged(shown.places())
    return Answer(word, signature.fix, hang.summary, places, shown.before, question, shown.lacks)


Source = Callable[[Frame, Place], bool | None]  # tells whether a frame is in a function; None if that is not known


class Sources:
    """The sources below some folders of the import path."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._roots = tuple(roots)

    def __call__(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function, by its line; None if no source here tells."""
        for file in (join(root, place.file) for root in self._roots):
            around = [it for it in _definitions(file) if it.lineno <= frame.line <= (it.end_lineno or it.lineno)]
            if around and around[-1].name == frame.function.rpartition(".")[2]:
                return f".{'.'.join(it.name for it in around)}".endswith(f".{place.function}")
        return None


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@lru_cache(maxsize=64)
def _definitions(path: str) -> tuple[_Definition, ...]:
    """Return the functions and classes of a file, the outer ones first."""
    try:
        return tuple(node for node in ast.walk(ast.parse(packs.read(path))) if isinstance(node, _Definition))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()


class _Paths:
    """Looks for functions in stacks."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.steps = cache(self._steps)  # the ranks of a job are in few places

    def _at(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function; None if it may be in one of that name: py-spy cuts paths."""
        called = f".{frame.function.replace('<locals>.', '')}"
        if not called.endswith(f".{place.function}") and not f".{place.function}".endswith(called):
            return False
        file, told = frame.file.replace("\\", "/"), self._source(frame, place)
        is_whole = f"/{file}".endswith(f"/{place.file}") or file == packs.below_namespace(place.file)
        if told is not None or not (is_whole or f"/{place.file}".endswith(f"/{file}")):
            return bool(told) and (is_whole or f"/{place.file}".endswith(f"/{file}"))
        return True if is_whole and ("." in frame.function or "." not in place.function) else None

    def _steps(self, frames: Sequence[Frame], chain: Chain) -> tuple[tuple[int, bool], ...]:
        """Return for each step of a chain where in a stack it is, or -1, and whether that is sure."""
        found = []
        for step in chain:
            told = [[self._at(frame, place) for place in step] for frame in frames]
            sure, open_ = ([at for at, several in enumerate(told) if word in several] for word in (True, None))
            found.append(([*sure, *open_, -1][0], bool(sure)))
        return tuple(found)

    def has(self, frames: Sequence[Frame], chain: Chain) -> bool:
        """Return whether a stack has one place of each step of a chain."""
        return bool(chain) and all(at >= 0 for at, _ in self.steps(frames, chain))

    def is_sure(self, frames: Sequence[Frame], chain: Chain) -> bool:
        """Return whether a stack's functions are surely these: all of them, or one of a class."""
        found = [(sure, step) for (at, sure), step in zip(self.steps(frames, chain), chain) if at >= 0]
        is_told = any(sure and all("." in place.function for place in step) for sure, step in found)
        return is_told or (bool(found) and all(sure for sure, _ in found))

    def waits(self, frames: Sequence[Frame], chain: Chain, *, is_call: bool) -> bool:
        """Return whether a rank waits in these functions, of which a host may have left the innermost for its GPU."""
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


class _Shown:
    """A hang, as far as the files show it."""

    def __init__(self, found: Diagnosis, hang: Hang, paths: _Paths) -> None:
        self.hang, self._facts, self._who, self._paths = hang, found.facts, found.who, paths
        self._job, self._ranks = found.facts.job, found.facts.job.ranks
        self._inside = dict(self._find())
        """The ranks that wait there: in which operation, or None if their stack alone tells."""
        self._errors = [*self._find_errors()]
        """The lines that it names, with their ranks; -1 where nobody knows the rank."""
        self._meetings = [
            one
            for one in self._facts.meetings
            if any(one.operations.get(number) == issued for number, issued in self._inside.items() if issued)
        ]
        self._rest = self._find_rest()
        self.is_it = bool(self._errors or (self._inside and not self._is_refuted()))
        """Whether ranks are in its functions, and the others not where it leaves nobody."""
        self.before = tuple(dict.fromkeys(self._before())) if self.is_it else ()
        """What explains the job's hang before it, each in a sentence."""
        shown = [(it, hang.waits) for number in self._inside for it in self._frames_inside(number)]
        named = [(message.frames, error.frames) for _, message, error in self._errors]
        self.lacks = not (self._rest or self._facts.unseen or self._errors or hang.differ or hang.types)
        """Whether others must be elsewhere for it, and no other rank is known."""
        is_shown = not (self.lacks and self._are_together()) and not (hang.differ == "size" and self._is_of_one_size())
        self.is_sure = is_shown and any(paths.is_sure(*one) for one in named or shown)
        """Whether the function is told from those of the same name in other classes, and that somebody lacks there."""

    def order(self) -> tuple[bool, bool, bool]:
        """Return a smaller value for one that is more certain."""
        return bool(self.before), not self.is_sure, not self._errors

    def places(self) -> Iterator[where.Place]:
        """Yield where the ranks are that wait or failed in the functions."""
        for number, operation in self._inside.items():
            rank = self._ranks[number]
            yield where.issued(rank, operation) if operation else where.in_stack(rank)
        yield from (where.failing(number, [message]) for number, message, _ in self._errors)

    def _find(self) -> Iterator[tuple[int, Operation | None]]:
        """Yield the ranks that wait in the functions, by what they wait in first, else by their stacks."""
        waits, paths = self.hang.waits, self._paths
        for number, rank in self._ranks.items():
            first = {one.group.name: one for one in reversed(rank.waiting)}
            issued = [one for one in first.values() if one.frames and paths.waits(one.frames, waits, is_call=True)]
            bare = [one for one in rank.waiting if not one.frames]
            if issued:
                yield number, issued[0]
            elif (bare or not rank.waiting) and where.waits_by_stack(rank):
                stack = where.waiting_stack(rank)
                if paths.waits(stack.frames, waits, is_call=bool(self._facts.calls[number])):
                    yield number, bare[0] if bare else None

    def _frames_inside(self, number: int) -> list[tuple[Frame, ...]]:
        """Return the paths by which a rank came into the functions, whatever it waits in first."""
        issued = self._inside[number]
        return [issued.frames] if issued and issued.frames else _frames(self._ranks[number])

    def _find_errors(self) -> Iterator[tuple[int, Message, Error]]:
        """Yield the lines that the hang names, but for those of a rank that went on after them."""
        told = [(number, one) for number, lines in self._facts.errors.items() for one in lines]
        devices = {one.by for one in self._job.statements if one.cause == "cuda-error"}
        for number, message in [*told, *((-1, one) for one in self._facts.strangers)]:
            is_other = number in devices and "cuda error" in message.text  # NCCL's word for an error that a line tells
            named = (error for error in self.hang.errors if _is_named(message, error, self._paths))
            if not is_other and (error := next(named, None)):
                yield number, message, error

    def _find_rest(self) -> list[int]:
        """Return the ranks that have a part in it and are not inside: those of the group, or all that are known."""
        members = {number for one in self._meetings for number in collectives.members(self._job, one.group)}
        known = {number for one in self._meetings for number in (*one.operations, *one.absent)}
        around = members | known if members or known - self._inside.keys() else self._ranks.keys()
        return sorted(number for number in around - self._inside.keys() if number in self._ranks)

    def _is_refuted(self) -> bool:
        """Return whether ranks are where this hang does not leave them, or agree where they must differ."""
        hang, meetings, ranks = self.hang, self._meetings, self._ranks
        if hang.types:
            types = {it for one in meetings for issued in one.operations.values() for it in issued.dtypes or ()}
            # the source of a broadcast, its group's first rank, has the first of these
            sources = [one.operations.get(one.group.members[0]) for one in meetings if one.group.members]
            sent = {it.dtypes[0] for it in sources if it and it.kind == "broadcast" and it.dtypes}
            return not types <= {*hang.types} or not sent <= {hang.types[0]} or self._agree("dtype")
        if hang.differ in ("size", "order"):
            if hang.first and any((one.sequence or 0) > 1 and "size" in one.differ for one in self._recorded()):
                return True
            return (hang.differ == "order" and not self._is_reordered()) or self._agree("size")
        if hang.differ == "empty":
            return any(_has_elements(ranks[number], one) for one in meetings for number in self._rest)
        if hang.few and len(self._inside) > max(1, len({*self._rest, *self._facts.unseen})):
            return True
        if any(one.agrees for one in meetings) or len(self._inside) == self._job.size:
            return True  # all have come
        waiting = [
            ranks[number]
            for number in self._rest
            if where.is_waiting(self._facts.calls, ranks[number]) and not where.ends_groups(ranks[number])
        ]
        return hang.peers is not None and any(
            not any(self._paths.has(it, hang.peers) for it in _frames(rank)) for rank in waiting
        )

    def _is_of_one_size(self) -> bool:
        """Return whether all that are inside are known to have issued the same size."""
        issued = [one.operations for one in self._meetings if self._inside.keys() <= one.operations.keys()]
        sizes = [{one.elements for one in operations.values()} for operations in issued if len(operations) > 1]
        return any(len(several) == 1 and several != {None} for several in sizes)

    def _are_together(self) -> bool:
        """Return whether several ranks are inside, all at one place."""
        own = {tuple(issuers(frames)[:1]) for it in self._inside for frames in self._frames_inside(it)}
        return len(self._inside) > 1 and len(own) == 1

    def _recorded(self) -> list[Meeting]:
        """Return the meetings of which it is known what all ranks issued before."""
        return [one for one in self._meetings if all(self._ranks[number].recorded for number in one.operations)]

    def _agree(self, wanted: str) -> bool:
        """Return whether ranks agree where they must differ; where some have not come, they need not."""
        differ = {name for one in self._meetings for name in one.differ}
        return wanted not in differ and (bool(differ) or any(one.absent or one.agrees for one in self._meetings))

    def _is_reordered(self) -> bool:
        """Return whether ranks may issue the same in another order: those that have gone on issued equally many."""
        for one in self._meetings:
            counts = self._facts.counts.get(one.group.name, {})
            stacks = {number: [it.frames for it in self._ranks[number].stacks] for number in one.operations}
            gone_on = (
                number
                for number, paths in stacks.items()
                if paths and not any(self._paths.has(it, self.hang.waits) for it in paths)
            )
            if len({counts.get(number, Count()).enqueued for number in gone_on}) > 1:
                return False
        return True

    def _before(self) -> Iterator[str]:
        """Yield what explains the job's hang first: an error, a process that is gone, a device, or a rank held up."""
        hang, facts, ranks, called = self.hang, self._facts, self._ranks, self._job.called
        named = {message.text for _, message, _ in self._errors}
        for number, lines in (*facts.errors.items(), (-1, facts.strangers)):
            for own in [one.text for one in lines if one.text not in named][:1]:
                yield f"{called([number])} failed by itself: {own}"
        yield from (f"{called([number])}: its process is {one.process}" for number, one in ranks.items() if one.process)
        ends = (one for one in before_waiting(self._job.statements) if one.cause in _ENDS)
        yield from [one.words for one in ends if not self._errors][:1]  # after an error of the fix, it is no surprise
        if self._who.rule in (DEVICE, TOGETHER):
            is_told = bool(hang.differ in ("size", "order") or hang.types)
            yield from (
                f"{called([number])}: {why}"
                for number, why in self._who.why.items()
                if not (is_told and number in self._inside)
            )
        if len(self._ways()) > 1:
            yield "these ranks reached the function by different calls"
        yield from (f"{called([number])} {why}" for number in self._rest if (why := self._held_up(number)))
        for number in () if hang.differ or hang.types else self._inside:
            for frame in (_called_back(it, hang.waits) for it in self._frames_inside(number)):
                if frame:
                    at = f"{frame.function} ({frame.file}:{frame.line})"
                    yield f"{called([number])} was led there by a user's code: {at}"
        yield from self._past()

    def _held_up(self, number: int) -> str:
        """Return what holds up a rank that is not in the functions; else nothing."""
        hang, rank = self.hang, self._ranks[number]
        is_over = number in {it for it, _, _ in self._errors} or where.is_done(rank) or where.ends_groups(rank)
        if is_over or (hang.peers == () and where.is_idle(rank)):
            return ""
        is_one_sided = not (hang.differ or hang.types or hang.peers)
        outer = hang.waits[-1:]
        if is_one_sided and not self._errors and any(self._paths.has(it, outer) for it in _frames(rank)):
            return f"has yet to come: it is in {outer[0][0].function}"
        if where.is_waiting(self._facts.calls, rank):
            is_here = any(number in one.waiting for one in self._meetings)
            found = (_called_back(it, is_called=not is_here) for it in _frames(rank))
            frame = next((one for one in found if one), None)
            return f"waits in a user's code: {frame.function} ({frame.file}:{frame.line})" if frame else ""
        if rank.stacks and (number in self._who.why or (is_one_sided and where.waits_on_host(rank))):
            return f"is held up {where.in_stack(rank).doing}"
        is_absent = any(number in one.absent for one in self._meetings)
        return "waits in nothing: it may be late" if is_absent and not rank.stacks and not is_one_sided else ""

    def _ways(self) -> set[tuple[object, ...]]:
        """Return the calls by which ranks came to the function, where only the types that they issue must differ."""
        waits, found = self.hang.waits, set[tuple[object, ...]]()
        for frames in (one.frames for number in self._inside for one in self._ranks[number].waiting[:1]):
            if self.hang.types and self._paths.has(frames, waits):
                first = self._paths.steps(frames, waits)[0][0]
                found.add(tuple(where.alike(it)[:2] for it in frames[first:] if not where.is_torch(it)))
        return found

    def _past(self) -> Iterator[str]:
        """Yield that other groups of that kind, whose code is the same, are done with what these ranks disagree on."""
        for one in self._meetings if self.hang.differ in ("size", "order") or self.hang.types else ():
            for group in self._job.groups.values() if one.group.members and one.sequence else ():
                counts = self._facts.counts.get(group.name, {})
                is_alike = group.description == one.group.description and group.members not in ((), one.group.members)
                if is_alike and all(counts.get(it, Count()).completed >= (one.sequence or 0) for it in group.members):
                    yield f"other groups are past collective {one.sequence} of {where.label(one.group)}"


def _is_named(message: Message, error: Error, paths: _Paths) -> bool:
    """Return whether a line is that error. Its words are whole, so a size of 0 is no other that begins so."""
    if not re.search(rf"(?<!\w){re.escape(error.text)}(?!\w|\.\d)", message.text):
        return False
    if not message.frames:  # its traceback is cut off: it may be of another place
        return True
    if not paths.has(message.frames, error.frames):
        return False
    frame = message.frames[paths.steps(message.frames, error.frames)[0][0]]
    inner = takewhile(lambda it: it != frame, message.frames)
    # but for a comprehension of the function
    return error.called or all(where.is_torch(it) or (it.file == frame.file and "<" in it.function) for it in inner)


def _frames(rank: Rank) -> list[tuple[Frame, ...]]:
    """Return the paths by which a rank came to where it waits."""
    return [one.frames for one in rank.waiting[:1] if one.frames] or [one.frames for one in rank.stacks]


def _has_elements(rank: Rank, meeting: Meeting) -> bool:
    """Return whether a rank's newest collective in a group is known to have elements."""
    own = [one for one in (*rank.last, *rank.waiting) if one.group.name == meeting.group.name and one.kind]
    newest = max(own, key=lambda one: one.sequence or 0, default=None)
    sizes = (*newest.inputs, *(newest.outputs or ())) if newest and newest.inputs is not None else ((0,),)
    return not any(0 in size for size in sizes)


def _called_back(frames: Sequence[Frame], chain: Chain = (), *, is_called: bool = True) -> Frame | None:
    """Return the frame of a user's code, not a fix's, that a framework called; without ``is_called``, or that waits."""
    own = issuers(frames)
    if not is_called and own and is_of_user(own[0]):
        return own[0]
    called = (it for at, it in enumerate(own) if any(map(is_of_framework, own[at + 1 :])))
    return next((it for it in called if _is_of_user(it, chain)), None)


def _is_of_user(frame: Frame, chain: Chain) -> bool:
    """Return whether a frame is of a user's code: py-spy may have cut the path of one of these functions' files."""
    files = {place.file.rpartition("/")[2] for step in chain for place in step}
    return is_of_user(frame) and frame.file not in files
