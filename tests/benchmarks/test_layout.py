"""What the benchmark lays out is what it says: a pack that is refused would be timed as quick."""

import importlib
from pathlib import Path

import pytest

from support import cli

ROOT = Path(__file__).parents[2]


def test_the_pack_of_thirty_is_loaded_and_each_fix_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    layout = importlib.import_module("layout")
    releases = (("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0"))
    folder = layout.packed(cli.unpack_targets(tmp_path / "pristine", *releases), tmp_path / "packed")
    ran = cli.installed("check", "--target", folder / "site", "--pack", folder / "pack", "--output-format=json")
    made_up = {fix: verdict for (_, fix, _), verdict in cli.verdicts(ran).items() if fix.startswith("made-up-")}
    assert len(made_up) == layout.THIRTY
    assert "needed" in made_up.values()
