"""The files of a fix from a diff alone, and of the pack that it begins. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from unhang import __version__, gate
from unhang.draft.exactly import Bound
from unhang.draft.origin import Origin
from unhang.gate import literal
from unhang.shapes.catalog import UNPROVED, Target

_HEAD = '''"""{fix}: the edits of a diff, as they are. Each is found by the lines around it, and fits exactly once."""

from unhang.codemods.exact import Exact, Swap

CODEMODS = {{
{table}}}
'''


def pack(name: str) -> str:
    """Return the text of the pack.json of a pack that begins, made for this version of unhang."""
    major, minor = __version__.split(".")[:2]
    minor = minor.rstrip("abcdefghijklmnopqrstuvwxyz")
    requires = f">={major}.{minor},<{major}.{int(minor) + 1}" if major == "0" else f">={major},<{int(major) + 1}"
    return document({"schema": 1, "name": name, "version": "0.1", "requires-unhang": requires})


def upstream(distribution: str, module: str, is_file: bool, within: str | None) -> str:
    """Return the text of an upstream's file; the name of its .dist-info folder states the version.

    ``is_file`` is whether it is a module of one file, ``within`` the upstream whose wheels hold it.
    """
    marks = [f"{module.rpartition('.')[2]}.py" if is_file else "__init__.py"]
    about: dict[str, Any] = {"import-name": module, "distribution": distribution, "marks": marks, "version": {}}
    about |= ({"one-file": True} if is_file else {}) | ({"within": within} if within else {})
    return document({"schema": 1, **about})


def document(content: Any) -> str:
    """Return a file of JSON, as people review it."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def manifest(
    fix: str,
    title: str,
    origin: Origin,
    notice: str,
    targets: Sequence[Target],
    values: Mapping[str, str],
    left: Sequence[str],
    after: Sequence[str] = (),
) -> str:
    """Return the manifest: what a diff says, and nothing that nobody has shown.

    ``values`` become parameters; ``left`` is what of the diff is not in the fix, ``after`` what it goes on top of.
    """
    address = origin.source if origin.source.startswith("https://") else ""
    content: dict[str, Any] = {
        "id": fix,
        "title": gate.line(title),
        "grade": UNPROVED,
        "origin": f"other, {address or origin.revision or 'a diff'}",
        **({"author": [gate.line(name) for name in origin.authors]} if origin.authors else {}),
        "licence": f"{gate.line(notice) or 'That of the upstream'}; the diff's lines are their authors'.",
        "targets": [_target(it) for it in targets],
    }
    if values:
        content["parameters"] = {name: f"in the diff it is {gate.line(value)}" for name, value in values.items()}
    if after:
        content["after"] = [*after]
    if left:
        content["left"] = [gate.line(line) for line in left]
    return document(content)


def _target(target: Target) -> dict[str, Any]:
    return {"upstream": target.upstream, "file": target.file, "text" if target.text else "function": target.function}


def page(fix: str, title: str, origin: Origin, release: str, left: Sequence[str]) -> str:
    """Return the page that ``unhang explain`` prints. It names what of the diff is ``left`` to a person."""
    rest = "".join(f"* {gate.markdown(gate.line(line))}\n" for line in left)
    rest = f"\n**Not in this fix**, though the diff has it:\n\n{rest}" if left else ""
    names = gate.markdown(", ".join(origin.authors))
    by = f", by {names}" if names else ""
    shown = gate.markdown(title.removeprefix("TODO: "))  # the manifest keeps that
    return (
        f"# {fix}\n\n{shown}\n\nGrade: unproved. A diff{by}, made for {gate.markdown(release)}: its "
        "edits are made in exactly the shapes on\nrecord, and nobody has shown what they do.\n"
        f"{rest}"
    )


def codemod(fix: str, bound: Sequence[Bound]) -> str:
    """Return the module of the edits. Text of the diff is in it as literals alone."""
    return _HEAD.format(fix=fix, table="".join(map(_row, bound)))


def _row(bound: Bound) -> str:
    swaps = "".join(
        f"        Swap(\n{''.join(_rows(name, rows) for name, rows in swap._asdict().items())}        ),\n"
        for swap in bound.swaps
    )
    uses = f"        uses=[{', '.join(map(literal, bound.uses))}],\n" if bound.uses else ""
    return f"    {literal(bound.target.place)}: Exact(\n{swaps}{uses}    ),\n"


def _rows(name: str, rows: Sequence[str]) -> str:
    """Return lines as literals."""
    margin = " " * 12
    inner = "".join(f"{margin}    {literal(row)},\n" for row in rows)
    return f"{margin}{name}=({f'{chr(10)}{inner}{margin}' if rows else ''}),\n"


def told(bound: Bound) -> str:
    """Return what a fix does in one place, in one line."""
    target = bound.target
    how = "changed" if bound.is_code else "comments, docstrings or blank lines alone"
    how = f"{how}: {gate.line(bound.swaps[0].told)}" if target.text else how
    return f"{target.upstream}  {target.file}  {target.function}  {bound.before} -> {bound.after}  {how}"
