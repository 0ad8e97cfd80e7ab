"""The committed matrix: what it must contain, and what it must not. Schemas and rules check the rest."""

from pathlib import Path

from packaging.version import Version

from support import cli
from support.checkout import COMPAT
from unhang.shapes import catalog


def test_the_newest_releases_and_all_nightlies_are_in_the_matrix() -> None:
    """At least those of 2026-11-21; the radar reports what has come since."""
    real = catalog.releases()
    for project, version in (("megatron-core", "0.19.2"), ("verl", "0.9.1"), ("ms-swift", "4.6.0")):
        assert Version([*real[project]][-1]) >= Version(version)
    assert sum(version.startswith("0.16.0rc0.dev") for version in real["megatron-core"]) >= 339
    core = real["megatron-core"].items()
    assert [version for version, release in core if release.yanked] == ["0.18.1", "0.19.1"]


def test_no_line_of_upstream_is_in_the_data(tmp_path: Path) -> None:
    """Digests, names, versions and places only."""
    site = cli.unpack(tmp_path, ("verl", "0.7.1"))
    source = (site / "verl/workers/engine/megatron/transformer_impl.py").read_text()
    lines = {line.strip() for line in source.splitlines() if len(line.strip()) > 40}
    paths = [*COMPAT.glob("*.json"), *COMPAT.glob("data/*.json")]
    assert len(paths) == 4 + len(catalog.fixes())
    for path in paths:
        text = path.read_text()
        assert not [line for line in lines if line in text]
