"""Which rewrites of unknown shapes the tokens of a run name: a person has seen their diffs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unhang.judge.decide import ACCEPTED, DRIFTED, UNLISTED, Verdict, by_a_person
from unhang.judge.findings import Finding
from unhang.records import Installation, Token
from unhang.shapes import catalog
from unhang.suggest import Command, Hint


def named(findings: Sequence[Finding], tokens: Iterable[Token]) -> list[Finding]:
    """Return the findings, with each accepted one marked.

    A token names an unknown shape if that and the result of its rewrite are the token's, or, once that is written, if
    the function is the token's result: wheels, overlays and images have no receipt. The generation must be today's.
    Where upstream's own fix seems to be there, the shape is its own result.
    Of a target that depends on a function in an unknown shape, a token names both (``Finding.ends``).
    Where the receipt says whose result a pack's function is, the token is not another fix's that is in it too.
    """
    tokens = list(tokens)
    if not tokens:
        return list(findings)
    generation = catalog.generation()
    tokens = [token for token in tokens if token.generation == generation]
    written = {_function(it) for it in findings if it.verdict.code == ACCEPTED}
    marked = [
        _marked(it, tokens, it.target.exact and it.verdict.code != ACCEPTED and _function(it) in written)
        for it in findings
    ]
    held_back = {_place(finding) for finding in marked if finding.result and not finding.accepted}
    return [
        finding._replace(verdict=finding.verdict._replace(hint=Hint(Command("apply"))))
        if finding.to_write and _place(finding) not in held_back
        else finding
        for finding in marked
    ]


def for_show(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of the fixes that an unknown shape holds back, as if each token were named."""
    findings = list(findings)
    left = {_place(one) for one in findings if not one.settled and one.verdict.verdict in (DRIFTED, UNLISTED)}
    findings = [finding for finding in findings if _place(finding) in left]
    return [finding._replace(accepted=True) if finding.result else finding for finding in findings]


def unused(tokens: Iterable[Token], findings: Iterable[Finding]) -> list[str]:
    """Return a sentence for each token that names nothing in these findings."""
    tokens = list(tokens)
    if not tokens:  # most runs have none, and read nothing for it
        return []
    fitting = {finding.ends for finding in findings}
    shapes, generation = {shape for shape, _ in fitting}, catalog.generation()
    sentences = []
    for token in tokens:
        if token.generation != generation:
            why = f"the rewrites have changed since it was printed: they are generation {generation} now"
        elif (token.result in shapes and not token.as_is) or (token.shape, token.result) in fitting:
            continue
        elif token.shape in shapes:
            how = "one to accept as it is" if token.as_is else "rewritten to that result"
            why = f"the shape is here, but it is not {how}"
        else:
            why = "no function that this run looks at has that shape, or that result"
        sentences.append(f"nothing is accepted by the token {token}: {why}")
    return sentences


def _place(finding: Finding) -> tuple[Installation, str]:
    """Return what a fix goes into whole or not at all, and the fix."""
    return finding.installation, finding.target.fix


def _function(finding: Finding) -> tuple[str, str]:
    return finding.seen.place, finding.target.function


def _marked(finding: Finding, tokens: Iterable[Token], is_of_another: bool) -> Finding:
    verdict, (here, result) = finding.verdict, finding.ends
    if here is None or (finding.known and finding.beside is None):
        return finding
    named = [token for token in tokens if (token.shape, token.result) == (here, result)]
    if result and named:
        as_it_is = Verdict(DRIFTED, ACCEPTED, "accepted by a person, as it is") if result == here else verdict
        seen_right = any(token.seen_right for token in named)
        return finding._replace(verdict=as_it_is, accepted=True, seen_right=seen_right)
    named = [token for token in tokens if token.result == here and not token.as_is]
    if named and not is_of_another:
        where = f"in the overlay {finding.overlay}; " if finding.overlay else ""
        seen_right = any(token.seen_right for token in named)
        detail = verdict.detail if verdict.code == ACCEPTED else f"{where}{by_a_person(seen_right)}"
        return finding._replace(verdict=Verdict(DRIFTED, ACCEPTED, detail), result=None, accepted=True)
    return finding
