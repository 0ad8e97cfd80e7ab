"""The modules of a fix that begins, from ``templates/``. Text of the diff is in them as literals alone."""

from __future__ import annotations

import builtins
import keyword
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from string import Template
from typing import Any, NamedTuple

from unhang.draft.kinds import SCHEDULE, VALUES
from unhang.draft.reads import COLLECTIVES, Read, Reads, collective, parameters
from unhang.draft.replacements import INSTEAD, Replacement
from unhang.gate import literal
from unhang.shapes.catalog import Target

_TAKEN = (
    "None",
    "True",
    "False",
    "Codemod",
    "Edit",
    "Function",
    "EndState",
    "Outcome",
    "Source",
    "StandIn",
    "Iterator",
)
"""Names that a generated module's classes cannot have."""
_MOST = 6
"""Conditions whose combinations all run, at first."""


class Rewrite(NamedTuple):
    """A function that the fix rewrites."""

    target: Target
    before: str
    """Its shape in the release."""
    after: str
    """Its shape after the diff."""
    upstream: str
    """Its shape in upstream's own commit; empty if there is none."""
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
    comment = f"# unhang {fix.fix}: TODO: why\n"
    pairs = "".join(
        f"    (\n        {edit},\n        # in the release\n{_lines(old)}"
        f"        # in the diff\n{_lines(comment + new)}    ),\n"
        for old, new, edit in rewrite.replacements
    )
    used = "{" + ", ".join(map(literal, rewrite.uses)) + "}" if rewrite.uses else ""
    return _filled("codemod_class", constant=constant, pairs=pairs, name=name, used=used)


# -- end state --------------------------------------------------------------------------------------------------------


def endstate(fix: Begun) -> str:
    """Return the end state: a setting with the conditions, stand-ins for what is read, and what ranks do as a fault."""
    classes = "".join(_endstate_class(item, name, fix.kind) for item, name in zip(fix.rewrites, fix.classes))
    product = "import itertools\n" if any(0 < len(item.reads.conditions) <= _MOST for item in fix.rewrites) else ""
    return _filled("endstate", fix=fix.fix, product=product, classes=classes, table=_table(fix, "{}()"))


def _endstate_class(rewrite: Rewrite, name: str, kind: str) -> str:
    reads = rewrite.reads
    fields = "".join(f"    {field}: bool = False\n" for field in reads.conditions.values())
    varied = "".join(f"        {literal(key)}: {literal(field)},\n" for key, field in reads.conditions.items())
    held = ", ".join(f'{literal(key)}: "a builtin"' for key in reads.builtins)
    tree = _tree(reads)
    names = {root: leaf for root, leaf in tree.items() if root not in reads.arguments}
    rows = (f"            {literal(root)}: {_value(root, leaf, reads, 3)},\n" for root, leaf in names.items())
    namespace = f"\n{''.join(rows)}        " if names else ""
    arguments = "".join(
        f"                {literal(name)}: {_value(name, tree.get(name), reads, 4)},\n" for name in reads.arguments
    )
    wrong = "they compute, beside what is right" if kind == VALUES else "they wait in"
    return _filled(
        "endstate_class",
        name=name,
        fields=fields,
        varied=varied,
        held=held,
        configurations=_configurations(name, reads),
        wrong=wrong,
        namespace=namespace,
        arguments=arguments,
    )


def _configurations(name: str, reads: Reads) -> str:
    fields = reads.conditions.values()
    if not fields:
        return f"        yield {name}Setting()\n"
    if len(fields) <= _MOST:
        chosen = "itertools.product((False, True), repeat=len(self.varied))"
        return f"        for chosen in {chosen}:\n            yield {name}Setting(*chosen)\n"
    return (
        f"        yield {name}Setting()\n"
        f"        for field in {name}Setting._fields:  # TODO: those that play together, together\n"
        f"            yield {name}Setting(**{{field: True}})\n"
    )


def _tree(reads: Reads) -> dict[str, Any]:
    """Return the reads by their parts: a mapping for an object with attributes, a read for what is used itself."""
    tree: dict[str, Any] = {}
    for read in reads.reads:
        *above, last = read.name.split(".")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = read
    return tree


