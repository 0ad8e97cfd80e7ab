"""The commits that the sweep reads, by id, and no newer ones.

Those of branches and tags are in ``compat/swept.json``, those of a fix's pull requests in its file in ``compat/data``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from unhang.compat.sweep import as_written
from unhang.compat.sweep.clones import Clone
from unhang.shapes import facts

NAME = "swept.json"


def read(compat: Path) -> dict[str, dict[str, str]]:
    """Return the commit of each branch, tag and pull request, by upstream and ref. Raises as ``facts.read``."""
    found = {name: {**refs} for name, refs in branches(compat).items()}
    for pull in as_written.pulls():
        commits = facts.known(os.path.join(compat, "data", f"{pull.target.fix}.json")).get("pulls", {})
        if pull.ref in commits:
            found.setdefault(pull.project, {})[pull.ref] = commits[pull.ref]
    return found


def branches(compat: Path) -> dict[str, Mapping[str, str]]:
    """Return the commit of each branch and tag, by upstream and ref; nothing if there is no list yet."""
    found: dict[str, Mapping[str, str]] = facts.known(os.path.join(compat, NAME)).get("swept", {})
    return found


def moved(before: Mapping[str, Mapping[str, str]], opened: Mapping[str, Clone]) -> dict[str, Mapping[str, str]]:
    """Return the branches and tags with what these clones have now. Pure."""
    return {**before, **{name: clone.refs for name, clone in opened.items()}}
