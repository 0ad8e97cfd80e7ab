"""The files of an image that are read, below a folder: its links, and the paths in its settings, lead to that folder.

So all that reads an environment can read this one, and finds nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress

from unhang.find import editable
from unhang.image.tree import File, Node, Tree
from unhang.image.wanted import Wanted

_FINDER = re.compile(r"__editable___\w+_finder\.py", re.ASCII)
_ODD = "\1\n"  # a .pth file that no reader takes for a plain one


class Skeleton:
    """The folder of an image."""

    def __init__(self, tree: Tree, wanted: Wanted, workdir: str) -> None:
        """``workdir`` is where its containers start."""
        self._tree = tree
        self._wanted = wanted
        self.workdir = _absolute(workdir)
        self._kept: set[str] = set()
        """The paths of what is there."""
        self._links: dict[str, str] = {}
        """The links: where each leads, as it stands in the image."""
        self._choose()

    def _choose(self) -> None:
        leads: dict[str, str] = {}
        for path, node in self._tree.everything():
            if isinstance(node, File) or (isinstance(node, dict) and self._wanted.is_folder(path)):
                self._keep(path)
            elif isinstance(node, str):
                self._links[path] = node
                leads[path] = "/".join(self._tree.walk(path)[0])
                if self._wanted.is_of_upstream(path):
                    self._keep(path)
        left = leads.keys() - self._kept
        while reached := {path for path in left if leads[path] in self._kept or not leads[path]}:
            for path in reached:
                self._keep(path)
            left -= reached

    def _keep(self, path: str) -> None:
        while path not in self._kept:
            self._kept.add(path)
            path = path.rpartition("/")[0]

    def elsewhere(self) -> dict[str, str]:
        """Return the files and folders that are an upstream's, but have other names; and the names that lead there."""
        found = dict(self._tree.elsewhere)
        for path in self._links.keys() & self._kept:
            places, node = self._tree.walk(path)
            if (
                node is not None
                and self._wanted.is_of_upstream(path)
                and (isinstance(node, dict) or path.endswith(".py"))
            ):
                found["/".join(places)] = path
        for path, node in self._tree.everything():
            if isinstance(node, File) and _FINDER.fullmatch(path.rpartition("/")[2]):
                for name, place in editable.places(_text(node)):
                    places, package = self._tree.walk(self._inside(self.workdir, place))
                    if isinstance(package, dict) and self._wanted.is_of_upstream(name):
                        found["/".join(places)] = name
        return {real: alias for real, alias in found.items() if real and not self._wanted.is_of_upstream(real)}

    def write(self, root: str) -> None:
        """Write the files below a new folder. Raises OSError."""
        os.mkdir(root, 0o700)
        for path, node in self._tree.everything():
            if path in self._kept:
                self._write(root, path, node)

    def _write(self, root: str, path: str, node: Node) -> None:
        there = f"{root}/{path}"
        above, _, name = path.rpartition("/")
        if isinstance(node, dict):
            os.mkdir(there, 0o700)
        elif isinstance(node, str):
            os.symlink(self._target(root, above, node), there)
        elif not isinstance(node, File):
            return
        elif not node.copy:
            os.mkfifo(there)
        elif name.endswith(".pth") or name == "pyvenv.cfg" or _FINDER.fullmatch(name):
            with open(there, "x", encoding="utf-8", newline="") as file:
                file.write(self._moved(root, above, name, _text(node)))
        else:
            try:
                os.link(node.copy, there)
            except OSError:  # a file system without, or too many
                shutil.copyfile(node.copy, there)

    def _target(self, root: str, above: str, target: str) -> str:
        """Return where a link leads from a real folder of the image, so that it stays below the root."""
        parts = target.split("/")
        if ".." not in parts:
            return root + target if target.startswith("/") else target
        last = parts.pop()
        if last in ("", ".", ".."):
            parts, last = [*parts, last], ""
        places, node = self._tree.walk("/".join(parts), within="" if target.startswith("/") else above)
        if not isinstance(node, dict):
            return root + self._inside(above, target)
        return "/".join([root, *places, *filter(None, [last])])

    @staticmethod
    def _inside(folder: str, path: str) -> str:
        """Return the absolute path in the image that a text in a folder means; none is above the top."""
        return _absolute(os.path.join(_absolute(folder), path))

    def _moved(self, root: str, above: str, name: str, text: str) -> str:
        """Return a file of settings with the root before its paths."""
        if name == "pyvenv.cfg":
            return "".join(_with_home(root, line) for line in text.splitlines(keepends=True))
        if not name.endswith(".pth"):
            return editable.moved(text, lambda place: root + self._inside(self.workdir, place))
        if re.search(r"[^\t\n\r -~]", text):
            return _ODD
        lines = (
            line if line.startswith(("#", "import ", "import\t")) or not line.strip()
            else root + self._inside(above, line.rstrip())
            for line in text.splitlines()
        )  # fmt: skip
        return "".join(f"{line}\n" for line in lines)


def _with_home(root: str, line: str) -> str:
    key, _, value = line.partition("=")
    value = value.strip()
    if key.strip().lower() != "home":
        return line
    return f"home = {root}{value}\n" if value.startswith("/") and ".." not in value.split("/") else ""


def _absolute(path: str) -> str:
    return os.path.normpath(os.path.join("/", path.lstrip("/")))


def _text(node: File) -> str:
    """Return the text of a small file of settings; empty if it is none."""
    with suppress(OSError, ValueError):
        if node.copy and os.path.getsize(node.copy) <= 1 << 20:
            with open(node.copy, encoding="utf-8", newline="") as file:
                return file.read()
    return ""
