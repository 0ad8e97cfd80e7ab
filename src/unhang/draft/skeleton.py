"""The files of a fix, as far as a diff tells what is in them: a person writes the rest, at each TODO. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from unhang.draft.replacements import Replacement
from unhang.shapes.catalog import Target

_KEYS = {
    "symptom": "TODO: what a user sees.",
    "cause": "TODO: what is wrong in the code.",
    "description": "TODO: what the rewrite changes.",
    "origin": "backport, TODO: the link",
    "bug": None,
    "forwarded": "no",
    "applied-upstream": "no",
}
_SECTIONS = (
    "Symptom",
    "Cause",
    "What unhang changes",
    "Evidence",
    "Versions",
    "Cost",
    "What it does NOT cure",
    "Patch every node, or none",
    "Links",
)


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


class Draft(NamedTuple):
    """A fix that begins."""

    fix: str
    title: str
    version: str
    """The release."""
    date: str
    """Today, as ``YYYY-MM-DD``."""
    rewrites: tuple[Rewrite, ...]


def files(draft: Draft) -> dict[str, str]:
    """Return the text of each file of the fix, by its path in a checkout of unhang."""
    module = draft.fix.replace("-", "_")
    return {
        f"patches/{draft.fix}/manifest.json": _manifest(draft),
        f"patches/{draft.fix}/page.md": _page(draft),
        f"codemods/{module}.py": _codemod(draft),
        f"tests/fixes/test_{module}.py": _test(draft),
    }


def _manifest(draft: Draft) -> str:
    upstreams = {item.target.upstream: None for item in draft.rewrites}
    content = {
        "$schema": "../../compat/schemas/manifest.json",
        "id": draft.fix,
        "title": draft.title,
        "grade": "safeguard",
        **_KEYS,
        "last-update": draft.date,
        "licence": "TODO: the licence of the modified file, and of the rewrite.",
        "affects": dict.fromkeys(upstreams, f"== {draft.version}"),
        "fixed-in": dict(upstreams),
        "targets": [
            {"upstream": item.target.upstream, "file": item.target.file, "function": item.target.function}
            for item in draft.rewrites
        ],
        "collectives": True,
        "signature": {"no-hang": "TODO: or `hangs`, what dumps, stacks and logs show."},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _page(draft: Draft) -> str:
    sections = "".join(f"\n## {section}\nTODO\n" for section in _SECTIONS)
    return f"# {draft.fix}\n\n{draft.title}\n\nGrade: safeguard. TODO: how it is backed.\nNot shown: TODO.\n{sections}"


def _codemod(draft: Draft) -> str:
    names = _class_names([item.target.function for item in draft.rewrites])
    classes = "".join(_class(draft, item, name) for item, name in zip(draft.rewrites, names))
    table = "".join(f'    "{item.target.function}": {name}(),\n' for item, name in zip(draft.rewrites, names))
    return f'''\
"""{draft.title}

TODO: the link of the pull request.
"""

from __future__ import annotations

from unhang.codemods.base import Codemod, replacing
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function
{classes}
CODEMODS = {{
{table}}}
'''


def _class(draft: Draft, rewrite: Rewrite, name: str) -> str:
    constant = "_" + re.sub("(?<!^)(?=[A-Z])", "_", name).upper()
    comment = f"# unhang {draft.fix}: TODO: why\n"
    pairs = "".join(
        f"    (\n        # in the release\n{_lines(old)}        # in the diff\n{_lines(comment + new)}    ),\n"
        for old, new in rewrite.replacements
    )
    used = "{" + ", ".join(map(_quoted, rewrite.uses)) + "}" if rewrite.uses else ""
    return f'''
{constant} = (
{pairs})


class {name}(Codemod):
    """TODO: the change in one sentence, and an example as `Codemod` describes it."""

    def plan(self, function: Function) -> list[Edit]:
        return [replacing(function, old, new) for old, new in {constant}]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({used})

'''


def _test(draft: Draft) -> str:
    upstream = draft.rewrites[0].target.upstream
    shapes = "".join(f'    ("{item.target.function}", "{item.before}", "{item.after}"),\n' for item in draft.rewrites)
    return f'''\
"""{draft.fix}: TODO: what the tests run, and what they look at."""

from __future__ import annotations

import pytest

from support import sources
from support.rewrites import EveryRewrite

FIX = "{draft.fix}"
CASES = sources.cases(FIX, {{"{upstream}": ["{draft.version}"]}})
SHAPES = [
{shapes}]


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """TODO: run the function, untouched and rewritten."""


@pytest.mark.parametrize(("function", "before", "after"), SHAPES)
def test_the_rewrite_is_the_function_of_the_diff(function: str, before: str, after: str) -> None:
    (source,) = (case.values[0].load() for case in CASES if case.values[0].target.function == function)
    assert (source.digest, source.rewritten.digest) == (before, after)
'''


def _class_names(functions: Sequence[str]) -> list[str]:
    """Return a class name for each function: that of the function, and of its class where two would be the same."""
    short = [_camel(function.rpartition(".")[2]) for function in functions]
    return [name if short.count(name) == 1 else _camel(function) for name, function in zip(short, functions)]


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[._]+", name))


def _lines(text: str) -> str:
    """Return the code of a string, a line of code for each line of it, as an item of a tuple."""
    return "\n".join(f"        {_quoted(line)}" for line in text.splitlines(keepends=True)) + ",\n"


def _quoted(text: str) -> str:
    return repr(text) if '"' in text else json.dumps(text, ensure_ascii=False)
