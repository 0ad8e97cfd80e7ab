"""sft-packed-seq-broadcast on source trees: 0.16, the shapes of dev, and the real ``get_batch`` of each.

These tests need ``UNHANG_MEGATRON_CLONE`` and ``UNHANG_PROOFS=all``. Those without --sft also run on the wheels of
``suite``.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from proofs import judging, suite
from proofs.others import AS_WRITTEN, as_written, unreadable
from support import interpreters, wheels
from unhang.find import environment, locate
from unhang.prove import cases, host
from unhang.prove.cases import Case, Outcome
from unhang.prove.fixes.sft_packed_seq_broadcast import cases as proof
from unhang.prove.host import Other
from unhang.shapes import catalog

FIX = "sft-packed-seq-broadcast"
GATE = "without the gate on --sft"
ARMS = tuple(case for case in proof.CASES if case.topology.world <= 8)
DEV = (*ARMS, *proof.CASES_OF_TREES)
TREES = {
    "core_v0.16.1": (*proof.CASES_0_16, *proof.CASES_OF_0_16_TREES),
    "core_v0.17.1": (*ARMS, *proof.CASES_OF_TREES),
    "cde56a469": (*ARMS, *proof.CASES_OF_OLDER_TREES),
    "c0c4fdc45": DEV,
    "0af570878": DEV,
    "280d2440d": tuple(case for case in proof.CASES_OF_NEWEST_TREES if case.topology.world <= 8),
}
"""The releases that only trees have in full, and the first commit of each shape that only dev has had."""
LACKING = {
    "core_v0.16.1": {GATE},  # there --sft gates no broadcast: all stages have the same
    "280d2440d": {AS_WRITTEN},  # the pull request does not apply
}
FILES = ("megatron", "pretrain_gpt.py", "gpt_builders.py", "model_provider.py")
CLONE = os.environ.get(wheels.CLONES["megatron-lm"])
VERSIONS = TREES if suite.everything() and CLONE else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@cache
def answer(folder: Path, version: str) -> host.Answer:
    """Run all cases of a tree on all variants, once."""
    python = interpreters.with_torch()
    command = ["git", "-C", str(CLONE), "archive", "--format=zip", version, *FILES]
    done = subprocess.run(command, capture_output=True, check=True)
    where = folder / version
    with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
        archive.extractall(where)
    found = locate.search(environment.for_target(str(where)), cwd="/").installations
    here = [one for one in found if one.upstream in ("megatron-core", "megatron-lm")]
    return host.prove(python, FIX, ["megatron-lm"], here, TREES[version], others(version))


def others(version: str) -> dict[str, Other]:
    """Return the variants that must fail on this tree: those whose cases it has."""
    known = {case.name for case in TREES[version]}
    lacking = LACKING.get(version, set()) | ({AS_WRITTEN} if unreadable(FIX) else set())
    return {name: other for name, other in OTHERS.items() if known.issuperset(other.fails) and name not in lacking}


def grafted(kept: str) -> Callable[[bytes, bytes], bytes]:
    """Keep one half of our patch, ``body`` (the sender) or ``orelse`` (the receiver), and upstream's other half."""

    def change(before: bytes, after: bytes) -> bytes:
        other = {"body": "orelse", "orelse": "body"}[kept]
        (old, first, last), (new, begin, end) = half(before, other), half(after, other)
        mixed = b"".join([*new[:begin], *old[first:last], *new[end:]])
        assert mixed not in (before, after)
        return mixed

    return change


def half(data: bytes, part: str) -> tuple[list[bytes], int, int]:
    """Return a file's lines, and the first and last line of its sending or receiving half."""
    (function,) = (node for node in ast.parse(data).body if getattr(node, "name", "") == "get_batch_on_this_tp_rank")
    assert isinstance(function, ast.FunctionDef)
    (split,) = (node for node in function.body if isinstance(node, ast.If))
    nodes = getattr(split, part)
    return data.splitlines(keepends=True), nodes[0].lineno - 1, nodes[-1].end_lineno


def without_gate(before: bytes, after: bytes) -> bytes:
    """Send and receive the metadata on every stage, also without --sft."""
    head, marker, patch = after.partition(b"# unhang ")
    assert patch.count(b"if args.sft:") >= 4
    return head + marker + patch.replace(b"if args.sft:", b"if True:")


