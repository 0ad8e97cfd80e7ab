"""Which cases are run for what is installed, on which files, and when none can be. Runs no torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import cli
from support.asked import Asked, Results
from unhang.cli.main import main
from unhang.errors import UnhangError
from unhang.find import environment
from unhang.prove import host, installed
from unhang.prove.cases import HUNG, PASSED
from unhang.prove.fixes import expert_dp_warmup

FIX = ("--fix", "mtp-cp-deadlock")
FILE = "verl/workers/engine/megatron/transformer_impl.py"
REDUCE = "reduce_loss_in_tracker"


def test_untouched_source_that_hangs_is_a_1(site: Path, asked: Asked, prove: Results) -> None:
    code, (line,) = prove(site, *FIX, "--tp", "2", "--cp", "2", "--world-size", "64")
    assert code == 1
    where = ("upstream", "version", "location", "fix")
    assert [line[name] for name in where] == ["verl", "0.7.1", str(site), FIX[1]]
    assert (line["verdict"], line["answer"], line["topology"]) == (
        "needed", "proven", "TP 2 x CP 2 x DP 2 (8 ranks)",
    )  # fmt: skip
    assert "TP 2 x CP 2 x DP 2 (8 ranks) in place of your 64" in line["detail"]
    assert line["untouched"] == {"status": HUNG, "detail": f"somewhere in {REDUCE}", "seconds": 1.5, "gpu_bytes": 0}
    assert (line["patched"]["status"], line["seconds"]) == (PASSED, 1.75)
    assert asked.paths == [[str(site)]]
    assert asked.variants[0][host.UNTOUCHED][FILE] == (site / FILE).read_bytes()
    assert b"# unhang mtp-cp-deadlock" in asked.variants[0][host.PATCHED][FILE]


def test_a_fix_in_the_upstream_below_is_on_neither_side(tmp_path: Path, asked: Asked, prove: Results) -> None:
    site = cli.unpack(tmp_path / "site", ("ms-swift", "4.6.0"), ("megatron-core", "0.16.1"))
    below = "megatron/core/parallel_state.py"
    pristine = (site / below).read_bytes()
    assert main(["apply", "--target", str(site), "--fix", "expert-dp-warmup", "--upstream", "megatron-core"]) == 0
    code, lines = prove(site, "--fix", "expert-dp-warmup", "--ep", "2", "--dp", "8")
    assert code == 1
    assert [(line["upstream"], line["verdict"]) for line in lines] == [
        ("megatron-core", "applied"), ("ms-swift", "needed"),
    ]  # fmt: skip
    assert [files[below] for files in asked.variants[1].values()] == [pristine, pristine]


def test_without_sizes_a_proof_runs_its_own_core_cases(site: Path, asked: Asked, prove: Results) -> None:
    code, lines = prove(site, *FIX)
    assert (code, {line["answer"] for line in lines}) == (1, {"proven", "unaffected"})
    assert [line["case"] for line in lines] == [case.name for case in asked.cases[0]]
    assert all(case.core for case in asked.cases[0])


def test_a_case_is_chosen_by_its_name_core_or_not(
    site: Path, asked: Asked, prove: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fixes that have no such case are not run."""
    code, lines = prove(site, "--case", "tp2-pp2-cp2-virtual")
    assert (code, [(line["fix"], line["case"]) for line in lines if line["case"]]) == (
        1,
        [(FIX[1], "tp2-pp2-cp2-virtual")],
    )
    assert len(asked.cases) == 1
    for more, wrong in ((("--case", "xyz"), "no-case"), (("--case", "cp2", "--cp", "2"), "bad-topology")):
        assert main(["prove", "--target", str(site), "--python", sys.executable, *more]) == 2
        assert f"error[{wrong}]" in capsys.readouterr().err
    assert len(asked.cases) == 1


