"""The upstream wheels of the tests are the pinned ones."""

from pathlib import Path

import pytest

from support import wheels


def test_a_file_with_another_sha256_is_refused() -> None:
    with pytest.raises(wheels.WheelError, match="sha256"):
        wheels.verify(Path(__file__), "0" * 64)
