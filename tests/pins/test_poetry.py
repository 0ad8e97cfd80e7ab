"""poetry.lock: markers, extras, groups and git sources of two formats."""

from pathlib import Path

from support.lock_files import COMMIT, read
from unhang.records import Pin

TWO = f"""
[[package]]
name = "verl"
version = "0.7.1"
optional = true
python-versions = ">=3.8"
groups = ["main"]
markers = "extra == \\"rl\\""

[[package]]
name = "Megatron_Core"
version = "0.16.1"
optional = false
groups = ["dev", "gpu"]

[package.source]
type = "git"
url = "https://a.example/Megatron-LM"
reference = "core_v0.16.1"
resolved_reference = "{COMMIT}"

[[package]]
name = "ms-swift"
version = "4.3.0"
groups = ["main", "dev"]
markers = {{main = "extra == \\"a\\"", dev = "python_version < \\"3.12\\""}}

[metadata]
lock-version = "2.1"
python-versions = ">=3.12"
content-hash = "00"
"""


def test_what_poetry_2_writes(tmp_path: Path) -> None:
    repository = "https://a.example/Megatron-LM"
    assert read(tmp_path / "poetry.lock", TWO) == (
        Pin("verl", "0.7.1", 3, when='extra == "rl"'),
        Pin("megatron-core", "0.16.1", 11, (), "only with group dev or gpu", repository, "core_v0.16.1", COMMIT),
        Pin("ms-swift", "4.3.0", 23, when='main: extra == "a"; dev: python_version < "3.12"'),
    )


def test_poetry_1_has_the_extras_in_a_table(tmp_path: Path) -> None:
    text = """[[package]]
name = "verl"
version = "0.7.1"
optional = true

[extras]
rl = ["verl (>=0.7)", "torch"]
other = ["verl-tools"]

[metadata]
lock-version = "2.0"
"""
    assert read(tmp_path / "poetry.lock", text) == (Pin("verl", "0.7.1", 2, when="only with extra rl"),)
