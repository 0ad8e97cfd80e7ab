"""What ``apply`` would change, as a unified diff for ``git apply`` and ``patch -p1``; on bytes, no encoding guessed."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

from unhang.records import Environment
from unhang.rewrite.plan import FilePlan


def render(environment: Environment, files: Sequence[FilePlan]) -> bytes:
    """The diff of all planned files, paths below a/ and b/ relative to the folder searched, else to each root.

    A section for each root: the line above it, which both tools pass over, names it.
    """
    whole = environment.prefix if environment.python is None else None
    by_root: dict[str, list[FilePlan]] = {}
    for file in files:
        by_root.setdefault(os.path.realpath(whole or file.installation.root), []).append(file)
    out = []
    for root, group in sorted(by_root.items()):
        out.append(f"# in {root}\n".encode())
        for file in sorted(group, key=lambda file: file.path):
            name = os.path.relpath(file.path, root).replace(os.sep, "/")
            out.append(_section(name, file.before, file.after))
    return b"".join(out)


def _section(name: str, before: bytes, after: bytes) -> bytes:
    # latin-1: one character for each byte, whatever the encoding, and back again
    old, new = (_lines(data.decode("latin-1")) for data in (before, after))
    lines = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text.encode("latin-1")


def _lines(text: str) -> list[str]:
    """Lines as ``patch`` counts them: at \\n alone."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
