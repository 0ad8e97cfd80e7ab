"""What code does with its strings: which are templates of ``format()`` or of ``%``, and which are format specs. Pure.

A value in a template ends up as it is only if it is written as the template wants it; in a format spec it never does.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Collection, Iterable, Iterator

FORMAT, PERCENT, SPEC = "a template of format()", "a template of %", "a format spec"
_MAYBE = {kind: f"perhaps {kind}" for kind in (FORMAT, PERCENT, SPEC)}
"""What a string is if the code around it only hands it on, such as a function that translates it."""
_CONVERSION = re.compile(r"%(\([^)]*\))?[#0\- +]*(\*|\d+)?(\.(\*|\d+)?)?[hlL]?.?", re.DOTALL)


def kinds(roots: Iterable[ast.AST]) -> dict[int, set[str]]:
    """Return what the strings below these nodes are, if not text alone, by the ``id`` of each one's node."""
    found: dict[int, set[str]] = {}
    for node in (it for root in roots for it in ast.walk(root)):
        given: Iterable[tuple[ast.expr, str]] = ()
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            given = ((it, SPEC) for it in node.format_spec.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            given = _strings(node.left, PERCENT)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = _strings(node.func.value, FORMAT) if node.func.attr in ("format", "format_map") else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format":
            given = (one for it in node.args[1:] for one in _strings(it, SPEC))
        for one, kind in given:
            found.setdefault(id(one), set()).add(kind)
    return found


def _strings(node: ast.expr, kind: str) -> Iterator[tuple[ast.expr, str]]:
    """Yield the strings that an expression is made of, or that are in it, each with what it is."""
    if isinstance(node, ast.Constant):
        yield node, kind
    elif isinstance(node, ast.JoinedStr):
        yield from ((it, kind) for it in node.values if isinstance(it, ast.Constant))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from (*_strings(node.left, kind), *_strings(node.right, kind))
    elif isinstance(node, ast.IfExp):
        yield from (*_strings(node.body, kind), *_strings(node.orelse, kind))
    else:
        yield from ((it, _MAYBE[kind]) for it in ast.walk(node) if isinstance(it, ast.Constant))


def spelled(value: str, kind: Collection[str]) -> str:
    """Return a value as it is written into a string of this kind, so that it ends up as it is."""
    if FORMAT in kind:
        value = value.replace("{", "{{").replace("}", "}}")
    return value.replace("%", "%%") if PERCENT in kind else value


def cannot_hold(text: str, mark: str, value: str, kind: Collection[str]) -> str:
    """Return why a string of this kind cannot hold a value in the place of the mark that it has; empty if it can."""
    others = text.replace(mark, "")
    if SPEC in kind or _MAYBE[SPEC] in kind:
        return "it stands in a format spec, which is no text"
    if FORMAT in kind:
        try:
            parts = [part for part, *_ in string.Formatter().parse(text)]
        except ValueError as error:
            return f"it stands in a template of format() that cannot be read: {error}"
        if sum(part.count(mark) for part in parts) < text.count(mark):
            return "it stands in a field of a template of format(), which is no text"
    elif not {"{", "}"}.isdisjoint(value) and (_MAYBE[FORMAT] in kind or not {"{", "}"}.isdisjoint(others)):
        return "it has a brace, and its string may be a template of format()"
    if PERCENT in kind:
        places = [found.span() for found in re.finditer(re.escape(mark), text)]
        taken = [found.span() for found in _CONVERSION.finditer(text)]
        if any(first < end and start < last for first, last in places for start, end in taken):
            return "it stands in a conversion of a template of %, which is no text"
    elif "%" in value and (_MAYBE[PERCENT] in kind or "%" in others):
        return "it has a percent sign, and its string may be a template of %"
    return ""
