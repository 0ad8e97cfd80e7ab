"""The modules of a fix that begins, from ``templates/``. Text of the diff is in them as literals alone."""

from __future__ import annotations

import builtins
import keyword
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from string import Template
from typing import NamedTuple

from unhang.draft.kinds import VALUES
from unhang.draft.reads import Reads
from unhang.draft.replacements import INSTEAD, Replacement
from unhang.gate import literal
from unhang.plugins import packs
from unhang.shapes.catalog import Target

_TAKEN = ("None", "True", "False", "Codemod", "Edit", "Function")
"""Names that a generated module's classes cannot have."""
_MOST = 6
"""Conditions that go both ways in the draft, in all combinations."""


class Rewrite(NamedTuple):
    """A function that the fix rewrites."""

    target: Target
    before: str
    """Its shape in the release."""
    after: str
    """Its shape after the diff."""
    replacements: tuple[Replacement, ...]
    uses: tuple[str, ...]
    """The global names that the new statements use."""
    reads: Reads


class Begun(NamedTuple):
    """What the modules of the fix are made of."""

    fix: str
    version: str
    kind: str
    rewrites: tuple[Rewrite, ...]

    @property
    def classes(self) -> list[str]:
        """The name of a class for each function."""
        return class_names([item.target.function for item in self.rewrites])


@cache
def _template(name: str) -> Template:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates", f"{name}.txt")
    with open(path, encoding="utf-8") as file:
        return Template(file.read())


def _filled(template: str, /, **values: str) -> str:
    """Return a file of ``templates/`` with these values. Each of them is code of ours, an identifier or a literal."""
    return _template(template).substitute(values)


def place(rewrite: Rewrite) -> str:
    """Return the function's name in frames."""
    return f"{rewrite.target.file}::{rewrite.target.function}"


def operations(rewrites: Iterable[Rewrite]) -> list[str]:
    """Return the collectives that the functions call, as a signature has them; one of them, if they call none."""
    return sorted({kind for item in rewrites for kind in item.reads.operations}) or ["all_reduce"]


# -- codemod ----------------------------------------------------------------------------------------------------------


def codemod(fix: Begun) -> str:
    """Return the codemod, whose result is the function as the diff has it."""
    classes = "".join(_codemod_class(fix, item, name) for item, name in zip(fix.rewrites, fix.classes))
    edits = sorted({replaced.edit for item in fix.rewrites for replaced in item.replacements})
    return _filled("codemod", fix=fix.fix, edits=", ".join(edits), classes=classes, table=_table(fix, "{}()"))


def _codemod_class(fix: Begun, rewrite: Rewrite, name: str) -> str:
    constant = "_" + re.sub("(?<!^)(?=[A-Z])", "_", name).upper()
    width = packs.upstreams()[rewrite.target.upstream].width
    comment = f"# unhang {fix.fix}: TODO: why, in a line of at most {width} columns\n"
    pairs = "".join(
        f"    (\n        {edit},\n        # in the release\n{_lines(old)}"
        f"        # in the diff\n{_lines(comment + new)}    ),\n"
        for old, new, edit in rewrite.replacements
    )
    used = "{" + ", ".join(map(literal, rewrite.uses)) + "}" if rewrite.uses else ""
    return _filled("codemod_class", constant=constant, pairs=pairs, name=name, used=used)


# -- scene ------------------------------------------------------------------------------------------------------------

FACT = "TODO: what else, as a user sets it"
"""A fact in the condition of the manifest, which the scene's settings have too."""


_VALUES_ALONE = dict.fromkeys(("size", "one", "ruled_out", "ranks"), "")
_SEVERAL_RANKS = {
    "size": "dp=2",
    "one": '    Case("one", Topology(), PASSED, options={"defect": True}),\n',
    "ruled_out": 'RULED_OUT = ("world", "TODO: why one process is right")\n',
    "ranks": '"ranks": case.topology.world, ',
}


