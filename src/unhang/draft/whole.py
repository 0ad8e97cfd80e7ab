"""Whether a file is as the diff makes it once all its edits are in it: order and nesting, which no shape has. Pure."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence

from unhang.draft import places
from unhang.draft.patch import Patched
from unhang.shapes import binding, shape

_FIELDS = ("body", "orelse", "finalbody")


def code_otherwise(wanted: str, result: str) -> list[str] | None:
    """Return the names of the statements of two modules that differ; None if their code is the same.

    Docstrings do not count, nor in which order and statements neighbouring imports are.
    """
    return _otherwise(places.parsed(wanted), places.parsed(result), is_code=True)


def texts_otherwise(wanted: str, result: str) -> list[str]:
    """Return the names of the statements in which docstrings alone differ; ``the module`` for its own."""
    found = _otherwise(places.parsed(wanted), places.parsed(result), is_code=False)
    return [] if found is None else found or ["the module"]


def without(patched: Patched, hunks: Sequence[str]) -> str:
    """Return a file as all hunks but these make it, each named as ``left_over`` does."""
    before, after = patched.before.split("\n"), patched.after.split("\n")
    for change in reversed(patched.changes):
        if f"{patched.file}, hunk {change.hunk}" not in hunks:
            old, new = change.removed, change.added
            before[old.start - 1 : old.stop - 1] = after[new.start - 1 : new.stop - 1]
    return "\n".join(before)


def _otherwise(wanted: ast.Module, result: ast.Module, is_code: bool) -> list[str] | None:
    for node in (it for tree in (wanted, result) for it in ast.walk(tree)):
        for field in _FIELDS:
            if isinstance(block := getattr(node, field, None), list):
                setattr(node, field, _plain([it for it in block if not (is_code and binding.is_text(it))]))
    one, other = ([ast.dump(it) for it in tree.body] for tree in (wanted, result))
    if one == other:
        return None
    names: dict[str, None] = {}
    for tag, *numbers in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal":
            first, last, new_first, new_last = numbers
            changed = [*wanted.body[first:last], *result.body[new_first:new_last]]
            names |= {it: None for node in shape.statements(changed) for it in sorted(shape.names(node))}
    return list(names)


def _plain(block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a block with one import for each name, in the order of the names where several follow one another."""
    found: list[ast.stmt] = []
    run: list[tuple[str, ast.stmt]] = []
    for node in (*block, None):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            run += [(name, binding.reduced(node, name)) for name in shape.names(node)]
            continue
        found += [it for _, it in sorted(run, key=lambda it: it[0])]
        run = []
        found += [node] if node else []
    return found
