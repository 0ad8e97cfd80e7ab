"""Whether the outcomes of a case prove what they should."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unhang.prove.cases import BROKEN, PASSED, Case, Outcome


def verdict(case: Case, untouched: Outcome, patched: Outcome) -> str:
    """Return why these outcomes prove nothing, or why the rewrite is wrong; empty where they prove the case."""
    if untouched.status != case.untouched:
        return f"untouched source {untouched.status}, expected {case.untouched}: {untouched.detail}"
    if not case.is_control and case.at not in untouched.detail:
        return f"untouched source {untouched.status}, but not at {case.at}: {untouched.detail}"
    if patched.status != case.patched:
        due = f", expected {case.patched}" if case.patched != PASSED else ""
        return f"patched source {patched.status}{due}: {patched.detail}"
    return ""


def survivors(outcomes: Mapping[str, Outcome], ends: str = "") -> str:
    """Return the outcomes, by case, that are no failure of a variant, or do not match ``ends``; empty if all are."""
    texts = {name: f"{outcome.status}: {outcome.detail}" for name, outcome in outcomes.items()}
    return "; ".join(
        f"{name} {text}"
        for name, text in texts.items()
        if outcomes[name].status in (PASSED, BROKEN) or not re.search(ends, text)
    )
