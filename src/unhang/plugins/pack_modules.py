"""How modules of packs, such as their codemods, are imported: from their source alone, which the reader of packs reads.

So a pack's bytecode and extension modules never count, and no bytecode is written into it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any, NamedTuple


class Finder(NamedTuple):
    """Finds the modules below packages whose names begin in one way."""

    prefix: str
    read: Callable[[str], bytes]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module is; None for one of no pack."""
        if path is None or not name.startswith(self.prefix):
            return None
        read = self.read

        class Loader(SourceFileLoader):
            def get_data(self, path: str) -> bytes:
                return read(path)

            def path_stats(self, path: str) -> Any:
                raise OSError  # without a source's time, the import system neither reads nor writes bytecode

        found = (FileFinder(folder, (Loader, [".py"])).find_spec(name) for folder in path)
        return next(filter(None, found), None)


def find(prefix: str, read: Callable[[str], bytes]) -> None:
    """Let modules below packages whose names begin with this prefix be imported, each from what ``read`` returns."""
    finder = Finder(prefix, read)
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
