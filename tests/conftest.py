"""What all test modules share: failures of the helper modules are told in full."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.sources", "support.wheels", "support.environments")
