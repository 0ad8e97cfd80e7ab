"""An upgrade replaces what an older version of a fix wrote: from the receipt, or from its recorded shape.

Most of these tests make an older version up, which writes the same gate with its conditions in another order.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst
import pytest

from support import cli
from unhang.cli.main import main
from unhang.codemods import empty_expert_hang
from unhang.codemods.base import once, span
from unhang.codemods.edit import Edit
from unhang.judge import decide
from unhang.rewrite.one_file import Step, rewrite
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Shape
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
NAME = "MegatronEngine.forward_backward_batch"
NEW_GATE = b"self.model_config.mtp.enable and n_micro_batch > 0 and mpu.is"
OLD_GATE = b"n_micro_batch > 0 and self.model_config.mtp.enable and mpu.is"


def shape_of(data: bytes) -> str:
    (function,) = shape.find(ast.parse(data), NAME)
    return shape.digest(function)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the made-up older version has patched, with its receipt, and a matrix that knows its result."""
    pristine = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    assert main(["apply", "--target", str(pristine)]) == 0
    source = pristine / ENGINE
    new = source.read_bytes()
    assert new.count(NEW_GATE) == 1
    old = new.replace(NEW_GATE, OLD_GATE)
    source.write_bytes(old)
    receipt = pristine / ".unhang" / "receipt.json"
    text = receipt.read_text()
    assert text.count(hashlib.sha256(new).hexdigest()) == 1
    text = text.replace(hashlib.sha256(new).hexdigest(), hashlib.sha256(old).hexdigest())
    receipt.write_text(text.replace(shape_of(new), shape_of(old)))
    table = catalog.shape_table()
    row = Shape("superseded", shape_of(new), ("mpu", "get_megatron_mtp_loss"), "")
    shapes = {**table.shapes, ("mtp-cp-deadlock", NAME, shape_of(old)): row}
    monkeypatch.setattr(catalog, "shape_table", lambda: table._replace(shapes=shapes))
    return pristine


def test_with_the_receipt_one_run_restores_the_original_and_rewrites_it(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--target", str(site)]) == 1
    out = capsys.readouterr().out
    assert "needed" in out
    assert "an older version of this rewrite is in place" in out
    original = next((site / ".unhang" / "pristine").iterdir()).read_bytes()
    assert main(["apply", "--target", str(site)]) == 0
    data = (site / ENGINE).read_bytes()
    assert NEW_GATE in data
    assert OLD_GATE not in data
    assert main(["revert", "--target", str(site)]) == 0
    assert (site / ENGINE).read_bytes() == original, "the receipt still has the original bytes"
    assert not (site / ".unhang").exists()


def test_without_the_receipt_a_codemod_that_does_not_know_the_older_version_blocks(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(site / ".unhang")
    before = cli.tree(site)
    assert main(["apply", "--target", str(site)]) == 1
    assert "blocked: mtp-cp-deadlock" in capsys.readouterr().err
    assert cli.tree(site) == before


def test_without_the_receipt_a_codemod_that_knows_the_older_version_upgrades(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(site / ".unhang")
    target = catalog.fix("mtp-cp-deadlock").targets[0]
    known: type = type(decide.codemod(target))

    class KnowsTheOlder(known):  # type: ignore[misc]
        def plan(self, function: Function) -> list[Edit]:
            tests = [(ast.unparse(node.test), node) for node in function.body if isinstance(node, ast.If)]
            gate = once([node for test, node in tests if test.startswith("n_micro_batch > 0")], "the older gate")
            return [span(gate, gate, reordered)]

    monkeypatch.setattr("unhang.rewrite.one_file.codemod", lambda target: KnowsTheOlder())
    assert main(["apply", "--target", str(site)]) == 0
    assert NEW_GATE in (site / ENGINE).read_bytes()


def test_a_user_edit_blocks_the_upgrade(site: Path) -> None:
    source = site / ENGINE
    edited = source.read_bytes() + b"\nOURS = 1\n"
    source.write_bytes(edited)
    assert main(["apply", "--target", str(site)]) == 1, "the receipt's bytes lack the edit, so they are not used"
    assert source.read_bytes() == edited


EXPERTS = "megatron/core/transformer/moe/experts.py"


@pytest.mark.parametrize("version", ["0.15.3", "0.16.0rc0.dev132550"])
def test_what_generation_1_of_empty_expert_hang_wrote_is_upgraded_without_its_receipt(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows were not aligned where the bias comes after the unpadding."""
    site = cli.unpack_targets(tmp_path / "site", ("megatron-core", version))
    (target,) = catalog.fix("empty-expert-hang").targets
    pristine = (site / EXPERTS).read_bytes()
    with monkeypatch.context() as generation_1:
        generation_1.setattr(empty_expert_hang, "_unpadding_before_bias", lambda function: None)
        (site / EXPERTS).write_bytes(rewrite(pristine, [Step(target, None)]).data)
    only = ["--target", str(site), "--fix", "empty-expert-hang"]
    assert main(["check", *only]) == 1
    assert "an older version of this rewrite is in place" in capsys.readouterr().out
    assert main(["apply", *only]) == 0
    assert (site / EXPERTS).read_bytes() == rewrite(pristine, [Step(target, None)]).data


def reordered(nodes: Statements) -> Statements:
    (gate,) = nodes
    test = "self.model_config.mtp.enable and n_micro_batch > 0 and mpu.is_pipeline_last_stage(ignore_virtual=True)"
    return [cst.ensure_type(gate, cst.If).with_changes(test=cst.parse_expression(test))]
