"""check, apply, apply again and revert, on the real wheel of each release line."""

import base64
import csv
import hashlib
from pathlib import Path

import pytest

from support import checkout, cli
from unhang.compat.sweep import pins

EXPERTS = ("megatron-core", "empty-expert-hang", "megatron/core/transformer/moe/experts.py")
PARALLEL = ("megatron-core", "expert-dp-warmup", "megatron/core/parallel_state.py")
CORE_BATCH = ("megatron-core", "sft-packed-seq-broadcast", "megatron/core/utils.py")
BATCH = ("megatron-lm", "sft-packed-seq-broadcast", "megatron/training/utils.py")
BATCH_MOVED = ("megatron-lm", "sft-packed-seq-broadcast", "megatron/training/utils/common_utils.py")
ENGINE = ("verl", "mtp-cp-deadlock", "verl/workers/engine/megatron/transformer_impl.py")
MPU = ("ms-swift", "expert-dp-warmup", "swift/megatron/utils/megatron_lm_utils.py")

# The verdicts of each release, written by hand: the matrix is checked against these.
CORE_ONLY = {EXPERTS: "needed", PARALLEL: "needed", CORE_BATCH: "not-affected"}
WITH_TRAINING = {**CORE_ONLY, BATCH: "needed", BATCH_MOVED: "not-affected"}
FIXED_BATCH = {**WITH_TRAINING, CORE_BATCH: "fixed-upstream", BATCH: "not-affected"}
CORE_ONLY_VERSIONS = "0.10.0 0.12.0 0.12.3 0.13.1 0.14.0 0.15.3 0.16.0rc0.dev100093 0.16.0rc0.dev132550 0.16.1"
EXPECTED = {
    (project, version): verdicts
    for project, versions, verdicts in (
        ("verl", "0.7.0", {ENGINE: "not-affected"}),
        ("verl", "0.7.1", {ENGINE: "needed"}),
        ("verl", "0.8.0 0.9.1", {ENGINE: "fixed-upstream"}),
        ("ms-swift", "3.12.6", {MPU: "not-affected"}),
        ("ms-swift", "4.0.0 4.2.3 4.6.0", {MPU: "needed"}),
        ("megatron-core", CORE_ONLY_VERSIONS, CORE_ONLY),
        ("megatron-core", "0.17.0 0.17.1", WITH_TRAINING),
        ("megatron-core", "0.18.2 0.19.2", FIXED_BATCH),
    )
    for version in versions.split()
}
UNAFFECTED = [release for release, verdicts in EXPECTED.items() if "needed" not in verdicts.values()]
AFFECTED = [release for release in EXPECTED if release not in UNAFFECTED]
QUICK = ["verl 0.8.0", "verl 0.7.1", "ms-swift 4.6.0", "megatron-core 0.16.1", "megatron-core 0.17.1"]


def releases(among: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Run a test on these releases; on those that are not quick, as a slow test."""
    names = {" ".join(release): release for release in among}
    marked = [pytest.param(names[name], id=name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("release", marked)


@releases(UNAFFECTED)
def test_release_that_needs_nothing_is_left_alone(release: tuple[str, str], tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", release)
    before = cli.tree(site)
    check = cli.called("check", "--target", site, "--output-format", "json")
    assert (check.code, cli.verdicts(check)) == (0, EXPECTED[release])
    assert not any(item["notes"] for item in check.json["results"])
    diff = cli.called("diff", "--target", site)
    assert (diff.code, diff.out) == (0, "")
    apply = cli.called("apply", "--target", site, "--output-format", "json")
    assert (apply.code, {item["changed"] for item in apply.json["results"]}) == (0, {False})
    assert cli.tree(site) == before
    assert cli.called("revert", "--target", site).code == 1, "there is no receipt"
    assert cli.tree(site) == before


@releases(AFFECTED)
def test_release_is_patched_once_and_reverts_to_the_byte(release: tuple[str, str], tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", release)
    before = cli.tree(site)
    expected = EXPECTED[release]
    check = cli.called("check", "--target", site, "--output-format", "json")
    assert (check.code, cli.verdicts(check)) == (1, expected)
    assert cli.tree(site) == before, "check writes nothing"

    apply = cli.called("apply", "--target", site, "--output-format", "json")
    after = {where: "applied" if verdict == "needed" else verdict for where, verdict in expected.items()}
    assert (apply.code, cli.verdicts(apply)) == (0, after)
    changed = {item["file"] for item in apply.json["results"] if item["changed"]}
    assert changed == {file for (_, _, file), verdict in expected.items() if verdict == "needed"}
    patched = cli.tree(site)
    touched = {path for path in patched if patched[path] != before.get(path) and not path.startswith(".unhang")}
    assert touched == {*changed, *(str(path.relative_to(site)) for path in site.glob("*.dist-info/RECORD"))}
    rows = records(site)
    for file in changed:
        source = (site / file).read_bytes()
        compile(source, file, "exec", dont_inherit=True)
        assert b"# unhang " in source
        assert b"import unhang" not in source
        digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
        assert rows[file] == [f"sha256={digest}", str(len(source))]

    check = cli.called("check", "--target", site, "--output-format", "json")
    assert (check.code, cli.verdicts(check)) == (0, after)
    details = {item["detail"] for item in check.json["results"] if item["verdict"] == "applied"}
    assert details == {""}, "the digest of the patched file is on record"
    assert not any(item["notes"] for item in check.json["results"])
    again = cli.called("apply", "--target", site, "--output-format", "json")
    assert (again.code, {item["changed"] for item in again.json["results"]}) == (0, {False})
    assert cli.tree(site) == patched, "a second apply changes nothing"

    revert = cli.called("revert", "--target", site, "--output-format", "json")
    assert (revert.code, cli.verdicts(revert)) == (0, expected)
    assert {item["file"] for item in revert.json["results"] if item["changed"]} == changed
    assert cli.tree(site) == before, "every byte is back, and nothing else is left"


def test_the_table_has_releases_that_are_pinned() -> None:
    assert (len(UNAFFECTED), len(AFFECTED)) == (4, 17)
    assert set(EXPECTED) <= {(pin["project"], pin["version"]) for pin in pins.read(checkout.COMPAT)}


def records(site: Path) -> dict[str, list[str]]:
    """Return hash and size of each row of each RECORD."""
    rows = {}
    for record in site.glob("*.dist-info/RECORD"):
        with open(record, encoding="utf-8", newline="") as file:
            rows.update({row[0]: row[1:] for row in csv.reader(file)})
    return rows
