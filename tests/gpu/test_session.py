"""The session without a GPU: what it runs is a stand-in, or runs on the CPU. What it judges and tells is real."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu import __main__ as session
from gpu import blocks, carry
from gpu.__main__ import OK, SEEN, WRONG, Line
from proofs import suite
from support.jobs import needs_torch
from unhang.prove import host
from unhang.prove.cases import Case, Outcome

DONE = {"wrong": "", "collectives": 2, "taken": 4 << 20}
EVERY = blocks.blocks()
HALF = "half: rows that no expert counts"
CASES = ("alltoall-cuts", "alltoall-keeps", "alltoall-same", "calls", "calls-fp8-aligned")
Ends = Mapping[tuple[str, str], str]


def test_without_a_gpu_it_exits_with_2_and_says_why(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert session.main([]) == 2
    assert re.fullmatch("no GPU here: .+\n", "".join(capsys.readouterr()))


@pytest.mark.parametrize(
    ("last", "minutes", "code", "text"),
    [
        (Line(SEEN, "other"), "9", 0, "  ok     one\n  seen   other\n"),
        (Line(WRONG, "other"), "9", 1, "  ok     one\n  WRONG  other\n"),
        (OSError("no room"), "9", 1, "  WRONG  it cannot run: no room\n"),
        (Line(OK, "late"), "0.005", 1, "  WRONG  not run to its end: the session's time is over\n"),
    ],
)
def test_the_exit_code_says_whether_all_is_as_it_should_be(
    last: Line | Exception, minutes: str, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def lines() -> Iterator[Line]:
        yield Line(OK, "one")
        time.sleep(600 if minutes != "9" else 0)
        if isinstance(last, Exception):
            raise last
        yield last

    gpu = {"torch": "2.11.0", "gpus": 1, "name": "a GPU", "nccl": "2.28", "engine": "2.9" if code else ""}
    monkeypatch.setattr(session, "probe", lambda: gpu)
    monkeypatch.setattr(session, "parts", lambda _: [("a part", lines), ("the next", lines)])
    assert session.main(["--minutes", minutes]) == code
    out = capsys.readouterr().out
    assert (out.count(text), out.count("one\n"), "NCCL's stall itself" in out) == (2, 1 + (minutes == "9"), True)
    assert ("nobody has seen that" in out) == (code == 0), "a Transformer Engine is there in the others"


def test_every_part_has_a_title_and_transformer_engine_is_run_where_it_is() -> None:
    without, having = ([title for title, _ in session.parts(engine)] for engine in ("", "2.9"))
    assert having == [*without, "empty-expert-hang: Transformer Engine 2.9"]
    assert [title for title in without if "one rank" in title] == [f"one rank, {start}" for start in session.STARTS]


@pytest.mark.parametrize(
    ("start", "fault", "marks"),
    [
        (blocks.NCCL, "", {(): OK, (blocks.COMPOSITE,): SEEN}),
        (blocks.COMPOSITE, "a fault", {(): WRONG, "mutant": OK}),
        ("no backend", "no collective", {(): SEEN}),  # told and not judged
        (f"{blocks.NCCL} with device_id", "no collective", {(): WRONG}),
    ],
)
def test_a_block_must_pass_and_its_mutants_must_fail(
    start: str, fault: str, marks: Mapping[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(question: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        rest = [*question["blocks"]][1:]
        given = [{"block": name, **DONE, "wrong": fault} for name in rest]
        return [{"backend": "x", "of a group": "y", "taken": [0, 42 << 20, 0]}, *given], "Killed"

    monkeypatch.setattr(session, "_asked", asked)
    told, *lines, end, missing = session.one_rank(start)
    wanted = [block for block in EVERY if start in (blocks.NCCL, blocks.COMPOSITE) or not block.mutant]
    other = marks.get("mutant", WRONG)
    assert [line.mark for line in lines] == [marks.get(block.fails_on, other) for block in wanted[1:]]
    assert (told.mark, end) == (SEEN, Line(WRONG, "it ends early: Killed"))
    assert missing == Line(WRONG, f"not run: {wanted[0].name}")
    assert re.search("of a new group 'y'.*first collective 42 MiB", told.text)


@pytest.mark.parametrize(("code", "why"), [("1/0", "ZeroDivisionError: division by zero"), ("", "")])
def test_what_a_rank_printed_before_it_died_counts(code: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run
    printing = f"print('[a log]'); print({json.dumps(json.dumps(DONE))}, flush=True); {code}"
    monkeypatch.setattr(subprocess, "run", lambda _, **how: real([sys.executable, "-c", printing], **how))
    assert session._asked({}) == ([DONE], why)


def answering(monkeypatch: pytest.MonkeyPatch, ends: Ends) -> None:
    """Let a proof end like this, by variant and by case or all; else as it should."""

    def run(proof: suite.Proof, cases: list[Case], **options: Any) -> host.Answer:
        assert (proof.fix, options["device"]) == ("empty-expert-hang", "cuda")

        def end(variant: str, case: Case) -> Outcome:
            right = {host.UNTOUCHED: case.untouched, host.PATCHED: "passed"}.get(variant, "differs")
            status = ends.get((variant, case.name)) or ends.get((variant, "")) or right
            return Outcome(status, f"{case.at} not aligned to 16")

        variants = (*proof.variants, host.UNTOUCHED, host.PATCHED)
        outcomes = {name: {case.name: end(name, case) for case in cases} for name in variants}
        return host.Answer("2.11.0", "3.12", True, outcomes)

    monkeypatch.setattr(suite, "run", run)


def test_transformer_engine_must_pass_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {(host.UNTOUCHED, "te-bf16"): "passed", (host.PATCHED, "te-fp8"): "crashed"})
    first, second = session.transformer_engine()
    assert (first.mark, second.mark) == (OK, WRONG)
    assert "here it does not need the fix" in first.text
    assert re.search("untouched differs: .+; patched crashed: ", second.text)


@pytest.mark.parametrize(
    ("variant", "status", "wrong"),
    [
        ("", "", ()),
        (host.PATCHED, "hung", CASES),
        (host.UNTOUCHED, "passed", ("alltoall-cuts", "calls", "calls-fp8-aligned")),
        (host.UNTOUCHED, "broken", CASES),
        (HALF, "passed", (HALF,)),
        (HALF, "broken", (HALF,)),
    ],
)
def test_a_proof_is_judged_case_by_case(
    variant: str, status: str, wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {(variant, ""): status})
    lines = list(session.on_gloo("empty-expert-hang", "megatron-core"))
    marks = {name: line.mark for line in lines for name in (*CASES, HALF) if re.search(f" {name}[,:] ", line.text)}
    assert len(lines) > len(marks) == len(CASES) + 1
    assert {name for name, mark in marks.items() if mark == WRONG} == {*wrong}
    assert {line.mark for line in lines} <= {OK, WRONG}


@needs_torch
def test_a_gpu_that_is_not_there_is_an_error_and_never_the_defect() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here: nox -s gpu runs this")
    lines = list(session.on_gloo("sft-packed-seq-broadcast", "megatron-lm"))
    assert any("tp2-pp2, TP 2 x PP 2 (4 ranks)" in line.text for line in lines)
    assert {line.mark for line in lines} == {WRONG}, lines


def test_all_wheels_that_it_needs_are_carried() -> None:
    proofs = (proof for proof in suite.proofs() if (proof.fix, proof.upstream) in session.PROOFS)
    assert {*blocks.RELEASES.items(), *(("megatron-core", proof.version) for proof in proofs)} == {*carry.RELEASES}
