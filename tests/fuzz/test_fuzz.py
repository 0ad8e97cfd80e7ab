"""A bounded part of the fuzz on every Python. ``nox -s fuzz`` runs at least 10,000 mutations.

``SEED`` is fixed: the mutants are the same on every run. One that violates an invariant is printed.
"""

from __future__ import annotations

import ast
import itertools
from functools import cache

import pytest

from fuzz import mutations
from fuzz.bases import Base, bases, dump, mutate
from fuzz.campaign import campaign
from fuzz.endstates import JUDGES
from fuzz.examine import JUDGED, VERDICTS, WRITTEN, Tally, examine, judge_of, nowhere_bound
from support import wheels
from support.sources import Source
from unhang.shapes import shape

SEED = 1
# How many examples, and of which functions (see `campaign`).
EXAMPLES = {"mtp-cp-deadlock": 80, "sft-packed-seq-broadcast": 70, "empty-expert-hang": 110, "expert-dp-warmup": 30}
EVERY = {"empty-expert-hang": 3, "expert-dp-warmup": 7}


@pytest.fixture(autouse=True)
def _wheels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the clones, which the whole session mutates, so that each Python tries the same here."""
    for variable in wheels.CLONES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("fix", JUDGES)
def test_a_mutant_with_an_inert_statement_is_rewritten_and_judged(fix: str) -> None:
    tally = Tally()
    for seed in range(20):
        examine(first(fix), [("insert_inert", seed)], tally)
        if tally.total(WRITTEN) and tally.total(JUDGED):
            return
    raise AssertionError(tally.report())


@pytest.mark.slow
@pytest.mark.parametrize("fix", JUDGES)
def test_the_invariants_hold_of_mutants(fix: str) -> None:
    tally = campaign(fix, EXAMPLES[fix], SEED, EVERY.get(fix, 1))
    print(tally.report())
    assert not tally.violations, tally.violations[0]
    assert len(tally.seen) > EXAMPLES[fix] / 2
    assert tally.total(JUDGED) >= 2, "no end state was judged by running"
    assert tally.total(WRITTEN) >= 1
    assert {(VERDICTS, "needed"), (VERDICTS, "drifted")} <= tally.counts.keys()


@cache
def first(fix: str) -> Base:
    return bases(fix)[0]


@pytest.mark.parametrize("operator", mutations.CHANGING)
def test_an_operator_that_changes_does(operator: mutations.Operator) -> None:
    """On some real function, with some seed."""
    for seed, fix in itertools.product(range(12), JUDGES):
        base = first(fix)
        if dump(mutate(base, [(operator.__name__, seed)]), base.source.target) not in (None, base.dump):
            return
    raise AssertionError("it never changes an AST")


@pytest.mark.parametrize("operator", mutations.FORMATTING)
def test_an_operator_of_layout_keeps_the_ast(operator: mutations.Operator) -> None:
    found = set()
    for seed, base in itertools.product(range(4), map(first, JUDGES)):
        data = mutate(base, [(operator.__name__, seed)])
        if data != base.source.data:
            after = dump(data, base.source.target)
            assert after in (None, base.dump)
            found.add(after)
    assert found - {None}


def test_the_judge_finds_a_wrong_rewrite() -> None:
    """A rewrite that lacks a part is a violation, whatever the checker says."""
    for fix, old, new in (
        ("mtp-cp-deadlock", b" and mpu.is_pipeline_last_stage(ignore_virtual=True):", b":"),
        ("sft-packed-seq-broadcast", b"        elif args.sft:\n", b"        elif args.sft and mtp_on_this_rank:\n"),
        ("empty-expert-hang", b"            output = output[:0]\n", b"            pass\n"),
        ("expert-dp-warmup", b"or any(warmup_group is other", b"and any(warmup_group is other"),
    ):
        base = first(fix)
        data = base.rewritten.data
        assert old in data, fix
        half = base.source._replace(data=data.replace(old, new))
        wrongs, sound = judge_of(base).wrongs(base.source, half)
        assert sound
        assert wrongs, fix


def test_the_judge_finds_no_fault_with_the_rewrite_on_record() -> None:
    for fix in JUDGES:
        base = first(fix)
        assert judge_of(base).wrongs(base.source, base.rewritten) == ([], True)
        wrongs, _ = judge_of(base).wrongs(base.source, base.source)
        assert wrongs, "the judge does not see the defect"


def test_two_functions_are_compared_without_our_digest() -> None:
    base = first("mtp-cp-deadlock")
    target = base.source.target
    changed = base.source.data.replace(b"same_micro_num_in_dp=True", b"same_micro_num_in_dp=False")
    assert dump(changed, target) != base.dump
    assert dump(base.source.data.replace(b"# add mtp_losses", b"# add"), target) == base.dump
    (function,) = shape.find(ast.parse(changed), target.function)
    assert shape.digest(function) != Source(target, base.source.data).digest


def test_a_name_that_a_mutation_left_unbound_is_found() -> None:
    base = first("mtp-cp-deadlock")
    target, data = base.source.target, base.source.data
    assert nowhere_bound(data, target) == set()
    unbound = data.replace(b"same_micro_num_in_dp=True", b"same_micro_num_in_dp=fuzz")
    assert nowhere_bound(unbound, target) == {"fuzz"}
