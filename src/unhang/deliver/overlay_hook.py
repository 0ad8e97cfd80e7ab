"""The start-up hook of an overlay: its statements, with values of their own for the first two, become the overlay's
``sitecustomize.py``.

It runs in every Python process of a job, whose interpreter may be 3.8 or later and has no ``unhang``: hence the
standard library alone, and nothing but ``sys`` before one of the modules is asked for. Where no bytecode may be
written each process compiles it anew: hence few statements, and what can wait stands in the loader.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

IDENTITY = ""
MODULES: tuple[str, ...] = ()
HERE = __file__.rpartition("/")[0]
FOLDER = HERE + "/.unhang-overlay/" + IDENTITY


class OverlayFinder:
    """A meta path finder that answers for the rewritten modules of one overlay, and for nothing else; itself, not an
    instance of it, as the import system's own are.
    """

    is_unhang_overlay = True

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a rewritten module; None for any other name. Raises ImportError where the overlay is gone."""
        if name not in MODULES:
            return None
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("unhang_overlay_loader", FOLDER + "/loader.py")
        assert spec
        assert spec.loader
        loader = module_from_spec(spec)
        try:
            spec.loader.exec_module(loader)
        except OSError as error:
            told = f"unhang overlay: {FOLDER} is gone: it was removed or made anew since this process started"
            sys.stderr.write(told + "\n")  # an import of something optional may swallow the error
            raise ImportError(told, name=name) from error
        found: ModuleSpec | None = loader.find_spec(FOLDER, name, path, target)
        return found


# Of two overlays on the path the first wins, as of any two modules: behind those that are there already.
sys.meta_path.insert(sum(hasattr(it, "is_unhang_overlay") for it in sys.meta_path), OverlayFinder)
# Then the `sitecustomize` further down the path, which this one hides, runs in place of this one; what it raises it
# raises. By what importlib itself is made of: that is always loaded, where importlib.machinery may not be.
later = sys.path[sys.path.index(HERE) + 1 :] if HERE in sys.path else []
hidden = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", later)
if hidden and hidden.loader:
    sys.modules["sitecustomize"] = module = sys.modules["_frozen_importlib"].module_from_spec(hidden)
    hidden.loader.exec_module(module)
