"""The local version of a rewritten wheel: ``0.17.1+unhang.1``."""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"[+.]unhang\.[0-9]+")


def local_version(version: str, generation: int) -> str:
    """Return the version with ``unhang.N`` added: ``0.17.1+unhang.1``, ``0.17.1+cu12.unhang.1``.

    It replaces an older ``unhang.N``; the rest of the local version stays.
    """
    plain = plain_version(version)
    return f"{plain}{'.' if '+' in plain else '+'}unhang.{generation}"


def plain_version(version: str) -> str:
    """Return the version without ``unhang.N``: that of the published release."""
    return _SUFFIX.sub("", version, count=1)
