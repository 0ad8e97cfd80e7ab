"""A survey and its plan without a lock, while other runs may write: for the commands that only read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.judge import accept
from unhang.store import state
from unhang.survey.search import find_some
from unhang.survey.trial import originals
from unhang.survey.verdicts import Survey, again, interrupted

if TYPE_CHECKING:
    from unhang.records import Request, Search
    from unhang.rewrite.plan import Blocked, Plan

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How long to wait for a run that is writing, before each time that its files are read again."""


def planned_without_lock(request: Request, *, unknown: bool = False) -> tuple[Survey, Plan | None]:
    """Return an environment's survey and its plan, while other runs may write there.

    With ``unknown``, both are about the fixes that an unknown shape holds back, as if each rewrite were accepted.
    If what was read does not belong together, waits and reads again. There is no plan if the survey is interrupted: a
    run was killed, or others keep writing. Raises UnhangError as ``survey`` and ``trial.planned``.
    """
    search = find_some(request)
    last: UnhangError | None = None
    survey = Survey(search, (), (), interrupted=True)
    for pause in _PAUSES_S:
        before, error = _stamps(search), None
        try:
            survey = again(search, request)
            if unknown:
                survey = survey._replace(findings=tuple(accept.for_show(survey.findings)))
            kept = {} if survey.interrupted else originals(survey.findings, survey.receipts)
        except UnhangError as caught:
            if caught.code != "bad-receipt":
                raise
            error = caught
        # Look for a journal first: a run replaces the receipt before its journal goes.
        if interrupted(search):
            if not _is_written(search):
                break
        elif before == _stamps(search):
            if error is None and not survey.interrupted:
                from unhang.rewrite.harm import weighed
                from unhang.rewrite.plan import plan

                held = _held(survey) if request.writer[0] == "overlay" else []
                findings, harmful = (survey.findings, []) if unknown else weighed(survey.findings, request)
                return survey, plan(findings, kept, [*held, *harmful])
            if error is not None and last is not None:  # twice, although nobody wrote: a rollback leaves no other trace
                raise error
            last = error
        time.sleep(pause)
    return survey._replace(interrupted=True), None


def _held(survey: Survey) -> list[Blocked]:
    """Return what an overlay cannot hold: a file that is no module is read where the package is."""
    from unhang.rewrite.plan import Blocked, is_to_rewrite

    why = "this is no module: a job reads it where the package is, not in an overlay"
    hint = "apply it where the package is, or leave the fix out with --skip"
    return [
        Blocked(it.installation, it.target.fix, it.target, why, hint)
        for it in survey.findings
        if is_to_rewrite(it) and not it.target.file.endswith(".py")
    ]


def _stamps(search: Search) -> list[tuple[int, int] | None]:
    """Return what differs after each write: a receipt with the same bytes is another file."""
    return [state.stamp(state.folder(root)) for root in search.roots]


def _is_written(search: Search) -> bool:
    from unhang.store.lock import is_held

    return any(is_held(state.folder(root)) for root in search.roots)
