"""Finds the copy of each upstream that the environment's ``import`` would use, importing none of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unhang import gate
from unhang.errors import UnhangError
from unhang.find import answers, metadata, notices, own_path, probe
from unhang.find.environment import ask, is_own, program
from unhang.plugins import packs
from unhang.records import STATE, Environment, Installation, Search

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

    from unhang.find.answers import Found
    from unhang.records import Upstream


def search(environment: Environment, *, script: str | None = None, cwd: str, beside: Sequence[str] = ()) -> Search:
    """Look for every upstream in ``environment``, as ``import`` does there, or directly in its folder.

    ``script`` (the value of ``--script``) puts that file's folder first on the path; it has no effect for a folder.
    ``cwd`` is the working directory, ``beside`` names the other packages to look for. Returns the installations in a
    fixed order, and warnings. Raises UnhangError ``no-script``, ``unreadable``, or ``broken-interpreter`` if the
    interpreter, or a finder in it, fails.
    """
    try:
        return _searched(environment, script, cwd, beside)
    except PermissionError as error:
        hint = "run this as a user who can read it"
        raise UnhangError("unreadable", str(error.strerror), path=error.filename, hint=hint) from error


def _searched(environment: Environment, script: str | None, cwd: str, beside: Sequence[str]) -> Search:
    """Return as ``search``; raise PermissionError for ``unreadable``."""
    metadata.read.cache_clear()
    script_folder = _script_folder(script, cwd)
    if environment.found_by in ("--target", "--source"):
        found = {module: answers.in_folder(environment.prefix, module) for module in answers.names()}
        installed = _installed(found, [environment.prefix])
        warnings = (*notices.unusable(found), *notices.has_an_interpreter(environment))
        packages = {name: answers.folder(environment.prefix, name) for name in beside}
        packages = {name: folder for name, folder in packages.items() if os.path.isdir(folder)}
        return _search(environment, found, installed, warnings, (environment.prefix,))._replace(packages=packages)
    found, path, not_run, bytecode, packages = _probe(environment, script_folder, cwd, beside)
    python_path = probe.python_path()
    installed = _installed(found, [script_folder, *python_path])
    # A job that is started as `python FILE` has that file's folder on its path, and not the working directory.
    strays = notices.strays(installed, cwd) if script is None else ()
    warnings = (*notices.unusable(found), *strays, *notices.not_run(not_run))
    searched = tuple(os.path.abspath(os.path.join(cwd, entry)) for entry in path if entry)
    warnings += tuple(notices.unread(searched, installed))
    return _search(environment, found, installed, warnings, searched, *bytecode)._replace(packages=packages)


def _search(
    environment: Environment,
    found: dict[str, Found],
    installed: dict[str, Installation],
    warnings: Iterable[str],
    path: tuple[str, ...],
    pycache_prefix: str | None = None,
    cache_tag: str | None = None,
) -> Search:
    texts = tuple(map(gate.line, (*warnings, *notices.odd_versions(installed))))
    places, roots, closed = tuple(installed.values()), _roots(installed, path), _closed(found, installed)
    return Search(environment, places, texts, roots, pycache_prefix, path, cache_tag=cache_tag, closed=closed)


def _roots(installed: dict[str, Installation], path: Iterable[str]) -> tuple[str, ...]:
    """Return the roots that may have a state folder. It outlives the installation that was rewritten."""
    left = {os.path.realpath(entry) for entry in path if os.path.lexists(os.path.join(entry, STATE))}
    return tuple(sorted(left | {found.real_root for found in installed.values()}))


def _installed(found: dict[str, Found], sources: Iterable[str]) -> dict[str, Installation]:
    """Return the installation of each import name; ``sources`` are the folders put on the path by hand."""
    return {
        module: _installation(upstream, found[module], sources)
        for module, upstream in packs.modules().items()
        if answers.is_installed(module, found[module])
    }


def _closed(found: dict[str, Found], installed: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return, for each upstream that nobody can tell from a namesake, a path that we may not look at."""
    missing = [upstream for upstream in packs.upstreams().values() if upstream.module not in installed]
    return tuple((one.name, path) for one in missing if (path := answers.closed_to_us(one.module, found)))


