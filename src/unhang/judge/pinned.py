"""The verdicts of all fixes on what a lock file pins: those of the matrix, on an untouched copy of each release."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from unhang.find import answers
from unhang.judge import elsewhere, matrix, untouched
from unhang.judge.decide import NEEDED, NO_REWRITE, UNLISTED, Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import Observation
from unhang.plugins import packs
from unhang.records import Installation, Names, Pin, Upstream, normal
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target
from unhang.suggest import Command, Hint, line

BY_RELEASE = "by-release"
"""The code of a verdict on an untouched copy of the release that a lock file pins: nobody has read that code."""
_GITHUB = r"(?:(?:https?|ssh|git)://(?:[^/@]*@)?github\.com/|git@github\.com:)([\w.-]+/[\w.-]+?)(?:\.git)?/?"
_URL = r"(?:https?|ssh|git)://[^\s/].*|[\w.-]+@[\w.-]+:.+"


class _Known(NamedTuple):
    """Which release of the matrix a pin is."""

    release: str
    """Its version; empty if it is none."""
    why: str = ""
    """Why it is none."""
    hint: str = ""
    tag: str = ""
    """The tag that its commit has."""


def in_folder(folder: str) -> str:
    """Return the distribution that is built from a folder with an upstream's code; empty if it has none."""
    for one in packs.upstreams().values():
        top = os.path.join(folder, one.about.get("folder", ""))
        if answers.is_framework(one.module, answers.folder(top, one.module)):
            return normal(one.distribution)
    return ""


def names() -> Names:
    """Return the names of the distributions that hold upstreams, and of the repositories that they are built from."""
    found = {name: name for name in (normal(one.distribution) for one in packs.upstreams().values())}
    distributions = frozenset(found)
    for one in packs.upstreams().values():
        for repository in filter(None, (one.about.get("repository"), *one.about.get("formerly", ()))):
            found.setdefault(normal(repository.rpartition("/")[2]), normal(one.distribution))
    return Names(distributions, found)


def judge(path: str, pins: Iterable[Pin], fixes: Sequence[Fix]) -> list[Finding]:
    """Return the verdict of every fix on every upstream that a file pins, for each target of the fix."""
    return [
        Finding(place, target, Observation(path, None, line=pin.line), _verdict(fix, target, known))
        for pin in pins
        for place, known in _places(path, pin)
        for fix in fixes
        for target in fix.targets
        if target.upstream == place.upstream
    ]


def release(pin: Pin) -> str:
    """Return the release of the matrix that a pin is; empty if it is none."""
    return _by_git(pin).release if pin.repository else _by_version(project(pin.distribution).name, pin, "").release


def held(distribution: str, version: str) -> list[str]:
    """Return the names of the upstreams that a release of a distribution holds."""
    return [
        one.name
        for one in packs.upstreams().values()
        if normal(one.distribution) == distribution
        and (one.within is None or _is_from(version, one.about.get("in-wheels-from", "0")))
    ]


def on_record(upstream: str, version: str) -> str:
    """Return how the matrix writes a release of an upstream, given in any form of PEP 440; empty if it has none."""
    versions = catalog.versions(upstream)
    wanted = _parsed(version)
    if version in versions or wanted is None:
        return version if version in versions else ""
    return next((name for name in versions if matrix.parsed(name) == wanted), "")


def _places(path: str, pin: Pin) -> Iterator[tuple[Installation, _Known]]:
    by_git = _by_git(pin) if pin.repository else None
    version = by_git.release or pin.version if by_git else pin.version
    pin = pin._replace(ref=by_git.tag) if by_git and by_git.tag else pin
    for one in held(pin.distribution, version):
        known = by_git or _by_version(one, pin, path)
        yield Installation(one, version or None, path, path, os.path.join(path, ""), "lock", None, (), pin), known


def _verdict(fix: Fix, target: Target, known: _Known) -> Verdict:
    release = catalog.releases_of(fix.id, target.upstream).get(known.release) if known.release else None
    if release is None:
        why = known.why or f"nobody has read release {known.release} for this fix"
        return Verdict(UNLISTED, BY_RELEASE, why, known.hint)
    table = catalog.shape_table()
    word, shape = untouched.of_target(fix, target, release, table), untouched.known_shape(target, release, table)
    if word == NEEDED and shape is None and (copies := untouched.copies(fix, target.upstream, release)):
        return elsewhere.copied(fix.id, copies)
    if word == NEEDED and shape is not None and shape.state == NO_REWRITE:
        return Verdict(word, NO_REWRITE, "there is no rewrite for this release", target.workaround)
    why = "this release was yanked from the index" if release.yanked else ""
    return Verdict(word, BY_RELEASE, why, Hint(Command("apply")) if word == NEEDED else "")


