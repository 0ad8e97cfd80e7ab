"""How far the evidence of a job meets a signature: in which scene, by which clauses, and with which doubts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from unhang.diagnose import attendance, whereabouts
from unhang.diagnose.clauses import clauses_of
from unhang.diagnose.doubts import doubts_of
from unhang.diagnose.evidence import Frame, Job, Message
from unhang.diagnose.facts import Facts
from unhang.diagnose.scenes import Scene, is_in, may_wait_in, scenes_of
from unhang.diagnose.signature import Error, Hang, Signature, has_frames
from unhang.diagnose.suspects import HOST, Suspects

_OF_ISSUED = ("elements", "dtypes", "first", "met", "again", "by_place", "by_source", "alternating")
"""The clauses that stacks tell nothing of."""


class Match(NamedTuple):
    """A hang that nothing contradicts, and for which something speaks."""

    fix: str
    hang: Hang
    scene: Scene
    clauses: Mapping[str, bool | None]
    """Those that the signature has, by their key in the manifest."""
    errors: tuple[tuple[int, Message], ...]
    """The lines that it names, with their ranks."""
    doubts: tuple[str, ...]
    """What makes it possible at most, whatever speaks for it."""
    is_known: bool
    """Whether the evidence leaves no other reading."""


def matches(facts: Facts, suspects: Suspects, signatures: Iterable[Signature]) -> tuple[Match, ...]:
    """Return what matches, for each scene: the certain ones first, and those of which most is shown.

    Of two alike, the one is first whose signature can be certain: it is the more specific one.
    """
    found = []
    for signature in signatures:
        by_hang = [_errors(facts, hang) for hang in signature.hangs]
        named = {message.text for errors in by_hang for _, message, _ in errors}
        named |= {one.text for one in facts.strangers for hang in signature.hangs if _names(hang, one)}
        for hang, errors in zip(signature.hangs, by_hang):
            lines = tuple((number, message) for number, message, _ in errors)
            refuted = set[int]()
            # for there may be a scene in each group of a large job
            come = cache(partial(attendance.come_to, facts.job, hang))
            for scene in scenes_of(facts.job, facts.meetings, hang, failed=bool(errors)):
                if hang.errors and not (hang.differ or errors) and scene.meeting and scene.meeting.agrees:
                    continue  # nobody has failed: all have come
                clauses = clauses_of(facts, hang, scene, errors, come)
                if scene.meeting and any(clauses.get(name) is False for name in _OF_ISSUED):
                    refuted.update(scene.inside)
                if scene.meeting is None and not refuted.isdisjoint(scene.inside):
                    continue  # what they issued says more than where they are
                if False in clauses.values():
                    continue
                if facts.errors and clauses.get("differ", True) is None and not errors:
                    continue  # who failed has not come, and nothing shows that the others differ
                only = any(error.only for *_, error in errors)
                doubts = tuple(doubts_of(facts, suspects, hang, scene, named, {number for number, _ in lines}))
                shown = clauses.get("frames") is None and _is_seen(facts.job, hang, scene)
                told = {**clauses, "frames": True} if shown else clauses
                if _speaks(hang, told, is_doubted=bool(doubts)):
                    ways = (names for names in hang.certain if _shown(names, clauses, only=only))
                    certain = not doubts and any(clauses["parts"] or "frames" not in names for names in ways)
                    found.append(Match(signature.fix, hang, scene, clauses, lines, doubts, certain))
    return tuple(sorted((_beside_late(facts, suspects, one, found) for one in found), key=_order))


def _beside_late(facts: Facts, suspects: Suspects, match: Match, found: Iterable[Match]) -> Match:
    """Return a match, in doubt where a rank is late that has no part in any of its fix: the hang may begin there."""
    own = {rank for one in found if one.fix == match.fix for rank in (*one.scene.inside, *one.scene.rest)}
    late = {number: why for number, why in suspects.why.items() if number not in own and suspects.rule == HOST}
    if not late or not own:
        return match
    doubts = tuple(f"rank {number} {why}" for number, why in late.items() if number in facts.job.ranks)
    return match._replace(doubts=(*match.doubts, *doubts), is_known=match.is_known and not doubts)


def not_excluded(facts: Facts, signatures: Iterable[Signature]) -> tuple[Signature, ...]:
    """Return the fixes left open by the operations in which ranks wait by their logs, where there is nothing else.

    Each has the hangs that are left of it.
    """
    ranks = facts.job.ranks.values()
    if facts.errors or facts.strangers or any(rank.recorded or rank.stacks for rank in ranks):
        return ()
    left = (
        one._replace(hangs=tuple(it for it in one.hangs if any(may_wait_in(it, at) for at in facts.waiting)))
        for one in signatures
    )
    return tuple(one for one in left if one.hangs)


def _order(match: Match) -> tuple[bool, bool, bool, int]:
    shown = match.clauses.get("frames") or match.clauses.get("errors")
    return not match.is_known, not shown, not match.hang.certain, -sum(map(bool, match.clauses.values()))


def _shown(names: Sequence[str], clauses: Mapping[str, bool | None], *, only: bool) -> bool:
    """Return whether these clauses are met, a frame of the function or a line of this very defect among them."""
    return all(clauses[name] for name in names) and ("frames" in names or only)


def _speaks(hang: Hang, clauses: Mapping[str, bool | None], *, is_doubted: bool) -> bool:
    """Return whether enough speaks for a hang to name it: its frames, its lines, or all of what was issued.

    A group that Megatron has named stands for what the others did, where that is not known.
    """
    if clauses.get("errors"):
        return True
    if clauses.get("frames"):  # what nothing makes certain is told from other hangs by its group alone
        return bool(hang.certain or not hang.groups or clauses["groups"])
    issued = [clauses[name] for name in ("groups", "operations", "elements", "waiting") if name in clauses]
    is_named = "default_pg" not in hang.groups
    # that a rank is missing from the default group tells hardly a job from another
    differs = bool(clauses.get("differ")) and ("elements" in clauses or "missing" not in hang.differ)
    return bool(issued) and all(issued) and (is_named or differs) and not is_doubted


def _is_seen(job: Job, hang: Hang, scene: Scene) -> bool:
    """Return whether a rank in the collective is in the hang's frames: one whose dump has none leaves that as it is."""
    issued = scene.meeting.operations if scene.meeting and hang.frames else {}
    return any(is_in(job.ranks[rank], issued[rank], hang.frames) for rank in scene.inside if rank in issued)


def _errors(facts: Facts, hang: Hang) -> tuple[tuple[int, Message, Error], ...]:
    """Return the lines that the hang names, with their ranks; a rank that went on after one did not fail with it."""
    return tuple(
        (number, message, error)
        for number, rank in facts.job.ranks.items()
        for message in rank.messages
        if message not in facts.caught.get(number, ()) and not whereabouts.has_caught(rank, message)
        for error in _names(hang, message)
    )


def _names(hang: Hang, message: Message) -> list[Error]:
    """Return the errors of the hang that a line is: its words are whole, so a size of 0 is no other that begins so."""
    return [
        error
        for error in hang.errors
        if re.search(rf"(?<!\w){re.escape(error.text)}(?!\w|\.\d)", message.text)
        and (not error.frames or _is_raised_by(message.frames, error))
    ]


def _is_raised_by(frames: Sequence[Frame], error: Error) -> bool:
    """Return whether an error was raised where it says: in the file of the first place, and not in what that calls."""
    files = {frame.file for frame in frames if has_frames([frame], error.frames[:1])}
    own = [frame.file for frame in frames if not whereabouts.is_torch(frame)]
    return has_frames(frames, error.frames) and (error.called or own[0] in files)
