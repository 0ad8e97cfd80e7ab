"""A bounded part of the fuzz on every Python. ``nox -s fuzz`` runs at least 10,000 mutations.

``SEED`` is fixed: the mutants are the same on every run. One that violates an invariant is printed.
"""

from __future__ import annotations

import ast
import itertools
import re
from functools import cache

import pytest

from fuzz import mutations
from fuzz.bases import Base, bases, dump, mutate, subjects
from fuzz.campaign import campaign
from fuzz.examine import VERDICTS, WRITTEN, Tally, examine
from support import wheels
from support.sources import Source
from unhang.shapes import catalog, shape

SEED = 1
SUBJECTS = subjects()


@pytest.fixture(autouse=True)
def _wheels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the clones, which the whole session mutates, so that each Python tries the same here."""
    for variable in wheels.CLONES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("fix", SUBJECTS)
def test_a_mutant_with_an_inert_statement_is_rewritten_for_a_token(fix: str) -> None:
    tally = Tally()
    for seed in range(20):
        examine(first(fix), [("insert_inert", seed)], tally)
        if tally.total(WRITTEN):
            return
    raise AssertionError(tally.report())


@pytest.mark.slow
@pytest.mark.parametrize("fix", SUBJECTS)
def test_the_invariants_hold_of_mutants(fix: str) -> None:
    subject = SUBJECTS[fix]
    tally = campaign(fix, subject.examples, SEED, subject.every)
    print(tally.report())
    assert not tally.violations, tally.violations[0]
    assert len(tally.seen) > subject.examples / 2
    assert tally.total(WRITTEN) >= 1
    assert {(VERDICTS, "needed"), (VERDICTS, "drifted")} <= tally.counts.keys()


@pytest.mark.slow
@pytest.mark.parametrize("fix", catalog.fixes())
def test_each_fix_is_mutated(fix: str) -> None:
    assert re.compile(SUBJECTS[fix].focus).search(first(fix).rewritten.data.decode())


@cache
def first(fix: str) -> Base:
    return bases(fix)[0]


@pytest.mark.parametrize("operator", mutations.CHANGING)
def test_an_operator_that_changes_does(operator: mutations.Operator) -> None:
    """On some real function, with some seed."""
    for seed, fix in itertools.product(range(12), SUBJECTS):
        base = first(fix)
        if dump(mutate(base, [(operator.__name__, seed)]), base.source.target) not in (None, base.dump):
            return
    raise AssertionError("it never changes an AST")


@pytest.mark.slow
@pytest.mark.parametrize("operator", mutations.FORMATTING)
def test_an_operator_of_layout_keeps_the_ast(operator: mutations.Operator) -> None:
    found = set()
    for seed, base in itertools.product(range(4), map(first, SUBJECTS)):
        data = mutate(base, [(operator.__name__, seed)])
        if data != base.source.data:
            after = dump(data, base.source.target)
            assert after in (None, base.dump)
            found.add(after)
    assert found - {None}


def test_two_functions_are_compared_without_our_digest() -> None:
    base = first("mtp-cp-deadlock")
    target = base.source.target
    changed = base.source.data.replace(b"same_micro_num_in_dp=True", b"same_micro_num_in_dp=False")
    assert dump(changed, target) != base.dump
    assert dump(base.source.data.replace(b"# add mtp_losses", b"# add"), target) == base.dump
    (function,) = shape.find(ast.parse(changed), target.function)
    assert shape.digest(function) != Source(target, base.source.data).digest
