"""Finds the copy of each upstream that the environment's ``import`` would use, importing none of them."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from unhang.errors import UnhangError
from unhang.find import probe
from unhang.find.environment import ask
from unhang.records import Environment, Installation, Search

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Found = dict[str, Any]  # what the probe says of one name

# upstream, import name, the name its .dist-info folder begins with
_UPSTREAMS = (
    ("megatron-core", "megatron.core", "megatron_core"),
    ("megatron-lm", "megatron.training", "megatron_core"),
    ("verl", "verl", "verl"),
    ("ms-swift", "swift", "ms_swift"),
)
# What every release since the matrix's floors has, and a namesake (OpenStack's swift, a user's own folder) has not.
_MARKS = {
    "megatron.core": ("__init__.py",),
    "megatron.training": ("__init__.py",),
    "verl": ("__init__.py", "protocol.py", "version/version"),
    "swift": ("__init__.py", "version.py", "tuners", "trainers"),
}
_TOO_LONG = 64 * 1024 * 1024  # characters; a RECORD of 60,000 files has six million
_FRAMEWORKS = {"verl": "the verl framework", "swift": "ms-swift"}


def search(environment: Environment, *, script: str | None = None, cwd: str) -> Search:
    """Look for every upstream in ``environment``, as ``import`` does there, or directly in its folder.

    ``script`` (the value of ``--script``) puts that file's folder first on the path; it means nothing for a folder.
    ``cwd`` is the working directory. Returns the installations in a fixed order, and warnings. Raises UnhangError
    ``no-script``, or ``broken-interpreter`` where the interpreter, or a finder in it, fails.
    """
    _read.cache_clear()
    script_folder = _script_folder(script, cwd)
    if environment.found_by in ("--target", "--source"):
        found = {module: _at(environment.prefix, module) for module in ("megatron", *_MARKS)}
        sources = [environment.prefix]
        stray: list[str] = []
        overlays: list[str] = []
    else:
        found = _probe(environment, script_folder, cwd)
        python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sources = [script_folder, *(os.path.abspath(os.path.join(cwd, entry)) for entry in python_path if entry)]
        overlays = [folder for folder in sources[1:] if os.path.isdir(os.path.join(folder, ".unhang-overlay"))]
        # A job that is started as `python FILE` has that file's folder on its path, and not the working directory.
        stray = [module for module in _MARKS if script is None and _is_framework(module, _folder(cwd, module))]
    installed = {
        module: _installation(upstream, module, distribution, found[module], sources)
        for upstream, module, distribution in _UPSTREAMS
        if _is_installed(module, found[module])
    }
    warnings = (*_unusable(found), *_strays(stray, installed, cwd), *map(_overlaid, overlays))
    return Search(environment, tuple(installed.values()), warnings)


def _overlaid(folder: str) -> str:
    return f"PYTHONPATH has the overlay {folder}; this is about the originals, and `unhang overlay {folder}` about that"


def _script_folder(script: str | None, cwd: str) -> str:
    if script is None:
        return ""
    path = os.path.abspath(os.path.join(cwd, script))
    if not os.path.isfile(path):
        hint = "give the file that the job runs"
        raise UnhangError("no-script", "what --script names is not a file", path=path, hint=hint)
    return os.path.dirname(os.path.realpath(path))  # python follows a link to the script too


def _probe(environment: Environment, script_folder: str, cwd: str) -> dict[str, Found]:
    if environment.python is None or _is_own(environment):
        try:
            return probe.look(probe.job_path(script_folder))
        except Exception as error:  # whatever a finder of others' making raises, `import` would meet too
            message = f"the import system fails: {type(error).__name__}: {error}"
            hint = "the same import fails in a job; repair the environment, or give --target DIR or --source DIR"
            raise UnhangError("broken-interpreter", message, path=environment.python, hint=hint) from error
    with open(os.path.join(os.path.dirname(__file__), "probe.py"), encoding="ascii") as file:
        source = file.read() + "\nanswer = look(job_path(sys.argv[1]))"
    answer: dict[str, Found] = ask(environment.python, source, script_folder, cwd=cwd)
    return answer


def _is_own(environment: Environment) -> bool:
    """Whether the interpreter is the very one that runs this: the file and the prefix, for each alone is shared."""
    theirs = os.path.realpath(environment.python or ""), os.path.realpath(environment.prefix)
    return theirs == (os.path.realpath(sys.executable), os.path.realpath(sys.prefix))


def _at(root: str, module: str) -> Found:
    """What is in ``root`` itself, in the form of the probe's answer."""
    folder = _folder(root, module)
    init = os.path.join(folder, "__init__.py")
    origin = init if os.path.isfile(init) else None
    folders = [folder] if os.path.isdir(folder) else []
    return {"origin": origin, "folders": folders, "regular": origin is not None, "others": []}


def _folder(root: str, module: str) -> str:
    return os.path.join(root, *module.split("."))


def _where(found: Found) -> str | None:
    """The place to name for what was found: the package's folder, or the file of a plain module."""
    origin: str | None = found["origin"]
    if origin and found["regular"]:
        return os.path.dirname(origin)
    return origin or next((folder for folder in found["folders"] if os.path.isdir(folder)), None)


def _is_framework(module: str, folder: str) -> bool:
    return all(os.path.exists(os.path.join(folder, mark)) for mark in _MARKS[module])


def _is_installed(module: str, found: Found) -> bool:
    return bool(found["regular"]) and _is_framework(module, os.path.dirname(found["origin"]))


