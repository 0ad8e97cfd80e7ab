"""Asks the import system where it would find each upstream, and which copies that hides, importing none of them.

This runs in the interpreter that is asked: passed as source, so that this folder is not on that interpreter's path, or
called in-process if it is our own. So it uses only the standard library, runs on Python 3.8 and later, and imports
nothing slow.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # as typing's, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

TOP_LEVEL = ("megatron", "verl", "swift")
BELOW_MEGATRON = ("megatron.core", "megatron.training")


def job_path(script_folder: str) -> list[str]:
    """Return the ``sys.path`` of a job: without the entry that was added for this program, and with ``script_folder``
    first if it is not empty, as ``python FILE`` has it.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    if path and _is_for_this_program(path[0]):
        del path[0]
    return [script_folder, *path] if script_folder else path


def look(path: list[str]) -> dict[str, dict[str, Any]]:
    """Return what ``import`` would find for each upstream's name with ``path`` as ``sys.path``.

    Each answer is ``{"origin": its file or None, "folders": where its submodules are, "regular": whether it is a
    package with an __init__ file, "others": [the same for each other copy]}``. An exception of a finder is raised, as
    by ``import``.
    """
    saved = sys.path[:]
    sys.path[:] = path  # custom finders read it there
    try:
        found = {name: _look(name, None, path) for name in TOP_LEVEL}
        megatron = found["megatron"]
        every_portion = [*megatron["folders"], *(folder for other in megatron["others"] for folder in other["folders"])]
        for name in BELOW_MEGATRON:
            found[name] = _look(name, megatron["folders"], every_portion)
        return found
    finally:
        sys.path[:] = saved


def _is_for_this_program(first: str) -> bool:
    """Return whether the first entry of the path was added for this program alone."""
    if first == "":  # what -c adds
        return True
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return False  # then nothing was
    if getattr(sys.modules.get("__main__"), "__spec__", None) is not None:  # -m adds the working directory
        return first == os.getcwd()
    script = sys.argv[0]
    return first in (os.path.dirname(os.path.abspath(script)), os.path.dirname(os.path.realpath(script)))


def _look(name: str, path: Sequence[str] | None, everywhere: Sequence[str]) -> dict[str, Any]:
    """Return ``name`` as ``import`` finds it on its parent's ``path`` (None: ``sys.path``), with its other copies."""
    found = _imported(name, path)
    others: list[dict[str, Any]] = []
    for copy in _copies(name, everywhere):
        if copy not in others and not (copy["origin"] == found["origin"] and copy["folders"] == found["folders"]):
            others.append(copy)
    return {**found, "others": others}


def _imported(name: str, path: Sequence[str] | None) -> dict[str, Any]:
    module = sys.modules.get(name)
    if module is not None:  # made at start-up, by the -nspkg.pth file of an old namespace package
        origin = getattr(module, "__file__", None)
        return _description(origin, list(getattr(module, "__path__", ())))
    if path is None or path:
        for finder in sys.meta_path:
            spec = _ask(finder, name, path)
            if spec is not None:
                return _of_spec(spec)
    return _description(None, [])


def _copies(name: str, everywhere: Sequence[str]) -> Iterator[dict[str, Any]]:
    for entry in dict.fromkeys(everywhere):
        spec = _ask(PathFinder, name, [entry])
        if spec is not None:
            yield _of_spec(spec)
    for finder in sys.meta_path:
        if everywhere and finder is not PathFinder:  # without a parent there is nothing to ask for
            try:
                spec = _ask(finder, name, everywhere if "." in name else None)
            except Exception:  # copies are only reported; `import` itself may never reach this finder
                continue
            if spec is not None:
                yield _of_spec(spec)


def _ask(finder: Any, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    find_spec = getattr(finder, "find_spec", None)
    if find_spec is None:
        return None
    try:
        spec: ModuleSpec | None = find_spec(name, path, None)
    except KeyError as error:
        if error.args != (name.rpartition(".")[0],):
            raise
        # A folder without an __init__ file, below a parent that is not imported: importlib looks up the parent.
        spec = ModuleSpec(name, None, is_package=True)
    return spec


def _of_spec(spec: ModuleSpec) -> dict[str, Any]:
    return _description(spec.origin if spec.has_location else None, list(spec.submodule_search_locations or ()))


def _description(origin: str | None, folders: list[str]) -> dict[str, Any]:
    return {"origin": origin, "folders": folders, "regular": origin is not None and bool(folders)}
