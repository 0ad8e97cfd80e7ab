"""What the sessions need of each fix: its test module, `tests/fixes/test_<id>.py`, has it under a name of its own.

``MUTANTS`` is for `nox -s mutants`, ``PROOFS`` for `nox -s proofs`, ``FUZZ`` for `nox -s fuzz`; ``REFUSED`` has edits
that leave no anchor, ``UNLIKE_UPSTREAM`` those that make upstream's own fix something else.
"""

import importlib
from typing import Any

from unhang.shapes import catalog


def of_each(name: str) -> dict[str, Any]:
    """Return what the test modules have under a name, by the fix's id. A fix that has nothing there is left out."""
    modules = {fix: importlib.import_module(f"fixes.test_{fix.replace('-', '_')}") for fix in catalog.fixes()}
    return {fix: getattr(module, name) for fix, module in modules.items() if hasattr(module, name)}


def without(name: str) -> list[str]:
    """Return the fixes whose test modules have nothing under a name."""
    return sorted(catalog.fixes().keys() - of_each(name).keys())