def _by_version(upstream: str, pin: Pin, path: str) -> _Known:
    """Return which release a pin without a commit is: its version says it, unless somebody has built it himself."""
    if "://" in pin.source and not pin.version:
        return _Known("", "it comes from a URL that has no version in its name", _installed())
    if pin.source and not pin.source.endswith((".whl", ".zip", ".tar.gz")):
        folder = os.path.join(os.path.dirname(path), pin.source)
        return _Known("", "it comes from a folder that may hold any code", Hint(Command("check", ("--source", folder))))
    if not pin.version:
        allowed = f"no version is pinned{f', {pin.ref} is allowed' if pin.ref else ''}"
        if pin.ref.startswith("$"):
            allowed = f"its version is in a variable, {pin.ref}, which this file does not set"
        return _Known("", allowed, "lock it, with `uv lock` or `pip-compile`, or check the environment")
    if found := on_record(upstream, pin.version):
        return _Known(found)
    wanted = _parsed(pin.version)
    if wanted is None:
        return _Known("", f"{pin.version} is no version of PEP 440", _installed())
    if wanted.local is not None:
        why = f"{pin.version} is somebody's build of {wanted.public}, whose code may differ"
        return _Known("", why, _installed())
    ordered = sorted(filter(None, map(_parsed, catalog.versions(upstream))))
    if not ordered or ordered[0] < wanted < ordered[-1]:
        return _Known("", f"{pin.version} is no release that the matrix has", _installed())
    beyond = "newer" if wanted > ordered[-1] else "older"
    return _Known("", f"{pin.version} is {beyond} than every release in the matrix", _installed())


def _by_git(pin: Pin) -> _Known:
    """Return which release a commit or a tag is.

    A whole commit is the same in each clone. The beginning of one, and a tag, count in upstream's own repository; a tag
    beside a commit only if nobody has read what the tag was.
    """
    one = project(pin.distribution)
    is_own, tags = _is_upstreams(one, pin.repository), catalog.tags(one.name)
    names = [tag for tag, commit in tags.items() if pin.commit and _is_commit(commit, pin.commit, is_own)]
    if is_own and not names and not (pin.commit and pin.ref in tags):
        names = [pin.ref]
    prefix = one.about.get("tree-tags", "v")
    versions = {tag: on_record(one.name, tag.removeprefix(prefix)) for tag in names if tag.startswith(prefix)}
    found = [(version, tag) for tag, version in versions.items() if version]
    if found:
        version, tag = max(found, key=lambda it: matrix.parsed(it[0]))
        return _Known(version, tag=tag)
    what = pin.ref or "the newest commit"
    why = f"{what} may be any code: it is no tag of a release in upstream's own repository"
    if pin.commit:
        why = f"commit {pin.commit[:9]} is not known as that of a release's tag"
    if not re.fullmatch(_URL, pin.repository):
        return _Known("", why, Hint("check that commit out, then ", Command("check", ("--source", "DIR"))))
    folder, inside = pin.distribution, os.path.join(pin.distribution, pin.source)
    branch = [f"--branch={pin.ref}"] if pin.ref and not pin.commit else []
    get = line("git", "clone", *branch, "--", pin.repository, folder)
    if pin.commit:
        get += f" && {line('git', '-C', folder, 'checkout', '--detach', pin.commit)}"
    return _Known(
        "", why, Hint(f"to read that code: `{get}`, then ", Command("check", ("--source", inside.rstrip("/"))))
    )


def _is_commit(commit: str, given: str, is_own: bool) -> bool:
    return commit.startswith(given) if is_own else commit == given


def project(distribution: str) -> Upstream:
    """Return the upstream whose releases those of a distribution are."""
    found = (it for it in packs.upstreams().values() if normal(it.distribution) == distribution)
    return min(found, key=lambda it: it.within is not None)


def _is_upstreams(one: Upstream, repository: str) -> bool:
    """Return whether a URL leads to the upstream's own repository, under the name that it has or had."""
    found = re.fullmatch(_GITHUB, repository, re.IGNORECASE)
    own = (one.about.get("repository", ""), *one.about.get("formerly", ()))
    return found is not None and found[1].lower() in map(str.lower, own)


def _installed() -> Hint:
    return Hint("install it, then ", Command("check"))


def _is_from(version: str, first: str) -> bool:
    """Return whether a version is this one or a later one; True if nobody can tell."""
    mine = _parsed(version)
    return mine is None or mine >= matrix.parsed(first)


def _parsed(version: str) -> Version | None:
    try:
        return matrix.parsed(version) if len(version) < 200 else None  # Python takes no number of thousands of digits
    except InvalidVersion:
        return None
