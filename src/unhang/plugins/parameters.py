"""The values that a user gives for the parameters of fixes: what a diff has of the environment that it was made in."""

from __future__ import annotations

import re
from contextlib import contextmanager

from unhang.errors import UnhangError

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable, Iterator, Mapping

VARIABLE = "UNHANG_SET"
_PLACE = r"\$\{([A-Z][A-Z0-9_]*)\}"
_given: dict[str, str] = {}
_options: dict[str, str] = {}


def use(words: Iterable[str], environ: Mapping[str, str]) -> None:
    """Let these values hold, each ``NAME=VALUE``; and those of ``UNHANG_SET``, one a line, that the words lack.

    Raises UnhangError ``bad-option``, also for two values of one name.
    """
    _options.clear()
    _options.update(_parsed(words))
    _given.clear()
    _given.update(_parsed(filter(None, environ.get(VARIABLE, "").split("\n"))) | _options)


def _parsed(words: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not re.fullmatch("[A-Z][A-Z0-9_]*", name) or not value or not value.isprintable():
            hint = "write it as `--set PYTHON=/opt/venv/bin/python`"
            raise UnhangError("bad-option", f"{word!r} gives no parameter a value", hint=hint)
        if found.setdefault(name, value) != value:
            raise UnhangError("bad-option", f"{name} has two values: {found[name]!r}, {value!r}", hint="give it one")
    return found


def keep(names: Iterable[str]) -> None:
    """Forget the values of parameters other than these. Raises UnhangError ``bad-option`` if one is from an option.

    (The variable is that of a whole environment: it may have those of other packs.)
    """
    names = set(names)
    for name in _given.keys() - names:
        if name in _options:
            hint = f"known: {', '.join(sorted(names)) or 'none'}"
            raise UnhangError("bad-option", f"no fix in effect has a parameter {name}", hint=hint)
        del _given[name]


def of(names: Iterable[str]) -> dict[str, str]:
    """Return the values of these parameters that are given."""
    return {name: _given[name] for name in names if name in _given}


@contextmanager
def stood_in(names: Iterable[str]) -> Iterator[None]:
    """Let these parameters have a value that is in no file, whatever was given."""
    before = dict(_given)
    _given.update({name: f"/unhang/{name.lower()}" for name in names})
    try:
        yield
    finally:
        _given.clear()
        _given.update(before)


def words() -> tuple[str, ...]:
    """Return the options that give the values, for commands that are suggested."""
    return tuple(word for name, value in _given.items() for word in ("--set", f"{name}={value}"))


class Refused(ValueError):
    """A value that cannot stand where its parameter does; the message says why."""


def filled(text: str, values: Mapping[str, str], parse: Callable[[str], ast.Module] | None = None) -> str:
    """Return a text of Python with each ``${NAME}`` replaced by its value, so that this is text when the code runs.

    The result is parsed: a string has the value and all that it had before, and nothing else differs. ``parse`` is for
    a text that is no module by itself. Raises Refused if there is no such way to write the value.
    """
    places = [found for found in re.finditer(_PLACE, text) if found[1] in values]
    if not places:
        return text
    import ast  # few fixes have parameters

    parse = parse or ast.parse
    marks = [f"_{at}_of_{len(text)}_" for at in range(len(places))]
    pieces, at = [], 0
    for found in places:
        pieces.append(text[at : found.start()])
        at = found.end()
    pieces.append(text[at:])
    written = list(marks)  # one value after the other takes the place of its mark
    for number, found in enumerate(places):
        value = values[found[1]]
        try:
            tree = parse(_joined(pieces, written))
            spelled = _put(tree, marks[number], value)
        except (SyntaxError, ValueError) as error:
            why = error if isinstance(error, Refused) else f"it stands outside of a string ({error})"
            raise Refused(f"the value {value!r} cannot stand where {found[1]} does: {why}") from error
        wanted = ast.dump(tree)
        for candidate in [value] if spelled is None else _ways(spelled):
            written[number] = candidate
            if _dumped(_joined(pieces, written), parse) == wanted:
                break
        else:
            raise Refused(f"the value {value!r} cannot stand where {found[1]} does: its string cannot hold it")
    return _joined(pieces, written)


def _joined(pieces: Iterable[str], between: Iterable[str]) -> str:
    return "".join(part for pair in zip(pieces, (*between, "")) for part in pair)


def _put(tree: ast.Module, mark: str, value: str) -> str | None:
    """Put a value in the place of a mark in a syntax tree; return how it is spelled, None if only a comment has it.

    Raises Refused.
    """
    import ast

    from unhang.plugins import templates

    kinds = templates.kinds([tree])
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
            continue
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        if mark not in text:
            continue
        kind = kinds.get(id(node), set())
        if id(node) not in documents and (why := templates.cannot_hold(text, mark, value, kind)):
            raise Refused(why)
        spelled = templates.spelled(value, kind)
        if isinstance(node.value, bytes):
            if not spelled.isascii():
                raise Refused("bytes hold ASCII characters alone")
            node.value = text.replace(mark, spelled).encode("latin-1")
        else:
            node.value = text.replace(mark, spelled)
        return spelled
    if mark in ast.dump(tree):
        raise Refused("it stands outside of a string")
    return None


def ways(value: str) -> list[str]:
    """Return how a value may be written in a string of any kind."""
    from unhang.plugins import templates

    kinds = (), (templates.FORMAT,), (templates.PERCENT,), (templates.FORMAT, templates.PERCENT)
    return list(dict.fromkeys(way for kind in kinds for way in _ways(templates.spelled(value, kind))))


def _ways(value: str) -> Iterator[str]:
    """Yield how a value may be written in a string: with escapes, or as it is; and with the braces of an f-string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'")
    for way in (escaped, value):
        yield way
        yield way.replace("{", "{{").replace("}", "}}")


def _dumped(text: str, parse: Callable[[str], ast.Module]) -> str:
    """Return the syntax tree of a text; empty if it is no Python, or has an escape that Python does not know."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ast.dump(parse(text))
    except (SyntaxError, ValueError, Warning):
        return ""


def named(text: str, values: Mapping[str, str], names: Iterable[str] = ()) -> str:
    """Return a text with each value replaced by the name of its parameter, as ``${NAME}``.

    What the text itself has of ``names`` in this form becomes ``$${NAME}``: it stands for no value.
    """
    by_value = {value: f"${{{name}}}" for name, value in sorted(values.items(), reverse=True)}
    written = {f"${{{name}}}": f"$${{{name}}}" for name in names} | by_value
    if not written:
        return text
    pattern = "|".join(map(re.escape, sorted(written, key=lambda it: (it not in by_value, -len(it)))))
    return re.sub(pattern, lambda found: written[found[0]], text)  # at once, as `filled`
