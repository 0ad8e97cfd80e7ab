"""The packs in effect: where fixes and upstreams come from. Ours is the first; a person names every other one.

A pack is code: its codemods run in this process. So nothing that lies in the working directory or in what is searched
makes one count, only ``--pack``, ``UNHANG_PACKS``, and what is installed beside unhang itself.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from functools import cache

from unhang import __version__
from unhang.errors import UnhangError, told
from unhang.plugins import entry_points
from unhang.records import Pack, Upstream

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from functools import _lru_cache_wrapper
    from typing import Any, TypeVar

    _Value = TypeVar("_Value")

OURS = Pack("unhang", __version__, "")
PREFIX = "unhang_pack_"
"""How the names of the modules of packs begin: see ``pack_modules``."""
LARGEST = 16 << 20
"""Bytes of a file of a pack; ours have less than one million."""
_WITHOUT = "leave it out: drop its --pack, or pass --no-packs"
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_effective: tuple[Pack, ...] = (OURS,)
_words: tuple[str, ...] = ()
_remembered: list[_lru_cache_wrapper[Any]] = []


def remembered(function: Callable[..., _Value]) -> _lru_cache_wrapper[_Value]:
    """Return the function with a cache, which is emptied when other packs are in effect."""
    found = cache(function)
    _remembered.append(found)
    return found


def in_effect() -> tuple[Pack, ...]:
    """Return the packs, ours first."""
    return _effective


def others() -> tuple[Pack, ...]:
    """Return the packs but ours."""
    return _effective[1:]


def words() -> tuple[str, ...]:
    """Return the options that name these packs, for commands that are suggested."""
    return _words


def use(named: Sequence[str], alone: bool, environ: Mapping[str, str]) -> None:
    """Let these packs be in effect: the folders ``named``, and what is in UNHANG_PACKS and installed beside unhang.

    ``alone`` leaves the latter two out. Raises UnhangError as ``load``, and ``pack-twice``.
    """
    global _effective, _words
    folders = [*named, *([] if alone else _of_environment(environ))]
    folders = list(dict.fromkeys(os.path.realpath(folder) for folder in folders))
    installed = (
        []
        if alone
        else [folder for folder in map(os.path.realpath, entry_points.folders(environ)) if folder not in folders]
    )
    given = [word for folder in folders for word in ("--pack", folder)]
    found = (OURS, *map(load, (*folders, *installed)))
    by_name: dict[str, Pack] = {}
    for pack in found:
        if other := by_name.get(pack.name):
            raise UnhangError(
                "pack-twice",
                f"two packs are called {pack.name}: {other.folder or 'the one of unhang itself'} and {pack.folder}",
                path=pack.folder,
                hint="name one of them alone: --no-packs --pack DIR",
            )
        by_name[pack.name] = pack
    if len(found) > 1 or found != _effective:  # the files of a pack may have changed
        for function in _remembered:
            function.cache_clear()
        for name in [name for name in sys.modules if name.startswith(PREFIX)]:
            del sys.modules[name]
    _effective, _words = found, (*(("--no-packs",) if alone else ()), *given)


def refuse_empty() -> None:
    """Raise UnhangError ``bad-pack`` for a pack without a fix: a gate that looks for nothing must not pass."""
    for pack in others():
        patches = part(pack, "patches")
        if not any(
            name[0] not in "._" and os.path.isdir(os.path.join(patches, name)) for name in listed(pack, patches)
        ):
            raise bad(patches, f"there is no fix of {pack}")


def load(folder: str) -> Pack:
    """Return the pack in a folder. Raises UnhangError ``no-pack``, ``bad-pack``, ``other-version``."""
    path = os.path.join(folder, "pack.json")
    if not os.path.lexists(path):
        hint = (
            "name the folder that has pack.json (`unhang pack new ID --pack DIR` begins one), or reinstall the pack; "
            "`unhang revert` works without it: drop its --pack, or pass --no-packs if UNHANG_PACKS names it"
        )
        raise UnhangError("no-pack", "there is no pack in this folder", path=folder, hint=hint)
    about = document(Pack("", "", folder), path, "pack")
    pack = Pack(about["name"], about["version"], folder)
    if not _is_in(__version__, about["requires-unhang"]):
        raise UnhangError(
            "other-version",
            f"{pack} is made for unhang {about['requires-unhang']}, and this is {__version__}",
            path=path,
            hint=f"install that unhang, or a later release of the pack; or {_WITHOUT}",
        )
    return pack


def document(pack: Pack, path: str, named: str) -> Any:
    """Return the document in a file of another's pack, which has the schema of this name.

    Raises UnhangError ``bad-pack``.
    """
    from unhang.plugins import checked  # most runs have our pack alone

    with Blamed(pack, path):
        return checked.parsed(read(path), schema(named))


class Blamed:
    """Within it, whatever is raised while a file or folder of another's pack is used is UnhangError ``bad-pack``.

    Only Ctrl-C goes through. What our own pack raises is a bug of unhang's, and stays as it is.
    """

    def __init__(self, pack: Pack, path: str) -> None:
        self._pack, self._path = pack, path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise UnhangError ``bad-pack`` for an error of the pack."""
        if error is None or not self._pack.folder or isinstance(error, (UnhangError, KeyboardInterrupt, GeneratorExit)):
            return
        why = error.strerror if isinstance(error, OSError) else str(error) if type(error) is ValueError else None
        raise bad(self._path, why or f"it cannot be used: {told(error)}") from error


