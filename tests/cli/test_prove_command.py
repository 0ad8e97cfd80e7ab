"""`unhang prove`: what it is asked, what it answers, and where it says that it cannot. Some tests need torch."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import cli, interpreters
from unhang.cli.main import main
from unhang.errors import UnhangError
from unhang.prove import answers, host
from unhang.prove.cases import BROKEN, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from unhang.prove.fixes import expert_dp_warmup
from unhang.prove.fixes.empty_expert_hang import transformer_engine
from unhang.prove.fixes.sft_packed_seq_broadcast import cases as sft
from unhang.shapes import catalog

VERL, CORE = ("verl", "0.7.1"), ("megatron-core", "0.16.1")
FIX = ("--fix", "mtp-cp-deadlock")
FILE = "verl/workers/engine/megatron/transformer_impl.py"
REDUCE = "reduce_loss_in_tracker"
Outcomes = Callable[[Case], Outcome]


class Asked:
    """In place of the target's interpreter: keeps what it is asked, and answers as it was told."""

    def __init__(self, untouched: Outcomes, patched: Outcomes) -> None:
        self._answers = {host.UNTOUCHED: untouched, host.PATCHED: patched}
        self.variants: list[Mapping[str, Mapping[str, bytes]]] = []
        self.cases: list[list[Case]] = []
        self.paths: list[Sequence[str]] = []

    def __call__(
        self, python: str, fix: str, path: Sequence[str], variants: Any, cases: Sequence[Case], **_: Any
    ) -> host.Answer:
        self.variants.append({name: files for name, (files, _wanted) in variants.items()})
        self.cases.append(list(cases))
        self.paths.append(path)
        outcomes = {
            name: {case.name: self._answers[name](case) for case in cases if case.name in wanted}
            for name, (_files, wanted) in variants.items()
        }
        return host.Answer("2.0", "3.12.0", outcomes)


def as_known(case: Case) -> Outcome:
    return Outcome(case.untouched, f"somewhere in {case.at}", 1.5)


def passing(case: Case) -> Outcome:
    return Outcome(PASSED, "all is well", 0.25)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stand_in = Asked(as_known, passing)
    monkeypatch.setattr(host, "ask", stand_in)
    return stand_in


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack(tmp_path / "site", VERL, CORE)


def prove(site: Path, *arguments: str) -> int:
    return main(["prove", "--target", str(site), "--python", sys.executable, *arguments])


def results(capsys: pytest.CaptureFixture[str], site: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = prove(site, *arguments, "--output-format", "json")
    return code, json.loads(capsys.readouterr().out)["results"]


# -- the job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 3, "pp": 2, "world_size": 16}, "16 is not divisible by TP x PP x CP = 3 x 2 x 1 = 6"),
        ({"tp": 4, "world_size": 2}, "2 is not divisible"),
        ({"tp": 2, "dp": 4, "world_size": 16}, "TP x PP x CP x DP = 8, and the world size is 16"),
        ({"ep": 3, "dp": 4}, "4 ranks, which EP = 3 does not divide"),
        ({"ep": 2, "pp": 2}, "1 ranks, which EP = 2 does not divide"),
        ({"tp": 2, "ep": 4, "etp": 2, "dp": 2}, "4 ranks, which EP x ETP = 4 x 2 = 8 does not divide"),
    ],
)
def test_an_impossible_topology_is_a_usage_error(sizes: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError) as error:
        answers.topology(**sizes)
    assert error.value.code == "bad-topology"
    assert message in error.value.message
    options = [part for name, size in sizes.items() for part in (f"--{name.replace('_', '-')}", str(size))]
    ran = cli.unhang("prove", "--target", tmp_path, *options)
    assert (ran.code, ran.out) == (2, "")
    assert "error[bad-topology]" in ran.err


