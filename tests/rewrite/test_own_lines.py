"""The lines of a function are put back to the byte, wherever the function is now, and no other byte changes."""

import codecs

import pytest

from unhang.rewrite import own_lines
from unhang.shapes import shape

PLAIN = """\
import os

@cached(
    size=1,
)
def f(x):
    '''é'''
    return x

class C:
    @staticmethod
    async def g(x):
        return [
            x]  # why

    def h(self): pass
"""
NAMES = ("f", "C.g", "C.h")
PATCHED = PLAIN.replace("return x\n", "# unhang\n    return 2 * x\n").replace("x]", "x,\n            x]")
PATCHED = PATCHED.replace("h(self): pass", "h(self):\n        return 1")
MOVED = f"# mine\n{PATCHED}\n    y = 1\n\nlast = 2".replace("class C:", "if True:\n    pass\n\nclass C:\n    a = 1\n")
WANTED = f"# mine\n{PLAIN}\n    y = 1\n\nlast = 2".replace("class C:", "if True:\n    pass\n\nclass C:\n    a = 1\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("bom", "encoding"), [(b"", "utf-8"), (codecs.BOM_UTF8, "utf-8"), (b"# coding: latin-1\n", "latin-1")]
)
@pytest.mark.parametrize(("now", "wanted"), [(PATCHED, PLAIN), (MOVED, WANTED)])
def test_every_byte(end: str, bom: bytes, encoding: str, now: str, wanted: str) -> None:
    def encoded(text: str) -> bytes:
        return bom + text.replace("\n", end).encode(encoding)

    assert own_lines.put_back(encoded(now), encoded(PLAIN), NAMES) == encoded(wanted)
    again = [{name: place.digest for name, place in own_lines.of(encoded(t), NAMES).items()} for t in (PLAIN, wanted)]
    assert again[0] == again[1]
    assert again[0].keys() == set(NAMES)


@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8, b"# coding: latin-1\n"])
def test_the_lines_of_functions_in_known_shapes_are_found_without_the_whole_file(
    bom: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MOVED.replace("(\n    size=1,\n)", "(size=1)")  # on several lines, a look does not see it
    data = bom + text.replace("\n", "\r\n").encode("latin-1" if b"latin" in bom else "utf-8")
    whole = own_lines.of(data, NAMES)
    shapes = {name: shape.digest(place.function) for name, place in whole.items()}
    assert own_lines.expected(data, {**shapes, "f": "another"})["f"].digest == whole["f"].digest
    monkeypatch.setattr(own_lines, "of", None)
    found = own_lines.expected(data, shapes)
    assert [place[:3] for place in found.values()] == [place[:3] for place in whole.values()]


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        ("def f(): return 2", "def f(): return 1"),
        ("def f(): return 2\n", "def f(): return 1\n"),
        ("def f(): return 2\r\n# crlf\r\n", "def f(): return 1\r\n# crlf\r\n"),
        ("\ufeffdef f(): return 2\n", "\ufeffdef f(): return 1\n"),
        ("x = '\x0b\x1c\u2028'\ndef f(): return 2\n", "x = '\x0b\x1c\u2028'\ndef f(): return 1\n"),
    ],
)
def test_what_is_around_the_function_may_come_and_go(now: str, wanted: str) -> None:
    for plain in ("def f(): return 1", "def f(): return 1\n", "\ufeffdef f(): return 1\r\nmore = 1\r\n"):
        assert own_lines.put_back(now.encode(), plain.encode(), ["f"]) == wanted.encode()


def test_one_function_of_two_and_none() -> None:
    now, plain = PATCHED.encode(), PLAIN.encode()
    half = own_lines.put_back(now, plain, ["f"])
    assert own_lines.put_back(half, plain, ["C.g", "C.h"]) == plain
    assert own_lines.put_back(now, plain, []) == now


@pytest.mark.parametrize("now", [b"", b"def g(): pass\n", b"def f(): pass\ndef f(): pass\n"])
def test_a_function_that_is_not_defined_once_is_refused(now: bytes) -> None:
    assert own_lines.of(now, ["f"]) == {}
    for pair in ((now, b"def f(): pass\n"), (b"def f(): pass\n", now)):
        with pytest.raises(ValueError, match="exactly once"):
            own_lines.put_back(*pair, ["f"])


def test_a_file_that_does_not_parse_is_refused() -> None:
    with pytest.raises(SyntaxError):
        own_lines.of(b"def f(:\n", ["f"])
