"""The radar, on made-up wheels from an index on this machine."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from packaging.version import Version

from support import fake_index
from support.fake_index import AFFECTED, BATCH, CLEAN, ENGINE, PARALLEL, UNCLEAR, FakeIndex
from unhang.compat import index, radar
from unhang.compat.sweep import sources
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Release, Shape, ShapeTable

pytest.importorskip("pypi_simple")

FUNCTION = "MegatronEngine.forward_backward_batch"
KNOWN = shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[FakeIndex]:
    """An index and a matrix that have the same releases: one of each upstream, and the verl that hung."""
    releases = {
        project: {version: Release(version, False, {})}
        for project, version in (("megatron-core", "0.19.2"), ("verl", "0.9.1"), ("ms-swift", "4.6.0"))
    }
    releases["verl"]["0.7.1"] = Release("0.7.1", False, {f"{ENGINE}::{FUNCTION}": "hung"})
    known = {KNOWN: Shape("fixed", None, (), ""), "hung": Shape("affected", "cured", (), "")}
    table = ShapeTable({("mtp-cp-deadlock", FUNCTION, digest): shape for digest, shape in known.items()}, {})
    monkeypatch.setattr(catalog, "releases", lambda: MappingProxyType(releases))
    monkeypatch.setattr(catalog, "shape_table", lambda: table)
    monkeypatch.setattr(sources, "pins", list)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_index.serving(FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        monkeypatch.setattr(index, "_RETRIES", 0)
        for project, versions in releases.items():
            for version in versions:
                served.add(project, version)
        yield served


def look(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = radar.main(["--output-format", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def found(told: Any, fix: str) -> list[tuple[str, str, str]]:
    """Upstream, verdict and detail of each finding about a fix, where the file is there."""
    rows = (item for item in told["findings"] if item["fix"] == fix and item["shape"])
    return [(item["upstream"], item["verdict"], item["detail"]) for item in rows]


def test_nothing_new_is_0_and_no_wheel_is_fetched(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    assert radar.main([]) == 0
    told = capsys.readouterr().out
    assert "verl: 2 releases on the index, the newest is 0.9.1" in told
    assert told.endswith("all of them are in the matrix\n")
    assert not fake.asked


def test_a_new_release_with_a_known_shape_has_its_verdict(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    name = fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    code, told = look(capsys)
    assert code == 1
    assert told["unlisted"] == ["verl 0.10.0"]
    assert told["newest"] == {"megatron-core": "0.19.2", "verl": "0.10.0", "ms-swift": "4.6.0"}
    assert found(told, "mtp-cp-deadlock") == [("verl", "fixed-upstream", "a known shape")]
    assert told["findings"][0]["shape"] == KNOWN
    assert fake.asked == [name]
    assert look(capsys)[0] == 1
    assert fake.asked == [name], "it is in the cache"


def test_a_new_shape_says_whether_the_rewrite_would_hold(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("megatron-core", "0.20.0", {PARALLEL: AFFECTED, BATCH: "pass\n"}, yanked=True)
    fake.add("verl", "0.10.0", {ENGINE: UNCLEAR})
    fake.add("verl", "0.10.1", {ENGINE: CLEAN.replace("0", "1")})
    fake.add("verl", "0.10.2", {ENGINE: CLEAN + CLEAN})
    code, told = look(capsys)
    assert code == 1
    ((upstream, verdict, detail),) = found(told, "expert-dp-warmup")
    assert (upstream, verdict) == ("megatron-core", "unlisted")
    assert "the rewrite holds" in detail
    unclear, other = found(told, "mtp-cp-deadlock")
    assert unclear[1] == "unlisted"
    assert "does not hold: not found" in unclear[2]
    assert (other[1], "a new shape" in other[2]) == ("not-affected", True)
    twice = [item for item in told["findings"] if item["version"] == "0.10.2"]
    assert [(item["verdict"], "defined 2 times" in item["detail"]) for item in twice] == [("drifted", True)]
    lm = [item for item in told["findings"] if item["upstream"] == "megatron-lm"]
    assert {(item["verdict"], item["yanked"]) for item in lm} == {("not-affected", True)}
    assert len(lm) == 2, "a wheel that carries Megatron-LM is judged for that too"


def test_what_is_gone_or_yanked_since_is_named(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [*fake.wheels]:
        fake.withdraw(name)
    fake.add("verl", "0.9.1", yanked=True)
    code, told = look(capsys)
    gone = ["megatron-core 0.19.2", "verl 0.7.1", "ms-swift 4.6.0"]
    assert (code, told["gone"], told["yanked"]) == (0, gone, ["verl 0.9.1"])
    assert radar.main([]) == 0
    text = capsys.readouterr().out
    assert "in the matrix, and no longer on the index: ms-swift 4.6.0\n" in text
    assert "yanked since: verl 0.9.1\n" in text


def test_it_can_be_narrowed(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    fake.add("megatron-core", "0.20.0", {PARALLEL: AFFECTED, BATCH: "pass\n"})
    assert look(capsys, "--upstream", "ms-swift")[0] == 0
    _, told = look(capsys, "--fix", "mtp-cp-deadlock")
    assert told["unlisted"] == ["verl 0.10.0"]
    _, told = look(capsys, "--upstream", "megatron-lm")
    assert told["unlisted"] == ["megatron-core 0.20.0"]
    assert {item["upstream"] for item in told["findings"]} == {"megatron-lm"}


def test_text_and_markdown_name_each_finding(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    options = Namespace(output_format="text", fix=None, upstream=None)
    assert radar.against_index(options) == 1
    text = capsys.readouterr().out
    assert "not in the matrix: verl 0.10.0\n  mtp-cp-deadlock: fixed-upstream; " in text
    assert "mtp-cp-deadlock: It can be dropped with verl 0.9.1 and later: " in text
    assert "expert-dp-warmup: From" not in text, "no release has a fix of that"
    options.output_format = "markdown"
    assert radar.against_index(options) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"| verl | 0.10.0 | `mtp-cp-deadlock` | fixed-upstream | {KNOWN} | a known shape |" in lines
    assert lines[-1].startswith("- mtp-cp-deadlock: It can be dropped with verl 0.9.1 and later")


def test_a_pin_that_the_index_contradicts_is_2(
    fake: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = (name for name in fake.wheels if name.startswith("verl-0.9.1"))
    pin = {"project": "verl", "version": "0.9.1", "file": name, "sha256": "00"}
    monkeypatch.setattr(sources, "pins", lambda: [pin])
    assert radar.main([]) == 2
    assert f"pin-changed]: the index gives {name}" in capsys.readouterr().err


def test_without_the_client_library_it_is_2(
    fake: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    assert radar.main([]) == 2
    assert "pip install pypi-simple" in capsys.readouterr().err


def test_the_newest_releases_and_all_nightlies_are_in_the_matrix() -> None:
    """At least those that there were on 2026-11-21; what has come since, the radar tells."""
    real = catalog.releases()
    for project, version in (("megatron-core", "0.19.2"), ("verl", "0.9.1"), ("ms-swift", "4.6.0")):
        assert Version([*real[project]][-1]) >= Version(version)
    assert sum(version.startswith("0.16.0rc0.dev") for version in real["megatron-core"]) >= 339
