"""The local versions of rewritten wheels."""

import pytest

from unhang.tell.local_version import local_version, plain_version

VERSIONS = [
    ("0.17.1", "0.17.1", "0.17.1+unhang.3"),
    ("0.17.1+cu12", "0.17.1+cu12", "0.17.1+cu12.unhang.3"),
    ("0.17.1+unhang.2", "0.17.1", "0.17.1+unhang.3"),
    ("0.17.1+cu12.unhang.2", "0.17.1+cu12", "0.17.1+cu12.unhang.3"),
]


@pytest.mark.parametrize(("version", "plain", "local"), VERSIONS)
def test_the_generation_is_added_and_an_older_one_replaced(version: str, plain: str, local: str) -> None:
    assert local_version(version, 3) == local
    assert plain_version(version) == plain_version(local) == plain
