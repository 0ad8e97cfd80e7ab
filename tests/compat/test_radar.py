"""The radar, on made-up wheels from an index on this machine."""

import json
import sys
from types import MappingProxyType
from typing import Any

import pytest

from support.fake_index import AFFECTED, BATCH, CLEAN, ENGINE, PARALLEL, FakeIndex
from unhang.cli.main import main
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Release, Shape, ShapeTable

NEWEST = {
    "megatron-core": "0.19.2",
    "verl": "0.9.1",
    "ms-swift": "4.6.0",
    "megatron-bridge": "0.6.2",
    "mcore-bridge": "1.6.5",
    "trl": "1.16.0",
}
FUNCTION = "MegatronEngine.forward_backward_batch"
KNOWN = shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])


@pytest.fixture
def fake(served: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    """An index and a matrix that have the same releases: one of each upstream, and a verl that needs a fix."""
    releases = {project: {version: Release(version, False, {})} for project, version in NEWEST.items()}
    releases["verl"]["0.7.1"] = Release("0.7.1", False, {f"{ENGINE}::{FUNCTION}": "hung"})
    known = {KNOWN: Shape("fixed", None, (), ""), "hung": Shape("affected", "cured", (), "")}
    table = ShapeTable({("mtp-cp-deadlock", FUNCTION, digest): shape for digest, shape in known.items()}, {})
    monkeypatch.setattr(catalog, "releases", lambda: MappingProxyType(releases))
    monkeypatch.setattr(catalog, "shape_table", lambda: table)
    for project, versions in releases.items():
        for version in versions:
            served.add(project, version)
    return served


def look(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["matrix", "--against-index", "--output-format", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_without_a_new_release_no_wheel_is_fetched(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--against-index"]) == 0
    out = capsys.readouterr().out
    assert "verl: 2 releases on the index, the newest is 0.9.1" in out
    assert out.endswith("all of them are in the matrix\n")
    assert not fake.asked


def test_a_new_release_with_a_known_shape_has_its_verdict(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    name = fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    code, document = look(capsys)
    assert code == 1
    assert document["unlisted"] == ["verl 0.10.0"]
    assert document["newest"] == {**NEWEST, "verl": "0.10.0"}
    (finding,) = (item for item in document["findings"] if item["fix"] == "mtp-cp-deadlock")
    assert [finding[key] for key in ("verdict", "detail", "shape")] == ["fixed-upstream", "a known shape", KNOWN]
    assert fake.asked == [name]
    assert [*document] == ["schema", "newest", "unlisted", "findings", "gone", "yanked", "retired"]
    keys = ["upstream", "version", "yanked", "fix", "file", "function", "shape", "verdict", "detail"]
    assert [*finding] == keys


def test_a_new_shape_or_a_missing_function_has_its_verdict(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("megatron-core", "0.20.0", {PARALLEL: AFFECTED, BATCH: "pass\n"}, yanked=True)
    fake.add("verl", "0.10.1", {ENGINE: CLEAN.replace("0", "1")})
    fake.add("verl", "0.10.2", {ENGINE: CLEAN + CLEAN})
    code, document = look(capsys)
    assert code == 1
    rows = {(item["upstream"], item["version"], item["verdict"], item["detail"]) for item in document["findings"]}
    newer, file = "is newer than every release in the matrix", "the file does not exist"
    assert rows == {
        ("megatron-core", "0.20.0", "unlisted", "a new shape"),
        ("megatron-core", "0.20.0", "unlisted", f"{file}; 0.20.0 {newer}"),
        ("megatron-core", "0.20.0", "not-affected", f"{file}, as in release 0.19.2"),
        ("megatron-lm", "0.20.0", "unlisted", f"{file}; 0.20.0 {newer}"),
        ("megatron-lm", "0.20.0", "not-affected", f"{file}, as in release 0.19.2"),
        ("megatron-lm", "0.20.0", "not-affected", "the file does not define the function, as in release 0.19.2"),
        ("verl", "0.10.1", "unlisted", "a new shape"),
        ("verl", "0.10.1", "unlisted", f"{file}; 0.10.1 {newer}"),
        ("verl", "0.10.1", "not-affected", f"{file}, as in release 0.9.1"),
        ("verl", "0.10.2", "drifted", "defined-twice: on lines 2, 8"),
        ("verl", "0.10.2", "unlisted", f"{file}; 0.10.2 {newer}"),
        ("verl", "0.10.2", "not-affected", f"{file}, as in release 0.9.1"),
    }
    assert {item["yanked"] for item in document["findings"] if item["upstream"] != "verl"} == {True}


@pytest.mark.parametrize(
    ("mine", "state", "verdict"),
    [
        ("", "right", "unlisted"),
        ("", "wrong", "unlisted"),
        ("", "", "unlisted"),
        ("affected", "right", "not-affected"),
        ("affected", "wrong", "needed"),
        ("fixed", "", "drifted"),
    ],
)
def test_a_shape_is_judged_by_the_function_that_it_depends_on_if_it_is_known(
    fake: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    mine: str, state: str, verdict: str,
) -> None:  # fmt: skip
    target = catalog.fix("fsdp-dynamic-bsz").targets[0]
    owner, _, name = target.function.partition(".")
    other = target.depends_on
    assert other is not None
    code = f"def {other.function}(): pass\n"
    digest = shape.digest(shape.find(shape.parse(code.encode()), other.function)[0])
    known = {(other.fix, other.function, digest): Shape(state, None, (), "")} if state else {}
    method = f"class {owner}:\n    def {name}(self): pass\n"
    if mine:
        here = shape.digest(shape.find(shape.parse(method.encode()), target.function)[0])
        known[target.fix, target.function, here] = Shape(mine, None, (), "", (digest,))
    monkeypatch.setattr(catalog, "shape_table", lambda: ShapeTable(known, {}))
    fake.add("verl", "0.10.0", {target.file: method, other.file: code})
    _, document = look(capsys, "--fix", target.fix)
    (finding,) = (item for item in document["findings"] if item["shape"])
    assert finding["verdict"] == verdict
    what = "a known shape" if mine else "a new shape"
    assert finding["detail"] == f"{what}; it depends on rearrange_micro_batches in verl/utils/seqlen_balancing.py"


def test_what_is_gone_or_yanked_since_is_named(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [*fake.wheels]:
        fake.withdraw(name)
    fake.add("verl", "0.9.1", yanked=True)
    code, document = look(capsys)
    gone = [f"{name} {'0.7.1' if name == 'verl' else version}" for name, version in NEWEST.items()]
    assert (code, document["gone"], document["yanked"]) == (0, gone, ["verl 0.9.1"])
    assert main(["matrix", "--against-index"]) == 0
    text = capsys.readouterr().out
    assert "in the matrix, and no longer on the index: ms-swift 4.6.0\n" in text
    assert "yanked since: verl 0.9.1\n" in text


def test_it_can_be_narrowed(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    fake.add("megatron-core", "0.20.0", {PARALLEL: AFFECTED, BATCH: "pass\n"})
    assert look(capsys, "--upstream", "ms-swift")[0] == 0
    _, document = look(capsys, "--fix", "mtp-cp-deadlock")
    assert document["unlisted"] == ["verl 0.10.0"]
    _, document = look(capsys, "--upstream", "megatron-lm")
    assert document["unlisted"] == ["megatron-core 0.20.0"]
    assert {item["upstream"] for item in document["findings"]} == {"megatron-lm"}


def test_text_and_markdown_name_each_finding(fake: FakeIndex, capsys: pytest.CaptureFixture[str]) -> None:
    fake.add("verl", "0.10.0", {ENGINE: CLEAN})
    assert main(["matrix", "--against-index"]) == 1
    out, err = capsys.readouterr()
    assert "not in the matrix: verl 0.10.0\n  " in out
    assert "\n  mtp-cp-deadlock: fixed-upstream; " in out
    assert "mtp-cp-deadlock: It can be dropped with verl 0.9.1 and later: " in out
    assert "expert-dp-warmup: It can be dropped" not in out, "no release has a fix of that"
    assert err == "", "progress is for what takes long"
    assert main(["matrix", "--against-index", "--output-format", "markdown"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"| verl | 0.10.0 | `mtp-cp-deadlock` | fixed-upstream | {KNOWN} | a known shape |" in lines
    assert lines[-1].startswith("- mtp-cp-deadlock: It can be dropped with verl 0.9.1 and later")


def test_what_stops_it_is_2_with_a_hint(
    fake: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.refused.add(fake.add("verl", "0.10.0", {ENGINE: CLEAN}))
    assert main(["matrix", "--against-index"]) == 2
    assert "error[fetch-failed]: verl-0.10.0" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    assert main(["matrix", "--against-index"]) == 2
    err = capsys.readouterr().err
    assert ("error[no-index-client]: " in err, "pip install pypi-simple" in err) == (True, True)
