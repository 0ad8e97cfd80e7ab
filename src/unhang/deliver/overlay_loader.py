"""Loads an overlay's modules: copied into the overlay as ``loader.py``, and read by the hook when one is imported.

Like the hook, it runs without ``unhang``, on Python 3.8 or later, and uses only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any


def find_spec(folder: str, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Return the spec that loads a rewritten module in place of its original; None if there is no original.

    ``folder`` is the overlay's, the other arguments are a finder's. Raises ImportError if the overlay is damaged.
    """
    original = _original(name, path, target)
    if original is None:
        return None  # Python raises its usual ModuleNotFoundError
    entry = _manifest(folder, name)["modules"][name]
    file = os.path.join(folder, "modules", *entry["file"].split("/"))
    # `__file__` is the rewritten file, so that inspect, linecache and debuggers show the code that runs.
    loader = OverlayLoader(name, file, original, entry)
    locations = original.submodule_search_locations
    return spec_from_file_location(name, file, loader=loader, submodule_search_locations=locations)


class OverlayLoader(SourceFileLoader):
    """Loads a rewritten file like any source file, after it has checked the digests of that file and its original."""

    def __init__(self, name: str, file: str, original: ModuleSpec, entry: dict[str, Any]) -> None:
        super().__init__(name, file)
        self.original = original
        self.entry = entry

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code. Raises ImportError unless the original is the file that was rewritten."""
        name, origin = self.name, self.original.origin
        overlay = os.path.dirname(self.path[: -len(self.entry["file"]) - len("/modules/")])
        folder = os.path.dirname(overlay)
        hint = f"make it again (unhang overlay {folder}), or remove {folder} from PYTHONPATH"
        if not self.original.has_location or origin is None:
            raise _refused(name, f"{name} has no file to compare with; {hint}")
        # If `apply` has since given the original the same bytes, the same code runs.
        if (found := _sha256(self._bytes(origin))) not in (self.entry["original"], self.entry["rewritten"]):
            digests = f"sha256 {found[:16]}, not {self.entry['original'][:16]}"
            raise _refused(name, f"{origin} is not the file that the overlay was made from ({digests}); {hint}")
        if _sha256(self._bytes(self.path)) != self.entry["rewritten"]:
            raise _refused(name, f"{self.path} has changed since the overlay was made; {hint}")
        return super().get_code(fullname)

    def get_data(self, path: str) -> bytes:
        """Return a file's bytes. Raises OSError for bytecode that Python would run without a look at its source."""
        data = super().get_data(path)
        if path != self.path and data[4:8] == b"\1\0\0\0":
            raise OSError(f"unchecked bytecode: {path}")  # the caller compiles the source
        return data

    def _bytes(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise _refused(self.name, f"cannot read {path}: {error.strerror}") from error


def _original(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Ask the other finders in their order: editable installs and namespace packages have their own."""
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


def _refused(name: str, reason: str) -> ImportError:
    # of a path, nothing that a terminal or a log takes for a command
    message = "".join(char if char.isprintable() else repr(char)[1:-1] for char in f"unhang overlay: {reason}")
    sys.stderr.write(message + "\n")  # code that imports something optional may swallow the error
    return ImportError(message, name=name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
