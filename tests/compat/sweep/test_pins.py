"""The pinned wheels, and what the index says against them."""

from typing import Any

import pytest

from unhang.compat.index import Offer
from unhang.compat.sweep import pins
from unhang.errors import UnhangError


def test_a_file_that_changed_under_its_pin_is_an_error() -> None:
    package: Any = None
    offered = [Offer("verl", "0.7.1", False, "verl.whl", "11", "3.12", package)]
    pin = {"project": "verl", "version": "0.7.1", "file": "verl.whl", "sha256": "11"}
    pins.hold_against([pin, {**pin, "file": "other.whl", "sha256": "22"}], offered)
    with pytest.raises(UnhangError, match=r"gives verl\.whl with sha256 11; .* pins 00") as caught:
        pins.hold_against([{**pin, "sha256": "00"}], offered)
    assert caught.value.code == "pin-changed"
