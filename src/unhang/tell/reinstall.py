"""How to have the plain release back where no receipt has it, as far as the installer left on record."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from unhang.find.git_info import work_tree
from unhang.find.metadata import read
from unhang.records import Environment, Installation
from unhang.suggest import line
from unhang.tell.local_version import plain_version

_NAME = re.compile(r"([A-Za-z0-9][\w.]*)-(\d[\w.+!]*)\.dist-info", re.ASCII)
_URL = re.compile(r"(https?|file|ssh|git)://[!-~]+", re.ASCII)


def advice(place: Installation, environment: Environment, path: str) -> str:
    """Return what to do to have the plain file back: the command, or why there is none. Reads, and raises nothing.

    What is read may come from anyone: it is checked before it becomes a part of a command.
    """
    if place.record is None:
        return _of_checkout(place, path)
    dist_info = os.path.dirname(place.record)
    named = _NAME.fullmatch(os.path.basename(dist_info))
    if named is None:
        return _unknown(place)
    name, version = named[1].replace("_", "-"), named[2]
    prefix = os.path.join(os.path.realpath(environment.prefix), "")
    python = environment.python if place.real_root.startswith(prefix) else None
    installer = read(os.path.join(dist_info, "INSTALLER")).strip()
    plain = plain_version(version)
    if plain != version:
        command = _command(installer, name, f"{name}=={plain}", python, place.real_root)
        made = f"{name} {version} was installed from a wheel with the fixes in it (unhang wheel)"
        return f"{made}; install the plain release: {command}"
    if installer not in ("pip", "uv") or (installer == "pip" and python is None and _is_shared(place)):
        by = f"{installer} installed it" if installer.isalnum() else "nothing says what installed it"
        return f"{by}: reinstall {name} {version} the same way"
    origin = read(os.path.join(dist_info, "direct_url.json"))
    source = _source(origin) if origin else f"{name}=={version}"
    if source is None:
        return _unknown(place)
    command = _command(installer, name, source, python, place.real_root)
    if not source.startswith("file://"):
        return f"install the plain release: {command}"
    local = unquote(source.removeprefix("file://").partition("#")[0])
    if not os.path.exists(local):
        return f"it was installed from {local}, which is gone: reinstall {name} {version} from where that came from"
    return f"it was installed from {local}; if that is not patched itself: {command}"


def _of_checkout(place: Installation, path: str) -> str:
    is_site = os.path.basename(place.real_root) in ("site-packages", "dist-packages")  # it may be in a project's folder
    top = None if is_site else work_tree(place.real_root)
    if top is None:
        return _unknown(place)
    # What HEAD has is compressed in git's objects, which we do not read: only git can tell what else was changed.
    differs, back, commits = (
        line("git", "-C", top, *words, "--", os.path.relpath(path, top))
        for words in (["diff", "HEAD"], ["checkout", "HEAD"], ["log", "--oneline", "-S# unhang "])
    )
    return (
        f"see what was changed: {differs}; only if that shows our rewrite and nothing else: {back}; "
        f"if it shows nothing, the rewrite is committed, by one of these: {commits}"
    )


def _unknown(place: Installation) -> str:
    release = f"{place.upstream} {place.version}" if place.version else place.upstream
    return f"nothing says where this {release} came from: reinstall it the way it was installed"


def _source(origin: str) -> str | None:
    """Return the URL of a direct install, as pip and uv take it; None if it is none. ``origin`` is direct_url.json."""
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(origin)
    url, vcs, archive, folder = (_get(found, key) for key in ("url", "vcs_info", "archive_info", "subdirectory"))
    if not isinstance(url, str):
        return None
    commit, sha256 = _get(vcs, "commit_id"), _get(_get(archive, "hashes"), "sha256")
    if vcs is not None:
        url = f"{_get(vcs, 'vcs')}+{url}@{commit}" if _get(vcs, "vcs") == "git" and _is_hex(commit) else ""
    fragment = f"subdirectory={folder}" if isinstance(folder, str) else f"sha256={sha256}" if _is_hex(sha256) else ""
    url = f"{url}#{fragment}" if fragment and "#" not in url else url
    return url if _URL.fullmatch(url.removeprefix("git+")) else None


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{40,64}", text) is not None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _is_shared(place: Installation) -> bool:
    """Return whether the top folder has more than RECORD lists: `pip install --target` would delete all of it."""
    top = os.path.relpath(place.package_dir, place.root).split(os.sep)[0] + "/"
    rows = (row.partition(",")[0] for row in read(place.record or "").splitlines())
    listed = {name.split("/")[1] for name in rows if name.startswith(top)}
    try:
        return not set(os.listdir(os.path.join(place.root, top))) <= listed | {"__pycache__"}
    except OSError:
        return True


def _command(installer: str, name: str, source: str, python: str | None, root: str) -> str:
    """Return the command that installs this again over what is there, in the very folder where it is."""
    if installer == "uv":
        where = ("--python", python) if python else ("--target", root)
        return line("uv", "pip", "install", *where, "--no-deps", "--reinstall-package", name, source)
    if python:
        return line("pip", "--python", python, "install", "--force-reinstall", "--no-deps", source)
    return line("pip", "install", "--target", root, "--upgrade", "--no-deps", source)
