"""What the sweep reads."""

from __future__ import annotations

import hashlib

from support.checkout import COMPAT
from unhang.compat.sweep import sources


def test_a_content_is_named_by_its_sha256() -> None:
    assert sources.content(b"a") == (hashlib.sha256(b"a").hexdigest(), b"a")


def test_the_lists_are_those_of_the_checkout() -> None:
    assert sources.HERE == COMPAT
    assert {row["fix"] for row in sources.load("decisions")} == {"sft-packed-seq-broadcast"}
    assert isinstance(sources.load("superseded"), list)
