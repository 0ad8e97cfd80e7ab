"""Where a pinned package comes from, if not from an index: a commit, an archive, a wheel or a folder."""

from __future__ import annotations

import re

from unhang.pins.values import LONGEST
from unhang.records import Names, Pin, normal

_COMMIT = "[0-9a-f]{7,64}"
_OTHERS = r"(?:hg|svn|bzr)\+.*"
_ARCHIVE = r"(https?://[^/?#]+/[^/?#]+/[^/?#]+)/archive/(?:refs/(?:tags|heads)/)?([^?#]+?)(?:\.tar\.gz|\.tgz|\.zip)"


def of_git(pin: Pin, url: str, ref: str = "", commit: str = "", folder: str = "") -> Pin:
    """Return the pin of a repository, at a commit if one is known, and of the folder of it that has the package.

    ``url`` may be as pip has it, ``git+https://.../verl@v0.7.1``, or as uv has it, ``https://.../verl?tag=v0.7.1#COMMIT``.
    """
    repository, _, fragment = _masked(url.removeprefix("git+")).partition("#")
    repository, _, query = repository.partition("?")
    asked = dict(part.partition("=")[::2] for part in (query + "&" * bool(query) + fragment).split("&") if "=" in part)
    head, at, last = repository.rpartition("@")
    if at and "/" in head.partition("://")[2]:  # else it is the user's name: git@host
        repository, ref = head, ref or last
    ref = ref or unquoted(next((asked[key] for key in ("tag", "rev", "branch") if key in asked), ""))
    folder = (folder or unquoted(asked.get("subdirectory", ""))).strip("/")
    commit = commit or (fragment if "=" not in fragment else "")
    if not re.fullmatch(_COMMIT, commit):
        ref, commit = ref or commit, ""
    if not commit and re.fullmatch(_COMMIT, ref):
        ref, commit = "", ref
    return pin._replace(repository=repository, ref=ref, commit=commit, source=folder)


def of_url(pin: Pin, url: str) -> Pin:
    """Return the pin of what a URL or a path leads to: an archive of a repository, a wheel, an sdist or a folder."""
    if url.startswith("git+") or re.fullmatch(_OTHERS, url):
        return of_git(pin, url)
    plain, _, fragment = url.partition("#")
    plain = plain.partition("?")[0]
    if plain.startswith("file:"):
        plain = unquoted(re.sub("^file:(?://(?:localhost)?(?=/))?", "", plain))
    if found := re.fullmatch(_ARCHIVE, plain):
        return of_git(pin, f"{found[1]}#{fragment}", found[2])
    return pin._replace(source=_masked(plain), version=pin.version or version(plain))


def known(pin: Pin, names: Names) -> Pin | None:
    """Return the pin of a distribution that is looked for; None for another.

    A fork may have a name of its own, so what is built from a repository of a known name is that distribution.
    """
    if pin.distribution in names.distributions:
        return pin
    built = of_checkout(pin, names) if pin.repository else ""
    return pin._replace(distribution=built) if built else None


def of_checkout(pin: Pin, names: Names) -> str:
    """Return the distribution that is built from a repository, or from a folder of it; empty if no name tells."""
    last = re.split("[/:]", (pin.source or pin.repository).rstrip("/"))[-1]
    return names.checkouts.get(normal(last.removesuffix(".git")), "")


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
