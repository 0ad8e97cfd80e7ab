"""From a request to the environment that it names, and the installations there."""

from __future__ import annotations

import os

from unhang.errors import UnhangError
from unhang.find import environment, locate
from unhang.plugins import packs
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.suggest import command


def find(request: Request) -> Search:
    """Return the environment that the request names, and its installations of the upstreams that it names.

    Raises UnhangError ``no-overlay``, ``unreadable``, and as ``environment.named`` and ``locate.search`` do.
    """
    cwd = os.getcwd()
    return find_in(environment.named(request, cwd, os.environ), request, cwd)


def find_in(place: Environment, request: Request, cwd: str) -> Search:
    """Return as ``find`` what is in this environment; ``cwd`` is the working directory of a job."""
    fixes = [catalog.fix(name) for name in request.fixes]
    search = locate.search(place, script=request.script, cwd=cwd, beside=sorted(catalog.packages(fixes)))
    for upstream, path in search.closed:
        if request.is_about(upstream):
            hint = "run this as a user who can read it, or choose others with --upstream"
            raise UnhangError("unreadable", f"whether this is {upstream} cannot be seen", path=path, hint=hint)
    inside = tuple(copy for copy in search.installations if request.is_about(copy.upstream))
    return _with_overlays(search._replace(installations=inside), request, cwd)


def find_some(request: Request) -> Search:
    """Return as ``find``; raise UnhangError ``no-upstream`` if that is nothing, and the request does not allow it."""
    search = find(request)
    if not search.installations and not request.allow_none:
        raise nothing_found(search, request)
    return search


def nothing_found(search: Search, request: Request) -> UnhangError:
    """Return the error ``no-upstream``."""
    where = search.environment.python or search.environment.prefix
    names = ", ".join(request.upstreams or packs.names())
    warned = "".join(f"; {warning}" for warning in search.warnings)
    return UnhangError(
        "no-upstream",
        f"none of {names} is installed in {where} ({search.environment.choice}){warned}",
        path=search.environment.prefix,
        hint=_copy_below(search, request)
        or "name the environment with --python PY, a site-packages folder with --target DIR, a checkout with "
        f"--source DIR{'' if request.allow_none is None else '; or pass --allow-none'}",
    )


def _with_overlays(search: Search, request: Request, cwd: str) -> Search:
    """Return the search with the overlays that are to be judged, and what the user should know about the others."""
    has_python = search.environment.found_by not in ("--target", "--source")
    python_path = os.environ.get("PYTHONPATH", "") if has_python else ""
    if not python_path and request.overlay is None:
        return search
    from unhang.find import overlays  # most runs have none

    first = [] if request.overlay is None else [os.path.abspath(request.overlay)]
    used, unused = overlays.on_path([*first, *overlays.folders(python_path, cwd)])
    if first and first != used[:1]:
        hint = "give the folder that `unhang overlay` has written"
        raise UnhangError("no-overlay", "there is no overlay in this folder", path=first[0], hint=hint)
    if request.as_imported:
        return search._replace(overlays=tuple(used), warnings=(*search.warnings, *unused))
    about = "this run is about the originals, `unhang check` about what a job imports"
    notes = [f"PYTHONPATH has the overlay {folder}; {about}" for folder in used]
    return search._replace(warnings=(*search.warnings, *notes, *unused))


def _copy_below(search: Search, request: Request) -> str:
    """Return a hint that names copies deeper in the folder of ``--target`` or ``--source``; empty if there are none."""
    if search.environment.python is not None or request.image:
        return ""
    from itertools import islice

    from unhang.find import below

    modules = [upstream.module for upstream in packs.upstreams().values() if request.is_about(upstream.name)]
    copies = list(islice(below.roots(search.environment.prefix, modules), 3))
    if not copies:
        return ""
    there = request._replace(target=copies[0]) if request.target else request._replace(source=copies[0])
    return f"below it there is a copy in {', '.join(copies)}; run: {command('check', there)}"