def test_what_an_answer_leaves_open_is_told(tmp_path: Path, asked: Asked, prove: Results) -> None:
    site = cli.unpack(tmp_path / "site", ("megatron-core", "0.17.1"))
    sft = ("--fix", "sft-packed-seq-broadcast", "--tp", "2", "--pp", "2")
    for sizes, told in ((), False), (("--cp", "2"), True):
        line = next(line for line in prove(site, *sft, *sizes)[1] if line["upstream"] == "megatron-lm")
        assert (line["answer"], line["grade"]) == ("proven", "cure")
        assert ("not shown: context parallelism itself" in line["detail"]) is told


@pytest.mark.parametrize(
    ("release", "verdict", "answer", "code"),
    [
        ("0.9.1", "fixed-upstream", "nothing-to-prove", 0),
        ("0.6.1", "not-affected", "nothing-to-prove", 0),
        ("0.7.1", "needed", "unknown", 2),
    ],
)
def test_what_needs_no_proof_or_cannot_have_one(
    release: str, verdict: str, answer: str, code: int, tmp_path: Path, asked: Asked, prove: Results
) -> None:
    site = cli.unpack(tmp_path / "site", ("verl", release))
    exit_code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (line["verdict"], line["answer"], exit_code) == (verdict, answer, code)
    assert ("also needs megatron-core" in line["detail"]) is (answer == "unknown")
    assert asked.cases == []


def test_an_unknown_source_and_a_topology_without_a_case_are_a_2(
    site: Path, asked: Asked, prove: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / FILE).write_text((site / FILE).read_text().replace("n_micro_batch", "count"))
    code, (line,) = prove(site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["verdict"]) == (2, "unknown", "drifted")
    monkeypatch.setattr(expert_dp_warmup, "case_for", lambda *_: None)
    code, (line,) = prove(site, "--fix", "expert-dp-warmup", "--ep", "8", "--dp", "8")
    assert (code, line["answer"]) == (2, "unknown")
    assert "DP 8 x EP 8 (8 ranks)" in line["detail"]
    assert asked.cases == []


def test_what_the_topology_rules_out_is_not_run(site: Path, asked: Asked, prove: Results) -> None:
    fix = ("--fix", "empty-expert-hang")
    code, (line,) = prove(site, *fix, "--dp", "8")
    assert (code, line["answer"], line["verdict"], asked.cases) == (0, "nothing-to-prove", "needed", [])
    code, (line,) = prove(site, *fix, "--ep", "8", "--dp", "8")
    assert (code, line["answer"], line["topology"]) == (1, "proven", "DP 2 x EP 2 (2 ranks)")
    assert "Transformer Engine" in line["detail"]


def test_virtual_chunks_reach_the_proofs_that_know_them(site: Path, asked: Asked, prove: Results) -> None:
    for fix, told, chunks in ((FIX, False, {"chunks": 2}), (("--fix", "expert-dp-warmup"), True, {})):
        _, (line,) = prove(site, *fix, "--pp", "2", "--vpp", "2", "--cp", "2", "--ep", "2", "--dp", "2")
        assert ("VPP 2" in line["topology"], "virtual chunks are left out" in line["detail"]) == (not told, told)
        assert asked.cases[-1][0].options == chunks


def test_a_proof_that_needs_no_topology_runs_at_any(site: Path, asked: Asked, prove: Results) -> None:
    fixes = ("--fix", "fsdp2-buffer-order", "--fix", "fsdp-dynamic-bsz")
    _, lines = prove(site, *fixes, "--tp", "4", "--pp", "8", "--world-size", "1024")
    assert [(line["answer"], line["topology"]) for line in lines] == [("proven", "DP 8 (8 ranks)")] * 2


def test_the_interpreter_is_the_environments_own_or_the_named_one(tmp_path: Path) -> None:
    assert installed.interpreter(environment.choose(sys.executable, "/", {}), None, "/", {}) == sys.executable
    place = environment.for_target(str(tmp_path))
    assert installed.interpreter(place, sys.executable, "/", {}) == sys.executable
    with pytest.raises(UnhangError) as caught:
        installed.interpreter(place, None, "/", {})
    assert caught.value.code == "no-interpreter"
