"""What an older version of a fix wrote is brought to the newer one: by the receipt, or by its recorded shape.

There is no older version yet: one is made up here, which writes the same gate with its conditions in another order.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli
from unhang.cli.main import main
from unhang.codemods.base import Edit, Function, once, span
from unhang.judge import decide
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Shape

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
NAME = "MegatronEngine.forward_backward_batch"
NEW_GATE = b"self.model_config.mtp.enable and n_micro_batch > 0 and mpu.is"
OLD_GATE = b"n_micro_batch > 0 and self.model_config.mtp.enable and mpu.is"


def shape_of(data: bytes) -> str:
    (function,) = shape.find(ast.parse(data), NAME)
    return shape.digest(function)


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    return cli.unpack(tmp_path / "site", VERL)


@pytest.fixture
def site(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the made-up older version has patched, receipt and all, and a matrix that knows its result."""
    assert main(["apply", "--target", str(pristine)]) == 0
    source = pristine / ENGINE
    new = source.read_bytes()
    assert new.count(NEW_GATE) == 1
    old = new.replace(NEW_GATE, OLD_GATE)
    source.write_bytes(old)
    receipt = pristine / ".unhang" / "receipt.json"
    digests = {hashlib.sha256(data).hexdigest() for data in (old, new)}
    text = receipt.read_text()
    assert text.count(hashlib.sha256(new).hexdigest()) == 1
    text = text.replace(hashlib.sha256(new).hexdigest(), hashlib.sha256(old).hexdigest())
    receipt.write_text(text.replace(shape_of(new), shape_of(old)))
    assert len(digests) == 2
    table = catalog.shape_table()
    row = Shape("superseded", shape_of(new), ("mpu", "get_megatron_mtp_loss"), "")
    shapes = {**table.shapes, ("mtp-cp-deadlock", NAME, shape_of(old)): row}
    monkeypatch.setattr(catalog, "shape_table", lambda: table._replace(shapes=shapes))
    return pristine


def test_what_is_up_to_date_is_left_alone(pristine: Path) -> None:
    assert main(["apply", "--target", str(pristine)]) == 0
    before = cli.tree(pristine)
    assert main(["apply", "--target", str(pristine)]) == 0
    assert cli.tree(pristine) == before


def test_an_older_result_is_needed_and_says_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--target", str(site)]) == 1
    out = capsys.readouterr().out
    assert "needed" in out
    assert "an older version of this rewrite is in place" in out


def test_by_the_receipt_it_goes_back_and_forward_in_one_run(site: Path) -> None:
    original = next((site / ".unhang" / "pristine").iterdir()).read_bytes()
    assert main(["apply", "--target", str(site)]) == 0
    data = (site / ENGINE).read_bytes()
    assert NEW_GATE in data
    assert OLD_GATE not in data
    assert main(["revert", "--target", str(site)]) == 0
    assert (site / ENGINE).read_bytes() == original, "the receipt still has the bytes before the older version"
    assert not (site / ".unhang").exists()


def test_without_the_receipt_a_codemod_that_does_not_know_it_blocks(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_receipt(site)
    before = cli.tree(site)
    assert main(["apply", "--target", str(site)]) == 1
    assert "blocked: mtp-cp-deadlock" in capsys.readouterr().err
    assert cli.tree(site) == before


def test_without_the_receipt_a_codemod_that_knows_it_upgrades(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_receipt(site)
    target = catalog.fix("mtp-cp-deadlock").targets[0]
    known = decide.codemod(target)

    class KnowsTheOlder(type(known)):  # type: ignore[misc]
        def plan(self, function: Function) -> list[Edit]:
            gates = [
                node
                for node in function.body
                if isinstance(node, ast.If) and "n_micro_batch > 0" in ast.unparse(node.test)
            ]
            gate = once(gates, "the older gate")
            return [span(gate, gate, reordered())]

    monkeypatch.setattr("unhang.rewrite.one_file.codemod", lambda target: KnowsTheOlder())
    assert main(["apply", "--target", str(site)]) == 0
    assert NEW_GATE in (site / ENGINE).read_bytes()


def test_an_edit_of_the_users_survives_the_upgrade_or_blocks_it(site: Path) -> None:
    source = site / ENGINE
    edited = source.read_bytes() + b"\nOURS = 1\n"
    source.write_bytes(edited)
    assert main(["apply", "--target", str(site)]) == 1, "the receipt's bytes would lose the edit, so they are not used"
    assert source.read_bytes() == edited


def drop_receipt(site: Path) -> None:
    import shutil

    shutil.rmtree(site / ".unhang")


def reordered() -> Callable[[list[object]], list[object]]:
    import libcst as cst

    def change(nodes: list[object]) -> list[object]:
        (gate,) = nodes
        assert isinstance(gate, cst.If)
        test = "self.model_config.mtp.enable and n_micro_batch > 0 and mpu.is_pipeline_last_stage(ignore_virtual=True)"
        return [gate.with_changes(test=cst.parse_expression(test))]

    return change
