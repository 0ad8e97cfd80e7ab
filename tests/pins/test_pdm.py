"""pdm.lock: groups, markers, and the entry of its own that a package with extras has."""

from pathlib import Path

from support.lock_files import COMMIT, read
from unhang.records import Pin

TEXT = f"""
[metadata]
groups = ["default", "rl"]
strategy = ["inherit_metadata"]
lock_version = "4.5.0"

[[package]]
name = "verl"
version = "0.7.1"
groups = ["rl"]
marker = "python_version >= \\"3.12\\""

[[package]]
name = "verl"
version = "0.7.1"
extras = ["mcore", "gpu"]
groups = ["rl"]
dependencies = ["verl==0.7.1"]

[[package]]
name = "ms-swift"
version = "4.3.0.dev0"
git = "https://a.example/ms-swift.git"
ref = "main"
revision = "{COMMIT}"
groups = ["default"]
"""


def test_what_pdm_writes(tmp_path: Path) -> None:
    repository = "https://a.example/ms-swift.git"
    assert read(tmp_path / "pdm.lock", TEXT) == (
        Pin("verl", "0.7.1", 8, ("mcore", "gpu"), 'only with group rl; python_version >= "3.12"'),
        Pin("ms-swift", "4.3.0.dev0", 21, repository=repository, ref="main", commit=COMMIT),
    )
