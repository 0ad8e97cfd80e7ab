"""The half of an overlay's hook that is read when one of its modules is imported: copied beside them as ``loader.py``.

Like the hook it runs where no ``unhang`` is: the standard library alone, Python 3.8 and later.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location

TYPE_CHECKING = False  # as typing's, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any


def find_spec(folder: str, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """The spec that loads a rewritten module in place of its original; None where there is no original.

    ``folder`` is the overlay's own, the rest as a finder gets it. Raises ImportError where the overlay is damaged.
    """
    original = _original(name, path, target)
    if original is None:
        return None  # the usual ModuleNotFoundError says it best
    told = _manifest(folder, name)["modules"][name]
    file = os.path.join(folder, "modules", *told["file"].split("/"))
    # The rewritten file is the module's `__file__`: what reads it (inspect, linecache, a debugger) sees what runs.
    return spec_from_file_location(
        name,
        file,
        loader=OverlayLoader(name, file, original, told),
        submodule_search_locations=original.submodule_search_locations,
    )


class OverlayLoader(SourceFileLoader):
    """Loads a rewritten file as any source file, after a look at it and at the original."""

    def __init__(self, name: str, file: str, original: ModuleSpec, told: dict[str, Any]) -> None:
        super().__init__(name, file)
        self.original = original
        self.told = told

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code. Raises ImportError unless the original has the bytes that it was rewritten from."""
        name, origin = self.name, self.original.origin
        overlay = os.path.dirname(self.path[: -len(self.told["file"]) - len("/modules/")])
        folder = os.path.dirname(overlay)
        again = f"make it anew (unhang overlay {folder}), or take {folder} off PYTHONPATH"
        if not self.original.has_location or origin is None:
            raise _refused(name, f"{name} has no file to compare with; {again}")
        # An original that `apply` has rewritten to the same bytes since is no mix either.
        if (found := _sha256(self._bytes(origin))) not in (self.told["original"], self.told["rewritten"]):
            made = self.told["original"][:16]
            raise _refused(
                name, f"{origin} is not the file that this was made from (sha256 {found[:16]}, not {made}); {again}"
            )
        if _sha256(self._bytes(self.path)) != self.told["rewritten"]:
            raise _refused(name, f"{self.path} was changed since it was made; {again}")
        return super().get_code(fullname)

    def _bytes(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise _refused(self.name, f"cannot read {path}: {error.strerror}") from error


def _original(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """What the other finders say, in their order: editable installs and namespace packages have their own."""
    for finder in sys.meta_path:
        if not hasattr(finder, "is_unhang_overlay"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _manifest(folder: str, name: str) -> Any:
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="ascii") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise _refused(name, f"the overlay {folder} is damaged: {error}") from error


def _refused(name: str, why: str) -> ImportError:
    # Said on stderr too: what is imported as optional has its ImportError swallowed.
    sys.stderr.write(f"unhang overlay: {why}\n")
    return ImportError(f"unhang overlay: {why}", name=name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
