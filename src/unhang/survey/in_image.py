"""What stands in an image: each of its environments searched and judged, in the words of the image."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar, cast

from unhang.errors import UnhangError
from unhang.find import answers
from unhang.find.environment import for_source, for_target
from unhang.image.opened import Image, as_in, environments, opened, sites
from unhang.judge.findings import Finding
from unhang.plugins import packs
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.shapes.catalog import Target
from unhang.suggest import Hint
from unhang.survey.search import find_in, nothing_found
from unhang.survey.verdicts import Survey, again

if TYPE_CHECKING:
    from typing import Any

_T = TypeVar("_T")


def survey(request: Request, folder: str) -> Survey:
    """Return the survey of the image that a request names, whose files are read into an empty folder.

    Raises UnhangError as ``opened`` and ``verdicts.survey`` do, and OSError.
    """
    assert request.image is not None
    path = os.path.abspath(request.image)
    beside = sorted(catalog.packages(catalog.fix(name) for name in request.fixes))
    try:
        image = opened(path, folder, beside)
    except UnhangError as error:
        error.path = error.path or path
        raise
    told = _teller(image.root)
    try:
        with as_in(image):
            found = _surveyed(image, request, beside, Environment(None, path, "--image"))
    except UnhangError as error:
        raise UnhangError(error.code, told(error.message), path=told(error.path), hint=told(error.hint)) from None
    return found._replace(search=told(found.search), findings=tuple(map(told, map(_settled, found.findings))))


def _settled(finding: Finding) -> Finding:
    """Return the finding with the place of its file, which nobody can look up once it is told."""
    return finding._replace(seen=finding.seen._replace(real=finding.seen.place))


def _surveyed(image: Image, request: Request, beside: list[str], place: Environment) -> Survey:
    findings: list[Finding] = []
    searches: list[Search] = []
    seen: set[tuple[str, str]] = set()
    interrupted = False
    warnings = [*image.config.notes]
    for one, asked in _asked(image, request, beside, searches, warnings):
        search = find_in(one, asked, image.cwd)
        searches.append(search)
        new = [it for it in search.installations if (it.upstream, os.path.realpath(it.package_dir)) not in seen]
        seen |= {(it.upstream, os.path.realpath(it.package_dir)) for it in new}
        if new:
            found = again(search._replace(installations=tuple(new)), asked)
            findings += found.findings
            interrupted = interrupted or found.interrupted
            warnings += found.search.warnings
        else:
            warnings += search.warnings
    path = dict.fromkeys(folder for search in searches for folder in search.path)
    warnings += _not_imported(image, request, searches)
    whole = Search(place, (), tuple(dict.fromkeys(warnings)), path=tuple(path))
    if not findings and not request.allow_none:
        raise nothing_found(whole, request)
    return Survey(whole, (), tuple(findings), interrupted)


def _asked(
    image: Image, request: Request, beside: list[str], searches: list[Search], warnings: list[str]
) -> Iterator[tuple[Environment, Request]]:
    """Yield the environments, each with the request whose commands are about it, and then the folders of no search."""
    if request.target or request.source:
        if request.target:
            yield for_target(image.inside(request.target)), request._replace(target=image.inside(request.target))
        else:
            folder = image.inside(str(request.source))
            yield for_source(folder), request._replace(source=folder)
        return
    found, unread = environments(image, [*packs.modules(), *beside], request.python)
    warnings += unread
    for one in found:
        yield one, request._replace(python=one.python)
    if request.python:
        return
    searched = {os.path.realpath(folder) for search in searches for folder in search.path}
    for folder in dict.fromkeys(map(os.path.realpath, sites(image))):
        if folder not in searched:
            yield for_target(folder), request._replace(target=folder)


def _not_imported(image: Image, request: Request, searches: list[Search]) -> Iterator[str]:
    """Yield a sentence on the copies of the upstreams that no environment imports."""
    known = {os.path.realpath(copy) for search in searches for it in search.installations for copy in _copies(it)}
    found: dict[str, None] = {}
    for module in (it.module for it in packs.upstreams().values() if request.is_about(it.name)):
        tail = os.path.join("", *module.split("."))
        for folder in image.folders:
            is_it = folder.endswith(f"/{tail}") and answers.is_framework(module, folder)
            if is_it and os.path.realpath(folder) not in known:
                found[folder.removesuffix(f"/{tail}")] = None
    for root in found:
        yield f"no environment of the image imports the copy in {root}, which is not judged: --source names it"


def _copies(installation: Any) -> tuple[str, ...]:
    return installation.package_dir, *installation.shadowed


def _teller(root: str) -> Callable[[_T], _T]:
    """Return what makes paths below a folder those of the image, in a text or a record."""
    below = re.compile(re.escape(root) + r"(/?)")

    def told(value: Any) -> Any:
        if isinstance(value, Hint):
            return Hint(*map(told, value.parts))
        if isinstance(value, str):
            return type(value)(below.sub("/", value)) if root in value else value
        if isinstance(value, Target):
            return value
        if isinstance(value, tuple):
            parts = map(told, value)
            return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
        return value

    return cast("Callable[[_T], _T]", told)
