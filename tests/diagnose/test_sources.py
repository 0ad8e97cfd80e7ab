"""The function of a line, as an environment's source has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.diagnose.evidence import Frame
from unhang.diagnose.known import Sources
from unhang.diagnose.signature import Place

SOURCE = """\
@decorated
def f():
    pass


class A:
    def f(self):
        def g():
            pass
        return g


class B:
    async def f(self):
        pass
"""


@pytest.mark.parametrize(
    ("function", "line", "place", "wanted"),
    [
        ("f", 3, "f", True),
        ("f", 10, "A.f", True),
        ("f", 15, "A.f", False),
        ("f", 15, "B.f", True),
        ("B.f", 15, "B.f", True),
        ("A.f.<locals>.g", 9, "A.f.g", True),
        ("g", 10, "A.f.g", None),
        ("f", 99, "A.f", None),
        ("f", 0, "A.f", None),
    ],
)
def test_a_line_tells_the_function(function: str, line: int, place: str, wanted: bool | None, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    assert Sources([str(tmp_path)]).is_at(Frame(function, "a.py", line), Place("a.py", place)) is wanted


@pytest.mark.parametrize("content", [None, b"def f(:\n", b"\xff\xfe\0", b"(" * 100_000])
def test_a_source_that_cannot_be_read_tells_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.py").write_bytes(content)
    assert Sources([str(tmp_path), "/nowhere"]).is_at(Frame("f", "a.py", 1), Place("a.py", "f")) is None
    assert Sources(()).is_at(Frame("f", "a.py", 1), Place("a.py", "f")) is None
