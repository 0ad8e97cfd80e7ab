"""A copy with a defect that no rewrite is for: each command says so, writes nothing of that fix, and exits with 1."""

import os
import sys
from pathlib import Path

import pytest

from support import cli, wheels
from unhang.diagnose import fixes
from unhang.records import Request
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Shape, ShapeTable
from unhang.survey.verdicts import survey

FIX, OTHER = "mtp-cp-deadlock", "expert-dp-warmup"
WORKAROUND = "upgrade to verl 9.0, or set mtp.enable to False"


class Changed(dict[tuple[str, str, str], Shape]):
    """The shapes on record, on which those that need the fix have no rewrite."""

    def __init__(self, table: ShapeTable) -> None:
        super().__init__()
        self.table = table

    def get(self, key: tuple[str, str, str], default: object = None) -> Shape | None:  # type: ignore[override]
        found = self.table.shapes.get(key)
        if key[0] == FIX and found is not None and found.state == "affected":
            return Shape("no-rewrite", None, (), found.note)
        return found


def without_rewrite(fix: Fix) -> Fix:
    """The fix as a manifest with a workaround has it."""
    return fix._replace(targets=tuple(target._replace(workaround=WORKAROUND) for target in fix.targets))


@pytest.fixture(autouse=True)
def _no_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    table = catalog.shape_table()
    known = {name: without_rewrite(fix) if name == FIX else fix for name, fix in catalog.fixes().items()}
    monkeypatch.setattr(catalog, "shape_table", lambda: table._replace(shapes=Changed(table)))
    monkeypatch.setattr(catalog, "fixes", lambda: known)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.17.1"))


def run(command: str, *arguments: str | os.PathLike[str]) -> cli.Ran:
    return cli.called_with_all(command, *arguments, "--fix", FIX)


def test_check_says_that_the_defect_is_here_and_what_to_do(site: Path) -> None:
    here = ("--target", site)
    text = run("check", *here)
    assert (text.code, text.out.count(f"help: {WORKAROUND}")) == (1, 1)
    assert "1 needed" in text.out
    assert not [words for words in ("unhang apply", "nothing left", "changes numbers") if words in text.out]
    (row,) = run("check", *here, "--output-format", "json").json["results"]
    assert (row["verdict"], row["code"], row["hint"]) == ("needed", "no-rewrite", WORKAROUND)
    annotation = run("check", *here, "--output-format", "github").out
    assert annotation.startswith("::error")
    assert WORKAROUND in annotation
    (result,) = run("check", *here, "--output-format", "sarif").json["runs"][0]["results"]
    assert (result["level"], result["properties"]["code"]) == ("error", "no-rewrite")
    assert WORKAROUND in result["message"]["text"]


@pytest.mark.parametrize("command", [("apply",), ("apply", "--dry-run"), ("overlay", "made"), ("diff",)])
def test_it_is_never_written_is_named_last_and_the_other_fixes_go_in(
    command: tuple[str, ...], site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = site / next(iter(catalog.fix(FIX).targets)).file
    before = target.read_bytes()
    ran = run(*command, "--target", site, "--fix", OTHER)
    assert (ran.code, target.read_bytes()) == (1, before)
    assert ran.err.splitlines()[-1].startswith(f"blocked: {FIX} ")
    assert f"do: {WORKAROUND}" in ran.err or "its row above says why" in ran.err
    assert "and there is no rewrite for this function" in ran.out + ran.err
    if command == ("apply",):
        assert f"# unhang {OTHER}:".encode() in (site / "megatron/core/parallel_state.py").read_bytes()
    assert f"# unhang {FIX}:" not in ran.out


def test_nor_is_it_in_a_rewritten_wheel(tmp_path: Path) -> None:
    ran = run("wheel", wheels.fetch("verl", "0.7.1"), "-o", tmp_path / "out")
    assert ran.code == 1
    assert not list((tmp_path / "out").glob("*.whl"))


@pytest.mark.parametrize("command", ["check", "apply"])
def test_it_does_not_do_for_a_fix_that_is_required(command: str, site: Path) -> None:
    ran = run(command, "--target", site, "--require", FIX)
    assert ran.code == 1
    assert f"required fix not in place: {FIX} is needed on verl 0.7.1" in ran.err
    assert ran.err.rstrip().endswith(WORKAROUND) or "its row above says why" in ran.err


def test_nothing_is_proved_of_it_and_diagnose_suggests_no_command(site: Path) -> None:
    ran = run("prove", "--target", site, "--python", sys.executable, "--output-format", "json")
    (row,) = ran.json["results"]
    assert (ran.code, row["answer"], row["verdict"]) == (0, "nothing-to-prove", "needed")
    assert row["detail"].endswith(WORKAROUND)
    request = Request(target=str(site), fixes=(FIX,))
    (stands,) = fixes.standings(survey(request).findings, request)
    assert (stands.verdict, stands.code, stands.hint) == ("needed", "no-rewrite", WORKAROUND)
    assert not fixes.is_curable([stands])
