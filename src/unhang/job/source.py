"""Python source of an installed release, read as data."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeGuard

from unhang.job.settings import Value

LARGEST = 4 << 20
"""Bytes of a file."""
_PLAIN = ("object", "ABC", "Generic")
_MOST = 2000
"""Files that are looked into for one release."""


class Unset:
    """The default of what has none that can be told."""


UNSET = Unset()


class Class(NamedTuple):
    """A class of settings: each field is one."""

    bases: tuple[str, ...]
    fields: Mapping[str, Value | Unset]
    """The default of each."""
    changed: frozenset[str]
    """What its methods assign to."""
    options: Mapping[str, tuple[str, Value]]
    """The options of a field whose metadata name them, each with its field and what it sets that to."""


def text(path: str) -> str | None:
    """Return the text of a regular file of a bounded size; None without one."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
                return None
            return file.read(LARGEST).decode()
    except (OSError, ValueError):
        return None


@cache
def parsed(path: str) -> ast.Module | None:
    """Return the syntax tree of a file; None without one."""
    found = text(path)
    try:
        return None if found is None else ast.parse(found)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@cache
def classes(places: tuple[str, ...]) -> Mapping[str, Class]:
    """Return the classes with fields in these files, and in those below these folders, by name."""
    found: dict[str, Class] = {}
    for path in _files(places):
        tree = parsed(path)
        for node in tree.body if tree else ():
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, _class(node))
    return found


def _files(places: Sequence[str]) -> Iterator[str]:
    number = 0
    for place in places:
        if place.endswith(".py"):
            yield place
        for folder, below, names in os.walk(place):
            below.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    number += 1
                    if number > _MOST:
                        return
                    yield os.path.join(folder, name)


def _class(node: ast.ClassDef) -> Class:
    fields: dict[str, Value | Unset] = {}
    options: dict[str, tuple[str, Value]] = {}
    for row in node.body:
        if (
            isinstance(row, ast.AnnAssign)
            and isinstance(row.target, ast.Name)
            and "ClassVar" not in ast.dump(row.annotation)
        ):
            name = row.target.id
            fields[name] = UNSET if row.value is None else _field(row.value)
            names = _meta(row.value, "arg_names") if row.value else None
            if names is not None or (fields[name] is True and ast.unparse(row.annotation) == "bool"):
                of = names or [f"--no-{name}", f"--disable-{name}"]
                action = str(_meta(row.value, "action") or ("store_false" if fields[name] is True else ""))
                for option in of:
                    key = str(option).lstrip("-").replace("-", "_")
                    options[key] = (name, action != "store_false")
    bases = tuple(ast.unparse(it).rpartition(".")[2] for it in node.bases)
    changed = frozenset(it.attr for it in ast.walk(node) if _is_of(it, "self") and isinstance(it.ctx, ast.Store))
    return Class(bases, fields, changed, options)


def worked_out(tree: ast.AST, of: str) -> frozenset[str]:
    """Return the attributes of a name that code sets at once, or because they are not set themselves.

    What it sets because of other settings keeps its default as long as these keep theirs.
    """

    def found(node: ast.AST, guard: set[str] | None) -> Iterator[str]:
        for inner in ast.iter_child_nodes(node):
            asked = {it.attr for it in ast.walk(inner.test) if _is_of(it, of)} if isinstance(inner, ast.If) else set()
            if _is_of(inner, of) and isinstance(inner.ctx, ast.Store) and guard in (None, {inner.attr}):
                yield inner.attr
            yield from found(inner, guard or asked or None)

    return frozenset(found(tree, None))


def _is_of(node: ast.AST, of: str) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == of


def _field(value: ast.expr) -> Value | Unset:
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        words = {it.arg: it.value for it in value.keywords}
        return constant(words["default"]) if "default" in words else UNSET
    return constant(value)


def _meta(value: ast.expr | None, key: str) -> Any:
    """Return what the metadata of a field have for a key."""
    for node in ast.walk(value) if isinstance(value, ast.Call) else ():
        if isinstance(node, ast.Dict):
            for name, inner in zip(node.keys, node.values):
                if isinstance(name, ast.Constant) and name.value == key:
                    try:
                        return ast.literal_eval(inner)
                    except ValueError:
                        return None
    return None


def constant(tree: ast.expr) -> Value | Unset:
    """Return the value that is written there; a member of an enumeration is its name."""
    try:
        value = ast.literal_eval(tree)
    except (ValueError, RecursionError):
        return tree.attr if isinstance(tree, ast.Attribute) and ast.unparse(tree)[0].isupper() else UNSET
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def fields(name: str, known: Mapping[str, Class]) -> tuple[dict[str, Value | Unset], bool]:
    """Return the defaults of a class and of those that it inherits from, and whether all of these are known.

    A default of None that a method changes is one that the code works out: it is not told.
    """
    found: dict[str, Value | Unset] = {}
    changed: set[str] = set()
    for one in above(name, known):
        for field, value in one.fields.items():
            found.setdefault(field, value)
        changed |= one.changed
    values = {field: UNSET if value is None and field in changed else value for field, value in found.items()}
    return values, all(base in known or base in _PLAIN for one in above(name, known) for base in one.bases)


def above(name: str, known: Mapping[str, Class]) -> list[Class]:
    """Return a class and those that it inherits from, as far as they are known, in the order that decides."""
    found: dict[str, Class] = {}
    left = [name]
    while left:
        one = left.pop(0)
        if one in known and one not in found:
            found[one] = known[one]
            left = [*known[one].bases, *left]
    return list(found.values())
