"""What all test modules share: full assertion messages from the helper modules, and an importable sweep."""

from __future__ import annotations

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.sweep importable

pytest.register_assert_rewrite("support.rewrites", "support.sources", "support.wheels", "support.environments")
