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
from unhang.errors import UnhangError
from unhang.prove import host
from unhang.prove.cases import Case, Outcome

GPU = {"torch": "2.11.0", "gpus": 1, "name": "a GPU", "nccl": "2.28", "engine": ""}
DONE = {"wrong": "", "collectives": 2, "taken": 4 << 20}


def test_without_a_gpu_it_exits_with_2_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert session.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no GPU here: ")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("part", "code", "text"),
    [
        ([Line(OK, "one"), Line(SEEN, "other")], 0, "  ok     one\n  seen   other\n"),
        ([Line(OK, "one"), Line(WRONG, "other")], 1, "  WRONG  other\n"),
        ([UnhangError("broken-interpreter", "no answer")], 1, "  WRONG  it cannot run: no answer\n"),
        ([OSError("no room")], 1, "  WRONG  it cannot run: no room\n"),
    ],
)
def test_the_exit_code_says_whether_all_is_as_it_should_be(
    part: list[Line | Exception], code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def lines() -> Iterator[Line]:
        for one in part:
            if isinstance(one, Exception):
                raise one
            yield one

    monkeypatch.setattr(session, "probe", lambda: GPU)
    monkeypatch.setattr(session, "parts", lambda _: [("a part", lines), ("the next", lines)])
    assert session.main([]) == code
    out = capsys.readouterr().out
    assert out.count(text) == 2
    assert "not shown: NCCL's stall itself" in out
    assert "nobody has seen that" in out


def test_a_session_whose_time_is_over_names_what_did_not_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def slow() -> Iterator[Line]:
        yield Line(OK, "one")
        time.sleep(600)

    monkeypatch.setattr(session, "probe", lambda: {**GPU, "engine": "2.9"})
    monkeypatch.setattr(session, "parts", lambda _: [("slow", slow), ("next", slow)])
    assert session.main(["--minutes", "0.005"]) == 1
    out = capsys.readouterr().out
    assert out.count("not run to its end: the session's time is over") == 2
    assert out.count("one\n") == 1
    assert "nobody has seen that" not in out  # a Transformer Engine is here


def test_every_part_has_a_title_and_transformer_engine_is_run_where_it_is() -> None:
    without, having = ([title for title, _ in session.parts(engine)] for engine in ("", "2.9"))
    assert having == [*without, "empty-expert-hang: Transformer Engine 2.9"]
    assert [title for title in without if "one rank" in title] == [f"one rank, {start}" for start in session.STARTS]


def answered(monkeypatch: pytest.MonkeyPatch, start: str, seen: Mapping[str, Any], why: str = "") -> list[Line]:
    """Return the lines about one rank, where each block is seen like this, unless it is among ``seen``."""

    def asked(question: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        first = {"backend": "x", "of a group": "y", "taken": [0, 42 << 20, 0]}
        rows = [{"block": name, **seen.get(name, DONE)} for name in question["blocks"] if seen.get(name, DONE)]
        return [first, *rows], why

    monkeypatch.setattr(session, "_asked", asked)
    return list(session.one_rank(start))


def test_a_block_must_pass_and_its_mutants_must_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = answered(monkeypatch, blocks.NCCL, {})
    assert lines[0].mark == SEEN
    assert "of a new group 'y'" in lines[0].text
    assert "first collective 42 MiB" in lines[0].text
    every = blocks.blocks()
    wanted = {"": OK, blocks.NCCL: WRONG, blocks.COMPOSITE: SEEN}  # no mutant has failed
    assert [line.mark for line in lines[1:]] == [wanted[next(iter(one.fails_on), "")] for one in every]
    failed = {one.name: {**DONE, "wrong": "a fault"} for one in every}
    lines = answered(monkeypatch, blocks.COMPOSITE, failed)
    assert [line.mark for line in lines[1:]] == [OK if one.mutant else WRONG for one in every]


def test_without_a_backend_the_blocks_are_told_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {one.name: {**DONE, "wrong": "no collective", "collectives": 0} for one in blocks.blocks()}
    lines = answered(monkeypatch, "no backend", seen)
    assert [line.mark for line in lines] == [SEEN] * 3
    lines = answered(monkeypatch, f"{blocks.NCCL} with device_id", seen)
    assert [line.mark for line in lines] == [SEEN, WRONG, WRONG]


def test_a_rank_that_dies_is_wrong_and_so_is_what_it_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (name, *_) = (one.name for one in blocks.blocks())
    lines = answered(monkeypatch, "no backend", {name: None}, "Killed")
    assert lines[2:] == [Line(WRONG, "it ends early: Killed"), Line(WRONG, f"not run: {name}")]


@pytest.mark.parametrize(("code", "why"), [("1/0", "ZeroDivisionError: division by zero"), ("", "")])
def test_what_a_rank_printed_before_it_died_counts(code: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run
    printing = f"print('[a log]'); print({json.dumps(json.dumps(DONE))}, flush=True); {code}"
    monkeypatch.setattr(subprocess, "run", lambda _, **how: real([sys.executable, "-c", printing], **how))
    assert session._asked({}) == ([DONE], why)


def test_transformer_engine_must_pass_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {
        "te-bf16": (Outcome("passed", ""), Outcome("passed", "zero gradients")),
        "te-fp8": (Outcome("crashed", "rank 0 raised"), Outcome("differs", "no gradient")),
    }

    def run(proof: suite.Proof, cases: list[Case], **options: Any) -> host.Answer:
        assert (proof.fix, options["device"]) == ("empty-expert-hang", "cuda")
        sides = {name: {case.name: ends[case.name][number] for case in cases} for number, name in enumerate(_SIDES)}
        return host.Answer("2.11.0", "3.12", sides)

    monkeypatch.setattr(suite, "run", run)
    first, second = session.transformer_engine()
    assert (first.mark, second.mark) == (OK, WRONG)
    assert "here it does not need the fix" in first.text
    assert "untouched crashed: rank 0 raised; patched differs: no gradient" in second.text


_SIDES = (host.UNTOUCHED, host.PATCHED)
_HALF = "half: rows that no expert counts"
_CASES = ("alltoall-cuts", "alltoall-keeps", "alltoall-same", "calls", "calls-fp8-aligned")


@pytest.mark.parametrize(
    ("ends", "wrong"),
    [
        ({}, ()),
        ({host.PATCHED: "hung"}, _CASES),
        ({host.UNTOUCHED: "passed"}, ("alltoall-cuts", "calls", "calls-fp8-aligned")),
        ({host.UNTOUCHED: "broken"}, _CASES),
        ({_HALF: "passed"}, (_HALF,)),
        ({_HALF: "broken"}, (_HALF,)),
    ],
)
def test_a_proof_is_judged_case_by_case(
    ends: Mapping[str, str], wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(proof: suite.Proof, cases: list[Case], **options: Any) -> host.Answer:
        assert options["device"] == "cuda"
        assert [case.name for case in cases] == [*_CASES]

        def outcomes(variant: str, otherwise: str) -> dict[str, Outcome]:
            status = ends.get(variant, otherwise)
            return {case.name: Outcome(status or case.untouched, f"{case.at} not aligned to 16") for case in cases}

        variants = {**dict.fromkeys(proof.variants, "differs"), host.UNTOUCHED: "", host.PATCHED: "passed"}
        return host.Answer("2.11.0", "3.12", {name: outcomes(name, status) for name, status in variants.items()})

    monkeypatch.setattr(suite, "run", run)
    lines = list(session.on_gloo("empty-expert-hang", "megatron-core"))
    known = (*_CASES, _HALF)
    seen = {name: line.mark for line in lines for name in known if re.search(f" {name}[,:] ", line.text)}
    assert len(lines) > len(seen) == len(_CASES) + 1
    assert {name for name, mark in seen.items() if mark == WRONG} == {*wrong}
    assert {line.mark for line in lines} <= {OK, WRONG}


@needs_torch
def test_a_gpu_that_is_not_there_is_an_error_and_never_the_defect() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is here: nox -s gpu runs this")
    lines = list(session.on_gloo("sft-packed-seq-broadcast", "megatron-lm"))
    text = "\n".join(line.text for line in lines)
    assert "tp2-pp2, TP 2 x PP 2 (4 ranks)" in text
    assert {line.mark for line in lines} == {WRONG}, text


def test_all_wheels_that_it_needs_are_carried() -> None:
    wanted = {*blocks.RELEASES.items()}
    for proof in suite.proofs():
        if (proof.fix, proof.upstream) in session.PROOFS:
            wanted.add(("megatron-core", proof.version))
    assert wanted == {*carry.RELEASES}
