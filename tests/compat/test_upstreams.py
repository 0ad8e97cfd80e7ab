"""Which upstreams one project's wheels hold."""

from unhang.compat import upstreams
from unhang.shapes import catalog


def test_the_upstreams_in_a_wheel() -> None:
    assert upstreams.of_project("megatron-core") == ["megatron-core", "megatron-lm"]
    assert upstreams.of_project("megatron-core", held=()) == ["megatron-core"]
    assert upstreams.of_project("verl") == ["verl"]


def test_every_upstream_of_the_matrix_is_listed() -> None:
    listed = {name for project in upstreams.projects() for name in upstreams.of_project(project)}
    assert upstreams.held(["megatron/training/x.py"]) == ["megatron-lm"]
    assert upstreams.held(["megatron/core/training/x.py", "verl/x.py"]) == []
    assert upstreams.of_file("megatron-core", "megatron/training/x.py") == "megatron-lm"
    assert upstreams.of_file("megatron-core", "megatron/core/x.py") == "megatron-core"
    assert listed == set(catalog.releases())