def bad(path: str, why: str) -> UnhangError:
    """Return the error ``bad-pack`` for a file of a pack."""
    hint = f"mend the pack, or {_WITHOUT}"
    return UnhangError("bad-pack", f"this file of a pack is not as it must be: {why}", path=path, hint=hint)


@cache
def schema(name: str) -> Any:
    """Return a schema of ours."""
    import json

    return json.loads(read(os.path.join(folder("compat"), "schemas", f"{name}.json")))


def part(pack: Pack, name: str) -> str:
    """Return the folder of a part of a pack, which may not be there: ``patches``, ``compat``. Raises as ``folder``."""
    return os.path.join(pack.folder, name) if pack.folder else folder(name)


def folders(*names: str) -> list[str]:
    """Return the folders of a part of the packs but ours, as far as they are there."""
    places = (os.path.join(pack.folder, *names) for pack in others())
    return [place for place in places if os.path.isdir(place)]


def module(pack: Pack, room: str, fix: str) -> str:
    """Return the name of the module of a fix in a room of its pack, such as ``codemods``; it can be imported then.

    A pack's modules have names of their own, so that no two packs share one.
    """
    name = fix.replace("-", "_")
    if not pack.folder:
        return f"unhang.{room}.{name}"
    package = f"{PREFIX}{pack.name.replace('-', '_')}"
    if package not in sys.modules:
        from types import ModuleType

        from unhang.plugins import pack_modules

        pack_modules.find(PREFIX, read)
        made = ModuleType(package, f"The pack {pack.name}.")
        made.__path__ = [pack.folder]
        sys.modules[package] = made
    return f"{package}.{room}.{name}"


@remembered
def upstreams() -> Mapping[str, Upstream]:
    """Return the upstreams of all packs by name, in the order in which lists have them.

    Raises UnhangError ``bad-pack``, and ``upstream-twice`` where two packs have different ones of one name.
    """
    found: dict[str, Upstream] = {}
    taken: dict[str, tuple[Upstream, Pack]] = {}
    for pack in in_effect():
        for one in _upstreams(pack):
            for key in (one.name, one.module):
                other, of = taken.setdefault(key, (one, pack))
                if other != one:
                    raise UnhangError(
                        "upstream-twice",
                        f"{of} and {pack} have different upstreams for {key}",
                        path=os.path.join(pack.folder, "upstreams", f"{one.name}.json"),
                        hint="take one of the packs alone: --no-packs --pack DIR",
                    )
            found[one.name] = one
    return dict(sorted(found.items(), key=lambda item: (item[1].about.get("place", float("inf")), item[0])))


