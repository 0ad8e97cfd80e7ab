"""The modules that a proof misses are named at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unhang.prove import missing

PREPARE = """
import first_missing.deeper
from second_missing import Base, register
try:
    import optional_missing
except ImportError:
    pass
@register("name")
class Own(Base):
    pass
if first_missing.__version__ < "1":
    raise SystemExit
import third_missing
"""


def preparing(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    (folder / "an_upstream.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "modules", {**sys.modules})

    def prepare() -> None:
        importlib.import_module("an_upstream")

    return prepare


def names(prepare: Callable[[], None]) -> list[str]:
    with pytest.raises(Exception) as caught:
        prepare()
    before = list(sys.meta_path)
    found = missing.names(prepare, caught.value)
    assert sys.meta_path == before
    return found


def test_all_modules_that_stop_it_are_named_and_no_optional_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(preparing(PREPARE, tmp_path, monkeypatch)) == ["first_missing", "second_missing", "third_missing"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("raise ValueError", []),
        ("raise ImportError('no version of it')", []),
        ("import json.no_such_part", []),
        ("import one_missing\nraise ValueError", ["one_missing"]),
        (
            "try:\n    import one_missing\nexcept ImportError as e:\n    raise RuntimeError from e",
            ["one_missing"],
        ),
        ("raise ModuleNotFoundError", []),
        ("import one_missing\nimport importlib.metadata as m\nm.version('one_missing')", ["one_missing"]),
    ],
)
def test_what_else_ends_it_names_nothing_more(
    text: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(preparing(text, tmp_path, monkeypatch)) == found
