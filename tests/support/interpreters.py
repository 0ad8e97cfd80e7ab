"""Find an interpreter that has torch, to run upstream's own code."""

import os
import subprocess
import sys
from functools import cache

import pytest


@cache
def with_torch() -> str:
    """Return ``UNHANG_PROOFS_PYTHON``, or our own interpreter. Skips the test if it has no torch."""
    chosen = os.environ.get("UNHANG_PROOFS_PYTHON") or sys.executable
    probe = [chosen, "-c", "import importlib.util as i, sys; sys.exit(i.find_spec('torch') is None)"]
    if subprocess.run(probe, check=False).returncode:
        pytest.skip(f"{chosen} has no torch: `nox -s proofs` installs one, UNHANG_PROOFS_PYTHON may name one that has")
    return chosen
