"""Overlays that a job has on PYTHONPATH: which start-up hooks run, and what they import in place of the originals."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MARK = b"# unhang overlay"
"""The first bytes of a hook of ours."""
STORE = ".unhang-overlay"
HOOK = "sitecustomize.py"
_LARGEST = 16 * 1024 * 1024  # bytes
_HEAD = rb"[^\n]*\nIDENTITY = '([0-9a-f]{16})'\nMODULES = (\([^\n]*\))\n"


class Module(NamedTuple):
    """A module of an overlay."""

    path: str
    """Its rewritten file."""
    original: str
    """The sha256 of the file that was rewritten."""
    rewritten: str
    """The sha256 of the rewritten file."""


class Overlay(NamedTuple):
    """What an overlay does in a job."""

    folder: str
    modules: Mapping[str, Module]
    """By module name."""
    damage: str
    """Why nobody can tell what it does; empty if it is as it was made."""
    own: tuple[str, ...] = ()
    """Its start-up hook and its loader."""


def folders(python_path: str, cwd: str) -> list[str]:
    """Return the folders that this value of PYTHONPATH names: an empty entry is the working directory."""
    entries = python_path.split(os.pathsep) if python_path else []
    return [os.path.abspath(os.path.join(cwd, entry)) for entry in entries]


def on_path(path: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the overlays in these folders of PYTHONPATH that a job uses, and why it does not use the others.

    Python runs the first ``sitecustomize``; an overlay's then runs the next one, any other's usually does not.
    """
    used: list[str] = []
    unused: list[str] = []
    other = None
    for folder in dict.fromkeys(path):
        spec = PathFinder.find_spec("sitecustomize", [folder])
        found = spec.origin if spec and spec.has_location else None
        if os.path.isdir(os.path.join(folder, STORE)):
            is_hook = found == os.path.join(folder, HOOK) and (read(found) or b"").startswith(MARK)
            if is_hook and other is None:
                used.append(folder)
                continue
            why = f"{other} runs in place of its start-up hook" if is_hook else "it has no start-up hook"
            unused.append(f"PYTHONPATH has the overlay {folder}, which no job uses: {why}")
        other = other or found
    return used, unused


def load(folder: str) -> Overlay:
    """Return what the overlay in a folder does. It executes nothing of it."""
    try:
        store, modules = _modules(folder)
        return Overlay(folder, modules, "", (os.path.join(folder, HOOK), os.path.join(store, "loader.py")))
    except (LookupError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError):
        return Overlay(folder, {}, "its start-up hook, loader or manifest is gone or was changed")


def _modules(folder: str) -> tuple[str, dict[str, Module]]:
    """Return the folder of an overlay's files, and its modules.

    Raises one of many errors if it is not as it was made: the names are digests.
    """
    import ast  # most runs with a PYTHONPATH have no overlay on it
    import json
    import re

    hook = read(os.path.join(folder, HOOK)) or b""
    head = re.match(_HEAD, hook)
    if head is None:
        raise ValueError("not a hook")
    store = os.path.join(folder, STORE, head[1].decode())
    manifest, loader = (read(os.path.join(store, name)) or b"" for name in ("manifest.json", "loader.py"))
    content = json.loads(manifest)
    entries = content["modules"]
    digests = [["manifest.json", sha256(manifest)], ["loader.py", sha256(loader)]]
    digests += [[f"modules/{entry['file']}", entry["rewritten"]] for entry in entries.values()]
    is_ours = identity(digests) == head[1].decode() and content["hook"] == sha256(hook[head.end() :])
    if not is_ours or ast.literal_eval(head[2].decode()) != tuple(entries):
        raise ValueError("not as it was made")
    return store, {
        name: Module(os.path.join(store, "modules", *entry["file"].split("/")), entry["original"], entry["rewritten"])
        for name, entry in entries.items()
    }


def identity(digests: Iterable[Iterable[str]]) -> str:
    """Return the name of an overlay's content: a digest over the name and sha256 of each file."""
    import json

    return sha256(json.dumps([list(pair) for pair in digests]).encode())[:16]


def sha256(data: bytes) -> str:
    """Return the hex digest by which an overlay names bytes."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def module_name(file: str) -> str:
    """Return the name of the module in a file, which is relative to a folder of the import path."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(path: str) -> bytes | None:
    """Return a file's bytes, None if it cannot be read."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST:  # opening a pipe would wait for ever
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