def test_the_data_parallel_size_follows_from_the_world_size() -> None:
    assert answers.topology(tp=4, pp=8, cp=2, ep=8, world_size=1024) == Topology(tp=4, pp=8, cp=2, dp=16, ep=8)
    assert answers.topology(world_size=6, dp=6).world == 6
    assert answers.topology(cp=2) == Topology(cp=2)
    assert answers.topology(tp=2, ep=2, etp=2, dp=2) == Topology(tp=2, dp=2, ep=2, etp=2)


@pytest.mark.parametrize("size", ["0", "-1", "two", "1.5", ""])
def test_a_size_is_a_positive_number(size: str) -> None:
    ran = cli.unhang("prove", f"--tp={size}")
    assert (ran.code, ran.out) == (2, "")
    assert "not a number of 1 or more" in ran.err


def test_a_folder_needs_an_interpreter_to_run_it(site: Path) -> None:
    for option in "--target", "--source":
        ran = cli.unhang("prove", option, site, "--output-format", "json")
        assert ran.code == 2
        assert ran.json["error"]["code"] == "no-interpreter"
        assert "--python" in ran.json["error"]["hint"]


# -- the interpreter --------------------------------------------------------------------------------------------------


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_without_torch_it_says_so(site: Path, tmp_path: Path) -> None:
    bare = script(tmp_path / "python", f'exec "{sys.executable}" -S "$@"')
    ran = cli.unhang("prove", "--target", site, "--python", bare, *FIX, "--output-format", "json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "no-torch"
    assert "No module named 'torch'" in ran.json["error"]["message"]


def test_no_gpu_is_seen_and_nothing_is_written(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "environ"
    (tmp_path / "bin").mkdir()
    fake = script(tmp_path / "bin" / "python", f'env > "{kept}"; pwd >> "{kept}"; exit 7')
    (tmp_path / "pyvenv.cfg").write_text("")  # so that it is not asked for its prefix
    before = cli.tree(site)
    ran = cli.unhang("prove", "--target", site, "--python", fake, *FIX, env={"CUDA_VISIBLE_DEVICES": "0"})
    assert ran.code == 2
    assert "error[broken-interpreter]" in ran.err
    lines = kept.read_text().splitlines()
    assert "CUDA_VISIBLE_DEVICES=" in lines
    assert "PYTHONDONTWRITEBYTECODE=1" in lines
    assert not os.path.exists(lines[-1])  # the folder that it ran in
    assert cli.tree(site) == before


# -- the answers ------------------------------------------------------------------------------------------------------


def test_what_is_untouched_and_hangs_is_a_1(site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,) = results(capsys, site, *FIX, "--tp", "2", "--cp", "2", "--world-size", "64")
    assert code == 1
    assert {name: line[name] for name in ("upstream", "version", "location", "fix", "verdict", "answer")} == {
        "upstream": "verl", "version": "0.7.1", "location": str(site), "fix": FIX[1], "verdict": "needed",
        "answer": "proven",
    }  # fmt: skip
    assert line["topology"] == "TP 2 x CP 2 x DP 16 (64 ranks)"
    assert line["untouched"] == {"status": HUNG, "detail": f"somewhere in {REDUCE}", "seconds": 1.5}
    assert line["patched"]["status"] == PASSED
    assert line["seconds"] == 1.75
    assert asked.paths == [[str(site)]]
    assert asked.variants[0][host.UNTOUCHED][FILE] == (site / FILE).read_bytes()
    assert b"# unhang mtp-cp-deadlock" in asked.variants[0][host.PATCHED][FILE]


def test_the_document_says_where_and_what(site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    prove(site, *FIX, "--cp", "2", "--output-format", "json")
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"schema", "unhang", "environment", "interpreter", "topology", "warnings", "results"}
    assert told["schema"] == 1
    assert told["environment"] == {"python": None, "prefix": str(site), "found_by": "--target"}
    assert told["interpreter"] == {"path": sys.executable, "python": "3.12.0", "torch": "2.0"}
    assert told["topology"] == {
        "tp": 1, "pp": 1, "cp": 2, "dp": 1, "ep": 1, "etp": 1, "instances": 1, "world_size": 2,
    }  # fmt: skip


def test_a_patched_copy_is_held_against_its_receipt(
    site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    pristine = (site / FILE).read_bytes()
    assert main(["apply", "--target", str(site), *FIX]) == 0
    capsys.readouterr()
    code, (line,) = results(capsys, site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["verdict"]) == (0, "proven", "applied")
    assert "receipt" in line["detail"]
    assert asked.variants[0][host.UNTOUCHED][FILE] == pristine
    assert asked.variants[0][host.PATCHED][FILE] == (site / FILE).read_bytes() != pristine

    shutil.rmtree(site / ".unhang")
    code, (line,) = results(capsys, site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["untouched"]) == (0, "patched-passes", None)
    assert "only the patched side is shown" in line["detail"]
    assert asked.variants[1].keys() == {host.PATCHED}


def test_an_edited_patched_copy_has_no_untouched_side(
    site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "--target", str(site), *FIX]) == 0
    with open(site / FILE, "a") as file:
        file.write("# mine\n")
    capsys.readouterr()
    code, (line,) = results(capsys, site, *FIX, "--cp", "2")
    assert (code, line["answer"]) == (0, "patched-passes")
    assert "edited since" in line["detail"]


def test_a_cure_in_the_upstream_below_is_taken_out_of_both_sides(
    tmp_path: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    site = cli.unpack(tmp_path / "site", ("ms-swift", "4.6.0"), CORE)
    below = "megatron/core/parallel_state.py"
    pristine = (site / below).read_bytes()
    assert main(["apply", "--target", str(site), "--fix", "expert-dp-warmup", "--upstream", "megatron-core"]) == 0
    capsys.readouterr()
    code, lines = results(capsys, site, "--fix", "expert-dp-warmup", "--ep", "2", "--dp", "8")
    assert code == 1
    assert [(line["upstream"], line["verdict"]) for line in lines] == [
        ("megatron-core", "applied"), ("ms-swift", "needed"),
    ]  # fmt: skip
    assert [files[below] for files in asked.variants[1].values()] == [pristine, pristine]


def test_without_sizes_each_proof_runs_its_own_core_cases(
    site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = results(capsys, site, *FIX)
    assert code == 1
    assert {line["answer"] for line in lines} == {"proven", "unaffected"}
    assert [line["case"] for line in lines] == [case.name for case in asked.cases[0]]
    assert all(case.core for case in asked.cases[0])


@pytest.mark.parametrize(
    ("release", "verdict", "answer", "code"),
    [
        ("0.9.1", "fixed-upstream", "nothing-to-prove", 0),
        ("0.6.1", "not-affected", "nothing-to-prove", 0),
        ("0.7.1", "needed", "unknown", 2),
    ],
)
def test_what_needs_no_proof_and_what_cannot_have_one(
    release: str,
    verdict: str,
    answer: str,
    code: int,
    tmp_path: Path,
    asked: Asked,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = cli.unpack(tmp_path / "site", ("verl", release))
    exit_code, (line,) = results(capsys, site, *FIX, "--cp", "2")
    assert (line["verdict"], line["answer"], exit_code) == (verdict, answer, code)
    assert ("needs megatron-core as well" in line["detail"]) is (answer == "unknown")
    assert asked.cases == []


def test_a_source_that_nobody_knows_is_a_2(site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    text = (site / FILE).read_text()
    (site / FILE).write_text(text.replace("n_micro_batch", "count"))
    code, (line,) = results(capsys, site, *FIX, "--cp", "2")
    assert (code, line["answer"], line["verdict"]) == (2, "unknown", "drifted")
    assert asked.cases == []


def test_a_topology_that_a_proof_does_not_know_is_a_2(
    site: Path, asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_dp_warmup, "case_for", lambda *_: None)
    code, (line,) = results(capsys, site, "--fix", "expert-dp-warmup", "--ep", "8", "--dp", "8")
    assert (code, line["answer"]) == (2, "unknown")
    assert "DP 8 x EP 8 (8 ranks)" in line["detail"]
    assert asked.cases == []


def test_with_one_expert_group_nobody_waits_for_an_empty_rank(
    site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    fix = ("--fix", "empty-expert-hang")
    code, (line,) = results(capsys, site, *fix, "--dp", "8")
    assert (code, line["answer"], line["verdict"]) == (0, "nothing-to-prove", "needed")
    assert asked.cases == []
    code, (line,) = results(capsys, site, *fix, "--ep", "8", "--dp", "8")
    assert (code, line["answer"], line["topology"]) == (1, "proven", "DP 2 x EP 2 (2 ranks)")
    assert "Transformer Engine" in line["detail"]


def test_the_text_tells_both_sides(site: Path, asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove(site, *FIX, "--cp", "2") == 1
    told = capsys.readouterr().out
    assert f"untouched (installed) hung (1.5 s): somewhere in {REDUCE}\n" in told
    assert "patched passed (0.2 s): all is well\n" in told
    assert "torch 2.0, CPU only" in told
    assert told.endswith("1 proven; what is installed shows the defect: unhang apply (mtp-cp-deadlock)\n")


# of get_batch_on_this_tp_rank: core_v0.16.1, core_v0.17.1, and dev since 280d2440d
SHAPE_0_16, SHAPE_0_17, SHAPE_DEV = "5e80042fa2c81f1e", "776cadbb14f4ec15", "2991e1d44541f615"
LINE = answers.Line("verl", "0.7.1", "/", FIX[1], "needed", "unknown", "")
DEFECT = Case("yours", Topology(cp=2), "ranks", HUNG, REDUCE)
CONTROL = Case("yours", Topology(dp=2), "ranks", PASSED)
EITHER = DEFECT._replace(options={"may_pass": True})
FINE, STUCK = Outcome(PASSED, ""), Outcome(HUNG, f"in {REDUCE}")


@pytest.mark.parametrize(
    ("case", "untouched", "patched", "answer", "code"),
    [
        (DEFECT, STUCK, FINE, "proven", 1),
        (CONTROL, FINE, FINE, "unaffected", 0),
        (DEFECT, None, FINE, "patched-passes", 0),
        (DEFECT, STUCK, STUCK, "failed", 1),
        (CONTROL, FINE, Outcome(DIFFERS, "rank 1"), "failed", 1),
        (DEFECT, None, STUCK, "failed", 1),
        (DEFECT, Outcome(HUNG, "elsewhere"), FINE, "unknown", 2),
        (DEFECT, FINE, FINE, "unknown", 2),
        (CONTROL, STUCK, FINE, "unknown", 2),
        (EITHER, FINE, FINE, "unaffected", 0),
        (EITHER, STUCK, FINE, "proven", 1),
        (EITHER, FINE, STUCK, "failed", 1),
        (EITHER, Outcome(HUNG, "elsewhere"), FINE, "unknown", 2),
        (DEFECT, STUCK, Outcome(BROKEN, "a traceback\nValueError: 7"), "unknown", 2),
        (DEFECT, Outcome(BROKEN, "a traceback\nValueError: 7"), FINE, "unknown", 2),
    ],
)
def test_what_the_outcomes_say(case: Case, untouched: Outcome | None, patched: Outcome, answer: str, code: int) -> None:
    line = answers.judged(LINE, case, untouched, patched)
    assert (line.answer, answers.exit_code([line])) == (answer, code)
    assert bool(line.detail) is (answer == "unknown")
    if BROKEN in (patched.status, untouched and untouched.status):
        assert line.detail == "the proof does not run here: ValueError: 7"


def test_what_fails_comes_before_what_is_unknown() -> None:
    proven = answers.judged(LINE, DEFECT, STUCK, FINE)
    assert answers.exit_code([LINE, proven]) == 1
    assert answers.exit_code([LINE, proven._replace(verdict="applied")]) == 2
    assert answers.exit_code([proven._replace(verdict="applied")]) == 0
    assert answers.exit_code([]) == 0


def test_the_installed_transformer_engine_is_named() -> None:
    assert transformer_engine.about({}).startswith("no Transformer Engine is installed")
    told = transformer_engine.about({"transformer-engine": "2.1.0", "transformer-engine-cu12": "2.1.0"})
    assert told.startswith("Transformer Engine 2.1.0 is installed")
    assert "does not cure" in told
    assert "does not cure" not in transformer_engine.about({"transformer-engine": "2.10.0"})


@pytest.mark.parametrize(
    ("fix", "upstream", "shape", "sizes", "untouched"),
    [
        ("mtp_cp_deadlock", "verl", "", {"cp": 2}, HUNG),
        ("mtp_cp_deadlock", "verl", "", {"tp": 2, "pp": 2, "dp": 64}, PASSED),
        ("expert_dp_warmup", "megatron-core", "", {"ep": 2, "dp": 4}, DIFFERS),
        ("expert_dp_warmup", "megatron-core", "", {"tp": 2, "dp": 4}, PASSED),
        ("expert_dp_warmup", "ms-swift", "", {"ep": 8, "dp": 8}, DIFFERS),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_0_17, {"tp": 2, "pp": 2}, DIFFERS),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_0_17, {"tp": 2}, PASSED),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_0_17, {"pp": 4}, PASSED),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_0_16, {"tp": 2}, HUNG),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_0_16, {"pp": 2}, PASSED),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_DEV, {"pp": 4}, DIFFERS),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_DEV, {"pp": 2}, PASSED),
        ("sft_packed_seq_broadcast", "megatron-lm", SHAPE_DEV, {"tp": 2, "pp": 4}, DIFFERS),
    ],
)
def test_a_proof_says_how_a_users_job_ends_untouched(
    fix: str, upstream: str, shape: str, sizes: dict[str, int], untouched: str | None
) -> None:
    proof = importlib.import_module(f"unhang.prove.fixes.{fix}")
    case = proof.case_for(answers.topology(**sizes), upstream, {shape})
    assert (case and case.untouched) == untouched
    if case is not None:
        assert case.topology == answers.topology(**sizes)
        assert bool(case.at) is (untouched != PASSED)


def test_a_proofs_own_cases_are_those_of_the_shape() -> None:
    """The digests that a proof is told apart by are on record, both untouched and as we rewrite them."""
    rows = [row for row in catalog._data("shapes.json")["shapes"] if row["fix"] == "sft-packed-seq-broadcast"]
    results = {row["shape"]: row["result"] for row in rows if row["state"] == "affected"}
    sets = {SHAPE_0_16: sft.CASES_0_16, SHAPE_0_17: sft.CASES, SHAPE_DEV: sft.CASES_NULLED}
    assert len({id(cases) for cases in sets.values()}) == len(sets)
    for shape, cases in sets.items():
        assert sft.cases_for("megatron-lm", {shape}) is cases
        assert sft.cases_for("megatron-lm", {results[shape]}) is cases


def test_where_no_expert_is_replicated_the_release_decides() -> None:
    for sizes, may_pass in (
        ({"ep": 8, "dp": 8}, True), ({"ep": 4, "dp": 8}, False), ({"tp": 2, "ep": 4, "etp": 2, "dp": 4}, True),
        ({"tp": 2, "ep": 4, "dp": 4}, False),
    ):  # fmt: skip
        case = expert_dp_warmup.case_for(answers.topology(**sizes), "megatron-core", ())
        assert bool(case.options.get("may_pass")) is may_pass


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_python() -> str:
    return interpreters.with_torch()


def test_a_hang_is_shown_on_the_users_topology_and_gone_when_patched(site: Path, torch_python: str) -> None:
    where = ("--target", site, "--python", torch_python, *FIX, "--output-format", "json")
    before = cli.tree(site)
    ran = cli.unhang("prove", *where, "--tp", "2", "--pp", "2", "--cp", "2", "--world-size", "32")
    assert cli.tree(site) == before
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"]) == (1, "proven"), ran.out
    assert "group 16-30 by 2" in line["untouched"]["detail"]
    assert REDUCE in line["untouched"]["detail"]

    ran = cli.unhang("prove", *where, "--tp", "2", "--pp", "2", "--world-size", "32")
    assert (ran.code, ran.json["results"][0]["answer"]) == (0, "unaffected"), ran.out

    assert cli.unhang("apply", "--target", site, *FIX).code == 0
    ran = cli.unhang("prove", *where, "--cp", "2")
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"], line["verdict"]) == (0, "proven", "applied"), ran.out
    assert "rank 0 waits in all_reduce" in line["untouched"]["detail"]
    assert line["patched"]["detail"].startswith("metric on the source ranks alone")


def test_real_groups_are_warmed_up_on_the_users_topology(site: Path, torch_python: str) -> None:
    where = ("--target", site, "--python", torch_python, "--fix", "expert-dp-warmup", "--output-format", "json")
    for sizes in ("--ep", "4"), ("--ep", "2", "--etp", "2"):
        ran = cli.unhang("prove", *where, "--tp", "2", *sizes, "--world-size", "16")
        (line,) = ran.json["results"]
        assert (ran.code, line["answer"]) == (1, "proven"), ran.out
        assert line["untouched"]["status"] == DIFFERS


@pytest.mark.parametrize(("release", "answer"), [("0.16.1", "proven"), ("0.11.0", "unaffected")])
def test_without_replicas_of_an_expert_the_release_decides(
    release: str, answer: str, tmp_path: Path, torch_python: str
) -> None:
    """Only newer ones have a group of the optimizer's instances, which is warmed up then as well."""
    site = cli.unpack(tmp_path / "site", ("megatron-core", release))
    where = ("--target", site, "--python", torch_python, "--fix", "expert-dp-warmup", "--output-format", "json")
    (line,) = cli.unhang("prove", *where, "--ep", "8", "--world-size", "8").json["results"]
    assert line["answer"] == answer, line


def test_nothing_is_written_outside_a_temporary_folder(tmp_path: Path, torch_python: str) -> None:
    """Not below HOME either, where torch, triton and Transformers keep what they build and fetch."""
    site = cli.unpack(tmp_path / "site", VERL, ("megatron-core", "0.17.1"))
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    before = cli.tree(site)
    chosen = {"HOME": str(home), "TMPDIR": str(temporary)}
    where = ("--target", site, "--python", torch_python, "--output-format", "json")
    ran = cli.unhang("prove", *where, "--tp", "2", "--pp", "2", "--ep", "2", "--dp", "2", env=chosen)
    answers_ = {line["fix"]: line["answer"] for line in ran.json["results"] if line["case"]}
    assert answers_.keys() == {line["fix"] for line in ran.json["results"]}, ran.out
    assert "unknown" not in answers_.values(), ran.out
    assert cli.tree(site) == before
    assert [*home.rglob("*")] == []
    assert [*temporary.rglob("*")] == []


def test_what_a_proof_cannot_import_is_a_2(tmp_path: Path, torch_python: str) -> None:
    site = cli.unpack(tmp_path / "site", VERL, CORE)
    shutil.rmtree(site / "megatron" / "core" / "transformer")
    ran = cli.unhang("prove", "--target", site, "--python", torch_python, *FIX, "--cp", "2", "--output-format", "json")
    (line,) = ran.json["results"]
    assert (ran.code, line["answer"]) == (2, "unknown")
    assert "the proof does not run here: ModuleNotFoundError" in line["detail"]
