"""sft-packed-seq-broadcast, proved: untouched, patched and half-patched Megatron-LM run on a CPU, wheels and trees.

What needs torch runs in ``UNHANG_PROOFS_PYTHON``, else in our own interpreter if that has one. The core set is 0.17.1;
with ``UNHANG_PROOFS=all`` it is every affected release and shape, where ``UNHANG_MEGATRON_CLONE`` names a clone.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

import cli
import pytest
import wheels

from unhang import catalog, environment, locate
from unhang.compat import as_written as pull_request
from unhang.compat import sources as compat
from unhang.prove import cases, host
from unhang.prove import sft_packed_seq_broadcast as proof
from unhang.prove.cases import Case
from unhang.prove.host import Other

FIX = "sft-packed-seq-broadcast"
CORE = "0.17.1"
WHEELS = {"0.17.0": proof.CASES, CORE: proof.CASES}
TREES = {
    "core_v0.16.1": (*proof.CASES_0_16, *proof.CASES_OF_0_16_TREES),
    "core_v0.17.1": proof.CASES_OF_TREES,
    "cde56a469": (*proof.CASES, *proof.CASES_OF_OLDER_TREES),
    "c0c4fdc45": (*proof.CASES, *proof.CASES_OF_TREES),
    "0af570878": (*proof.CASES, *proof.CASES_OF_TREES),
    "280d2440d": (*proof.CASES, *proof.CASES_OF_TREES),
}
"""The releases that only trees have whole, and the first commit of each shape that only dev has had."""
FILES = ("megatron", "pretrain_gpt.py", "gpt_builders.py", "model_provider.py")
EVERYTHING = os.environ.get("UNHANG_PROOFS") == "all"
VERSIONS = {**WHEELS, **TREES} if EVERYTHING else {CORE: tuple(case for case in WHEELS[CORE] if case.core)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@cache
def interpreter() -> str:
    """The interpreter with torch; the test is skipped where there is none."""
    chosen = os.environ.get("UNHANG_PROOFS_PYTHON") or sys.executable
    probe = [chosen, "-c", "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"]
    if subprocess.run(probe, check=False).returncode:
        pytest.skip(f"{chosen} has no torch: UNHANG_PROOFS_PYTHON may name an interpreter that has")
    return chosen


@cache
def laid_out(folder: Path, version: str) -> Path:
    """A release's wheel, or what is needed of a source tree."""
    where = folder / version
    if version in WHEELS:
        return cli.unpack(where, ("megatron-core", version))
    command = ["git", "-C", str(wheels.clone("megatron-lm")), "archive", "--format=zip", version, *FILES]
    done = subprocess.run(command, capture_output=True, check=True)
    with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
        archive.extractall(where)
    return where


@cache
def answer(folder: Path, version: str) -> host.Answer:
    """Run all cases of a version, once, on all variants."""
    python = interpreter()
    found = locate.search(environment.for_target(str(laid_out(folder, version))), cwd="/").installations
    here = [one for one in found if one.upstream in ("megatron-core", "megatron-lm")]
    return host.prove(python, FIX, ["megatron-lm"], here, VERSIONS[version], others(version))


def others(version: str) -> dict[str, Other]:
    """The variants that must fail on this version: those whose cases it has."""
    known = {case.name for case in VERSIONS[version]}
    found = {name: other for name, other in OTHERS.items() if known.issuperset(other.fails)}
    if version == "280d2440d" or not os.environ.get(wheels.CLONES["megatron-lm"]):
        found.pop(AS_WRITTEN, None)  # where it does not apply, or is not to be had
    return found


def grafted(kept: str) -> Callable[[bytes, bytes], bytes]:
    """One half of our patch, ``body`` (the sender's) or ``orelse`` (the receiver's); the other as upstream has it."""

    def change(before: bytes, after: bytes) -> bytes:
        other = {"body": "orelse", "orelse": "body"}[kept]
        (old, first, last), (new, begin, end) = half(before, other), half(after, other)
        mixed = b"".join([*new[:begin], *old[first:last], *new[end:]])
        assert mixed not in (before, after)
        return mixed

    return change


def half(data: bytes, part: str) -> tuple[list[bytes], int, int]:
    """A file's lines, and where in them the sending or the receiving half begins and ends."""
    (function,) = (node for node in ast.parse(data).body if getattr(node, "name", "") == "get_batch_on_this_tp_rank")
    assert isinstance(function, ast.FunctionDef)
    (split,) = (node for node in function.body if isinstance(node, ast.If))
    nodes = getattr(split, part)
    return data.splitlines(keepends=True), nodes[0].lineno - 1, nodes[-1].end_lineno