def scene(fix: Begun) -> str:
    """Return the scene: settings with the conditions, and what the functions are given, read and call."""
    shows = "DIFFERS" if fix.kind == VALUES else "HUNG"
    conditions = dict.fromkeys(it for item in fix.rewrites for it in item.reads.conditions)
    options = [f"    {literal(it)}: (False,{' True' * (at < _MOST)}),\n" for at, it in enumerate(conditions)]
    return _filled(
        "scene",
        imported=", ".join(sorted({shows, "PASSED"})),
        where=literal(f"in {fix.rewrites[0].target.function.rpartition('.')[2]}"),
        shows=shows,
        fact=FACT,
        **_VALUES_ALONE if fix.kind == VALUES else _SEVERAL_RANKS,
        conditions="".join(options),
        functions="".join(map(_function, fix.rewrites)),
    )


def _function(rewrite: Rewrite) -> str:
    """Return the row of a function: its module, its name, and what it is given, reads and calls."""
    reads = rewrite.reads
    parts = reads.arguments, reads.read, reads.called
    module = rewrite.target.file.removesuffix(".py").replace("/", ".")
    rows = "".join(f"        [{', '.join(map(literal, part))}],\n" for part in parts)
    return f"    (\n        {literal(module)},\n        {literal(rewrite.target.function)},\n{rows}    ),\n"


# -- tests ------------------------------------------------------------------------------------------------------------


def tests(fix: Begun) -> str:
    """Return the tests, and at their end what the sessions need."""
    upstreams = dict.fromkeys(item.target.upstream for item in fix.rewrites)
    cases = ", ".join(f"{literal(upstream)}: [{literal(fix.version)}]" for upstream in upstreams)
    proofs = "".join(
        f"    Proofs({literal(upstream)}, [Release({literal(fix.version)}, core=True)]),\n" for upstream in upstreams
    )
    several = len(fix.rewrites) > 1
    mutants = "".join(
        f"    Mutants({literal(item.target.upstream)}, ({literal(fix.version)},)"
        + (f", function={literal(item.target.function)}" if several else "")
        + "),\n"
        for item in fix.rewrites
    )
    focus = "|".join(sorted({re.escape(name) for item in fix.rewrites for name in _focus(item)}))
    hangs, imported = _hangs(fix)
    return _filled(
        "tests",
        fix=fix.fix,
        imported=imported,
        cases=cases,
        mutants=mutants,
        proofs=proofs,
        focus=literal(focus),
        hangs=hangs,
    )


def _hangs(fix: Begun) -> tuple[str, str]:
    """Return the jobs that the signature must know, and what they import; nothing where no signature is."""
    if fix.kind == VALUES:
        return "", ""
    frames = "".join(f"    {literal(place(item))},\n" for item in fix.rewrites[:1])
    kind = literal(operations(fix.rewrites)[0])
    text = _filled("hangs", frames=frames, kind=kind)
    return text, "from support.hung_jobs import WORLD, HungJob, issued, job, rank\n"


def _focus(rewrite: Rewrite) -> set[str]:
    """Return the words of the new statements that are not among the old ones."""
    code = (re.sub(r"(?m)^\s*#.*$", "", text) for text in map("\n".join, zip(*_texts(rewrite))))
    new, old = ({*re.findall(r"[A-Za-z_]\w{2,}", text)} for text in code)
    new -= {"self", *keyword.kwlist, *dir(builtins)}
    return (new - old) or new or {rewrite.target.function.rpartition(".")[2]}


def _texts(rewrite: Rewrite) -> list[tuple[str, str]]:
    return [(new, old if edit == INSTEAD else "") for old, new, edit in rewrite.replacements]


def class_names(functions: Sequence[str]) -> list[str]:
    """Return a class name for each function: that of the function, and of its class where two would be the same."""
    names: list[str] = []
    for number, function in enumerate(functions, 1):
        wanted = _camel(function.rpartition(".")[2]), _camel(function), f"Rewrite{number}"
        others = {_camel(other.rpartition(".")[2]) for other in functions if other != function}
        free = (name for name in wanted if name.isidentifier() and name not in {*names, *others, *_TAKEN})
        names.append(next(free))
    return names


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[._]+", name))


def _table(fix: Begun, value: str) -> str:
    """Return a line of a table for each function."""
    rows = zip(fix.rewrites, fix.classes)
    return "".join(f"    {literal(item.target.function)}: {value.format(name)},\n" for item, name in rows)


def _lines(text: str) -> str:
    """Return the code of a string, a line of code for each line of it, as an item of a tuple."""
    return "\n".join(f"        {literal(line)}" for line in text.splitlines(keepends=True)) + ",\n"
