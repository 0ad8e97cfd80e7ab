"""An image, as a folder and the variables of a job in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from unhang.errors import UnhangError
from unhang.find import reading
from unhang.find.metadata import names as names_in
from unhang.find.metadata import read as text_of
from unhang.image import layout
from unhang.image.layout import Config, Contents
from unhang.image.skeleton import Skeleton
from unhang.image.stream import bad
from unhang.image.tree import Spool, Tree, of_archive, of_folder
from unhang.image.wanted import Wanted
from unhang.records import Environment

_PASSES = 3
_ELSEWHERE = 100  # names that lead to code elsewhere
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of a container without one
_VARIABLES = ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX")
"""What decides what an interpreter imports."""
_SITE = re.compile(r"/lib(?:64)?/python3[^/]*/(?:site|dist)-packages$")
OBJECTION = "it is in an image, of which nothing is run"


class Image(NamedTuple):
    """An image of which the files that are read are in a folder."""

    root: str
    config: Config
    folders: tuple[str, ...]
    """All folders of it that are there."""

    def inside(self, path: str) -> str:
        """Return where a path of the image is; one that is relative begins at the working directory."""
        return self.root + os.path.normpath(os.path.join("/", self.config.folder.lstrip("/"), path))

    @property
    def cwd(self) -> str:
        """Where its containers start."""
        return self.inside(".")


def opened(path: str, folder: str, beside: Sequence[str]) -> Image:
    """Return the image in an archive, a layout or an unpacked root file system, read into an empty folder.

    ``beside`` names the packages that matter besides the upstreams. Raises UnhangError ``bad-image``,
    ``image-too-large``, ``no-zstd``, and OSError.
    """
    elsewhere: dict[str, str] = {}
    for number in range(_PASSES):
        wanted = Wanted(beside, elsewhere)
        spool = os.path.join(folder, f"files-{number}")
        os.mkdir(spool)
        config, layers = _contents(path, wanted, Spool(spool))
        tree = Tree()
        while layers:
            tree.lay(layers.pop(0))
        skeleton = Skeleton(tree, wanted, config.folder)
        more = elsewhere | skeleton.elsewhere()
        if len(more) > _ELSEWHERE:
            raise bad(f"more than {_ELSEWHERE} links lead to the code of an upstream")
        if more == elsewhere:
            root = os.path.join(os.path.realpath(folder), "root")
            skeleton.write(root)
            return Image(root, config, tuple(_folders(root)))
        elsewhere = more
        shutil.rmtree(spool)
    raise bad("its links lead from one to another")


def _contents(path: str, wanted: Wanted, spool: Spool) -> Contents:
    if os.path.isdir(path) and layout.is_system(path):
        return Contents(Config({}, "", ""), [of_folder(path, wanted, spool)])
    return layout.read(path, partial(of_archive, wanted=wanted, spool=spool))


def _folders(root: str) -> Iterator[str]:
    for folder, inside, _ in os.walk(root):
        inside.sort()
        yield folder


@contextmanager
def as_in(image: Image) -> Iterator[None]:
    """Have the image's variables in place of ours, as far as they decide what is imported."""
    given = image.config.environ
    there = {name: os.pathsep.join(map(image.inside, given[name].split(":"))) for name in _VARIABLES if given.get(name)}
    if "PYTHONNOUSERSITE" not in there:
        there.setdefault("PYTHONUSERBASE", image.inside(f"{_home(image)}/.local"))
    before = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    os.environ.update(there)
    try:
        yield
    finally:
        for name in there:
            del os.environ[name]
        os.environ.update(before)


def _home(image: Image) -> str:
    user = image.config.user.partition(":")[0]
    rows = (line.split(":") for line in text_of(image.inside("/etc/passwd")).splitlines())
    homes = (row[5] for row in rows if len(row) > 5 and user in (row[0], row[2]))
    return image.config.environ.get("HOME") or next(homes, "/root")


def environments(image: Image, names: Sequence[str], python: str | None) -> tuple[list[Environment], list[str]]:
    """Return the environments of all interpreters, first those that a job would take, and why others are not read.

    ``python`` names one, or the folder of its environment, and leaves out the others. Raises UnhangError
    ``no-interpreter`` if it is not there.
    """
    found: dict[tuple[str, str], Environment] = {}
    unread = []
    for pythons in [_named(image, python)] if python else _interpreters(image):
        why, is_read = "", False
        for python in pythons:
            try:
                start = reading.start(python, names)
            except reading.MustAsk as error:
                why = why or f"{python}: {error}"
            else:
                is_read = True
                found.setdefault((start.prefix, start.tag), Environment(python, start.prefix, "--image", OBJECTION))
        if why and not is_read:
            unread.append(
                f"only running it would tell what it imports, so its site-packages are looked at alone: {why}"
            )
    return [*found.values()], unread


def _named(image: Image, python: str) -> list[str]:
    place = image.inside(python)
    found = [it for it in (place, *(f"{place}/bin/{name}" for name in ("python", "python3"))) if os.path.isfile(it)]
    if not found:
        hint = "name the path of an interpreter, or the folder of its environment, in the image"
        raise UnhangError("no-interpreter", "there is no interpreter here in the image", path=place, hint=hint)
    return found[:1]


def _interpreters(image: Image) -> Iterator[list[str]]:
    """Yield the interpreters of each folder that has some."""
    for folder in dict.fromkeys(map(os.path.realpath, _bins(image))):
        names = [name for name in names_in(folder) if re.fullmatch(r"python[\d.]*", name)]
        yield [f"{folder}/{name}" for name in sorted(names, key=lambda it: (it not in ("python", "python3"), it))]


def _bins(image: Image) -> Iterator[str]:
    given = image.config.environ
    if given.get("VIRTUAL_ENV"):
        yield image.inside(f"{given['VIRTUAL_ENV']}/bin")
    yield from (image.inside(folder) for folder in given.get("PATH", _PATH).split(":") if folder)
    if given.get("CONDA_PREFIX"):
        yield image.inside(f"{given['CONDA_PREFIX']}/bin")
    yield from (folder for folder in image.folders if os.path.basename(folder) == "bin")


def sites(image: Image) -> list[str]:
    """Return the site-packages and dist-packages of interpreters, and the folders of PYTHONPATH."""
    named = [image.inside(it) for it in image.config.environ.get("PYTHONPATH", "").split(":") if it]
    return [*filter(os.path.isdir, named), *(folder for folder in image.folders if _SITE.search(folder))]