def _hidden(module: str, found: Found) -> tuple[str, ...]:
    """The other copies of the package: real ones, each place once."""
    seen = {os.path.realpath(os.path.dirname(found["origin"]))} if found["origin"] else set()
    hidden = []
    for other in found["others"]:
        if _is_installed(module, other):
            folder = os.path.dirname(other["origin"])
            if (real := os.path.realpath(folder)) not in seen:
                seen.add(real)
                hidden.append(folder)
    return tuple(hidden)


def _installation(upstream: str, module: str, distribution: str, found: Found, sources: Iterable[str]) -> Installation:
    folder = root = os.path.dirname(found["origin"])
    for _ in module.split("."):
        root = os.path.dirname(root)
    real = os.path.realpath(folder)
    is_linked = real != _folder(os.path.realpath(root), module)  # a link to the package itself, not one above
    version = _version(module, folder)
    record = None if is_linked else _record(root, module, distribution, version)
    if record:
        kind = "wheel"
    elif root in sources or os.path.basename(root) in ("site-packages", "dist-packages"):
        kind = "source"
    else:
        kind = "editable"  # for no other way to be found is left than a .pth file or a finder
    return Installation(upstream, version, root, real if is_linked else folder, kind, record, _hidden(module, found))


def _version(module: str, folder: str) -> str | None:
    """The version that the source states: read, never imported (some would run git)."""
    if module == "verl":
        return _read(os.path.join(folder, "version", "version")).strip() or None
    if module == "swift":
        return _constants(os.path.join(folder, "version.py")).get("__version__")
    core = _constants(os.path.join(os.path.dirname(folder), "core", "package_info.py"))
    numbers = [core.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers) + core.get("PRE_RELEASE", "") if all(map(str.isdigit, numbers)) else None


def _constants(path: str) -> dict[str, str]:
    """The numbers and plain strings that the file's top level assigns to names."""
    constants = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition("=")
        value = value.partition("#")[0].strip()
        if value[:1] in ("'", '"') and value[-1:] == value[:1]:
            value = value[1:-1]
        elif not value.isdigit():
            continue
        constants[name.partition(":")[0].rstrip()] = value  # an indented name keeps its indentation: another name
    return constants


@lru_cache(maxsize=8)  # for the length of a search: two upstreams share a RECORD, which may be long
def _read(path: str) -> str:
    try:
        if not os.path.isfile(path):  # a pipe would have us wait for ever
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_TOO_LONG)
    except OSError:
        return ""


def _record(root: str, module: str, distribution: str, version: str | None) -> str | None:
    """The RECORD in ``root`` that lists the package: a .dist-info folder left over from another copy does not."""
    row = f"\n{module.replace('.', '/')}/__init__.py,"

    def lists_it(record: str) -> bool:
        return row in "\n" + _read(record)

    expected = os.path.join(root, f"{distribution}-{version}.dist-info", "RECORD")
    if lists_it(expected):
        return expected  # without reading the folder, which may be as long as the environment is full
    names = [name for name in os.listdir(root) if name.startswith(distribution + "-") and name.endswith(".dist-info")]
    records = [record for name in names if lists_it(record := os.path.join(root, name, "RECORD"))]
    return max(records, key=os.path.getmtime, default=None)  # the newest: its install wrote the files


def _unusable(found: dict[str, Found]) -> Iterator[str]:
    """What to say of names that lead to something other than a package which can be rewritten."""
    megatron = found["megatron"]
    for _, module, _ in _UPSTREAMS:
        if _is_installed(module, found[module]):
            continue
        where = _where(found[module])
        hidden = _hidden(module, found[module])
        hides = f"; it hides {', '.join(hidden)}" if hidden else ""
        if where is None:
            if hidden:
                yield f"`import {module}` fails: {megatron['origin'] or _where(megatron)} hides {', '.join(hidden)}"
        elif found[module]["regular"] and not os.path.exists(where):
            yield f"`import {module}` finds {where}, inside an archive, which unhang does not rewrite{hides}"
        elif module in _FRAMEWORKS and _is_framework(module, nested := _folder(where, module)):
            yield f"`import {module}` finds {where}, a checkout, whose package is {nested}{hides}"
        elif module in _FRAMEWORKS:
            yield f"`import {module}` finds {where}, which is not {_FRAMEWORKS[module]}{hides}"
        else:
            yield f"`import {module}` finds {where}, which is not a package{hides}"
    where = _where(megatron)
    if where is not None and all(_where(found[module]) is None for module in probe.BELOW_MEGATRON):
        yield f"`import megatron` finds {where}, which has neither megatron.core nor megatron.training"
    init = _read(megatron["origin"]) if megatron["regular"] else ""
    if "extend_path" in init or "declare_namespace" in init:
        yield f"{megatron['origin']} sets its own search path when run, which unhang does not do: check --source DIR"


def _strays(stray: list[str], installed: dict[str, Installation], cwd: str) -> Iterator[str]:
    """What to say of packages in the working directory, which a job that starts there may have first on its path."""
    told = set()
    for module in stray:
        top = _folder(os.path.abspath(cwd), module.partition(".")[0])
        used = installed.get(module)
        is_used = used is not None and os.path.realpath(used.package_dir) == os.path.realpath(_folder(cwd, module))
        if top not in told and not is_used:
            told.add(top)
            instead = f"instead of {used.package_dir}" if used else "though the environment has none"
            yield f"a job started here could import {top} {instead}: say which with --script FILE or --source DIR"
