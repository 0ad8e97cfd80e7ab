"""The rules on made-up code, and a bounded part of the session: one rewrite's mutants made by hand."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from mutants import rules
from mutants.__main__ import Subject, changed, subjects
from mutants.by_hand import Mutants, Sub
from mutants.judge import SAME, judged
from mutants.rules import Mutant
from proofs import suite
from support import sources
from unhang.judge.rows import Source
from unhang.shapes import catalog

BEFORE = "def f(x):\n    begin(x)\n    return x\n"
AFTER = """def f(x):
    begin(x)
    # unhang made-up: all
    if x > 1 and not x.done:
        for one in ('first', 'second'):
            reduce(x.zeros(2, device=x.device), group=x.groups[1])
        x.parts[:0].sum()
    return x
"""
MADE = [
    "gate, line 4: x > 1 -> x >= 1",
    "gate, line 4: not x.done -> x.done",
    "rank, line 4: x > 1 and not x.done -> (...) and rank() != 0",
    "group, line 6: group=x.groups[1] -> group=None",
    "order, line 5: ('first', 'second') -> (...)[::-1]",
    "field, line 5: ('first', 'second') -> ('second',)",
    "count, line 6: 2 -> 3",
    "device, line 6: device=x.device -> device='cpu'",
    "dtype, line 6: x.zeros(2, device=x.device) -> x.zeros(2, device=x.device, dtype=torch.float32)",
    "slice, line 7: x.parts[:0] -> x.parts[:]",
    "early, line 2: begin(x) <-> if x > 1",
    "late, line 4: if x > 1",
]


def test_each_kind_of_rule_changes_what_was_added() -> None:
    (function,) = ast.parse(AFTER).body
    rewritten = SimpleNamespace(data=AFTER.encode(), function=function)
    source: Any = SimpleNamespace(data=BEFORE.encode(), rewritten=rewritten)
    made = {mutant.name: mutant.text for mutant in rules.mutants(rules.Added(source, ["rank()"], ["other_group"]))}
    assert [name for name in MADE if not any(it.startswith(name) for it in made)] == []
    assert len({*made.values()}) == len(made)
    assert all(text.startswith("def f(x):") and text not in (BEFORE, AFTER) for text in made.values())


def test_the_same_change_of_two_releases_is_known_and_another_is_not() -> None:
    def of(head: str, *texts: str) -> list[tuple[tuple[str, ...], ...]]:
        return [*changed(f"{head}{AFTER}", [Mutant("", f"{head}{text}") for text in texts])]

    first, then = AFTER.replace("x > 1", "x >= 1"), AFTER.replace("not x.done", "x.done")
    older, newer = of("", first, then), of("import torch\n\n\n", first, then)
    assert older == newer
    assert older[0] != older[1]
    assert of("", AFTER.replace("begin(x)", "end(x)").replace("x > 1", "x >= 1")) != older[:1]


def test_a_mutant_by_hand_that_a_rewrite_cannot_have_is_named() -> None:
    of = Mutants("verl", ("0.9.1",), {"no gate": Sub("if y", "if z"), "gate": Sub("x > 1", "x")})
    with pytest.raises(LookupError, match="mutant by hand 'no gate': 'if y' is not in the rewrite"):
        of.hand(AFTER)
    assert [*of._replace(may_lack=True).hand(AFTER)] == ["gate"]


def _last_releases() -> list[Any]:
    """Return each rewrite in its last release."""
    last = {(it.fix, it.of.upstream, it.of.function): it for it in subjects()}
    return [pytest.param(it, id=it.name.replace(" ", "-")) for it in last.values()]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("subject", suite.in_turn(_last_releases(), lambda subject: subject.fix))
def test_mutants_made_by_hand_are_caught_and_none_is_taken_for_ours(subject: Subject) -> None:
    source = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function)
    before, after = (Source(it.data.decode(), source.target.function) for it in (source, source.rewritten))
    made = subject.of.hand(after.text)
    for (name, text), (caught, why) in zip(made.items(), judged(subject.fix, before, after, [*made.values()])):
        assert caught or why == SAME, name
        digest = sources.Source(source.target, text.encode()).digest
        listed = catalog.shape_table().shapes.get((subject.fix, source.target.function, digest))
        assert listed is None or listed.state != "ours", name


@pytest.mark.parametrize("fix", catalog.fixes())
def test_each_fix_has_mutants(fix: str) -> None:
    assert subjects(fix)
