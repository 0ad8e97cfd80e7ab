"""The examples in the docstrings of the codemods: code that is made up, before the rewrite and after it."""

import importlib
import inspect
import pkgutil
import re
import textwrap
from typing import NamedTuple

import unhang.codemods
from unhang.codemods import splice
from unhang.codemods.base import Codemod
from unhang.shapes import shape

_PAIR = re.compile(r"^Before::\n((?:\n|    .*\n)+)After::\n((?:\n|    .*(?:\n|\Z))+)", re.MULTILINE)


class Example(NamedTuple):
    """One function before and after the rewrite, as a docstring shows it; in ``after``, ``...`` is any lines."""

    before: str
    after: str


def codemods() -> list[type[Codemod]]:
    """Return every codemod that a module in the folder defines."""
    modules = pkgutil.walk_packages(unhang.codemods.__path__, "unhang.codemods.")
    classes = [item for found in modules for item in vars(importlib.import_module(found.name)).values()]
    every = {item for item in classes if isinstance(item, type) and issubclass(item, Codemod)}
    return sorted(every - {Codemod}, key=lambda item: (item.__module__, item.__qualname__))


def examples(change: type[Codemod]) -> list[Example]:
    """Return the examples in a codemod's own docstring."""
    found = _PAIR.findall(inspect.cleandoc(change.__doc__ or "") + "\n")
    return [Example(*(textwrap.dedent(code).strip("\n") + "\n" for code in pair)) for pair in found]


def function_of(code: str) -> shape.Function:
    """Return the only function that this code defines."""
    return shape.parse_lines(code, 1)


def rewritten(change: Codemod, code: str) -> str:
    """Return the code of a function, rewritten."""
    return "".join(splice.apply(splice.lines(code), change.plan(function_of(code)), "    "))


def shows(example: Example, done: str) -> bool:
    """Return whether this is what the example shows after the rewrite."""
    lines = example.after.splitlines()
    patterns = [rf"(?:{line[:-3]}.*\n)+" if line.strip() == "..." else re.escape(line) + "\n" for line in lines]
    return re.fullmatch("".join(patterns), done) is not None
