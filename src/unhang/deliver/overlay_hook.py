"""The source of an overlay's start-up hook. `overlay.py` puts values for ``IDENTITY`` and ``MODULES`` in front of its
statements, and the result is the overlay's ``sitecustomize.py``.

The hook runs in every Python process of a job, on Python 3.8 or later, without ``unhang``: it uses only the standard
library, and only ``sys`` until one of the modules is imported. Where no bytecode can be written, each process compiles
it again: it has few statements, and the loader has the rest.
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
    """A meta path finder for the rewritten modules of one overlay. The class is the finder, as in importlib."""

    is_unhang_overlay = True

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a rewritten module, None for any other. Raises ImportError if the overlay is gone."""
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
            message = f"unhang overlay: {FOLDER!r} is gone: it was removed or replaced after this process started"
            sys.stderr.write(message + "\n")  # code that imports something optional may swallow the error
            raise ImportError(message, name=name) from error
        found: ModuleSpec | None = loader.find_spec(FOLDER, name, path, target)
        return found


# If several overlays are on the path, the first wins, as for any module: insert behind those that are there.
sys.meta_path.insert(sum(hasattr(it, "is_unhang_overlay") for it in sys.meta_path), OverlayFinder)
# Run the `sitecustomize` that this one hides, in place of this one; its errors propagate. Use importlib's own modules,
# which are always loaded: importlib.machinery may not be.
later = sys.path[sys.path.index(HERE) + 1 :] if HERE in sys.path else []
hidden = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", later)
if hidden and hidden.loader:
    sys.modules["sitecustomize"] = module = sys.modules["_frozen_importlib"].module_from_spec(hidden)
    hidden.loader.exec_module(module)
