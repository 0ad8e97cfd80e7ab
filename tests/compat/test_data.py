"""The compat matrix: consistent in itself, and decided by evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from support import cli, wheels
from unhang.compat.sweep import sources
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.classify import classify
from unhang.compat.sweep.learnt import Learnt
from unhang.shapes import catalog

STATES = {"affected", "fixed", "not-affected", "superseded"}
TARGETS = [target for fix in catalog.fixes().values() for target in fix.targets]
SHAPES = json.loads((Path(sources.HERE) / "data" / "shapes.json").read_text())


def test_a_function_of_no_upstream_is_undecided() -> None:
    (target,) = (target for target in TARGETS if target.fix == "empty-expert-hang")
    state = classify(b"class TEGroupedMLP:\n    def forward(self, x):\n        return x\n", target)
    assert (state.state, state.result) == ("undecided", None)
    assert "tokens_per_expert.tolist()" in state.why


def test_each_shape_says_enough() -> None:
    seen = set()
    for row in SHAPES["shapes"]:
        key = row["fix"], row["function"], row["shape"]
        assert key not in seen, "two rules that both match"
        seen.add(key)
        assert row["state"] in STATES
        assert ("result" in row) is (row["state"] in ("affected", "superseded"))
        assert ("names" in row) is ("result" in row)
        assert {"note", "first"} & set(row), "where it was seen, or whose change it is"
        assert (row["fix"], row["function"]) in {(target.fix, target.function) for target in TARGETS}


def test_a_result_is_never_called_affected() -> None:
    results = {(row["fix"], row["function"], row.get("result")) for row in SHAPES["shapes"]}
    others = {(row["fix"], row["function"], row["shape"]) for row in SHAPES["shapes"]}
    assert not results & others


def test_each_file_digest_leads_to_shapes_on_record() -> None:
    table = catalog.shape_table()
    known = {(function, shape) for _, function, shape in table.shapes}
    assert len(table.files) > 100
    for shapes in table.files.values():
        for function, shape in shapes.items():
            assert shape is None or (function, shape) in known


def test_each_release_has_a_shape_or_none_for_each_target() -> None:
    table = catalog.shape_table()
    for upstream, versions in catalog.releases().items():
        mine = {f"{target.file}::{target.function}": target for target in TARGETS if target.upstream == upstream}
        for release in versions.values():
            assert set(release.shapes) == set(mine)
            for name, shape in release.shapes.items():
                assert shape is None or (mine[name].fix, mine[name].function, shape) in table.shapes
    assert [version for version, release in catalog.releases()["megatron-core"].items() if release.yanked] == [
        "0.18.1",
        "0.19.1",
    ]


def test_a_decision_is_about_a_shape_on_record_and_says_why() -> None:
    rows = {(row["fix"], row["shape"]): row for row in SHAPES["shapes"]}
    for item in sources.load("decisions.json")["decisions"]:
        assert rows[item["fix"], item["shape"]]["state"] == item["state"]
        assert len(item["why"]) > 20


@pytest.mark.parametrize(
    ("project", "version"), [("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"), ("verl", "0.9.1")]
)
def test_the_sweep_says_of_a_release_what_the_data_says(project: str, version: str, tmp_path: Path) -> None:
    learnt = Learnt(Cache(tmp_path))
    table = catalog.shape_table()
    seen = 0
    for target in TARGETS:
        data = wheels.read(project, version, target.file)
        if data is None or (target.upstream == "megatron-lm" and project != "megatron-core"):
            continue
        shape = learnt.shape(sources.content(data), target.function)
        if shape is not None:
            state = classify(data, target)
            known = table.shapes[target.fix, target.function, shape]
            assert (state.state, state.result, state.names) == (known.state, known.result, known.names)
            seen += 1
    assert seen >= 1


def test_each_pinned_wheel_is_a_release_of_the_matrix() -> None:
    for project in ("megatron-core", "verl", "ms-swift"):
        pinned = [(pin["version"], pin["yanked"]) for pin in sources.pins() if pin["project"] == project]
        assert pinned == [(release.version, release.yanked) for release in catalog.releases()[project].values()]
        assert pinned == sorted(pinned, key=lambda pin: Version(pin[0]))
    assert len({pin["sha256"] for pin in sources.pins()}) == len(sources.pins()) > 470


def test_no_line_of_upstream_is_in_the_data(tmp_path: Path) -> None:
    """Digests, names, versions and places only: the longest text is a sentence of ours."""
    site = cli.unpack(tmp_path, ("verl", "0.7.1"))
    source = (site / "verl/workers/engine/megatron/transformer_impl.py").read_text()
    lines = {line.strip() for line in source.splitlines() if len(line.strip()) > 40}
    for folder in (Path(sources.HERE), Path(sources.HERE) / "data"):
        for path in folder.glob("*.json"):
            assert not [line for line in lines if line in path.read_text()]
