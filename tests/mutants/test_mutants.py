"""The rules on made-up code, and a bounded part of the session: one rewrite's mutants made by hand."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace
from typing import Any

import pytest

from mutants import ranks, rules
from mutants.__main__ import Subject, subjects
from mutants.judge import SAME, Judge, by_scene
from support import sources
from unhang.compat.endstates.endstate import Source
from unhang.judge import scene
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
    "gate: x > 1 -> x >= 1",
    "gate: not x.done -> x.done",
    "rank: x > 1 and not x.done -> (...) and rank() != 0",
    "group: group=x.groups[1] -> group=None",
    "order: ('first', 'second') -> (...)[::-1]",
    "field: ('first', 'second') -> ('second',)",
    "count: 2 -> 3",
    "device: device=x.device -> device='cpu'",
    "dtype: x.zeros(2, device=x.device) -> x.zeros(2, device=x.device, dtype=torch.float32)",
    "slice: x.parts[:0] -> x.parts[:]",
    "early: begin(x) <-> if x > 1",
    "late: if x > 1",
]


def test_each_kind_of_rule_changes_what_was_added() -> None:
    (function,) = ast.parse(AFTER).body
    rewritten = SimpleNamespace(data=AFTER.encode(), function=function)
    source: Any = SimpleNamespace(data=BEFORE.encode(), rewritten=rewritten)
    made = {mutant.name: mutant.text for mutant in rules.mutants(rules.Added(source, ["rank()"], ["other_group"]))}
    assert [name for name in MADE if not any(it.startswith(name) for it in made)] == []
    assert len({*made.values()}) == len(made)
    assert all(text.startswith("def f(x):") and text not in (BEFORE, AFTER) for text in made.values())


def _last_releases() -> list[Any]:
    """Return each rewrite in its last release; that of one fix is for the quick tests."""
    last = {(it.fix, it.of.upstream, it.of.function): it for it in subjects()}
    return [
        pytest.param(it, marks=[pytest.mark.torch] if scene.of(fix) else [], id=it.name.replace(" ", "-"))
        for (fix, *_), it in last.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("subject", _last_releases())
def test_mutants_made_by_hand_are_caught_and_none_is_taken_for_ours(subject: Subject) -> None:
    source = sources.wheel(subject.fix, subject.version, subject.of.upstream, subject.of.function)
    before, after = (Source(it.data.decode(), source.target.function) for it in (source, source.rewritten))
    made = subject.of.hand(after.text)
    if scene.of(subject.fix):
        answers = by_scene(subject.fix, before, after, [*made.values()])
    else:
        judge = Judge(subject.fix, before, after)
        answers = [judge.why(text) for text in made.values()]
    for (name, text), (caught, why) in zip(made.items(), answers):
        names = (f"by hand: {name}", f"{subject.version}: by hand: {name}")
        assert caught or why == SAME or any(re.fullmatch(it, each) for it in subject.of.equivalent for each in names), (
            f"{name} {why}"
        )
        digest = sources.Source(source.target, text.encode()).digest
        listed = catalog.shape_table().shapes.get((subject.fix, source.target.function, digest))
        assert listed is None or listed.state != "ours", name


def test_a_mutant_stands_beside_the_other_rewrites_of_its_file() -> None:
    names = ("MoEAllGatherTokenDispatcher.dispatch_postprocess", "MoEAllGatherTokenDispatcher.combine_preprocess")
    source, beside = (sources.wheel("allgather-empty-expert", "0.19.2", function=name) for name in names)
    mutant = source.rewritten._replace(data=source.rewritten.data.replace(b".item() > 0", b".item() > 1"))
    both = sources.rewritten(beside.target, source.rewritten.data, beside.known.result)
    spliced = source._replace(data=ranks._spliced(mutant, source.target.file, source.data, both))
    assert spliced.digest == mutant.digest != source.rewritten.digest
    assert beside._replace(data=spliced.data).digest == beside.known.result
    assert ranks._spliced(mutant, "another.py", source.data, both) == both


@pytest.mark.parametrize("fix", catalog.fixes())
def test_each_fix_has_mutants(fix: str) -> None:
    assert subjects(fix)
