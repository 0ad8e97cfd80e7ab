"""The start-up hook of an overlay: its source becomes the overlay's ``sitecustomize.py``, with a call at its end.

It runs in every Python process of a job, whose interpreter may be 3.8 or later and has no ``unhang``: hence the
standard library alone, and nothing but ``sys`` before one of the modules is asked for.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class OverlayFinder:
    """A meta path finder that answers for the rewritten modules of one overlay, and for nothing else."""

    is_unhang_overlay = True

    def __init__(self, folder: str, names: frozenset[str]) -> None:
        self.folder = folder
        self.names = names
        self.slow: ModuleType | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a rewritten module; None for any other name. Raises ImportError where the overlay is gone."""
        if name not in self.names:
            return None
        if self.slow is None:
            self.slow = self._loaded(name)
        found: ModuleSpec | None = self.slow.find_spec(self.folder, name, path, target)
        return found

    def _loaded(self, name: str) -> ModuleType:
        external = sys.modules["_frozen_importlib_external"]
        spec = external.spec_from_file_location("unhang_overlay_loader", self.folder + "/loader.py")
        slow: ModuleType = sys.modules["_frozen_importlib"].module_from_spec(spec)
        try:
            spec.loader.exec_module(slow)
        except OSError as error:
            told = f"unhang overlay: {self.folder} is gone: it was removed or made anew since this process started"
            sys.stderr.write(told + "\n")  # an import of something optional may swallow the error
            raise ImportError(told, name=name) from error
        return slow


def install(file: str, identity: str, names: tuple[str, ...]) -> None:
    """Put the finder first on the meta path; then run the ``sitecustomize`` that this one hides, if there is one.

    ``file`` is this hook's own, ``identity`` names the folder of what it finds. Raises what that other one raises.
    """
    here = file.rpartition("/")[0]
    finder = OverlayFinder(f"{here}/.unhang-overlay/{identity}", frozenset(names))
    # of two overlays on the path the first wins, as of any two modules: behind those that are there already
    ours = sum(hasattr(other, "is_unhang_overlay") for other in sys.meta_path)
    sys.meta_path.insert(ours, finder)
    chain(here)


def chain(here: str) -> None:
    """Import the ``sitecustomize`` further down the path, in place of this one. Raises what it raises."""
    # what importlib itself is made of: always loaded, where importlib.machinery may not be
    external = sys.modules["_frozen_importlib_external"]
    later = sys.path[sys.path.index(here) + 1 :] if here in sys.path else []
    spec = external.PathFinder.find_spec("sitecustomize", later)
    if spec is not None and spec.loader is not None:
        module = sys.modules["_frozen_importlib"].module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
