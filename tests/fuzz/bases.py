"""What the fuzz mutates: the real functions of every fix, untouched and rewritten."""

from __future__ import annotations

import ast
import contextlib
import os
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from fuzz import mutations
from fuzz.subject import Fuzz
from support import fixes, sources, wheels
from support.sources import Source
from unhang.judge.decide import decide
from unhang.judge.findings import Finding
from unhang.judge.observe import observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog, shape

Step = tuple[str, int]
"""One mutation: an operator's name, and the seed of its choices."""


@cache
def subjects() -> Mapping[str, Fuzz]:
    """Return what is mutated of each fix, by its id."""
    return fixes.of_each("FUZZ")


class Base(NamedTuple):
    """A source to mutate, with the untouched source and our rewrite of it. ``kind`` says how a user may get it."""

    name: str
    kind: str
    source: Source
    origin: Source
    rewritten: Source

    @property
    def verdict(self) -> str:
        return finding_of(self.source, self.source.data).verdict.verdict

    @property
    def dump(self) -> str | None:
        return dump_of(self.source)


@cache
def dump_of(source: Source) -> str | None:
    return dump(source.data, source.target)


def bases(fix: str) -> list[Base]:
    """Return the real functions of a fix, untouched and rewritten: from the wheels, and from the clones if given."""
    cases = subjects()[fix].cases
    known = {parameter.id for parameter in cases}
    found = []
    for parameter in [*cases, *(pull for pull in sources.as_written(fix) if pull.id not in known)]:
        case = parameter.values[0]
        if case.kind != "wheel" and not os.environ.get(wheels.CLONES[case.target.upstream]):
            continue
        source = case.load()
        if source.known.state == "fixed":
            found.append(Base(parameter.id, "upstream's own", source, source, source))
            continue
        kind = "as written" if source.known.note else "untouched"
        found.append(Base(parameter.id, kind, source, source, source.rewritten))
        if kind == "untouched":
            found.append(Base(f"{parameter.id}, rewritten", "ours", source.rewritten, source, source.rewritten))
    return found


def left_out() -> list[str]:
    """Return the variables of the clones that are not given; what only those clones have is not mutated."""
    return sorted({variable for variable in wheels.CLONES.values() if not os.environ.get(variable)})


def mutate(base: Base, steps: Sequence[Step]) -> bytes:
    """Return the base's file after these mutations; an operator that finds nothing to do changes nothing."""
    data, target = base.source.data, base.source.target
    for name, start in steps:
        # what does not parse any more is not mutated further
        with contextlib.suppress(SyntaxError, ValueError, mutations.NothingToDo):
            text = mutations.Text(data, target.function, subjects()[target.fix].focus)
            data = mutations.NAMED[name](text, random.Random(start))
    return data


def finding_of(source: Source, data: bytes) -> Finding:
    """Return the verdict of `check` on a file of these bytes, without a receipt. Reads no file."""
    target = source.target
    where = Installation(target.upstream, None, "/fuzz", "/fuzz", "/fuzz/package", "source", None, ())
    seen = observe_bytes(f"/fuzz/{target.file}", data, target.function, catalog.shape_table().of_files(target.fix))
    return Finding(where, target, seen, decide(target, where, seen, catalog.shape_table(), {}, None))


def dump(data: bytes, target: catalog.Target) -> str | None:
    """Return Python's own dump of the function's AST, without docstrings; None unless the file has one such function.

    Our digest is not used, so that an error in it shows.
    """
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return None
    found = shape.find(tree, target.function)
    if len(found) != 1:
        return None
    for node in ast.walk(found[0]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        elif isinstance(node, ast.Constant):
            node.kind = None
    return ast.dump(found[0])


@cache
def listed(target: catalog.Target) -> frozenset[str | None]:
    """Return the dumps of all bases of a function: a mutation may turn one into another."""
    return frozenset(map(dump_of, _all(target)))


@cache
def at_hand(target: catalog.Target) -> frozenset[str]:
    """Return the shapes of all bases of a function."""
    return frozenset(source.digest for source in _all(target))


def _all(target: catalog.Target) -> list[Source]:
    found = (source for base in bases(target.fix) for source in (base.source, base.rewritten))
    return [source for source in found if source.target.function == target.function]
