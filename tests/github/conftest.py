"""Puts the nightly run's scripts on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / ".github" / "scripts"))
