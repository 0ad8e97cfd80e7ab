"""The packs that are installed beside unhang: those of the entry point group ``unhang.packs``, none of them imported.

The environment's folders are read once, and again when one of them changes: what was found is kept in the user's cache.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

GROUP = "unhang.packs"
_RACY_S = 3
"""A folder that changed so shortly ago may change again with the same time."""
_LARGEST = 1 << 20  # bytes of an entry_points.txt, or of what is kept


def folders(environ: Mapping[str, str]) -> list[str]:
    """Return the folders of the packs that are installed where unhang runs. Raises nothing."""
    sites = _sites()
    times = {site: time for site in sites if (time := _time(site)) is not None}
    path = _kept_in(environ, [*times])
    kept = _kept(path, times)
    if kept is not None:
        return kept
    found = [folder for site in times for folder in _in_site(site)]
    _keep(path, times, found)
    return found


def _sites() -> list[str]:
    """Return the folders of this environment that hold distributions; none of PYTHONPATH, and not the user's own."""
    prefixes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = [
        entry for entry in sys.path
        if os.path.basename(entry) in ("site-packages", "dist-packages") and entry.startswith(prefixes)
    ]  # fmt: skip
    return list(dict.fromkeys([*own, here]))


def _in_site(site: str) -> Iterator[str]:
    """Yield the folders of the packs whose distributions are in a site-packages folder."""
    for name in sorted(_names(site)):
        if name.endswith(".dist-info"):
            for module in modules(_text(os.path.join(site, name, "entry_points.txt"))):
                yield _folder(site, module)


def modules(text: str) -> list[str]:
    """Return the modules that an entry_points.txt names for the group. Pure."""
    found, is_in = [], False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            is_in = line == f"[{GROUP}]"
        elif is_in and "=" in line and not line.startswith(("#", ";")):
            module = line.partition("=")[2].partition(":")[0].partition("[")[0].strip()
            if all(map(str.isidentifier, module.split("."))):
                found.append(module)
    return found


def _folder(site: str, module: str) -> str:
    """Return the folder of a module, which is not imported; where there is none, that which it should be in."""
    top, *below = module.split(".")
    beside = os.path.join(site, top, *below)
    if os.path.isdir(beside):
        return beside
    import importlib.util  # an editable install

    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # whatever somebody's finder raises
        return beside
    places = spec.submodule_search_locations if spec else None
    return next((os.path.join(place, *below) for place in places or ()), beside)


def _kept_in(environ: Mapping[str, str], sites: Sequence[str]) -> str:
    """Return the file in which what was found in these folders is kept."""
    from hashlib import sha256

    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    name = sha256(os.pathsep.join(sites).encode(errors="replace")).hexdigest()[:16]
    return os.path.join(cache, "unhang", f"packs-{name}.json")


def _kept(path: str, times: Mapping[str, int]) -> list[str] | None:
    """Return what is kept of folders with these times; None if nothing is, or others may have written it."""
    import json

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not is_ours or not stat.S_ISREG(status.st_mode):
            return None
        kept: Any = json.loads(os.read(descriptor, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    if not isinstance(kept, dict) or kept.get("times") != times or not isinstance(kept.get("packs"), list):
        return None
    return [folder for folder in kept["packs"] if isinstance(folder, str)]


def _keep(path: str, times: Mapping[str, int], found: Sequence[str]) -> None:
    """Keep what was found, if that can be done, and if no folder is still changing."""
    import json
    import time

    newest = max(times.values(), default=0)
    if sys.dont_write_bytecode or not times or time.time_ns() - newest < _RACY_S * 10**9:
        return  # who wants no bytecode written, as in an image, wants this no more
    draft = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"times": times, "packs": found}, file)
        os.replace(draft, path)
    except (OSError, ValueError):
        return


def _time(folder: str) -> int | None:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
