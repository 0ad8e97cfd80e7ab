"""upstreams.json, and which upstreams one project's wheels hold."""

from unhang.compat import upstreams
from unhang.shapes import catalog


def test_the_upstreams_in_a_wheel() -> None:
    assert upstreams.of_project("megatron-core") == ["megatron-core", "megatron-lm"]
    assert upstreams.of_project("megatron-core", training=False) == ["megatron-core"]
    assert upstreams.of_project("verl") == ["verl"]


def test_every_upstream_of_the_matrix_is_listed() -> None:
    listed = {name for project in upstreams.load()["upstreams"] for name in upstreams.of_project(project)}
    assert listed == set(catalog.releases())
