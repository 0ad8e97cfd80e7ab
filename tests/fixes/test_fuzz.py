"""A bounded part of the fuzz on every Python; all of it, at least 10,000 mutations, is ``nox -s fuzz``.

``SEED`` is fixed: with one version of hypothesis the examples are the same on every run, and a mutant of which an
invariant does not hold is printed.
"""

from __future__ import annotations

import ast
import itertools
import os
import random
from functools import cache

import pytest

from support import fuzz, mutations, sources
from unhang.shapes import shape

SEED = int(os.environ.get("UNHANG_FUZZ_SEED", "1"))
# How many, and of which of the functions (see `fuzz.campaign`): at most some ten seconds for each fix.
EXAMPLES = {"mtp-cp-deadlock": 80, "sft-packed-seq-broadcast": 70, "empty-expert-hang": 110, "expert-dp-warmup": 30}
EVERY = {"empty-expert-hang": 3, "expert-dp-warmup": 7}


@pytest.fixture(autouse=True)
def _wheels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a clone adds is for the session that runs all of it: here each Python tries the same."""
    for variable in fuzz.wheels.CLONES.values():
        monkeypatch.delenv(variable, raising=False)


QUICK = "mtp-cp-deadlock"


@pytest.mark.parametrize(
    "fix", [pytest.param(fix, marks=[] if fix == QUICK else pytest.mark.slow) for fix in fuzz.FIXES]
)
def test_the_invariants_hold_of_mutants(fix: str) -> None:
    tally = fuzz.campaign(fix, EXAMPLES[fix], SEED, every=EVERY.get(fix, 1))
    print(tally.report())
    assert tally.tried[fix] > EXAMPLES[fix] / 2
    assert tally.judged.total() >= 2, "the judge by running was reached"
    assert tally.written[fix] >= 1
    assert {"needed", "drifted"} <= set(tally.verdicts)


@cache
def first(fix: str) -> tuple[fuzz.Base, mutations.Text]:
    base = fuzz.bases(fix)[0]
    return base, mutations.Text(base.source.data, base.source.target.function, fuzz.FOCUS[fix])


@pytest.mark.parametrize("operator", mutations.CHANGING)
def test_an_operator_that_changes_does(operator: mutations.Operator) -> None:
    """On some real function, from some start."""
    for start, fix in itertools.product(range(12), fuzz.FIXES):
        base, text = first(fix)
        data = operator(text, random.Random(start))
        if data is not None and fuzz.dump(data, base.source.target) not in (None, base.dump):
            return
    raise AssertionError("it never changes an AST")


@pytest.mark.parametrize("operator", mutations.FORMATTING)
def test_an_operator_of_layout_leaves_the_ast_as_it_was(operator: mutations.Operator) -> None:
    done = 0
    for start, fix in itertools.product(range(4), fuzz.FIXES):
        base, text = first(fix)
        data = operator(text, random.Random(start))
        if data is not None and data != base.source.data:
            assert fuzz.dump(data, base.source.target) in (None, base.dump)
            done += fuzz.dump(data, base.source.target) is not None
    assert done


def test_the_judge_tells_a_wrong_rewrite() -> None:
    """The invariants are of use: a rewrite that lacks a part of itself is a violation, whatever the checker says."""
    for fix, old, new in (
        ("mtp-cp-deadlock", b" and mpu.is_pipeline_last_stage(ignore_virtual=True):", b":"),
        ("sft-packed-seq-broadcast", b"        elif args.sft:\n", b"        elif args.sft and mtp_on_this_rank:\n"),
        ("empty-expert-hang", b"            output = output[:0]\n", b"            pass\n"),
        ("expert-dp-warmup", b"or any(warmup_group is other", b"and any(warmup_group is other"),
    ):
        base = fuzz.bases(fix)[0]
        data = base.rewritten.data
        assert old in data, fix
        half = base.source._replace(data=data.replace(old, new))
        wrongs, sound = fuzz.judge_of(base).wrongs(base.source, half)
        assert sound
        assert wrongs, fix


def test_the_judge_finds_no_fault_with_what_is_on_record() -> None:
    for fix in fuzz.FIXES:
        base = fuzz.bases(fix)[0]
        assert fuzz.judge_of(base).wrongs(base.source, base.rewritten) == ([], True)
        wrongs, _ = fuzz.judge_of(base).wrongs(base.source, base.source)
        assert wrongs, "nor is it blind to the defect itself"


def test_equality_of_two_functions_is_not_left_to_our_digest() -> None:
    base = fuzz.bases("mtp-cp-deadlock")[0]
    target = base.source.target
    changed = base.source.data.replace(b"same_micro_num_in_dp=True", b"same_micro_num_in_dp=False")
    assert fuzz.dump(changed, target) != base.dump
    assert fuzz.dump(base.source.data.replace(b"# add mtp_losses", b"# add"), target) == base.dump
    (function,) = shape.find(ast.parse(changed), target.function)
    assert shape.digest(function) != sources.Source(target, base.source.data).digest


def test_a_name_that_a_mutation_left_bound_nowhere_is_found() -> None:
    base = fuzz.bases("mtp-cp-deadlock")[0]
    target, data = base.source.target, base.source.data
    assert fuzz.nowhere_bound(data, target) == set()
    unbound = data.replace(b"same_micro_num_in_dp=True", b"same_micro_num_in_dp=fuzz")
    assert fuzz.nowhere_bound(unbound, target) == {"fuzz"}
