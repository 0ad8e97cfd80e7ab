"""Where a pinned package comes from, if not from an index: a commit, an archive, a wheel or a folder."""

from __future__ import annotations

import re

from unhang.pins.values import LONGEST
from unhang.records import Pin, normal

_COMMIT = "[0-9a-f]{7,64}"
_ARCHIVE = r"(https?://[^/?#]+/[^/?#]+/[^/?#]+)/archive/(?:refs/(?:tags|heads)/)?([^?#]+?)(?:\.tar\.gz|\.tgz|\.zip)"


def of_git(pin: Pin, url: str, ref: str = "", commit: str = "") -> Pin:
    """Return the pin of a repository, at a commit if one is known.

    ``url`` may be as pip has it, ``git+https://.../verl@v0.7.1``, or as uv has it, ``https://.../verl?tag=v0.7.1#COMMIT``.
    """
    repository, _, fragment = _masked(url.removeprefix("git+")).partition("#")
    repository, _, query = repository.partition("?")
    asked = re.search(r"(?:^|&)(?:tag|rev|branch)=([^&]*)", query)
    head, at, last = repository.rpartition("@")
    if at and "/" in head.partition("://")[2]:  # else it is the user's name: git@host
        repository, ref = head, ref or last
    ref = ref or (unquoted(asked[1]) if asked else "")
    commit = commit or (fragment if "=" not in fragment else "")
    if not re.fullmatch(_COMMIT, commit):
        ref, commit = ref or commit, ""
    if not commit and re.fullmatch(_COMMIT, ref):
        ref, commit = "", ref
    return pin._replace(repository=repository, ref=ref, commit=commit)


def of_url(pin: Pin, url: str) -> Pin:
    """Return the pin of what a URL or a path leads to: an archive of a repository, a wheel, an sdist or a folder."""
    if url.startswith("git+"):
        return of_git(pin, url)
    plain = url.partition("#")[0].partition("?")[0].removeprefix("file://")
    if found := re.fullmatch(_ARCHIVE, plain):
        return of_git(pin, found[1], found[2])
    return pin._replace(source=_masked(plain), version=pin.version or version(plain))


def unquoted(text: str) -> str:
    """Return a part of a URL without its escapes."""
    if "%" not in text:
        return text
    from urllib.parse import unquote  # slow to import

    return unquote(text)


def version(file: str) -> str:
    """Return the version in the name of a wheel or an sdist; empty if it has none."""
    name = unquoted(_name(file))
    wheel = re.fullmatch(r"[^-]+-([^-]+)-.+\.whl", name)
    sdist = re.fullmatch(r".+-([^-]+?)(?:\.tar\.gz|\.zip)", name)
    return wheel[1] if wheel else sdist[1] if sdist else ""


def distribution(file: str) -> str:
    """Return the name that a wheel or an sdist has in its file name; empty if it has none."""
    name = _name(file)
    found = re.fullmatch(r"(.+?)-\d[^-]*(?:-.+\.whl|\.tar\.gz|\.zip)", name)
    return normal(found[1]) if found else ""


def _name(file: str) -> str:
    name = file.rpartition("/")[2]
    return name if len(name) < LONGEST else ""


def _masked(url: str) -> str:
    """Return a URL without a password in it: a log must not get one."""
    return re.sub(r"^(https?://)[^/@]*@", r"\1****@", url)
