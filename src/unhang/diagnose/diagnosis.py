"""The diagnosis of a job: who is to be looked at, where the ranks are, and what that code is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from unhang.diagnose import causes, facts, known, where, who
from unhang.diagnose.causes import Cause
from unhang.diagnose.evidence import Job
from unhang.diagnose.facts import Facts
from unhang.diagnose.fixes import Signature, Standing
from unhang.diagnose.known import Match, Source
from unhang.diagnose.where import Place
from unhang.diagnose.who import Who
from unhang.judge.decide import NEEDED, SETTLED

ANSWERS = ("known", "also", "possible", "not-here")
"""The best first."""


class Answer(NamedTuple):
    """What is to be said of one fix."""

    answer: str
    """One of ANSWERS: the code here has the defect, and nothing else explains the hang; it has it, and something else
    explains the hang first; no environment tells; or the code here does not have it.
    """
    fix: str
    summary: str
    """What happens in such a hang, in one sentence."""
    places: tuple[Place, ...] = ()
    """Where the ranks are that wait or failed there."""
    before: tuple[str, ...] = ()
    """What explains the hang before it."""
    question: str = ""
    """What decides, where the answer is `possible`."""


class Diagnosis(NamedTuple):
    """What is known of a hung job."""

    facts: Facts
    who: Who
    places: tuple[Place, ...]
    """Where all ranks are: those at the same place together."""
    causes: tuple[Cause, ...] = ()
    """Why it hangs, the best first."""


def diagnose(job: Job) -> Diagnosis:
    """Return who is to be looked at, and where all ranks are."""
    found = facts.of(job)
    first = who.of(found)
    return Diagnosis(found, first, where.places(found.job, found.errors), causes.of(found, first))


def answers(
    found: Diagnosis, signatures: Collection[Signature], source: Source, stands: Mapping[str, Sequence[Standing]]
) -> tuple[Answer, ...]:
    """Return what is to be said of the fixes in whose functions ranks wait or fail, the best answer first.

    ``stands`` has the verdicts on each fix in an environment, none where there is no copy of its upstream.
    """
    asks = {one.fix: one.asks for one in signatures}
    matches = known.matches(found.facts, found.who, signatures, source)
    told = [_answer(found, one, asks[one.fix], stands.get(one.fix, ())) for one in matches]
    told.sort(key=lambda one: ANSWERS.index(one.answer))
    return tuple(one for one in told if told[0].answer != "known" or one.answer == "known")


def _answer(found: Diagnosis, match: Match, asks: str, stands: Sequence[Standing]) -> Answer:
    shapes = match.hang.shapes
    is_needed = any(one.verdict == NEEDED and (not shapes or one.shape in shapes) for one in stands)
    word = "possible"
    if is_needed and match.is_sure:
        word = "also" if match.before else "known"
    elif stands and not is_needed and all(one.verdict in (NEEDED, *SETTLED) for one in stands):
        return Answer("not-here", match.fix, match.hang.summary)
    places = where.merged(_places(found.facts, match))
    question = asks if word == "possible" else ""
    return Answer(word, match.fix, match.hang.summary, places, match.before, question)


def _places(found: Facts, match: Match) -> Iterator[Place]:
    """Yield where the ranks are that wait or failed in the functions of a hang."""
    ranks = found.job.ranks
    for number, operation in match.inside.items():
        yield where.issued(ranks[number], operation) if operation else where.in_stack(ranks[number])
    yield from (where.failing(number, [message]) for number, message in match.errors)
