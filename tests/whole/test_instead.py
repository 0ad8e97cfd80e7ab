"""`check` notes real packages that copy a target, and not a namesake."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support import cli, wheels
from unhang.cli.main import main

REAL: dict[str, dict[str, Any]] = {
    "areal": {
        "file": "areal-1.0.4-py3-none-any.whl", "version": "1.0.4", "python": "3.12",
        "sha256": "7d7cfab10d9ec0990d9263290a9472366827783b9ad5fce22f56a1add416bdd9",
    },
    "roll": {
        "file": "roll-0.13.4-py3-none-any.whl", "version": "0.13.4", "python": "3.12",
        "sha256": "91475e63613652e9d892125b237e083f69c99812b7b9255c2ab5883ca84c84cf",
    },
}  # fmt: skip


@pytest.mark.slow
def test_real_packages_are_noted_and_a_namesake_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.9.1"), ("megatron-core", "0.19.2"))
    for project, pin in REAL.items():
        zipfile.ZipFile(wheels.kept(project, pin)).extractall(site)
    assert main(["check", "--target", str(site), "--output-format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["results"]
    notes = {(row["fix"], row["verdict"], note.split(" (")[0]) for row in found for note in row["notes"]}
    assert notes == {
        ("fsdp2-buffer-order", "fixed-upstream", "AReaL has a copy of fsdp2_load_full_state_dict with the same defect"),
    }
