"""Writes docs/architecture.md and its picture from the code's own imports and docstrings.

`nox -s architecture` runs it; tests/test_rooms.py fails if one of them is stale.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

from support import rooms

PAGE, PICTURE = rooms.ROOT / "docs" / "architecture.md", rooms.ROOT / "docs" / "architecture.svg"
# How a file goes from found to rewritten: the modules to read, in this order.
WAY = (
    "unhang.find.locate",
    "unhang.judge.observe",
    "unhang.judge.decide",
    "unhang.rewrite.plan",
    "unhang.store.apply",
)
ABOUT = {
    "shared": "Errors and records that all rooms use.",
    "fleet": "The public function for Ray.",
}
BOX, GAP, ROW, MARGIN = (236, 62), 16, 104, 12
WIDTH = 3 * BOX[0] + 2 * GAP + 2 * MARGIN
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.n{font-weight:600}.s{font-size:11px;fill:#59636e}"
    "rect{fill:#f6f8fa;stroke:#818b98;rx:6}path{fill:none;stroke:#818b98}circle{fill:#0969da}.w{fill:#fff;font-size:11px}"
    "#a path{fill:#818b98}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}rect{fill:#151b23;stroke:#656c76}"
    "path{stroke:#656c76}circle{fill:#1f6feb}.w{fill:#fff}#a path{fill:#656c76}}"
)


def texts() -> dict[Path, str]:
    """Return the page and the picture, by path."""
    counts = Counter(
        pair for found in rooms.imports() if (pair := (rooms.room(found.importer), rooms.room(found.imported)))
    )
    across = {pair: number for pair, number in counts.items() if rooms.level(pair[0]) > rooms.level(pair[1])}
    return {PAGE: page(across), PICTURE: picture(set(across))}


def page(across: dict[tuple[str, str], int]) -> str:
    """Return the page; ``across`` counts the imports from room to room."""
    lines = [
        "# Architecture",
        "",
        "<!-- Written by `nox -s architecture` from the code's imports and docstrings; do not edit. -->",
        "",
        "A room is a folder of `src/unhang/`. A room imports only rooms below it; `tests/test_rooms.py` enforces that.",
        "`codemods/`, `patches/` and `compat/` are at the top of the repository; links in `src/unhang/` lead there. An",
        "arrow in the picture is an import; an arrow is left out where others lead to the same room. The blue numbers",
        "are the way of a file.",
        "",
        "![The rooms of unhang, the upper ones importing the lower ones](architecture.svg)",
        "",
        "## The way of a file, from found to rewritten",
        "",
        *(f"{number}. `{_path(name)}`: {_summary(name)}" for number, name in enumerate(WAY, 1)),
        "",
        "`cli/apply_command.py` calls them in this order, through `store/survey.py`. Each room hands the next one an",
        "immutable record: `Request` -> `Search` -> `Finding` -> `Plan` -> `Report`.",
        "",
        "## The rooms, from the top",
    ]
    known = rooms.modules()
    for name in (name for names in reversed(rooms.LEVELS) for name in names):
        below = ", ".join(f"{lower} ({number})" for (upper, lower), number in sorted(across.items()) if upper == name)
        lines += ["", f"### {name}", "", _about(name)]
        lines += [f"Imports from other rooms: {below}.", ""] if below else [""]
        mine = [module for module in known if rooms.room(module) == name and _is_listed(module)]
        lines += [f"- `{_path(module)}`: {_summary(module)}" for module in mine]
    return "\n".join(lines) + "\n"


def picture(across: set[tuple[str, str]]) -> str:
    """Return the picture, an SVG: a box for each room, an arrow for each import that no longer way implies."""
    places = {
        name: (
            (WIDTH - len(names) * BOX[0] - (len(names) - 1) * GAP) / 2 + column * (BOX[0] + GAP),
            MARGIN + (len(rooms.LEVELS) - 1 - number) * ROW,
        )
        for number, names in enumerate(rooms.LEVELS)
        for column, name in enumerate(names)
    }
    height = MARGIN * 2 + len(rooms.LEVELS) * ROW - (ROW - BOX[1])
    body = [_arrow(places[upper], places[lower]) for upper, lower in sorted(reduced(across))]
    for name, (x, y) in places.items():
        body.append(f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}"/>')
        body.append(f'<text class="n" x="{x + 10:g}" y="{y + 19:g}">{escape(name)}</text>')
        for row, line in enumerate(wrap(_about(name), 37)[:2]):
            body.append(f'<text class="s" x="{x + 10:g}" y="{y + 36 + 14 * row:g}">{escape(line)}</text>')
        steps = [number for number, module in enumerate(WAY, 1) if rooms.room(module) == name]
        for place, number in enumerate(reversed(steps)):
            cx = x + BOX[0] - 16 - 22 * place
            body.append(f'<circle cx="{cx:g}" cy="{y + 15:g}" r="9"/>')
            body.append(f'<text class="w" x="{cx:g}" y="{y + 19:g}" text-anchor="middle">{number}</text>')
    marker = '<marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
            "<title>The rooms of unhang, the upper ones importing the lower ones</title>",
            f'<style>{STYLE}</style><defs>{marker}<path d="M0 0 8 4 0 8z"/></marker></defs>',
            *body,
            "</svg>\n",
        ]
    )


def reduced(across: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the transitive reduction of imports from room to room, which have no circle."""

    def reaches(start: str, end: str) -> bool:
        return any(lower == end or reaches(lower, end) for upper, lower in across if upper == start)

    return {
        (upper, lower)
        for upper, lower in across
        if not any(reaches(other, lower) for start, other in across if start == upper and other != lower)
    }


def main() -> None:
    """Write the page and the picture."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


def _arrow(upper: tuple[float, float], lower: tuple[float, float]) -> str:
    to_x, to_y = lower[0] + BOX[0] / 2, lower[1] - 2
    if to_y - upper[1] > ROW:  # past the rows between
        x, y = upper[0], upper[1] + BOX[1] / 2
        turns = f"{x - 120:g} {y:g} {to_x:g} {y + ROW:g}"
    else:
        x, y = upper[0] + BOX[0] / 2, upper[1] + BOX[1]
        turns = f"{x:g} {y + 20:g} {to_x:g} {to_y - 20:g}"
    return f'<path d="M{x:g} {y:g} C{turns} {to_x:g} {to_y:g}" marker-end="url(#a)"/>'


def _about(name: str) -> str:
    return ABOUT.get(name) or _summary(f"unhang.{name}")


def _is_listed(module: str) -> bool:
    return module != "unhang" and not (module == f"unhang.{rooms.room(module)}" and rooms.room(module) != "fleet")


def _summary(module: str) -> str:
    """Return the first paragraph of a module's docstring."""
    return " ".join(
        (ast.get_docstring(ast.parse(rooms.modules()[module].read_bytes())) or "").partition("\n\n")[0].split()
    )


def _path(module: str) -> str:
    """Return a module's path below the tool's folder."""
    is_package = rooms.modules()[module].name == "__init__.py"
    return "/".join(module.split(".")[1:]) + ("/" if is_package else ".py")


if __name__ == "__main__":
    main()
