"""Report failed assertions of the helper modules in full."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.rewrites", "support.sources", "support.wheels", "support.environments")
