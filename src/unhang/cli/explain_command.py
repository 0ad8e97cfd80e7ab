"""``unhang explain WORDS``: a fix and its rows of the matrix, a cause, an error and its cure, or a word of a report."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from unhang import __version__, gate
from unhang.cli import list_command, lookup
from unhang.cli.error_codes import causes, codes, words
from unhang.errors import UnhangError, closest, is_near
from unhang.shapes import catalog
from unhang.tell import console, fix_page, matrix_text, osv, terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unhang.shapes.catalog import Fix

_IDENTIFIER = re.compile(r"[A-Z_.]")
"""What a name in a program has, and a plain word has not: such a word may be in a symptom by chance."""
_LOG = "`unhang diagnose FILE` reads a log"
"""What says more than a few words do."""


def run(options: argparse.Namespace) -> int:
    """Run ``unhang explain``: print the page of a fix, a cause, an error code or a word, by its name or by any words.

    Where several answer, print which. Raises UnhangError ``unknown-fix``.
    """
    query = " ".join(options.query)
    is_json = options.output_format == "json"
    if page := _named(query, is_json=is_json):
        print(page)
        return 0
    names = [*catalog.fixes(), *causes(), *codes(), *words()]
    is_one = " " not in query.strip()
    if is_one and _IDENTIFIER.search(query) and (fixes := catalog.with_words([query])):  # a function in a stack
        return _listed(fixes, query, options.output_format)
    found = [] if is_one and ("-" in query or is_near(query, names)) else lookup.find(query)
    if not found:
        near = closest(query, names)
        log = "" if is_one else f", and {_LOG}"
        hint = f"{f'did you mean {near}? ' if near else ''}`unhang list` shows all fixes{log}"
        raise UnhangError("unknown-fix", f"there is no fix, cause, error code or word {query!r}", hint=hint)
    if len(found) == 1:
        print(_named(found[0].name, is_json=is_json))
    elif is_json:
        rows = [{"kind": one.kind, "name": one.name, "title": one.title} for one in found]
        print(gate.document({"schema": 1, "unhang": __version__, "found": rows}))
    else:
        width = terminal.width(sys.stdout)
        for one in found:
            print(terminal.wrapped(f"unhang explain {one.name}\n  {one.kind}: {one.title}", width))
    if not is_json and found[0].kind == "cause":
        console.note(_LOG)
    return 0


def _named(name: str, *, is_json: bool) -> str:
    """Return the page, or its JSON, of the fix, cause, error code or word of this name; empty if there is none."""
    width, word = terminal.width(sys.stdout), re.sub(r"[ _]", "-", name.strip().lower())
    if name.startswith("x_"):  # a scanner's name of a fix
        name = next((fix.id for fix in catalog.fixes().values() if osv.identity(fix) == name), name)
    if name in catalog.fixes():
        found = catalog.fix(name)
        if is_json:
            return _document("fix", name, fix_page.whole(found))
        return (fix_page.whole if terminal.settings.verbose else fix_page.short)(found, width)
    for kind, known in (("error", codes()), ("cause", causes()), ("word", words())):
        key = next((one for one in (word, word.removesuffix("s")) if one in known), None)
        if key:
            page = error_page(key) if kind == "error" else f"# {key}\n\n{known[key]}"
            return _document(kind, key, page) if is_json else terminal.refilled(page, width or matrix_text.WIDTH)
    return ""


def _listed(found: Sequence[Fix], query: str, output_format: str) -> int:
    """Print the page of the one fix that has a word, or the list of several."""
    if len(found) == 1:
        print(_named(found[0].id, is_json=output_format == "json"))
        return 0
    list_command.show(found, output_format)
    if output_format != "json":
        console.note(f"{len(found)} fixes have {query!r} in their symptom; `unhang explain ID` prints the page of one")
    return 0


def error_page(name: str) -> str:
    """Return the cause and the cure of an error code as Markdown."""
    cause, cure = codes()[name]
    return f"# {name}\n\n## Cause\n\n{cause}\n\n## Cure\n\n{cure}"


def _document(kind: str, name: str, page: str) -> str:
    """Return the JSON of a page: of a ``fix``, a ``cause``, an ``error`` or a ``word``."""
    fix = catalog.fix(name) if kind == "fix" else None
    about = {**list_command.document(fix), "short": fix_page.short(fix)} if fix else {}
    return gate.document({"schema": 1, "unhang": __version__, "kind": kind, "name": name, **about, "page": page})
