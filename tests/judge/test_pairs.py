"""Edits of what a settled verdict rests on: of the function, and of the one that it depends on. None is settled."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import pytest

from support import wheels
from unhang.judge import findings
from unhang.judge.decide import FIXED_UPSTREAM, NEEDED, NOT_AFFECTED, SETTLED, Verdict, is_pair
from unhang.judge.observe import Observation, observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Shape, Target

Files = Callable[[Target], "bytes | None"]


class Base(NamedTuple):
    """A fix and a release in which something is settled."""

    fix: str
    version: str


BASES = [
    Base("critic-microbatch-scale", "0.9.1"),
    Base("expert-grad-norm", "0.19.2"),
    Base("fsdp-dynamic-bsz", "0.6.1"),
    Base("fsdp-reduce-order", "0.19.2"),
    Base("fsdp2-buffer-order", "0.9.1"),
    Base("fused-head-no-gradient", "0.9.1"),
    Base("gdn-out-norm-tp", "0.15.3"),
    Base("infer-metric-rank0", "3.7.3"),
    Base("mcore-save-barrier", "4.6.0"),
    Base("mean-metric-dtype", "3.7.3"),
    Base("mean-metric-dtype", "4.6.0"),
    Base("merged-lora-stale-sync", "0.7.0"),
    Base("merged-lora-stale-sync", "0.9.1"),
    Base("moe-aux-tracker-hang", "0.12.3"),
    Base("moe-aux-tracker-hang", "0.19.2"),
    Base("mtp-cp-deadlock", "0.7.0"),
    Base("mtp-cp-deadlock", "0.9.1"),
    Base("mtp-zero-tokens", "0.19.2"),
    Base("reduce-noncontiguous", "0.19.2"),
    Base("router-token-scale", "0.15.3"),
    Base("router-token-scale", "0.19.2"),
    Base("sft-packed-seq-broadcast", "0.19.2"),
    Base("tp-logps-gradient", "4.6.0"),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closest known shape takes long to find, and changes no verdict: see ``test_decide``."""
    monkeypatch.setattr(catalog, "outlines", lambda fix: OutlineTable({}, {}, {}))


_SLOW = {"expert-grad-norm", "fsdp-dynamic-bsz", "gdn-out-norm-tp", "mtp-cp-deadlock", "mtp-zero-tokens"}
_SLOW |= {"moe-aux-tracker-hang", "router-token-scale", "sft-packed-seq-broadcast"}
_MARKED = [
    pytest.param(base, marks=[pytest.mark.slow] if base.fix in _SLOW else [], id=" ".join(base)) for base in BASES
]


@pytest.mark.parametrize("base", _MARKED)
def test_no_edit_of_a_function_that_a_settled_verdict_rests_on_is_settled(base: Base) -> None:
    edits = 0
    for target in settled(base):
        released = files_of(target, base.version)
        for function in filter(None, (target, target.depends_on)):
            for what, data in edited(released(function) or b"", function):
                if known(function, data):
                    continue  # upstream has had that function, too
                found = judged(target, base.version, released, {function: data})
                edits += 1
                assert found.verdict not in SETTLED, (target.function, function.function, what, found)
    assert edits


@pytest.mark.parametrize("base", BASES, ids=" ".join)
def test_a_file_of_another_release_settles_what_upstream_has_had_alone(base: Base) -> None:
    for target in settled(base):
        released, functions = files_of(target, base.version), [one for one in (target, target.depends_on) if one]
        for file in {one.file for one in functions}:
            for version in {other.version for other in BASES}:
                data = read(target, version, file)
                changed = {one: data for one in functions if one.file == file}
                mine, *beside = (seen(changed.get(one, released(one)), one).shape for one in functions)
                found = judged(target, base.version, released, changed)
                if data is None or mine is None or found.verdict not in SETTLED:
                    continue
                shapes = catalog.shape_table().shapes
                on_record = shapes[target.fix, target.function, mine]
                for other, digest in zip(functions[1:], beside):
                    there = shapes.get((other.fix, other.function, digest or ""))
                    assert on_record.state == "not-affected" or is_pair(on_record, there, digest), (other, version)


def settled(base: Base) -> list[Target]:
    """The targets that are there in a release, and of which nothing is left to do."""
    found = []
    for target in catalog.fix(base.fix).targets:
        files = files_of(target, base.version)
        if judged(target, base.version, files).verdict in SETTLED and seen(files(target), target).shape:
            found.append(target)
    assert found
    return found


def without_forwarded(function: ast.AST) -> None:
    """Drop what the call in upstream's fix hands on."""
    (call,) = (
        node for node in ast.walk(function) if isinstance(node, ast.Call) and ast.unparse(node.func) == "agg_loss"
    )
    call.keywords = [one for one in call.keywords if one.arg in ("loss_mat", "loss_mask", "loss_agg_mode")]


