"""upstreams.json, and which upstreams one project's wheels hold."""

from __future__ import annotations

import pytest

from unhang.compat import upstreams
from unhang.shapes import catalog


@pytest.mark.parametrize(
    ("project", "training", "held"),
    [
        ("megatron-core", True, ["megatron-core", "megatron-lm"]),
        ("megatron-core", False, ["megatron-core"]),
        ("verl", True, ["verl"]),
    ],
)
def test_the_upstreams_in_a_wheel(project: str, training: bool, held: list[str]) -> None:
    assert upstreams.of_project(project, training) == held


def test_every_upstream_of_the_matrix_is_listed() -> None:
    listed = {name for project in upstreams.load()["upstreams"] for name in upstreams.of_project(project)}
    assert listed == set(catalog.releases())
