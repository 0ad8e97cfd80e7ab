"""Bring the needed fixes of a survey into place: judged and planned again with the locks held, then written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.find.bytecode import cached, caches
from unhang.records import Request
from unhang.rewrite.harm import weighed
from unhang.rewrite.plan import Blocked, FilePlan, Plan, is_to_rewrite
from unhang.shapes import catalog
from unhang.store import rehearsal, state
from unhang.store.roots import locked
from unhang.store.write import write
from unhang.suggest import Command, Hint, complete, hinted
from unhang.survey.trial import planned
from unhang.survey.verdicts import Survey, again

_ELSEWHERE = ("write the fixes elsewhere: ", Command("overlay", ("unhang-overlay",)), ", which reads through links")


class Applied(NamedTuple):
    """What a run wrote, root by root."""

    plan: Plan
    files: tuple[FilePlan, ...]
    """Those of the plan that are in place now."""
    failed: Mapping[str, UnhangError]
    """The roots in which nothing was written, and why."""
    recovered: tuple[str, ...]
    """What was done about runs that had been killed, a sentence each."""
    left: Mapping[str, Sequence[UnhangError]]
    """Why something of the run is left in a root where all is in place."""
    cleared: tuple[FilePlan, ...] = ()
    """Those of the plan that have lost their stale bytecode."""


def apply(survey: Survey, request: Request) -> Applied:
    """Bring every needed fix of a survey into place: what goes on top of another fix, once that one is.

    Raises as ``_in_one_go``, if nothing could be written at all.
    """
    done = _in_one_go(survey, request)
    with suppress(UnhangError):  # the next run says it
        while _has_more(done) and (more := _in_one_go(again(survey.search, request), request)).files:
            done = _both(done, more)
    return done


def _has_more(done: Applied) -> bool:
    """Return whether a fix is blocked that goes on top of one that was just written."""
    wrote = {step.target.fix for file in done.files for step in file.steps}
    return any(not wrote.isdisjoint(catalog.fix(it.fix).after) for it in done.plan.blocked)


def _both(first: Applied, then: Applied) -> Applied:
    """Return what two runs did, as if it had been one; the plan is that of the second one."""
    before = {file.path: file for file in first.files}
    again = [
        file._replace(before=one.before, steps=one.steps + file.steps) if (one := before.get(file.path)) else file
        for file in then.files
    ]
    files = {file.path: file for file in (*first.files, *again)}
    return then._replace(
        files=tuple(files.values()),
        failed={**first.failed, **then.failed},
        recovered=first.recovered + then.recovered,
        left={**first.left, **then.left},
        cleared=first.cleared + then.cleared,
    )


def _in_one_go(survey: Survey, request: Request) -> Applied:
    """Bring needed fixes into place, one root after the other; plan again if anything has changed.

    Raises UnhangError if nothing could be written at all, with every file as it was: as `transaction.commit`,
    `lock.exclusive`, `recovery.recover`, `receipt.load` and `trial.planned` do.
    """
    plan = _plan_early(survey, request)
    wanted = {root for root in survey.search.roots if plan is None or state.interrupted(state.folder(root))}
    where = caches(survey.search)
    while wanted := wanted | {*(_by_root(plan) if plan else ())}:
        with locked(wanted, where) as held:
            now = again(survey.search, request)
            if plan is None or now.findings != survey.findings:
                plan = _planned(now, request)
            by_root = _by_root(plan)
            if not by_root.keys() <= wanted:
                continue  # somebody else wrote meanwhile: take all locks again, in their order
            for root in sorted(by_root.keys() - held.failed.keys()):
                with held.failing(root):
                    held.left[root] += write(now.search, root, by_root[root])
        for error in held.failed.values():
            _name_overlay(error)
        if held.failed and by_root.keys() <= held.failed.keys():
            raise next(iter(held.failed.values()))
        held.complete_hints(request)
        return _applied(plan, held.failed, held.recovered, held.left)
    assert plan is not None  # without a plan, the roots are wanted
    return _applied(plan, {}, (), {})


def rehearse(survey: Survey, request: Request) -> Applied:
    """Return what `apply` would write, and the roots in which it could not; write nothing, and take no lock.

    Raises UnhangError as `apply` does if nothing could be written at all.
    """
    plan = _planned(survey, request)
    by_root, where = _by_root(plan), caches(survey.search)
    failed = {}
    for root, files in by_root.items():
        stale = [path for file in files for path in file.bytecode or cached(file.path, where)]
        try:
            rehearsal.try_out(root, {file.path: file.after for file in files if not file.bytecode}, stale)
        except UnhangError as error:
            failed[root] = _name_overlay(error)
    if failed and failed.keys() == by_root.keys():
        raise next(iter(failed.values()))
    for refused in failed.values():
        hinted(refused, request)
    return _applied(plan, failed, (), {})


def _applied(
    plan: Plan,
    failed: Mapping[str, UnhangError],
    recovered: tuple[str, ...],
    left: Mapping[str, Sequence[UnhangError]],
) -> Applied:
    files, cleared = (
        tuple(file for file in group if file.installation.real_root not in failed) for group in (plan.files, plan.stale)
    )
    return Applied(plan, files, failed, recovered, left, cleared)


def _planned(survey: Survey, request: Request) -> Plan:
    """Return the plan. Raises as ``trial.planned``."""
    findings, harmful = weighed(survey.findings, request)
    return planned(findings, survey.receipts, [*_held(survey, request), *harmful])


def _held(survey: Survey, request: Request) -> list[Blocked]:
    """Return what cannot be written where it is: a folder on the way there is a link that leads out of the package."""
    return [
        Blocked(
            finding.installation,
            finding.target.fix,
            finding.target,
            f"a folder on the way is a link out of the package, and {finding.seen.link} stays as it is",
            complete(Hint(*_ELSEWHERE), request),
        )
        for finding in survey.findings
        if finding.seen.link and is_to_rewrite(finding) and _has_linked_folder(finding.seen.real)
    ]


def _has_linked_folder(path: str) -> bool:
    folder = os.path.dirname(path)
    return os.path.realpath(folder) != folder


def _name_overlay(error: UnhangError) -> UnhangError:
    """Return the error, with a way out in its hint where we may not write."""
    if error.code in ("not-writable", "no-locks"):
        error.hint = Hint(error.hint or "", "; or ", *_ELSEWHERE)
    return error


def _plan_early(survey: Survey, request: Request) -> Plan | None:
    """Return the plan, made without a lock; None if the receipt is inconsistent."""
    try:
        return _planned(survey, request)
    except UnhangError as error:
        if error.code != "bad-receipt":
            raise
        return None  # a run was killed while it wrote the receipt, or is writing it: whoever has the lock can tell


def _by_root(plan: Plan) -> dict[str, list[FilePlan]]:
    groups: dict[str, list[FilePlan]] = {}
    for file in (*plan.files, *plan.stale):
        groups.setdefault(file.installation.real_root, []).append(file)
    return groups
