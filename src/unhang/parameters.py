"""The values that a user gives for the parameters of fixes: what a diff has of the environment that it was made in."""

from __future__ import annotations

import re
from contextlib import contextmanager

from unhang.errors import UnhangError

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VARIABLE = "UNHANG_SET"
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


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text of Python with each ``${NAME}``, which is inside of a string, replaced by its value."""

    def escaped(found: re.Match[str]) -> str:
        value = values.get(found[1])
        return found[0] if value is None else value.replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'")

    return re.sub(r"\$\{([A-Z][A-Z0-9_]*)\}", escaped, text)  # at once: a value may have the name of another


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
