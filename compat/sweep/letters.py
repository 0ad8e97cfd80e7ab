"""How wide a text is, by the letters of DejaVu Sans: of the fonts that a reader may have, it is the widest.

``python -m unhang.compat.sweep.letters DejaVuSans.ttf DejaVuSans-Bold.ttf`` writes letters.json, with fontTools.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("letters.json")
_ASCII = "".join(map(chr, range(32, 127)))


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in pixels, without kerning. What is not ASCII counts as the widest letter."""
    widths: list[int] = _table()["bold" if bold else "regular"]
    found = dict(zip(_ASCII, widths, strict=True))
    em: int = _table()["em"]
    return sum(found.get(letter, max(widths)) for letter in text) * size / em


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def measured(regular: Path, bold: Path) -> str:
    """Return the content of letters.json by these two files of a font. Raises OSError, and fontTools' TTLibError."""
    from fontTools.ttLib import TTFont

    lines = []
    for name, path in ("regular", regular), ("bold", bold):
        font = TTFont(path)
        glyphs, metrics = font.getBestCmap(), font["hmtx"].metrics
        lines.append(f' "{name}": {[metrics[glyphs[ord(letter)]][0] for letter in _ASCII]}')
    return "{\n" + ",\n".join([f' "em": {font["head"].unitsPerEm}', *lines]) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(measured(*map(Path, sys.argv[1:])), encoding="utf-8")
