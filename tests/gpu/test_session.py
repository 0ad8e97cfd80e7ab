"""The session without a GPU: what it runs is a stand-in, or runs on the CPU. What it judges and tells is real."""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpu import __main__ as session
from gpu import blocks
from gpu.__main__ import OK, SEEN, WRONG, Line
from proofs import suite
from unhang.prove import host
from unhang.prove.cases import Case, Outcome

HALF = "half: rows appended, and never sliced off"
CASES = ("alltoall-cuts", "alltoall-keeps", "alltoall-same", "fp8-aligned-cuts")


@pytest.mark.parametrize(
    ("last", "minutes", "code", "text"),
    [
        (Line(SEEN, "other"), "9", 0, "  ok     one\n  seen   other\n"),
        (Line(WRONG, "other"), "9", 1, "  ok     one\n  WRONG  other\n"),
        (OSError("no room"), "9", 1, "  WRONG  it cannot run: no room\n"),
        (Line(OK, "late"), "0.005", 1, "  WRONG  not run to its end: the session's time is over\n"),
        (Line(OK, "other"), "9", 2, ""),
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

    gpu = {"torch": "2.11.0", "gpus": int(code != 2), "name": "a GPU", "nccl": "2.28", "engine": ""}
    monkeypatch.setattr(session, "probe", lambda: gpu)
    monkeypatch.setattr(session, "parts", lambda _: [("a part", lines), ("the next", lines)])
    assert session.main(["--minutes", minutes]) == code
    assert (out := capsys.readouterr().out).count(text) == (2 if text else len(out) + 1)


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
        done = {"wrong": fault, "collectives": 2, "taken": 4 << 20}
        return [{"block": name, **done} for name in [*question["blocks"]][1:]], "Killed"

    monkeypatch.setattr(session, "_asked", asked)
    *lines, end, missing = session.one_rank(start)
    wanted = [block for block in blocks.blocks() if start in (blocks.NCCL, blocks.COMPOSITE) or not block.mutant]
    other = marks.get("mutant", WRONG)
    assert [line.mark for line in lines] == [marks.get(block.fails_on, other) for block in wanted[1:]]
    assert end == Line(WRONG, "it ends early: Killed")
    assert missing == Line(WRONG, f"not run: {wanted[0].name}")


@pytest.mark.parametrize(
    ("variant", "status", "wrong"),
    [
        ("", "", ()),
        (host.PATCHED, "hung", CASES),
        (host.UNTOUCHED, "passed", ("alltoall-cuts", "fp8-aligned-cuts")),
        (host.UNTOUCHED, "broken", CASES),
        (HALF, "passed", (HALF,)),
    ],
)
def test_a_proof_is_judged_case_by_case_and_transformer_engine_must_pass_patched(
    variant: str, status: str, wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(proof: suite.Proof, cases: list[Case], **options: Any) -> host.Answer:
        def end(name: str, case: Case) -> Outcome:
            right = {host.UNTOUCHED: case.untouched, host.PATCHED: "passed"}.get(name, "differs")
            return Outcome(status if name == variant else right, f"{case.at} not aligned to 16")

        names = (*proof.variants, host.UNTOUCHED, host.PATCHED)
        return host.Answer("2.11.0", "3.12", True, {name: {it.name: end(name, it) for it in cases} for name in names})

    monkeypatch.setattr(suite, "run", run)
    lines = list(session.on_gloo("empty-expert-hang", "megatron-core"))
    marks = {name: line.mark for line in lines for name in (*CASES, HALF) if re.search(f" {name}[,:] ", line.text)}
    assert {name for name, mark in marks.items() if mark == WRONG} == {*wrong}
    is_wrong = status == "hung" or (variant, status) == (host.UNTOUCHED, "broken")
    assert {line.mark for line in session.transformer_engine()} == {WRONG if is_wrong else OK}
