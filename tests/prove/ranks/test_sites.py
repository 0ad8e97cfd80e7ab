"""How a call site is shown."""

from __future__ import annotations

import sys

import pytest

from unhang.prove.ranks import sites


def test_the_path_is_shown_below_the_longest_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/a", "/a/site/"])
    monkeypatch.setattr(sites, "ROOTS", ["/variant"])
    assert sites.site("/a/site/verl/x.py", 7, "f") == "verl/x.py:7 in f"
    assert sites.site("/variant/verl/x.py", 7, "f") == "verl/x.py:7 in f"
    assert sites.site("/elsewhere/x.py", 7, "f") == "/elsewhere/x.py:7 in f"
