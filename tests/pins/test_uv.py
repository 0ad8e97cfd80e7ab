"""uv.lock: forks, extras, groups, and sources that are no index."""

from pathlib import Path
from typing import Any

import pytest

from support.lock_files import COMMIT, read, uv, uv_package
from unhang.records import Pin


def test_two_versions_are_told_apart_by_their_markers_and_by_the_extras_asked_of_each(tmp_path: Path) -> None:
    root = uv_package(
        "trainer",
        "0.1",
        'virtual = "."',
        "dependencies = [",
        '    { name = "verl", version = "0.7.1", marker = "python_full_version < \'3.12\'" },',
        '    { name = "verl", version = "0.9.1", extra = ["mcore"], marker = "python_full_version >= \'3.12\'" },',
        "]",
    )
    text = uv(root, uv_package("verl", "0.7.1"), uv_package("verl", "0.9.1"), uv_package("verl-tools", "1.0"))
    assert read(tmp_path / "uv.lock", text) == (
        Pin("verl", "0.7.1", 14, when="python_full_version < '3.12'"),
        Pin("verl", "0.9.1", 19, ("mcore",), "python_full_version >= '3.12'"),
    )


def test_an_extra_is_named_only_with_the_version_that_it_installs(tmp_path: Path) -> None:
    root = uv_package(
        "trainer",
        "0.1",
        'virtual = "."',
        "[package.optional-dependencies]",
        'old = [{ name = "verl", version = "0.7.1" }]',
        'new = [{ name = "verl", version = "0.9.1" }]',
    )
    text = uv(root, uv_package("verl", "0.7.1"), uv_package("verl", "0.9.1"))
    assert {pin.version: pin.when for pin in read(tmp_path / "uv.lock", text)} == {
        "0.7.1": "only with extra old",
        "0.9.1": "only with extra new",
    }


def test_a_fork_that_nothing_narrows_has_its_own_marker(tmp_path: Path) -> None:
    text = uv(uv_package("verl", "0.7.1", "", "resolution-markers = [\"sys_platform == 'linux'\", \"extra == 'a'\"]"))
    (pin,) = read(tmp_path / "uv.lock", text)
    assert pin.when == "sys_platform == 'linux' or extra == 'a'"


def test_what_only_an_extra_or_a_group_brings_in_says_so_also_through_others(tmp_path: Path) -> None:
    root = uv_package(
        "trainer",
        "0.1",
        'editable = "."',
        'dependencies = [{ name = "verl" }]',
        "[package.optional-dependencies]",
        'mcore = [{ name = "bridge", extra = ["core"] }]',
        "[package.dev-dependencies]",
        'dev = [{ name = "ms-swift" }]',
    )
    bridge = uv_package(
        "bridge", "1", "", "[package.optional-dependencies]", 'core = [{ name = "megatron-core" }]',
    )  # fmt: skip
    pins = [uv_package(name, "1.0") for name in ("verl", "megatron-core", "ms-swift")]
    assert {pin.distribution: pin.when for pin in read(tmp_path / "uv.lock", uv(root, bridge, *pins))} == {
        "verl": "",
        "megatron-core": "only with extra mcore",
        "ms-swift": "only with group dev",
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            f'git = "https://github.com/verl-project/verl?tag=v0.7.1#{COMMIT}"',
            {"repository": "https://github.com/verl-project/verl", "ref": "v0.7.1", "commit": COMMIT},
        ),
        (
            f'git = "ssh://git@git.example/us/verl.git?subdirectory=a&rev=fix%2Fa#{COMMIT}"',
            {"repository": "ssh://git@git.example/us/verl.git", "ref": "fix/a", "commit": COMMIT, "source": "a"},
        ),
        ('editable = "third_party/verl"', {"source": "third_party/verl"}),
        ('path = "a/verl-0.7.1+a.1-py3-none-any.whl"', {"source": "a/verl-0.7.1+a.1-py3-none-any.whl"}),
        ('url = "https://a.example/verl-0.7.1.tar.gz"', {"source": "https://a.example/verl-0.7.1.tar.gz"}),
    ],
)  # fmt: skip
def test_a_source_that_is_no_index_is_named(source: str, expected: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path / "uv.lock", uv(uv_package("verl", "0.8", source))) == (
        Pin("verl", "0.8", 5)._replace(**expected),
    )
