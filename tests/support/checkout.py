"""The checkout: its folder, and ``unhang.compat.sweep``, which the installed wheel does not carry."""

from pathlib import Path

import unhang.compat

REPOSITORY = Path(__file__).resolve().parents[2]
COMPAT = REPOSITORY / "compat"

unhang.compat.__path__.append(str(COMPAT))