def _value(name: str, leaf: Mapping[str, Any] | Read | None, reads: Reads, depth: int) -> str:
    """Return the code of a stand-in, which is this deep in its block."""
    if isinstance(leaf, Read):
        return _leaf(leaf, reads)
    if leaf is None:
        return "None"
    margin = "    " * (depth + 1)
    inner = "".join(
        f"{margin}{literal(part)}: {_value(f'{name}.{part}', it, reads, depth + 1)},\n" for part, it in leaf.items()
    )
    return f"StandIn({literal(name)}, **{{\n{inner}{'    ' * depth}}})"


def _leaf(read: Read, reads: Reads) -> str:
    """Return the code of a stand-in that has no others in it: a field, or a function that takes note of its calls."""
    last, taken = read.name.rpartition(".")[2], parameters(read.calls)
    head = f"lambda {', '.join(taken.values())}".rstrip()
    if read.name in reads.conditions:
        field = f"setting.{reads.conditions[read.name]}"
        return f"{head}: {field}" if read.calls else field
    if not read.calls:
        return "None"
    if collective(read.name):
        return f"lambda {COLLECTIVES[last]}: did.append(({literal(last)}, group))"
    if last in ("get_rank", "get_world_size"):
        return f"lambda group=None: {'rank' if last == 'get_rank' else '_RANKS'}"
    noted = ", ".join((literal(last), *taken))
    return f"{head}: did.append(({noted}{'' if taken else ','}))"


# -- proof ------------------------------------------------------------------------------------------------------------


def proof(fix: Begun) -> str:
    """Return the proof, on the harness of its kind."""
    harness, shows = "schedule" if fix.kind == SCHEDULE else "ranks", "DIFFERS" if fix.kind == VALUES else "HUNG"
    imported = sorted({shows, "PASSED"})
    functions = "".join(
        f"    {literal(item.target.file.removesuffix('.py').replace('/', '.'))}: {literal(item.target.function)},\n"
        for item in fix.rewrites
    )
    where = literal(f"in {fix.rewrites[0].target.function.rpartition('.')[2]}")
    return _filled(
        "proof",
        imported=", ".join(imported),
        module="schedule" if fix.kind == SCHEDULE else "gloo",
        where=where,
        functions=functions,
        harness=harness,
        shows=shows,
        run=_filled(f"run_{fix.kind}"),
    )


# -- tests ------------------------------------------------------------------------------------------------------------


def tests(fix: Begun) -> str:
    """Return the tests, and at their end what the sessions need."""
    upstreams = dict.fromkeys(item.target.upstream for item in fix.rewrites)
    cases = ", ".join(f"{literal(upstream)}: [{literal(fix.version)}]" for upstream in upstreams)
    proofs = "".join(
        f"    Proofs({literal(upstream)}, [Release({literal(fix.version)}, core=True)]),\n" for upstream in upstreams
    )
    shapes = "".join(
        f"    ({literal(item.target.function)}, {literal(item.before)}, {literal(item.after)}),\n"
        for item in fix.rewrites
    )
    several = len(fix.rewrites) > 1
    mutants = "".join(
        f"    Mutants({literal(item.target.upstream)}, ({literal(fix.version)},)"
        + (f", function={literal(item.target.function)}" if several else "")
        + "),\n"
        for item in fix.rewrites
    )
    focus = "|".join(sorted({re.escape(name) for item in fix.rewrites for name in _focus(item)}))
    (hangs, imported), (upstreams_own, catalog) = _hangs(fix), _upstreams_own(fix)
    return _filled(
        "tests",
        fix=fix.fix,
        imported=imported,
        catalog=catalog,
        cases=cases,
        shapes=shapes,
        upstreams=upstreams_own,
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


def _upstreams_own(fix: Begun) -> tuple[str, str]:
    """Return the test that the end state finds no fault in upstream's own fix, by its shape; and what it imports."""
    own = [item for item in fix.rewrites if item.upstream]
    shapes = "".join(f"    ({literal(item.target.function)}, {literal(item.upstream)}),\n" for item in own)
    return (_filled("upstreams", shapes=shapes), "from unhang.shapes import catalog\n") if own else ("", "")


def _focus(rewrite: Rewrite) -> set[str]:
    """Return the words of the new statements that are not among the old ones."""
    new, old = ({*re.findall(r"[A-Za-z_]\w{2,}", text)} for text in map("\n".join, zip(*_texts(rewrite))))
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