def without_gate(before: bytes, after: bytes) -> bytes:
    """Our patch with the metadata sent and received on every stage, --sft or not."""
    head, marker, patch = after.partition(b"# unhang ")
    assert patch.count(b"if args.sft:") >= 4
    return head + marker + patch.replace(b"if args.sft:", b"if True:")


def as_written(before: bytes, after: bytes) -> bytes:
    """The pull request, applied to the untouched file."""
    git = pytest.importorskip("git", reason="gitpython is needed to apply a pull request")
    (item,) = (item for item in compat.load("upstreams.json")["as-written"] if item["fix"] == FIX)
    repo = git.Repo(wheels.clone(item["upstream"]))
    diff = pull_request.hunks(repo, item["ref"], item["file"], item["function"])
    data = pull_request.applied(diff, before)
    assert data is not None, "the pull request does not apply"
    return data


AS_WRITTEN = "pull request 4150 as written"
OTHERS = {
    "half: the sender alone": Other(grafted("body"), ("tp2-pp4-schedule",)),
    "half: the receiver alone": Other(grafted("orelse"), ("tp2-pp4-schedule",)),
    "without the gate on --sft": Other(without_gate, ("tp2-pp4-no-sft",)),
    AS_WRITTEN: Other(as_written, ("tp2-pp2", "tp2-pp4")),
}
PAIRS = [
    pytest.param(version, case, id=f"{version}-{case.name}") for version, all_ in VERSIONS.items() for case in all_
]
VARIANTS = [pytest.param(version, name, id=f"{version}-{name}") for version in VERSIONS for name in others(version)]
PLAIN = [pair for pair in PAIRS if not pair.values[1].options.get("sft", True)]


@pytest.mark.parametrize(("version", "case"), PAIRS)
def test_the_untouched_source_shows_the_defect_and_the_patched_one_does_not(
    folder: Path, version: str, case: Case
) -> None:
    outcomes = answer(folder, version).outcomes
    assert cases.verdict(case, outcomes[host.UNTOUCHED][case.name], outcomes[host.PATCHED][case.name]) == ""


@pytest.mark.parametrize(("version", "name"), VARIANTS)
def test_half_a_patch_fails(folder: Path, version: str, name: str) -> None:
    outcomes = answer(folder, version).outcomes[name]
    assert outcomes.keys() == {*OTHERS[name].fails}
    assert cases.survivors(outcomes) == ""
    if name.startswith("half"):
        assert {outcome.status for outcome in outcomes.values()} == {cases.HUNG}
    if name == AS_WRITTEN:
        assert all("on the last stage cu_seqlens is None" in outcome.detail for outcome in outcomes.values())
        assert not any("on the middle stage cu_seqlens" in outcome.detail for outcome in outcomes.values())


@pytest.mark.parametrize(("version", "case"), PLAIN)
def test_without_sft_the_batch_is_the_same_and_the_broadcasts_are_no_more(
    folder: Path, version: str, case: Case
) -> None:
    outcomes = answer(folder, version).outcomes
    before, after = (outcomes[name][case.name].detail for name in (host.UNTOUCHED, host.PATCHED))
    assert before.startswith("broadcasts: ")
    assert after.partition("; batches ")[2] == before.partition("; batches ")[2] != ""
    if "0.16" not in version:
        assert after == before


def test_each_set_of_cases_has_a_control_and_a_defect() -> None:
    for all_ in (*WHEELS.values(), *TREES.values()):
        assert {case.is_control for case in all_} == {True, False}
        assert len({case.name for case in all_}) == len(all_)


def test_every_affected_shape_is_proved() -> None:
    """A tree or a wheel for each; a pull request as written has the result of the shape that it was applied to."""
    rows = [row for row in catalog._data("shapes.json")["shapes"] if row["fix"] == FIX and row["state"] == "affected"]
    firsts = {row["result"]: row["first"].split()[1] for row in rows if "first" in row}
    assert {row["result"] for row in rows} == firsts.keys()
    released = {"98d8c56db": "core_v0.16.1", "4bce841d2": "core_v0.17.1"}  # what is proved on a release instead
    assert {released.get(first, first) for first in firsts.values()} == TREES.keys()
