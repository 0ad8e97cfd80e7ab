"""The state of a shape, from evidence only."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import wheels
from support.fake_index import AFFECTED, CLEAN, UNCLEAR
from unhang.compat.sweep import sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.classify import classify
from unhang.compat.sweep.learnt import Learnt
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

TARGETS = [target for fix in catalog.fixes().values() for target in fix.targets]


def target(fix: str) -> Target:
    return next(target for target in TARGETS if target.fix == fix)


def test_a_function_of_no_upstream_is_undecided() -> None:
    state = classify(b"class TEGroupedMLP:\n    def forward(self, x):\n        return x\n", target("empty-expert-hang"))
    assert (state.state, state.result) == ("undecided", None)
    assert "tokens_per_expert.tolist()" in state.why


def test_a_function_without_the_feature_is_not_affected() -> None:
    assert classify(CLEAN.encode(), target("mtp-cp-deadlock")).state == "not-affected"
    assert classify(UNCLEAR.encode(), target("mtp-cp-deadlock")).state == "undecided", "it has the feature"


def test_a_rewrite_that_compiles_makes_a_shape_affected() -> None:
    place = target("expert-dp-warmup")
    state = classify(AFFECTED.encode(), place)
    assert (state.state, state.why) == ("affected", "")
    assert state.result is not None
    assert state.names == tuple(sorted(state.names)) != ()


@pytest.mark.parametrize(
    ("project", "version"), [("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"), ("verl", "0.9.1")]
)
def test_a_real_release_has_the_states_on_record(project: str, version: str, tmp_path: Path) -> None:
    learnt = Learnt(Cache(tmp_path))
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
