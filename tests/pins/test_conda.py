"""conda-lock.yml: one pin for the platforms that share it, and nothing of YAML that is constructed."""

import sys
from pathlib import Path

import pytest

from support.lock_files import read
from unhang.errors import UnhangError
from unhang.records import Pin

HEAD = "version: 1\nmetadata:\n  platforms:\n  - linux-64\n  - osx-arm64\npackage:\n"


def package(name: str, version: str, platform: str, more: str = "") -> str:
    return f"- name: {name}\n  version: {version}\n  manager: pip\n  platform: {platform}\n{more}"


def test_versions_platforms_and_categories(tmp_path: Path) -> None:
    packages = [
        package("verl", "0.7.1", "linux-64"),
        package("verl", "0.7.1", "osx-arm64"),
        package("megatron-core", "'0.10'", "linux-64", "  category: gpu\n"),
        package("ms-swift", "4.3.0", "linux-64", "  url: git+https://a.example/ms-swift@v4.3.0\n"),
        package("ms-swift", "4.2.0", "osx-arm64"),
    ]
    assert read(tmp_path / "conda-lock.yml", HEAD + "".join(packages)) == (
        Pin("verl", "0.7.1", 7),
        Pin("megatron-core", "0.10", 15, when="on linux-64; only in category gpu"),
        Pin("ms-swift", "4.3.0", 20, when="on linux-64", repository="https://a.example/ms-swift", ref="v4.3.0"),
        Pin("ms-swift", "4.2.0", 25, when="on osx-arm64"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n",
        "package: [\n",
        "version: 1\npackage: verl\nmetadata: {}\n",
        "a: 1\n---\nb: 2\n",
        HEAD + "- " * 100_000,
        HEAD + "[" * 100_000,
    ],
)
def test_what_is_none_of_conda_lock_s_is_damage(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError) as raised:
        read(tmp_path / "conda-lock.yml", text)
    assert raised.value.code == "bad-lock"


def test_a_tag_makes_nothing_and_aliases_cost_nothing(tmp_path: Path) -> None:
    bomb = "bomb:\n" + "".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]\n" for n in range(30))
    evil = f"evil: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]\n"
    text = evil + bomb + HEAD + package("verl", "0.7.1", "linux-64")
    assert [pin.version for pin in read(tmp_path / "conda-lock.yml", text)] == ["0.7.1"]
    assert not (tmp_path / "made").exists()


def test_without_pyyaml_the_hint_is_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UnhangError, match="PyYAML") as raised:
        read(tmp_path / "conda-lock.yml", HEAD)
    assert (raised.value.code, raised.value.hint) == ("no-lock-reader", "pip install 'unhang[lock]'")