def _upstreams(pack: Pack) -> Iterable[Upstream]:
    import json  # here: `--help` should be fast

    where = part(pack, "upstreams")
    for name in listed(pack, where):
        if name.endswith(".json"):
            path = os.path.join(where, name)
            about = document(pack, path, "upstream") if pack.folder else json.loads(read(path))
            yield Upstream(
                name.removesuffix(".json"), about["import-name"], about["distribution"], tuple(about["marks"]),
                about["version"], about.get("within"), about,
            )  # fmt: skip


@remembered
def modules() -> Mapping[str, Upstream]:
    """Return the upstreams by their import names, in the same order."""
    return {one.module: one for one in upstreams().values()}


def names() -> tuple[str, ...]:
    """Return the names of all upstreams, in order."""
    return tuple(upstreams())


def below_namespace(file: str) -> str:
    """Return the path of an upstream's file below the namespace package that it is in, if it is in one."""
    starts = (f"{one.above.replace('.', '/')}/" for one in upstreams().values() if one.above)
    return next((file.removeprefix(start) for start in starts if file.startswith(start)), file)


def read(path: str) -> bytes:
    """Return the bytes of a file of a pack, with half of the system calls that an opened file needs.

    Raises OSError, also for a file that is too large, and for what is no file: a pipe is not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no file", path)
        size = about.st_size
        if size > LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {LARGEST >> 20} MiB", path)
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


@cache
def folder(name: str) -> str:
    """Return the folder of one of unhang's parts without importing it: beside this file, or elsewhere if editable.

    Raises UnhangError ``broken-install`` if there is none.
    """
    beside = os.path.join(_HERE, name)
    if os.path.isdir(beside):
        return beside
    import importlib.util

    spec = importlib.util.find_spec(f"unhang.{name}")
    if spec is None or not spec.submodule_search_locations:  # the wheel always contains all of them
        raise UnhangError("broken-install", f"unhang's own folder {name} is missing", hint="reinstall unhang")
    return next(iter(spec.submodule_search_locations))


def listed(pack: Pack, where: str) -> list[str]:
    """Return the names in a folder of a pack, sorted; none if it is not there. Raises UnhangError ``bad-pack``."""
    with Blamed(pack, where):
        try:
            return sorted(os.listdir(where))
        except (FileNotFoundError, NotADirectoryError):  # a pack need not have every part
            return []


def _of_environment(environ: Mapping[str, str]) -> list[str]:
    """Return the folders in UNHANG_PACKS. Raises UnhangError ``no-pack`` for one that depends on where this runs."""
    found = [entry for entry in environ.get("UNHANG_PACKS", "").split(os.pathsep) if entry]
    for entry in found:
        if not os.path.isabs(entry):
            hint = "nothing of a working directory counts unless it is named: give the whole path, or use --pack"
            raise UnhangError("no-pack", "UNHANG_PACKS has a relative path", path=entry, hint=hint)
    return found


def _is_in(version: str, specifier: str) -> bool:
    """Return whether a version is in a range like ``>=0.1,<0.3``, by its numbers alone."""
    mine = _numbers(version)

    def holds(clause: str) -> bool:
        sign = clause.rstrip("0123456789.")
        other = _numbers(clause[len(sign) :])
        return {
            ">=": mine >= other, "<=": mine <= other, "<": mine < other,
            ">": mine > other, "==": mine == other, "!=": mine != other,
        }[sign]  # fmt: skip

    return all(map(holds, specifier.split(",")))


def _numbers(version: str) -> tuple[int, ...]:
    found = []
    for part_ in version.split("."):
        digits = part_[: len(part_) - len(part_.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part_:
            break
    while found and found[-1] == 0:
        del found[-1]
    return tuple(found)