def negated(function: ast.AST) -> None:
    """Negate each condition."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            node.test = ast.UnaryOp(ast.Not(), node.test)


@pytest.mark.parametrize(
    ("fix", "name", "edit"),
    [
        ("critic-microbatch-scale", "compute_value_loss", without_forwarded),
        ("fused-head-no-gradient", "FusedLinearForPPOFunction.backward", negated),
    ],
)
def test_a_broken_copy_of_upstreams_fix_is_drifted(fix: str, name: str, edit: Callable[[ast.AST], None]) -> None:
    """The first gives a gradient 3.91 times as large; the second one gives none."""
    (target,) = catalog.fix(fix).targets
    for version in ("0.9.0", "0.9.1"):
        released = files_of(target, version)
        assert judged(target, version, released).verdict == FIXED_UPSTREAM
        (broken,) = (one for one in (target, target.depends_on) if one is not None and one.function == name)
        (function,) = shape.find(shape.parse(released(broken) or b""), name)
        edit(function)
        data = alone(function, name)
        found = judged(target, version, released, {broken: data})
        assert (found.verdict, found.code) in {("drifted", "depends-on-unknown"), ("drifted", "unknown-shape")}


def test_an_older_dependency_settles_nothing() -> None:
    """With 0.8.0's core_algos.py, 0.9.1 raises TypeError when it trains a critic."""
    (target,) = catalog.fix("critic-microbatch-scale").targets
    other = target.depends_on
    assert other is not None
    found = judged(target, "0.9.1", files_of(target, "0.9.1"), {other: read(target, "0.8.0", other.file)})
    assert (found.verdict, found.code) == ("drifted", "depends-on-unknown")


def test_a_copy_with_half_of_upstreams_fix_is_not_rewritten() -> None:
    """Pull request 6773 reduces a group of one rank once a step: of a shard, the last micro-batch alone would count."""
    (target,) = catalog.fix("mfsdp-lone-shard").targets
    released, other = files_of(target, "0.19.2"), target.depends_on
    assert other is not None
    data = (released(other) or b"").replace(
        b"scaling_factor, ddp_config):", b"scaling_factor, ddp_config, group_size):"
    )
    found = judged(target, "0.19.2", released, {target: data, other: data})
    assert (found.verdict, found.code) == ("drifted", "depends-on-unknown")
    assert judged(target, "0.19.2", released).verdict == NEEDED


def test_a_function_that_is_wrong_with_another_is_not_settled_where_that_has_another_name() -> None:
    """In a fork's file, the loss of sequences still hands on the tokens of one."""
    (target,) = (
        one for one in catalog.fix("router-token-scale").targets if one.function.endswith("._apply_seq_aux_loss")
    )
    released, (counts,) = files_of(target, "0.18.2"), target.only_with
    renamed = (released(counts) or b"").replace(counts.function.encode(), b"acme")
    assert judged(target, "0.15.99", released).verdict == NEEDED
    assert judged(target, "0.15.99", released, {counts: renamed}).verdict == NEEDED
    old = files_of(target, "0.14.0")
    assert judged(target, "0.15.99", old).verdict == NOT_AFFECTED


# -- how they are judged -----------------------------------------------------------------------------------------------


def judged(target: Target, version: str, files: Files, changed: Mapping[Target, bytes | None] | None = None) -> Verdict:
    """The verdict on a target in a copy with these files, some of them changed, under the number of a release."""
    where, edits = Installation(target.upstream, version, "", "", "", "wheel", None, ()), changed or {}

    def look(_: Installation, other: Target) -> Observation:
        return seen(edits[other] if other in edits else files(other), other)

    return findings.verdict(where, catalog.fix(target.fix), target, None, look(where, target), look)


def seen(data: bytes | None, target: Target) -> Observation:
    if data is None:
        return Observation(target.file, None)
    return observe_bytes(target.file, data, target.function, catalog.shape_table().of_files(target.fix))


def known(target: Target, data: bytes | None) -> Shape | None:
    """What is on record of a function in a file."""
    return catalog.shape_table().shapes.get((target.fix, target.function, seen(data, target).shape or ""))


def files_of(target: Target, version: str) -> Files:
    """The files of a release of the target's upstream."""
    return lambda other: read(target, version, other.file)


@cache
def read(target: Target, version: str, file: str) -> bytes | None:
    project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
    try:
        return wheels.read(project, version, file)
    except wheels.WheelError:
        return None


def edited(data: bytes, target: Target) -> Iterator[tuple[str, bytes]]:
    """Yield the function without each argument that it forwards, and with each condition negated."""
    for function in shape.find(shape.parse(data), target.function):
        for at, node in enumerate(ast.walk(function)):
            for field in ("args", "keywords") if isinstance(node, ast.Call) else ():
                for one in range(len(getattr(node, field))):
                    changed, there = _copy(function, at)
                    del getattr(there, field)[one]
                    yield f"{field} {one} of {ast.unparse(node)}", alone(changed, target.function)
            if isinstance(node, (ast.If, ast.IfExp, ast.While)):
                changed, there = _copy(function, at)
                vars(there)["test"] = ast.UnaryOp(ast.Not(), node.test)
                yield f"not {ast.unparse(node.test)}", alone(changed, target.function)


def _copy(function: shape.Function, at: int) -> tuple[shape.Function, ast.AST]:
    """A copy of a function, and the node that comes at this number in it."""
    changed = copy.deepcopy(function)
    return changed, [*ast.walk(changed)][at]


def alone(changed: shape.Function, name: str) -> bytes:
    """A file with this function alone, which is much faster to judge than the release's."""
    *outer, _ = name.split(".")
    text = ast.unparse(ast.fix_missing_locations(changed))
    for above in reversed(outer):
        text = f"class {above}:\n{textwrap.indent(text, '    ')}"
    return text.encode()
