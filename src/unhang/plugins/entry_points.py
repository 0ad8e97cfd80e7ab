"""The packs that are installed beside unhang: those of the entry point group ``unhang.packs``, none of them imported.

The environment's folders are read once, and again when one of them changes: the modules that were found are kept in the
user's cache, not where these are.
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
    times = {site: time for site in _sites() if (time := _time(site)) is not None}
    path = _kept_in(environ, [*times])
    found = _kept(path, times)
    if found is None:
        found = [(site, module) for site in times for module in _in_site(site)]
        _keep(path, times, found)
    return [_folder(site, module) for site, module in found]


def _sites() -> list[str]:
    """Return the folders of this environment that hold distributions, and that of unhang itself.

    None of PYTHONPATH, and not the user's own: unless unhang is there, for who can write there can write unhang.
    """
    import site  # Python has loaded it

    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return list(dict.fromkeys([*site.getsitepackages(), here]))


def _in_site(site: str) -> Iterator[str]:
    """Yield the modules of the packs whose distributions are in a site-packages folder."""
    for name in sorted(_names(site)):
        if name.endswith(".dist-info"):
            yield from modules(_text(os.path.join(site, name, "entry_points.txt")))


def modules(text: str) -> list[str]:
    """Return the modules that an entry_points.txt names for the group. Pure."""
    found, is_in = [], False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            is_in = line == f"[{GROUP}]"
        elif is_in and "=" in line and not line.startswith(("#", ";")):
            module = line.partition("=")[2].partition(":")[0].partition("[")[0].strip()
            if _is_module(module):
                found.append(module)
    return found


def _is_module(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))


def _folder(site: str, module: str) -> str:
    """Return the folder of a module, which is not imported; where there is none, that which it should be in."""
    top, *below = module.split(".")
    beside = os.path.join(site, top, *below)
    if os.path.isdir(beside):
        return beside
    places = _places(site, top)  # of an editable install
    return next((os.path.join(place, *below) for place in places), beside)


def _places(site: str, top: str) -> list[str]:
    """Return where the modules of a package are, as an import finds it in this environment alone."""
    saved = sys.path[:]
    sys.path[:] = [*_path(site), *(entry for entry in saved if entry.startswith("__editable__."))]  # of a finder
    try:
        for finder in sys.meta_path:
            try:
                spec = finder.find_spec(top, None)
            except Exception:  # whatever somebody's finder raises
                continue
            if spec:
                return list(spec.submodule_search_locations or ())
    finally:
        sys.path[:] = saved
    return []


def _path(site: str) -> list[str]:
    """Return a site-packages folder and those that its .pth files put on the path."""
    files = (os.path.join(site, name) for name in sorted(_names(site)) if name.endswith(".pth"))
    lines = (line.rstrip() for file in files for line in _text(file).splitlines())
    entries = (line for line in lines if line and not line.startswith(("#", "import ", "import\t")))
    return list(dict.fromkeys([site, *(os.path.abspath(os.path.join(site, entry)) for entry in entries)]))


def _kept_in(environ: Mapping[str, str], sites: Sequence[str]) -> str:
    """Return the file in which what was found in these folders is kept; empty if there is no place for it."""
    from hashlib import sha256

    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    name = sha256(os.pathsep.join(sites).encode(errors="replace")).hexdigest()[:16]
    return os.path.join(cache, "unhang", "packs", f"{name}.json") if os.path.isabs(cache) else ""


def _is_private(path: str) -> bool:
    """Return whether a folder is the user's, whom nobody else can follow there."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _kept(path: str, times: Mapping[str, int]) -> list[tuple[str, str]] | None:
    """Return what is kept of folders with these times; None if nothing is, or others may have written it."""
    import json

    if not path or not _is_private(os.path.dirname(path)):
        return None
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
        if kept["times"] != times:
            return None
        found = [(site, module) for site, module in kept["packs"] if site in times and _is_module(module)]
    except (OSError, ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return None
    finally:
        os.close(descriptor)
    return found


def _keep(path: str, times: Mapping[str, int], found: Sequence[tuple[str, str]]) -> None:
    """Keep what was found, if that can be done, and if no folder is still changing."""
    import json
    import time

    newest = max(times.values(), default=0)
    if not path or sys.dont_write_bytecode or not times or time.time_ns() - newest < _RACY_S * 10**9:
        return  # who wants no bytecode written, as in an image, wants this no more
    folder, draft = os.path.dirname(path), f"{path}.{os.getpid()}"
    try:
        if not os.path.lexists(folder) and _is_of_the_user(folder):
            os.makedirs(folder, mode=0o700)
        if not _is_private(folder):
            return
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"times": times, "packs": found}, file)
        os.replace(draft, path)
    except (OSError, ValueError):
        return


def _is_of_the_user(path: str) -> bool:
    """Return whether the nearest folder above a path that is there is the user's: root makes none in others' homes."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_uid == os.geteuid()


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
