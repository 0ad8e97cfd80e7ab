"""A made-up upstream's history, with the made-up fixes of ``support.gates``."""

from pathlib import Path
from typing import Any

from support import gates
from support.fake_clone import UPSTREAMS, git
from support.gates import ONE, TWO
from unhang.compat.sweep import clones
from unhang.compat.sweep.clones import Clone

VERSION = "verl/version/version"
ENTRY: dict[str, Any] = {**UPSTREAMS["verl"], "floor": "1.0", "version": {"file": VERSION}, "refs": ["refs/heads/main"]}
LACKS = "x = 1\n"
EDITED = ONE.replace("return x", "return x + 1")


class History:
    """A clone, to which each call adds a commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        git(folder, "init", "-q")

    def __call__(self, version: str | None, one: str = ONE, two: str = TWO, other: str = "") -> str:
        """Commit these files, and return the id."""
        gates.lay_out(self.folder, {"verl/one.py": one, "verl/two.py": two, "other.py": other})
        if version is not None:
            gates.lay_out(self.folder, {VERSION: version})
        git(self.folder, "add", ".")
        git(self.folder, "commit", "-qm", "a commit", "--allow-empty")
        return git(self.folder, "rev-parse", "HEAD")

    def clone(self) -> Clone:
        return clones.newest(clones.open_clone(str(self.folder), self.folder), ENTRY, ())
