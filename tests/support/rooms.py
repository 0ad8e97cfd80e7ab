"""The rooms of the tool, which may import which, and the imports as they are: read from the code, which is not run."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "src" / "unhang"
# From the bottom up. A room imports only rooms of the levels below its own.
LEVELS = (
    ("shared",),
    ("plugins",),
    ("suggest",),
    ("find", "pins", "shapes"),
    ("job",),
    ("codemods",),
    ("judge",),
    ("rewrite",),
    ("store",),
    ("image",),
    ("survey",),
    ("tell",),
    ("deliver", "prove", "draft", "compat", "diagnose"),
    ("cli",),
    ("fleet",),
)
SHARED = ("__init__", "errors", "gate", "records")
"""The modules at the top of the tool that every room may import."""


class Import(NamedTuple):
    """One import of a module of ours by another."""

    importer: str
    """``unhang.judge.decide``."""
    imported: str
    file: str
    """The importer's file, below the repository."""
    line: int


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of the tool, by its name; the sweep is not part of the tool."""
    found = {}
    for path in sorted(TOOL.rglob("*.py")):
        found[_name(path)] = path
    for pattern in ("codemods/**/*.py", "patches/*.py", "compat/*.py", "upstreams/*.py"):  # rglob follows no links
        for path in sorted(ROOT.glob(pattern)):
            found[_name(TOOL / path.relative_to(ROOT))] = path
    return found


def room(module: str) -> str:
    """Return the room of a module: the first part of its name below ``unhang``; ``shared`` for what all may import."""
    _, *parts = module.split(".")
    if not parts or parts[0] in SHARED:
        return "shared"
    return "cli" if parts[0] == "__main__" else parts[0]


def level(name: str) -> int:
    return next(number for number, names in enumerate(LEVELS) if name in names)


@cache
def imports() -> list[Import]:
    """Return every import of ours, wherever it is written: also in functions, and for the type checker."""
    known = modules()
    return [found for module, path in known.items() for found in _imports_of(module, path, known)]


def _name(path: Path) -> str:
    return ".".join(path.relative_to(TOOL.parent).with_suffix("").parts).removesuffix(".__init__")


def _imports_of(module: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from unhang.find import locate` names a module, `from unhang.errors import UnhangError` does not
            names = [full if (full := f"{base}.{alias.name}") in known else base for alias in node.names]
        else:
            continue
        for name in dict.fromkeys(names):
            if name in known and name != module:
                yield Import(module, name, str(path.relative_to(ROOT)), node.lineno)