OTHERS = {
    "half: the sender alone": Other(grafted("body"), ("tp2-pp4-schedule",)),
    "half: the receiver alone": Other(grafted("orelse"), ("tp2-pp4-schedule",)),
    "without the gate on --sft": Other(without_gate, ("tp2-pp4-no-sft",)),
    AS_WRITTEN: Other(as_written(FIX), ("tp2-pp2", "tp2-pp4")),
}
WHY = f"needs UNHANG_PROOFS=all and a clone that {wheels.CLONES['megatron-lm']} names"
NONE = [pytest.param(None, None, id="trees", marks=pytest.mark.skip(reason=WHY))]
PAIRS = [pytest.param(version, case, id=f"{version}-{case.name}") for version in VERSIONS for case in TREES[version]]
VARIANTS = [pytest.param(version, name, id=f"{version}-{name}") for version in VERSIONS for name in others(version)]
PLAIN = [
    pytest.param(version, case, id=f"{version}-{case.name}")
    for version in VERSIONS
    for case in TREES[version]
    if not case.options.get("sft", True)
]


@pytest.mark.parametrize(("version", "case"), PAIRS or NONE)
def test_the_untouched_source_shows_the_defect_and_the_patched_one_does_not(
    folder: Path, version: str, case: Case, tell: Callable[..., None]
) -> None:
    outcomes = answer(folder, version).outcomes
    pair = {name: outcomes[name][case.name] for name in (host.UNTOUCHED, host.PATCHED)}
    wrong = judging.verdict(case, *pair.values())
    tell(**line(version, case, wrong), outcomes={name: outcome._asdict() for name, outcome in pair.items()})
    assert not wrong


@pytest.mark.parametrize(("version", "name"), VARIANTS or NONE)
def test_half_a_patch_fails(folder: Path, version: str, name: str, tell: Callable[..., None]) -> None:
    outcomes = answer(folder, version).outcomes[name]
    assert outcomes.keys() == {*OTHERS[name].fails}
    wrong = judging.survivors(outcomes)
    for case in TREES[version]:
        if case.name in outcomes:
            tell(**line(version, case, wrong), outcomes={name: outcomes[case.name]._asdict()})
    assert not wrong
    if name.startswith("half"):
        assert {outcome.status for outcome in outcomes.values()} == {cases.HUNG}
    if name == AS_WRITTEN:
        assert all("on the last stage cu_seqlens is None" in outcome.detail for outcome in outcomes.values())
        assert not any("on the middle stage cu_seqlens" in outcome.detail for outcome in outcomes.values())


@pytest.mark.parametrize(("version", "case"), PLAIN or NONE)
def test_without_sft_the_batch_is_the_same_and_the_broadcasts_are_no_more(
    folder: Path, version: str, case: Case
) -> None:
    outcomes = answer(folder, version).outcomes
    same_without_sft(case, outcomes, fewer="0.16" in version)


@pytest.mark.parametrize("one", [one for one in suite.proofs() if one.fix == FIX], ids=lambda one: one.version)
def test_without_sft_a_wheel_does_exactly_as_before(one: suite.Proof) -> None:
    plain = [case for case in one.cases() if not case.options.get("sft", True)]
    assert plain
    for case in plain:
        same_without_sft(case, suite.answer(one).outcomes, fewer=False)


def same_without_sft(case: Case, outcomes: Mapping[str, Mapping[str, Outcome]], *, fewer: bool) -> None:
    """Check that every field on every rank is as before (by digest), and that there are no more broadcasts."""
    before, after = (outcomes[name][case.name].detail.split("; batches ") for name in (host.UNTOUCHED, host.PATCHED))
    assert after[1] == before[1] != ""
    if not fewer:
        assert after[0] == before[0]
    else:
        counts = [[int(number) for number in re.findall(r" (\d+)(?=,|$)", detail)] for detail, _ in (before, after)]
        assert len(counts[0]) == len(counts[1]) == case.topology.world // case.topology.tp
        assert all(new <= old for old, new in zip(*counts))


def test_each_set_of_cases_has_a_control_and_a_defect() -> None:
    for all_ in (proof.CASES, *TREES.values()):
        assert {case.is_control for case in all_} == {True, False}
        assert len({case.name for case in all_}) == len(all_)


def test_every_affected_shape_is_proved() -> None:
    """Each is proved on a tree or a wheel. A pull request as written has the result of its base shape."""
    rows = [row for row in catalog._data("shapes.json")["shapes"] if row["fix"] == FIX and row["state"] == "affected"]
    firsts = {row["result"]: row["first"].split()[1] for row in rows if "first" in row}
    assert {row["result"] for row in rows} == firsts.keys()
    released = {"98d8c56db": "core_v0.16.1", "4bce841d2": "core_v0.17.1"}  # proved on the release that has the shape
    assert {released.get(first, first) for first in firsts.values()} == TREES.keys()


def line(version: str, case: Case, wrong: str) -> dict[str, Any]:
    """Return the columns of the table other than the outcomes."""
    return {
        "proof": f"{FIX} megatron-lm {version} (tree)",
        "fix": FIX,
        "topology": case.topology.text(),
        "case": case.name,
        "control": case.is_control,
        "wrong": wrong,
    }
