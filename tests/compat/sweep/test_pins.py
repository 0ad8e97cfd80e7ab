"""The pinned wheels, and what the index says against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from unhang.compat.index import Offer
from unhang.compat.sweep import pins, sources
from unhang.errors import UnhangError
from unhang.shapes import catalog

PACKAGE: Any = None


def test_each_pinned_wheel_is_a_release_of_the_matrix() -> None:
    pinned = pins.read(sources.HERE)
    for project in ("megatron-core", "verl", "ms-swift"):
        mine = [(pin["version"], pin["yanked"]) for pin in pinned if pin["project"] == project]
        assert mine == [(release.version, release.yanked) for release in catalog.releases()[project].values()]
        assert mine == sorted(mine, key=lambda pin: Version(pin[0]))
    assert len({pin["sha256"] for pin in pinned}) == len(pinned) > 470


def test_a_folder_without_a_file_has_no_pins(tmp_path: Path) -> None:
    assert pins.read(tmp_path) == []


def test_a_file_that_changed_under_its_pin_is_an_error() -> None:
    offered = [Offer("verl", "0.7.1", False, "verl.whl", "11", "3.12", PACKAGE)]
    pin = {"project": "verl", "version": "0.7.1", "file": "verl.whl", "sha256": "11"}
    pins.hold_against([pin, {**pin, "file": "other.whl", "sha256": "22"}], offered)
    with pytest.raises(UnhangError, match=r"gives verl\.whl with sha256 11; .* pins 00") as caught:
        pins.hold_against([{**pin, "sha256": "00"}], offered)
    assert caught.value.code == "pin-changed"


def test_a_release_that_the_index_no_longer_has_is_gone() -> None:
    offered = [Offer("verl", "0.7.1", False, "verl.whl", "11", "3.12", PACKAGE)]
    rows = [{"project": "verl", "version": version} for version in ("0.7.1", "0.7.2")]
    assert pins.gone(rows, offered) == ["verl 0.7.2"]
