"""What `nox -s proofs` needs of a fix: its releases, and the variants that its proof must fail on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from support import sources, wheels
from unhang.compat.sweep import as_written as pull_request
from unhang.errors import UnhangError
from unhang.prove.cases import Case

Change = Callable[[str, bytes, bytes], bytes]
"""Makes a file of a variant from its path, the untouched file and the patched one."""


class Other(NamedTuple):
    """A third variant of the source: half of the patch, or a pull request as written."""

    change: Change
    fails: tuple[str, ...]
    """The cases that must fail on it."""
    ends: str = ""
    """What each outcome must match: its status, a colon and its detail."""
    only: tuple[str, ...] = ()
    """The versions that can have this variant; all of them if empty."""


class Release(NamedTuple):
    """A release that a proof runs on."""

    version: str
    """Of an upstream; or a commit or tag of its source tree, if ``cases`` are given."""
    beside: tuple[tuple[str, str], ...] = ()
    """Project and version of the other upstreams that it imports, untouched."""
    core: bool = False
    """Whether the core cases of this release belong to the core set."""
    lacking: Mapping[str, str] = {}
    """The cases and variants that cannot run on it, and why."""
    otherwise: Mapping[str, tuple[str, str]] = {}
    """By case: how the untouched source ends here, and what its outcome must name."""
    cases: tuple[Case, ...] = ()
    """The cases of a source tree."""


class Proofs(NamedTuple):
    """The proofs of a fix in one upstream. A fix's test module has a list of these: ``PROOFS``."""

    upstream: str
    releases: Sequence[Release]
    others: Mapping[str, Other] = {}
    """The variants that must fail, by name."""


def without(old: str, new: str, count: int = 1) -> Change:
    """Replace the first ``count`` matches of ``old`` in our patch, from its comment on; with 0 all of them."""

    def change(path: str, before: bytes, after: bytes) -> bytes:
        head, marker, patch = after.decode().partition("# unhang ")
        mutated, found = re.subn(old, new, patch, count=count)
        assert found == (count or max(found, 1)), f"{old} is {found} times in {patch[:200]}"
        return f"{head}{marker}{mutated}".encode()

    return change


def untouched(path: str, before: bytes, after: bytes) -> bytes:
    """Leave a file as it is."""
    return before


def in_file(name: str, change: Change) -> Change:
    """Change the file of this name alone; the other files of the fix are patched."""
    return lambda path, before, after: change(path, before, after) if path.endswith(f"/{name}") else after


def as_written(fix: str) -> Change:
    """Apply what the fix's pull request changes of a file, from a clone of its upstream, to the untouched file."""

    def change(path: str, before: bytes, after: bytes) -> bytes:
        data: bytes | None = before
        for pull in (pull for pull in sources.pull_requests(fix) if pull.target.file == path):
            data = data and pull_request.applied(sources.pull_request_diff(pull), data)
        assert data, "the pull request does not apply"
        return data

    return change


def need_pull_request(fix: str) -> None:
    """Skip the test where no clone is named; fail it, in one line, where the clone cannot be read."""
    for pull in sources.pull_requests(fix):
        wheels.clone(pull.project)
    if why := unreadable(fix):
        pytest.fail(why, pytrace=False)


@cache
def unreadable(fix: str) -> str:
    """Return why a pull request of a fix cannot be read from a clone; empty where it can."""
    for pull in sources.pull_requests(fix):
        variable = wheels.CLONES[pull.project]
        if not os.environ.get(variable):
            return f"{variable} names no clone"
        try:
            sources.pull_request_diff(pull)
        except UnhangError as error:
            return f"{variable}: {error.message}"
    return ""


AS_WRITTEN = "pull request as written"
"""The name of every variant that needs a clone."""
