"""The state of a shape, from evidence only."""

from __future__ import annotations

import pytest

from support import wheels
from support.fake_index import AFFECTED, CLEAN, UNCLEAR
from unhang.compat.sweep import sources
from unhang.compat.sweep.classify import State, classify
from unhang.compat.sweep.learnt import Learnt
from unhang.shapes import catalog

TARGETS = [target for fix in catalog.fixes().values() for target in fix.targets]


def classified(data: str, fix: str) -> State:
    return classify(data.encode(), next(target for target in TARGETS if target.fix == fix))


def test_a_made_up_function_has_the_state_that_follows_from_the_evidence() -> None:
    state = classified("class TEGroupedMLP:\n    def forward(self, x):\n        return x\n", "empty-expert-hang")
    assert (state.state, state.result) == ("undecided", None), "a function of no upstream"
    assert "tokens_per_expert.tolist()" in state.why
    assert classified(CLEAN, "mtp-cp-deadlock").state == "not-affected", "it lacks the feature"
    assert classified(UNCLEAR, "mtp-cp-deadlock").state == "undecided", "it has the feature"
    state = classified(AFFECTED, "expert-dp-warmup")
    assert (state.state, state.why) == ("affected", ""), "its rewrite compiles"
    assert state.result is not None
    assert state.names == tuple(sorted(state.names)) != ()


@pytest.mark.parametrize(
    ("project", "version"), [("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"), ("verl", "0.9.1")]
)
def test_a_real_release_has_the_states_on_record(project: str, version: str) -> None:
    learnt = Learnt()
    table = catalog.shape_table()
    seen = 0
    for place in TARGETS:
        data = wheels.read(project, version, place.file)
        if data is None or (place.upstream == "megatron-lm" and project != "megatron-core"):
            continue
        shape = learnt.shape(sources.content(data), place.function)
        if shape is not None:
            state = classify(data, place)
            known = table.shapes[place.fix, place.function, shape]
            assert (state.state, state.result, state.names) == (known.state, known.result, known.names)
            seen += 1
    assert seen >= 1
