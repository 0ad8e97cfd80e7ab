"""Asks the import system where it would find each upstream, and which copies that hides, importing none of them.

This runs in the interpreter that is asked: passed as source, so that this folder is not on that interpreter's path, or
called in-process if it is our own. So it uses only the standard library, runs on Python 3.8 and later, and imports
nothing slow.
"""

from __future__ import annotations

import os
import site
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # as typing's, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_CODE = ("import ", "import\t")  # a line of a .pth file that begins so is run
_HARMLESS = "distutils-precedence.pth"  # comes with setuptools, and leads nowhere
CUSTOMIZERS = ("sitecustomize", "usercustomize")
"""The modules that ``site`` imports; the second one where the user site is on the path."""


class Imports:
    """What an import asks: finders, of which ``on_path`` searches a path, and the modules that are there already."""

    def __init__(self, finders: Sequence[Any], on_path: Any, loaded: Mapping[str, Any]) -> None:
        self.finders = finders
        self.on_path = on_path
        self.loaded = loaded


OWN = Imports(sys.meta_path, PathFinder, sys.modules)
"""Those of the interpreter that runs this."""


def job_path(script_folder: str, started_with: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the ``sys.path`` of a job, and the files that run at the start of a job but did not run here.

    ``script_folder`` is first on it, if it is not empty, as for ``python FILE``. ``started_with`` is the path with
    which this interpreter started, if that has changed. Where the interpreter was told to ignore them, the entries of
    PYTHONPATH and of the user site are computed from their files, of which none is run.
    """
    path = [entry for entry in started_with or sys.path if isinstance(entry, str)]
    if path and is_for_this_program(path[0]):
        del path[0]
    not_run: list[str] = []
    has_user_site = may_have_user_site() and sys.base_prefix in site.PREFIXES
    if sys.flags.no_user_site and has_user_site:
        path, not_run = with_user_site(path, site.getusersitepackages(), _after_user_site())
    if sys.flags.ignore_environment:
        ran = [getattr(sys.modules.get(name), "__file__", None) for name in CUSTOMIZERS]
        path, files = with_python_path(path, CUSTOMIZERS if has_user_site else CUSTOMIZERS[:1], ran, PathFinder)
        not_run = [*files, *not_run]
    return in_order(script_folder, path), not_run


def with_user_site(path: list[str], folder: str, later: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a path with the user's site-packages before the ``later`` folders, and its .pth files with code."""
    entries, with_code = _user_site(folder)
    at = next((place for place, entry in enumerate(path) if entry in later), len(path))
    return [*path[:at], *entries, *path[at:]], with_code


def with_python_path(
    path: list[str], customizers: Sequence[str], ran: Sequence[str | None], on_path: Any
) -> tuple[list[str], list[str]]:
    """Return a path with the entries of PYTHONPATH, and the files of ``customizers`` that run then and have not."""
    path = [*python_path(), *path]
    specs = [on_path.find_spec(name, path) for name in customizers]
    return path, [spec.origin for spec in specs if spec and spec.origin and spec.origin not in ran]


def in_order(script_folder: str, path: list[str]) -> list[str]:
    """Return a path without what it has again, as ``site`` does, behind the folder of a script."""
    path = list(dict.fromkeys(path))
    return [script_folder, *path] if script_folder else path


def python_path() -> list[str]:
    """Return the entries of PYTHONPATH as ``sys.path`` has them: an empty one is the working directory."""
    value = os.environ.get("PYTHONPATH")
    return [os.path.abspath(entry) for entry in value.split(os.pathsep)] if value else []


def bytecode() -> tuple[str | None, str]:
    """Return the ``sys.pycache_prefix`` of a job, and the tag of its bytecode; that is empty if it reads none."""
    prefix = sys.pycache_prefix or os.environ.get("PYTHONPYCACHEPREFIX")
    return os.path.abspath(prefix) if prefix else None, sys.implementation.cache_tag or ""


def look(modules: Sequence[str], path: list[str], imports: Imports = OWN) -> dict[str, dict[str, Any]]:
    """Return what ``import`` would find for each of these modules, and for what is above them.

    ``path`` is taken as ``sys.path``. Each answer is ``{"origin": its file or None, "folders": where its submodules
    are, "others": [the same for each other copy]}``. An exception of a finder is raised, as by ``import``.
    """
    saved = sys.path[:]
    sys.path[:] = path  # custom finders read it there
    try:
        found: dict[str, dict[str, Any]] = {}
        for name in with_those_above(modules):
            above = found.get(name.rpartition(".")[0])
            if above is None:
                found[name] = _look(name, None, path, imports)
            else:
                portions = [*above["folders"], *(folder for other in above["others"] for folder in other["folders"])]
                found[name] = _look(name, above["folders"], portions, imports)
        return found
    finally:
        sys.path[:] = saved


def with_those_above(modules: Sequence[str]) -> list[str]:
    """Return these modules and the packages above them, the highest first."""
    parts = [module.split(".") for module in modules]
    names = (".".join(one[:depth]) for depth in range(1, max(map(len, parts), default=0) + 1) for one in parts)
    return list(dict.fromkeys(names))


def packages(names: Sequence[str], path: list[str], imports: Imports = OWN) -> dict[str, str]:
    """Return the folder of each of these packages that ``import`` would find with ``path`` as ``sys.path``."""
    saved = sys.path[:]
    sys.path[:] = path
    try:
        folders = {name: _package(name, imports) for name in names}
        return {name: folder for name, folder in folders.items() if folder is not None}
    finally:
        sys.path[:] = saved


def is_for_this_program(first: str) -> bool:
    """Return whether the first entry of the path was added for this program alone."""
    if first == "":  # what -c adds
        return True
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return False  # then nothing was
    if getattr(sys.modules.get("__main__"), "__spec__", None) is not None:  # -m adds the working directory
        return first == os.getcwd()
    script = sys.argv[0]
    return first in (os.path.dirname(os.path.abspath(script)), os.path.dirname(os.path.realpath(script)))


def may_have_user_site() -> bool:
    """Return whether a job may have the user's own site-packages on its path, as ``site`` decides it.

    A virtual environment without the system's site-packages has none.
    """
    return not os.environ.get("PYTHONNOUSERSITE") and (os.geteuid(), os.getegid()) == (os.getuid(), os.getgid())


def _after_user_site() -> list[str]:
    """Return the folders that come after the user's: the base's site-packages; a virtual environment's come before."""
    own = sys.prefix if sys.prefix != sys.base_prefix else None
    return site.getsitepackages([prefix for prefix in site.PREFIXES if prefix != own])


def _user_site(folder: str) -> tuple[list[str], list[str]]:
    """Return what the user site adds to the path, and its .pth files with code, which is not run."""
    if not os.path.isdir(folder):
        return [], []
    entries: list[str] = [folder]
    with_code: list[str] = []
    for name in sorted(_names(folder)):
        if name.endswith(".pth") and not name.startswith("."):
            path = os.path.join(folder, name)
            lines = [line for line in _lines(path) if line.strip() and not line.startswith("#")]
            if any(line.startswith(_CODE) for line in lines) and name != _HARMLESS:
                with_code.append(path)
            named = [os.path.abspath(os.path.join(folder, line.rstrip())) for line in lines if line[:7] not in _CODE]
            entries += [entry for entry in named if os.path.exists(entry)]
    return entries, with_code


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for ever
            return []
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return file.read(1 << 24).splitlines()
    except OSError:
        return []


def _look(name: str, path: Sequence[str] | None, everywhere: Sequence[str], imports: Imports) -> dict[str, Any]:
    """Return ``name`` as ``import`` finds it on its parent's ``path`` (None: ``sys.path``), with its other copies."""
    found = _imported(name, path, imports)
    others: list[dict[str, Any]] = []
    for copy in _copies(name, everywhere, imports):
        if copy not in others and not (copy["origin"] == found["origin"] and copy["folders"] == found["folders"]):
            others.append(copy)
    return {**found, "others": others}


def _imported(name: str, path: Sequence[str] | None, imports: Imports) -> dict[str, Any]:
    module = imports.loaded.get(name)
    if module is not None:  # made at start-up, by the -nspkg.pth file of an old namespace package
        origin = getattr(module, "__file__", None)
        return _description(origin, list(getattr(module, "__path__", ())))
    if path is None or path:
        for finder in imports.finders:
            spec = _ask(finder, name, path)
            if spec is not None:
                return _of_spec(spec)
    return _description(None, [])


def _package(name: str, imports: Imports) -> str | None:
    """Return the folder of a package; None if there is none, or a finder fails, for no verdict rests on it."""
    parts = name.split(".")
    folders: list[str] | None = None
    try:
        for depth in range(len(parts)):
            folders = _imported(".".join(parts[: depth + 1]), folders, imports)["folders"]
    except Exception:
        return None
    return folders[0] if folders else None


def _copies(name: str, everywhere: Sequence[str], imports: Imports) -> Iterator[dict[str, Any]]:
    for entry in dict.fromkeys(everywhere):
        spec = _ask(imports.on_path, name, [entry])
        if spec is not None:
            yield _of_spec(spec)
    for finder in imports.finders:
        if everywhere and finder is not imports.on_path:  # without a parent there is nothing to ask for
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
        portions = (os.path.join(entry, name.rpartition(".")[2]) for entry in path or ())
        spec.submodule_search_locations = [it for it in portions if os.path.isdir(it)]
    return spec


def _of_spec(spec: ModuleSpec) -> dict[str, Any]:
    return _description(spec.origin if spec.has_location else None, list(spec.submodule_search_locations or ()))


def _description(origin: str | None, folders: list[str]) -> dict[str, Any]:
    return {"origin": origin, "folders": folders}
