"""The files of a fix, as far as a diff tells what is in them: a person writes the rest, at each TODO. Pure."""

from __future__ import annotations

import json
import textwrap
from typing import Any, NamedTuple

from unhang import gate
from unhang.draft import modules
from unhang.draft.kinds import VALUES
from unhang.draft.modules import Rewrite, place
from unhang.draft.origin import Origin

_SECTIONS = {
    "Symptom": "TODO",
    "Who is hit": "TODO: settings and releases.",
    "Danger": "TODO: what the fix does to a job",
    "Workaround": "TODO",
    "Not cured": "TODO",
    "Cause": "TODO",
    "What unhang changes": "TODO",
    "Evidence": "Grade: safeguard. TODO: how it is backed.\nNot shown: TODO.",
}
_NUMBERS = ". Your numbers change, TODO: how"
_EVERY_NODE = ", and why every node must have it"
"""What the danger has besides, by what the rewrite changes."""

_OWN = "unhang's own text, in the codemod and in what it writes, is Apache-2.0."


class Draft(NamedTuple):
    """A fix that begins."""

    fix: str
    title: str
    origin: Origin
    repository: str
    """Where the upstream's pull requests and commits are: an address, without a slash at the end."""
    version: str
    """The release."""
    date: str
    """Today, as ``YYYY-MM-DD``."""
    kind: str
    """How the defect shows: one of ``kinds.HARNESSES``."""
    notice: str
    """Whose the changed files are, by their head."""
    rewrites: tuple[Rewrite, ...]


def title(upstream: str, origin: Origin, longest: int) -> str:
    """Return the title in a manifest: the commit's, where it is short enough; else one that a person must write."""
    if not origin.title:
        return f"TODO: what is wrong in {upstream}"[:longest]
    fits = (text for text in (f"{upstream}: {origin.title}", origin.title) if len(text) <= longest)
    return next(fits, textwrap.shorten(f"TODO: {origin.title}", longest, placeholder=" ..."))


def paths(fix: str) -> list[str]:
    """Return where the files of a fix are in a checkout of unhang: manifest, page, and three modules."""
    module = fix.replace("-", "_")
    folders = "codemods", "src/unhang/prove/fixes", "tests/fixes/test_"
    named = [f"{folder}{'' if folder.endswith('_') else '/'}{module}.py" for folder in folders]
    return [f"patches/{fix}/manifest.json", f"patches/{fix}/page.md", *named]


def files(draft: Draft) -> dict[str, str]:
    """Return the text of each file of the fix, by its path."""
    each = {item.target.function: item for item in reversed(draft.rewrites)}  # in two files, one codemod does both
    begun = modules.Begun(draft.fix, draft.version, draft.kind, tuple(reversed(each.values())))
    code = (part(begun) for part in (modules.codemod, modules.scene, modules.tests))
    return dict(zip(paths(draft.fix), (_manifest(draft), _page(draft), *code)))


def _manifest(draft: Draft) -> str:
    content = {
        "$schema": "../../compat/schemas/manifest.json",
        "id": draft.fix,
        "title": draft.title,
        "when": f"only with {'' if draft.kind == VALUES else 'several ranks and '}{modules.FACT}",
        "strikes": f'{"" if draft.kind == VALUES else "ranks > 1 and "}"{modules.FACT}"',
        "grade": "safeguard",
        "kinds": ["wrong-values" if draft.kind == VALUES else "hang"],
        "changes-numbers": draft.kind == VALUES,
        "symptom": "TODO: what a user sees.",
        "cause": "TODO: what is wrong in the code.",
        "description": "TODO: what the rewrite changes. And above: all kinds, and whether it changes numbers.",
        "origin": f"backport, {_link(draft) or 'TODO: the link'}",
        "bug": f"{draft.repository}/issues/{draft.origin.issue}" if draft.origin.issue else None,
        "forwarded": "no",
        "last-update": draft.date,
        "licence": f"Modified file: {draft.notice or 'TODO: whose, and under which licence'}. {_OWN}",
        "targets": [
            {"upstream": item.target.upstream, "file": item.target.file, "function": item.target.function}
            for item in draft.rewrites
        ],
        "assumes": "TODO: which backend and device; `any backend and device` is fine",
        "collectives": draft.kind != VALUES,
        **_shown(draft),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _shown(draft: Draft) -> dict[str, Any]:
    """Return the signature, or the key that takes its place: the tests have the jobs that this one knows."""
    if draft.kind == VALUES:
        return {"no-hang": "TODO: which values are wrong, and where a user sees them."}
    hang = {"summary": "TODO: who waits, and for whom.", "waits": [[place(item) for item in draft.rewrites]]}
    return {"signature": {"asks": "TODO: what decides?", "setting": "TODO: what a job is set to.", "hangs": [hang]}}


def _link(draft: Draft) -> str:
    origin = draft.origin
    end = f"pull/{origin.pull}" if origin.pull else f"commit/{origin.revision}" if origin.revision else ""
    return f"{draft.repository}/{end}" if end else ""


def _page(draft: Draft) -> str:
    more = {"Danger": _NUMBERS if draft.kind == VALUES else _EVERY_NODE}
    sections = "".join(f"\n## {name}\n{text}{more.get(name, '')}\n" for name, text in _SECTIONS.items())
    names = gate.markdown(", ".join(draft.origin.authors))
    lines = (f"Upstream's change, by {names}:" if names else "Upstream's change:", gate.markdown(draft.origin.title))
    links = "".join(f"{_wrapped(line)}\n" for line in lines if line) + (_link(draft) or "TODO")
    title = ": ".join(map(gate.markdown, draft.title.split(": ", 1)))  # what is before its colon stays plain
    return f"# {draft.fix}\n\n{_wrapped(title)}\n{sections}\n## Links\n{links}\n"


def _wrapped(text: str) -> str:
    """Return Markdown as lines of ASCII, as every page has them."""
    return textwrap.fill(text.encode("ascii", "xmlcharrefreplace").decode(), 80, break_on_hyphens=False)
