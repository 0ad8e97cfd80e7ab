"""What the user should know about a search besides the installations: names that lead elsewhere, copies in the way."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from unhang.find import answers, metadata
from unhang.plugins import packs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from unhang.find.answers import Found
    from unhang.records import Environment, Installation


def unusable(found: dict[str, Found]) -> Iterator[str]:
    """Yield a sentence for each name that leads to something other than a package that can be rewritten."""
    for module in packs.modules():
        if answers.is_installed(module, found[module]):
            continue
        if closed := answers.closed_to_us(module, found):
            yield f"this user may not read {closed}: whether {module} is there is not known"
        else:
            yield from _about(module, found)
    portions: dict[str, list[str]] = {}
    for upstream in packs.upstreams().values():
        if upstream.above:
            portions.setdefault(upstream.above, []).append(upstream.module)
    for name, modules in portions.items():
        origin, where = found[name]["origin"], answers.place(found[name])
        if where is not None and all(answers.place(found[module]) is None for module in modules):
            *others, last = modules
            has = f"has neither {', '.join(others)} nor {last}" if others else f"has no {last}"
            yield f"`import {name}` finds {where}, which {has}"
        init = metadata.read(origin) if answers.is_regular(found[name]) else ""
        if "extend_path" in init or "declare_namespace" in init:
            yield f"{origin} changes its search path at run time, which unhang does not: check --source DIR"


def _about(module: str, found: dict[str, Found]) -> Iterator[str]:
    upstream, where = packs.modules()[module], answers.place(found[module])
    copies = ", ".join(answers.hidden(module, found[module]))
    hides = f"; it hides {copies}" if copies else ""
    if where is None:
        if copies:
            above = found[upstream.above or module]
            yield f"`import {module}` fails: {above['origin'] or answers.place(above)} hides {copies}"
    elif answers.is_regular(found[module]) and not os.path.exists(where):
        yield f"`import {module}` finds {where}, inside an archive, which unhang does not rewrite{hides}"
    elif not upstream.above and answers.is_framework(module, nested := answers.folder(where, module)):
        yield f"`import {module}` finds {where}, a checkout, whose package is {nested}{hides}"
    elif dangling := [mark for mark in upstream.marks if _dangles(os.path.join(where, mark))]:
        gone = os.path.realpath(os.path.join(where, dangling[0]))
        yield f"`import {module}` finds {where}, with links that lead nowhere, such as to {gone}: reinstall it{hides}"
    elif not upstream.above:
        framework = f"the {upstream.name} framework" if upstream.name == module else upstream.name
        yield f"`import {module}` finds {where}, which is not {framework}{hides}"
    else:
        yield f"`import {module}` finds {where}, which is not a package{hides}"


def _dangles(path: str) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def unread(path: Iterable[str], installed: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each folder of the import path that we may not read, if something was not found.

    Raises PermissionError if nothing was.
    """
    for folder in path if len(installed) < len(packs.modules()) else ():
        if answers.is_closed(folder):
            if not installed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
            yield f"{folder} is on the import path, and this user may not read it: what is in it is not seen"


def has_an_interpreter(environment: Environment) -> Iterator[str]:
    """Yield a sentence if the folder of ``--target`` or ``--source`` is a whole environment, which has that deeper."""
    folder = environment.prefix
    if os.path.isfile(os.path.join(folder, "pyvenv.cfg")) or os.path.isdir(os.path.join(folder, "conda-meta")):
        from shlex import quote  # only here: it is slow to import

        yield f"{folder} is an environment: name it with --python {quote(folder)}"


def odd_versions(installed: dict[str, Installation]) -> Iterator[str]:
    """Yield a sentence for each package whose source states something as its version that is none."""
    for module, found in installed.items():
        text = metadata.stated(module, found.package_dir)
        if text and not metadata.is_version(text):
            yield f"{found.package_dir} states {text[:40]!a} as its version, which cannot be one: it counts as none"


def strays(installed: dict[str, Installation], cwd: str) -> Iterator[str]:
    """Yield a sentence for each package in the working directory: a job started there may import it first."""
    reported = set()
    for module in packs.modules():
        package = answers.folder(cwd, module)
        if not answers.is_framework(module, package):
            continue
        top = answers.folder(os.path.abspath(cwd), module.partition(".")[0])
        used = installed.get(module)
        is_used = used is not None and os.path.realpath(used.package_dir) == os.path.realpath(package)
        if top not in reported and not is_used:
            reported.add(top)
            instead = f"instead of {used.package_dir}" if used else "though the environment has none"
            yield f"a job started here could import {top} {instead}: choose with --script FILE or --source DIR"


def not_run(files: list[str]) -> Iterator[str]:
    """Yield a sentence for each of the files that a job runs when it starts, and the search does not."""
    for file in files:
        if not os.path.isdir(os.path.join(os.path.dirname(file), ".unhang-overlay")):  # then it is our own
            yield (
                f"a job runs {file} when it starts, and unhang does not: "
                "what that adds to the import path is not seen; for a checkout, use --source DIR"
            )
