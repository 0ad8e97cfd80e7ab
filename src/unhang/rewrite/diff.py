"""Changed files as a unified diff for ``git apply`` and ``patch -p1``. It works on bytes."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from unhang import gate
from unhang.records import Environment

_ALTERED = b"# no patch: what a terminal or a runner could act on is written as escapes here; a file gets the patch\n"


Changed: TypeAlias = "tuple[str, str, bytes, bytes]"
"""A file: the root that holds it, its path, and its bytes before and after."""


def as_patch(section: bytes) -> bytes:
    """Return a section of a diff as it is."""
    return section


def as_text(section: bytes) -> bytes:
    """Return a section of a diff as a terminal and a runner's log can show it.

    One that needs escapes for that loses its header, so that both tools refuse it.
    """
    shown = gate.diff(section)
    if shown == section:
        return section
    old, new, rest = shown.split(b"\n", 2)
    return _ALTERED + b"# %b\n# %b\n%b" % (old, new, rest)


def render(
    environment: Environment,
    files: Iterable[Changed],
    notes: Mapping[str, Sequence[str]],
    form: Callable[[bytes], bytes] = as_patch,
) -> bytes:
    """Return the diff of these files, with the notes on each, by its path, above its section.

    Paths below a/ and b/ are relative to the folder that was searched, or to the root of each installation. Each root
    has a section, with its name in a line above. Both tools ignore such lines. ``form``: ``as_patch`` or ``as_text``.
    """
    whole = environment.prefix if environment.python is None else None
    by_root: dict[str, list[Changed]] = {}
    for file in files:
        by_root.setdefault(os.path.realpath(whole or file[0]), []).append(file)
    out = []
    for root, group in sorted(by_root.items()):
        out.append(comment(f"in {root}"))
        for _, path, before, after in sorted(group, key=lambda file: file[1]):
            out += map(comment, notes.get(path, ()))
            out.append(form(_section(os.path.relpath(path, root), before, after)))
    return b"".join(out)


def comment(note: str) -> bytes:
    """Return a line for people, which ``git apply`` and ``patch`` ignore."""
    return f"# {gate.line(note)}\n".encode()


def _section(name: str, before: bytes, after: bytes) -> bytes:
    # latin-1 maps each byte to one character and back, whatever the encoding
    old, new = (_lines(data.decode("latin-1")) for data in (before, after))
    lines = list(difflib.unified_diff(old, new, _quoted(f"a/{name}"), _quoted(f"b/{name}")))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text.encode("latin-1")


def _quoted(name: str) -> str:
    """Return a name as git writes it into a diff: in quotes if it has a letter that could end the line."""
    letters = os.fsencode(name).decode("latin-1")
    if not re.search(r'[\x00-\x1f\x7f"\\]', letters):
        return letters
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\{ord(found[0]):03o}", letters) + '"'


def _lines(text: str) -> list[str]:
    """Return the lines as ``patch`` counts them: only \\n ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
