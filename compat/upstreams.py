"""The upstreams as projects: on the package index, and as repositories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unhang.plugins import packs


def projects() -> Mapping[str, Mapping[str, Any]]:
    """Return what is known of each upstream that is a project of its own, by name."""
    return {one.name: one.about for one in packs.upstreams().values() if one.within is None and "floor" in one.about}


def of_project(project: str, held: Collection[str] | None = None) -> list[str]:
    """Return the upstreams that a project's clone holds, or one of its wheels.

    A project may hold other upstreams than its own; ``held`` are the names of those that a wheel has, for not every
    release has all of them.
    """
    others = (one.name for one in packs.upstreams().values() if one.within == project)
    return [project, *(name for name in others if held is None or name in held)]


def held(files: Collection[str]) -> list[str]:
    """Return the upstreams that are in others' wheels and have one of these files."""
    starts = {one.name: "/".join([*one.parts, ""]) for one in packs.upstreams().values() if one.within is not None}
    return [name for name, start in starts.items() if any(file.startswith(start) for file in files)]


def of_file(project: str, file: str) -> str:
    """Return the upstream of a file in a project's wheel: that whose package it is in, else the project's own."""
    known = packs.upstreams()
    names = (name for name in of_project(project) if file.startswith("/".join([*known[name].parts, ""])))
    return next(names, project)
