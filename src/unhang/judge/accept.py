"""Which rewrites of unknown shapes the tokens of a run name: a person has seen their diffs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unhang.judge.decide import ACCEPTED, DRIFTED, UNLISTED, Verdict
from unhang.judge.findings import Finding
from unhang.records import Installation, Token
from unhang.shapes import catalog


def named(findings: Sequence[Finding], tokens: Iterable[Token]) -> list[Finding]:
    """Return the findings, with each accepted one marked.

    A token names an unknown shape if that and the result of its rewrite are the token's, or, once that is written, if
    the function is the token's result: wheels, overlays and images have no receipt. The generation must be today's.
    """
    tokens = list(tokens)
    if not tokens:
        return list(findings)
    generation = catalog.generation()
    tokens = [token for token in tokens if token.generation == generation]
    marked = [_marked(finding, tokens) for finding in findings]
    held_back = {_place(finding) for finding in marked if finding.result and not finding.accepted}
    return [
        finding._replace(verdict=finding.verdict._replace(hint="unhang apply"))
        if finding.accepted and finding.result and _place(finding) not in held_back
        else finding
        for finding in marked
    ]


def for_show(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of the fixes that an unknown shape holds back, as if each rewrite of one were accepted."""
    findings = [finding._replace(accepted=True) if finding.result else finding for finding in findings]
    left = {_place(one) for one in findings if not one.settled and one.verdict.verdict in (DRIFTED, UNLISTED)}
    return [finding for finding in findings if _place(finding) in left]


def unused(tokens: Iterable[Token], findings: Iterable[Finding]) -> list[str]:
    """Return a sentence for each token that names nothing in these findings."""
    tokens = list(tokens)
    if not tokens:  # most runs have none, and read nothing for it
        return []
    fitting = {(finding.seen.shape, finding.result) for finding in findings}
    shapes, generation = {shape for shape, _ in fitting}, catalog.generation()
    sentences = []
    for token in tokens:
        if token.generation != generation:
            why = f"the rewrites have changed since it was printed: they are generation {generation} now"
        elif token.result in shapes or (token.shape, token.result) in fitting:
            continue
        elif token.shape in shapes:
            why = "the shape is here, but it is not rewritten to that result"
        else:
            why = "no function that this run looks at has that shape, or that result"
        sentences.append(f"nothing is accepted by the token {token}: {why}")
    return sentences


def _place(finding: Finding) -> tuple[Installation, str]:
    """Return what a fix goes into whole or not at all, and the fix."""
    return finding.installation, finding.target.fix


def _marked(finding: Finding, tokens: Iterable[Token]) -> Finding:
    verdict, shape = finding.verdict, finding.seen.shape
    if shape is None or finding.known:
        return finding
    if finding.result and any((token.shape, token.result) == (shape, finding.result) for token in tokens):
        return finding._replace(accepted=True)
    if any(token.result == shape for token in tokens):
        where = f"in the overlay {finding.overlay}; " if finding.overlay else ""
        detail = verdict.detail if verdict.code == ACCEPTED else f"{where}accepted by a person"
        return finding._replace(verdict=Verdict(DRIFTED, ACCEPTED, detail), result=None, accepted=True)
    return finding
