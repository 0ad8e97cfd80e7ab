"""What ``apply`` would change, as a unified diff for ``git apply`` and ``patch -p1``. It works on bytes."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence

from unhang.errors import printable
from unhang.records import Environment
from unhang.rewrite.plan import FilePlan


def render(environment: Environment, files: Sequence[FilePlan], notes: Mapping[str, Sequence[str]]) -> bytes:
    """Return the diff of all planned files, with the notes on each, by its path, above its section.

    Paths below a/ and b/ are relative to the folder that was searched, or to the root of each installation. Each root
    has a section, with its name in a line above. Both tools ignore such lines.
    """
    whole = environment.prefix if environment.python is None else None
    by_root: dict[str, list[FilePlan]] = {}
    for file in files:
        by_root.setdefault(os.path.realpath(whole or file.installation.root), []).append(file)
    out = []
    for root, group in sorted(by_root.items()):
        out.append(b"# in %s\n" % os.fsencode(root))
        for file in sorted(group, key=lambda file: file.path):
            out += [b"# %s\n" % os.fsencode(printable(note)) for note in notes.get(file.path, ())]
            name = os.fsencode(os.path.relpath(file.path, root)).decode("latin-1")
            out.append(_section(name, file.before, file.after))
    return b"".join(out)


def _section(name: str, before: bytes, after: bytes) -> bytes:
    # latin-1 maps each byte to one character and back, whatever the encoding
    old, new = (_lines(data.decode("latin-1")) for data in (before, after))
    lines = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text.encode("latin-1")


def _lines(text: str) -> list[str]:
    """Return the lines as ``patch`` counts them: only \\n ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
