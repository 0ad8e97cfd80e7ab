"""Shapes: a function's AST, normalised to be equal on Python 3.10 to 3.13, and named by its digest.

``ast.dump`` and ``ast.unparse`` differ between these versions, so this module has its own walk. It leaves out
docstrings, comments, positions, and whatever differs between the versions; it keeps decorators.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)

# Fields without meaning (`ctx` follows from the position, `kind` is the u of u"") or that the parser never sets.
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def decoded(data: bytes) -> tuple[str, str]:
    """Return the encoding and the text of a module, with its line ends as they are; a BOM is part of the encoding.

    Raises ValueError if it is not text in its own encoding, or has bytes that its text would not give.
    """
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        survives = text.encode(encoding) == data
    except (SyntaxError, ValueError, LookupError) as error:  # Python accepts comments that are not text
        raise ValueError(f"the file is not text in its own encoding: {error}") from error
    if not survives:
        raise ValueError(f"decoding and encoding the file as {encoding} does not give the same bytes")
    return encoding, text


def text(data: bytes, file: str) -> tuple[str, str]:
    """Return as ``decoded`` what a file of a package is: what is no module is UTF-8, or bytes as Latin-1 has them."""
    if file.endswith(".py"):
        return decoded(data)
    try:
        return "utf-8", data.decode()
    except UnicodeDecodeError:
        return "latin-1", data.decode("latin-1")


def parse(data: bytes | str) -> ast.Module:
    """Return the AST of a module, given by its bytes, or by its text, in which nothing says how it is encoded.

    Raises SyntaxError; ValueError for NUL bytes; RecursionError or MemoryError if it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about upstream's code
        return ast.parse(data)


def parse_lines(text: str, first: int) -> Function:
    """Return the function that these lines of a file define, whatever their indentation. ``first`` is its first line.

    Raises TypeError if they are anything else, and the errors of ``parse``.
    """
    if text[:1] in (" ", "\t"):
        (found,) = parse(("\n" * (first - 2) + "if _:\n" + text).encode()).body
        if isinstance(found, ast.If):
            (found,) = found.body
    else:
        (found,) = parse(("\n" * (first - 1) + text).encode()).body
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise TypeError(f"line {first} is not a function definition")
    return found


def digest(node: ast.AST) -> str:
    """Return the shape of a function (or any AST node): 16 hexadecimal digits, equal on Python 3.10 to 3.13."""
    out: list[str] = []
    _walk(node, out)
    return hashlib.sha256(" ".join(out).encode("ascii")).hexdigest()[:16]


def find(tree: ast.Module, qualified: str) -> list[Function]:
    """Return every definition of ``Class.method`` or ``function`` in a module, in order.

    Definitions under a module-level ``if``, ``try`` or ``with`` count; those nested in another function do not. The
    caller must refuse more than one, as it cannot know which of them runs.
    """
    *classes, name = qualified.split(".")
    bodies = [tree.body]
    for owner in classes:
        bodies = [
            node.body
            for body in bodies
            for node in _definitions(body)
            if isinstance(node, ast.ClassDef) and node.name == owner
        ]
    return [
        node
        for body in bodies
        for node in _definitions(body)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]


def unannotated(node: Node) -> Node | ast.Assign:
    """Return an assignment without its annotation; any other node as it is."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node


def has_docstring(node: ast.AST) -> bool:
    """Return whether a function or class starts with a docstring; False for any other node."""
    return isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None


def mentions(data: bytes, qualified: str) -> bool:
    """Return whether a file may define this function: a search is cheaper than parsing."""
    name = qualified.rpartition(".")[2].encode()
    return re.search(rb"\bdef[\s\\]+" + name + rb"\b", data) is not None


def bound_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a module's top level binds: imports, assignments, definitions, also under if, try, with."""
    return frozenset(name for node in statements(tree.body) for name in names(node))


def names(node: ast.stmt) -> set[str]:
    """Return the names that this statement itself binds, without the statements nested in it."""
    if isinstance(node, _WITH_DOCSTRING):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    return set(_stored(node))


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block in order, also those under ``if``, ``try`` and the like: not in a definition."""
    for node in body:
        yield node
        if isinstance(node, _WITH_DOCSTRING):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, field, []))
        for arm in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from statements(arm.body)


def _stored(node: ast.stmt) -> Iterator[str]:
    places: list[ast.AST | None] = list(getattr(node, "targets", []))
    if not isinstance(node, ast.AnnAssign) or node.value is not None:  # `x: int` alone binds nothing
        places.append(getattr(node, "target", None))
    places += [item.optional_vars for item in getattr(node, "items", [])]
    for place in places:
        for inner in ast.walk(place) if place is not None else ():
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
    for field in ("value", "test"):
        for inner in ast.walk(value) if (value := getattr(node, field, None)) is not None else ():
            if isinstance(inner, ast.NamedExpr):  # but not the variables of a comprehension
                yield inner.target.id


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    return (node for node in statements(body) if isinstance(node, _WITH_DOCSTRING))


def _walk(node: object, out: list[str]) -> None:
    if isinstance(node, ast.Constant):
        out.append(_constant(node.value))
    elif isinstance(node, ast.JoinedStr):
        _walk_joined(node, out)
    elif isinstance(node, ast.AST):
        out.append("(" + type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if field in _LEFT_OUT or value is None or value == []:
                continue  # absent, or a field of newer Pythons only
            if field == "body" and has_docstring(node):
                value = value[1:]
            out.append(field)
            _walk(value, out)
        out.append(")")
    elif isinstance(node, list):
        out.append("[")
        for item in node:
            _walk(item, out)
        out.append("]")
    else:
        out.append(ascii(node))


def _constant(value: object) -> str:
    # hex: newer Pythons refuse to print a decimal of over 4,300 digits
    return f"int:{value:#x}" if type(value) is int else f"{type(value).__name__}:{value!a}"


def _walk_joined(node: ast.JoinedStr, out: list[str]) -> None:
    """Walk an f-string. Python 3.12 has a new parser for them, which splits the text between fields differently."""
    out.append("(JoinedStr")
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            out.append(ascii(text))
            text = ""
        if isinstance(part, ast.FormattedValue):
            out.append(f"(FormattedValue {part.conversion}")
            _walk(part.value, out)
            if isinstance(part.format_spec, ast.JoinedStr) and part.format_spec.values:
                _walk_joined(part.format_spec, out)
            out.append(")")
        else:  # pragma: no cover - the grammar has no third kind
            _walk(part, out)
    if text:
        out.append(ascii(text))
    out.append(")")
