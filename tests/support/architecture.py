"""Writes docs/architecture.md, with its picture, from the code's own imports and docstrings.

`nox -s pages` runs it; tests/test_rooms.py fails if the page is stale.
"""

import ast
from collections import Counter

from support import rooms

PAGE = rooms.ROOT / "docs" / "architecture.md"
# How a file goes from found to rewritten: the modules to read, in this order.
WAY = ("unhang.find.locate", "unhang.judge.observe", "unhang.judge.decide", "unhang.rewrite.plan", "unhang.store.write")
ABOUT = {"shared": "Errors and records that all rooms use.", "fleet": "The public function for Ray."}


def page() -> str:
    pairs = ((rooms.room(found.importer), rooms.room(found.imported)) for found in rooms.imports())
    across = Counter(pair for pair in pairs if rooms.level(pair[0]) > rooms.level(pair[1]))
    lines = [
        "# Architecture",
        "",
        "<!-- Written by `nox -s pages` from the code's imports and docstrings; do not edit. -->",
        "",
        "A room is a folder of `src/unhang/`. A room imports only rooms below it; `tests/test_rooms.py` enforces that.",
        "`codemods/`, `patches/`, `compat/` and `upstreams/` are at the top of the repository; links in `src/unhang/`",
        "lead there. An arrow in the picture is an import; one is left out where others lead to the same room. The",
        "numbers are the way of a file.",
        "",
        *picture({*across}),
        "",
        "## The way of a file, from found to rewritten",
        "",
        *(f"{number}. `{_path(name)}`: {_summary(name)}" for number, name in enumerate(WAY, 1)),
        "",
        "`cli/apply_command.py` calls them in this order, through `survey/`. Each room hands the next one an",
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


def picture(across: set[tuple[str, str]]) -> list[str]:
    """Return the picture, in Mermaid: a box for each room, an arrow for each import that no longer way implies."""
    steps = [(rooms.room(module), f"{number}. {module.rpartition('.')[2]}") for number, module in enumerate(WAY, 1)]
    names = [name for names in reversed(rooms.LEVELS) for name in names]
    boxes = [f'    {name}["{"<br>".join([name, *(step for room, step in steps if room == name)])}"]' for name in names]
    arrows = [f"    {upper} --> {lower}" for upper, lower in sorted(reduced(across))]
    return ["```mermaid", "flowchart TD", *boxes, *arrows, "```"]


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
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


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
