"""What real NCCL left is diagnosed by each kind of evidence, and by all of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from corpus import nccl
from corpus.test_corpus import Found, found, told
from support import needed
from unhang.diagnose import known
from unhang.diagnose.evidence import Frame
from unhang.diagnose.fixes import Place
from unhang.shapes import catalog

TRUTHS = nccl.read()[1]
FIXES = [name for name, truth in TRUTHS.items() if truth.fix]
JOBS = [name for name in TRUTHS if name not in FIXES]
_IS_NOT_SHOWN = {
    ("mtp-cp-deadlock-cp2", "logs"): "the first collective of a group has no watchdog",
    ("fsdp2-buffer-order-other-size-2", "stacks"): "its ranks wait in the caller of the function, which has returned",
    ("fsdp2-buffer-order-other-size-2", "json"): "as by its stacks",
    ("fsdp-reduce-order-other-size-2", "stacks"): "as in fsdp2-buffer-order",
    ("allgather-empty-expert-refuses", "stacks"): "the rank that waits has left the function, for a barrier of ours",
    ("allgather-empty-expert-returns", "stacks"): "as with the fused permute that refuses",
    ("empty-expert-hang-alltoall-cuts", "stacks"): "its ranks have left the function, for a barrier of ours",
    ("empty-expert-hang-fp8-aligned-cuts", "stacks"): "as without fp8",
    ("mtp-packed-roll-short-cp2", "stacks"): "the rank that failed has none",
}
_IS_NOT_LISTED = "init-of-a-group"
"""A group without a communicator is in no file: of its two members, the one that waits in its first collective is
named.
"""
PATCHED = {fix: tuple(one._replace(verdict="applied") for one in stands) for fix, stands in needed.NEEDED.items()}


def lines(frame: Frame, place: Place) -> bool:
    """Return whether a frame is in a function, by the sources from which the recorded ranks ran: as it says itself."""
    return True


@cache
def packed() -> dict[str, bytes]:
    """Return the files of all recordings, by path."""
    return nccl.read()[0]


def diagnoses(name: str, folder: Path) -> dict[str, Found]:
    """Return what is said of each kind of a recording's evidence, and of ``all``."""
    own = {path: data for path, data in packed().items() if path.startswith(f"{name}/")}
    return {kind: found(several, lines) for kind, several in told(own, folder).items()}


@pytest.mark.parametrize("name", FIXES)
def test_a_hang_of_a_fix_is_known_where_the_fix_is_needed_and_never_where_it_is_in_place(
    name: str, tmp_path: Path
) -> None:
    fix, by_kind = TRUTHS[name].fix, diagnoses(name, tmp_path)
    assert {kind for kind, each in by_kind.items() if fix not in each.known()} == {
        kind for job, kind in _IS_NOT_SHOWN if job == name
    }
    for each in by_kind.values():
        answers = known.answers(each.diagnosis, needed.SIGNATURES, lines, PATCHED)
        assert {one.answer for one in answers} <= {"not-here"}


@pytest.mark.parametrize("name", JOBS)
def test_the_culprits_of_a_job_are_named_with_their_cause_and_no_fix(name: str, tmp_path: Path) -> None:
    truth, by_kind = TRUTHS[name], diagnoses(name, tmp_path)
    for kind, each in by_kind.items():
        assert {*each.diagnosis.who.why} <= {*truth.culprits}, (kind, each.diagnosis.who)
        assert each.known() == set()
    whole = by_kind["all"].diagnosis
    assert {*whole.who.why} == {*truth.culprits[: 1 if name == _IS_NOT_LISTED else None]}
    assert whole.causes[0].code in truth.causes


def test_the_pages_say_seen_on_nccl_of_what_is_recorded() -> None:
    """The job without memory is that of the warm-up. A page of `nox -s gpu` is compared with its table in tests/gpu."""
    recorded = {truth.fix for truth in TRUTHS.values() if truth.fix} | {"expert-dp-warmup"}
    assert {fix for fix in catalog.fixes() if "Seen on NCCL 2.28 (" in catalog.page(fix)} <= recorded
    assert recorded <= {fix for fix in catalog.fixes() if "Seen on NCCL 2.28" in catalog.page(fix)}
