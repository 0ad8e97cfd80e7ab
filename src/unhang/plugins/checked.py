"""JSON from others, read with limits: a schema of `compat/schemas/` gives its form, and its texts control no terminal.

A few words of JSON Schema are enough for these schemas, and `jsonschema` need not be installed where unhang runs.
"""

from __future__ import annotations

import json
import re
from functools import cache

from unhang import gate

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
_ANNOTATIONS = {"$schema", "title", "description", "$defs"}


def parsed(data: bytes, schema: Any) -> Any:
    """Return the document that ``data`` is. Raises ValueError, which says where it is wrong, unless it has this schema.

    No key may occur twice in an object, and no text may hold what ``gate.line`` would escape.
    """
    try:
        document = json.loads(data, object_pairs_hook=_once, parse_constant=_refuse)
        why = next(problems(document, schema), "") or next(_texts(document), "")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if why:
        raise ValueError(why)
    return document


def problems(value: Any, schema: Any, where: str = "") -> Iterator[str]:
    """Yield what a value has that its schema does not allow. Raises KeyError for a word of JSON Schema not known here.

    ``where`` is the way to the value, for the messages.
    """
    if schema is True:
        return
    if schema is False:
        yield f"{where or 'it'}: not allowed"
        return
    for word, limit in schema.items():
        if word not in _ANNOTATIONS:
            yield from _CHECKS[word](value, limit, schema, where)


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) < len(items):
        seen: set[str] = set()
        twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {gate.line(twice[:60])!r} is there twice")
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _texts(value: Any) -> Iterator[str]:
    """Yield what is wrong with the texts in a document."""
    if isinstance(value, str):
        if not (value.isascii() and value.isprintable() and "::" not in value and "##" not in value):
            if gate.line(value[: gate.LONGEST]) != value[: gate.LONGEST]:
                yield f"{gate.line(value[:60])}: characters that are not printable, or a command of a CI runner"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _type(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    names = [limit] if isinstance(limit, str) else limit
    if not any(isinstance(value, _TYPES[name]) and (name == "boolean" or (value is not True and value is not False))
               for name in names):  # fmt: skip
        yield f"{where or 'it'}: not of type {' or '.join(names)}"


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _const(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if not _same(value, limit):
        yield f"{where}: not {limit!r}"


def _enum(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if not any(_same(value, one) for one in limit):
        yield f"{where}: none of {', '.join(map(str, limit))}"


def _required(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{where or 'it'}: no {key!r}" for key in limit if key not in value)


def _dependent(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    for key, others in limit.items():
        if isinstance(value, dict) and key in value:
            yield from _required(value, others, None, where)


def _properties(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key in limit.keys() & value.keys():
            yield from problems(value[key], limit[key], f"{where}/{key}")


def _additional(value: Any, limit: Any, schema: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key in value.keys() - schema.get("properties", {}).keys():
            yield from problems(value[key], limit, f"{where}/{gate.line(key[:60])}")


def _names(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    for key in value if isinstance(value, dict) else ():
        yield from problems(key, limit, f"{where}/{gate.line(key[:60])}")


def _items(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    for number, inner in enumerate(value if isinstance(value, list) else ()):
        yield from problems(inner, limit, f"{where}/{number}")


def _unique(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if limit and isinstance(value, list):
        texts = [json.dumps(one, sort_keys=True) for one in value]
        if len({*texts}) < len(texts):
            yield f"{where}: something is in it twice"


def _pattern(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if isinstance(value, str) and not _compiled(limit).search(value):
        yield f"{where}: {gate.line(value[:60])!r} does not match {limit}"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # `$` of JSON Schema is the end; Python's also matches before a last line end
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def _count(low: bool, kind: type[str] | type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Return the check of how many characters, items or keys there are."""

    def check(value: Any, limit: int, _: Any, where: str) -> Iterator[str]:
        if isinstance(value, kind) and (len(value) < limit if low else len(value) > limit):
            yield f"{where}: {'shorter' if low else 'longer'} than {limit}"

    return check


def _bound(low: bool) -> Any:
    def check(value: Any, limit: int, _: Any, where: str) -> Iterator[str]:
        if isinstance(value, (int, float)) and (value < limit if low else value > limit):
            yield f"{where}: {'less' if low else 'more'} than {limit}"

    return check


def _any_of(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if not any(next(problems(value, one, where), None) is None for one in limit):
        yield f"{where or 'it'}: none of the forms that it may have"


def _one_of(value: Any, limit: Any, _: Any, where: str) -> Iterator[str]:
    if sum(next(problems(value, one, where), None) is None for one in limit) != 1:
        yield f"{where or 'it'}: not exactly one of the forms that it may have"


def _if(value: Any, limit: Any, schema: Any, where: str) -> Iterator[str]:
    word = "then" if next(problems(value, limit, where), None) is None else "else"
    yield from problems(value, schema.get(word, True), where)


def _nothing(*_: Any) -> Iterator[str]:
    yield from ()


_CHECKS: Mapping[str, Any] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "dependentRequired": _dependent,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "items": _items,
    "uniqueItems": _unique,
    "pattern": _pattern,
    "minLength": _count(True, str),
    "maxLength": _count(False, str),
    "minItems": _count(True, list),
    "maxItems": _count(False, list),
    "minProperties": _count(True, dict),
    "minimum": _bound(True),
    "maximum": _bound(False),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "if": _if,
    "then": _nothing,
    "else": _nothing,
}