def _script_folder(script: str | None, cwd: str) -> str:
    if script is None:
        return ""
    path = os.path.abspath(os.path.join(cwd, script))
    if not os.path.isfile(path):
        hint = "give the file that the job runs"
        raise UnhangError("no-script", "what --script names is not a file", path=path, hint=hint)
    return os.path.dirname(os.path.realpath(path))  # python follows a link to the script too


def _probe(
    environment: Environment, script_folder: str, cwd: str, beside: Sequence[str]
) -> tuple[dict[str, Found], list[str], list[str], tuple[str | None, str], dict[str, str]]:
    """Return what a job finds, its import path, what it runs at its start and we do not, as ``probe.bytecode``, and the
    folders of the packages ``beside``.
    """
    if environment.python is None or is_own(environment.python, environment.prefix):
        try:
            path, not_run = probe.job_path(script_folder, own_path.started_with)
            return probe.look([*packs.modules()], path), path, not_run, probe.bytecode(), probe.packages(beside, path)
        except Exception as error:  # whatever someone else's finder raises, `import` would raise too
            message = f"the import system fails: {type(error).__name__}: {error}"
            hint = "the same import fails in a job; repair the environment, or give --target DIR or --source DIR"
            raise UnhangError("broken-interpreter", message, path=environment.python, hint=hint) from error
    from unhang.find import reading  # the common run is about our own environment

    names = [*packs.modules()]
    try:
        start = reading.start(environment.python, [*names, *beside])
    except reading.MustAsk as error:
        return _asked(program(environment, str(error)), script_folder, cwd, beside)
    path, not_run = reading.of_a_job(start, script_folder)
    found, packages = probe.look(names, path, start.imports), probe.packages(beside, path, start.imports)
    return found, path, not_run, reading.bytecode(start), packages


def _asked(
    python: str, script_folder: str, cwd: str, beside: Sequence[str]
) -> tuple[dict[str, Found], list[str], list[str], tuple[str | None, str], dict[str, str]]:
    """Return as ``_probe`` what an interpreter answers."""
    code = (
        "path, not_run = job_path(sys.argv[1])\n"
        "found, beside = look(sys.argv[2].split(), path), list(packages(sys.argv[3:], path).items())\n"
        "answer = found, path, not_run, bytecode(), beside"
    )
    form = answers.form(), [str], [str], ({str, None}, str), [(str, str)]
    answer = ask_probe(python, code, script_folder, " ".join(packs.modules()), *beside, cwd=cwd, form=form)
    found, path, not_run, bytecode, packages = answer
    return found, path, not_run, bytecode, dict(packages)


def ask_probe(python: str, code: str, *arguments: str, cwd: str, form: object) -> Any:
    """Return as ``environment.ask`` what ``code`` assigns to ``answer``, which follows the source of ``probe``."""
    with open(os.path.join(os.path.dirname(__file__), "probe.py"), encoding="ascii") as file:
        return ask(python, f"{file.read()}\n{code}", *arguments, cwd=cwd, form=form)


def _installation(upstream: Upstream, found: Found, sources: Iterable[str]) -> Installation:
    module, folder = upstream.module, os.path.dirname(found["origin"])
    root = folder
    for _ in upstream.parts:
        root = os.path.dirname(root)
    real = os.path.realpath(folder)
    real_root = os.path.realpath(root)
    is_linked = real != answers.folder(real_root, module)  # a link to the package itself, not one above
    if is_linked:
        above = real.removesuffix(answers.folder(os.sep, module))
        real_root = above if above != real else os.path.dirname(real)
    version, record = metadata.release(upstream, root, folder, is_linked)
    if record:
        kind = "wheel"
    elif root in sources or os.path.basename(root) in ("site-packages", "dist-packages"):
        kind = "source"
    else:
        kind = "editable"  # only a .pth file or a finder can have led here
    package_dir = real if is_linked else folder
    hidden = answers.hidden(module, found)
    return Installation(upstream.name, version, root, real_root, package_dir, kind, record, hidden)
