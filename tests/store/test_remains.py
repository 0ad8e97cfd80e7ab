"""What is left of a receipt: in trees without a RECORD, after odd installs, and with an older receipt.

`tests/whole/test_receipts.py` has the plain cases, with real installers.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli
from unhang.cli.main import main
from unhang.rewrite import own_lines
from unhang.store import disk, dist_info
from unhang.store.receipt import sha256

SWIFT, ENGINE = ("ms-swift", "4.1.0"), "verl/workers/engine/megatron/transformer_impl.py"
MPU, METRIC = "swift/megatron/utils/megatron_lm_utils.py", "swift/metrics/utils.py"
LISTED = "ms_swift-4.1.0.dist-info"
Tree = dict[str, tuple[int, str]]


@pytest.fixture
def site(in_memory: Path) -> Path:
    return cli.unpack_targets(in_memory / "site", SWIFT)


@pytest.fixture
def checkout(in_memory: Path) -> Path:
    """A source tree: nothing lists its files."""
    top = cli.unpack_targets(in_memory / "checkout", SWIFT)
    shutil.rmtree(top / LISTED)
    return top


def unhang(command: str, place: Path, *more: str) -> int:
    return main([command, "--target", str(place), *more])


def other(place: Path, *releases: tuple[str, str]) -> None:
    """Put the files of another release over those that are there, as `git checkout` does."""
    shutil.rmtree(place / "swift")
    cli.unpack_targets(place, *releases)
    for listed in place.glob("*.dist-info"):
        shutil.rmtree(listed)


def edit(path: Path, change: Callable[[bytes], bytes] = lambda data: b"# mine\n" + data) -> None:
    path.write_bytes(change(path.read_bytes()))


def originals(place: Path) -> set[bytes]:
    return {path.read_bytes() for path in (place / ".unhang/pristine").iterdir()}


def edit_inside(path: Path) -> None:
    edit(path, lambda data: re.sub(rb"( *)(# unhang )", rb"\1pass\n\1\2", data, count=1))


def test_a_tree_with_an_edit_elsewhere(checkout: Path) -> None:
    plain = (checkout / MPU).read_bytes()
    before = cli.tree(checkout)
    assert unhang("apply", checkout) == 0
    edit(checkout / MPU)
    assert unhang("revert", checkout) == 0
    assert (checkout / MPU).read_bytes() == b"# mine\n" + plain
    assert originals(checkout) == {plain}, "for the file has other bytes"
    edit(checkout / MPU, lambda data: data.removeprefix(b"# mine\n"))
    assert unhang("revert", checkout) == 0
    assert cli.tree(checkout).keys() == before.keys()


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_another_commit_in_a_tree_is_left_alone_and_the_originals_stay(
    checkout: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Upstream's own fix of mean-metric-dtype has the shape of ours there."""
    assert unhang("apply", checkout) == 0
    before = originals(checkout)
    other(checkout, ("ms-swift", "4.6.0"))
    now = cli.tree(checkout)
    assert unhang(command, checkout, "--fix", "mean-metric-dtype") == 0
    said = f"metrics/utils.py now; its original stays in {checkout}/.unhang" in capsys.readouterr().err
    assert said is (command == "revert")
    assert cli.tree(checkout) == now
    assert originals(checkout) == before


def test_a_rewrite_that_git_carried_to_another_commit_is_taken_back_there(checkout: Path) -> None:
    """`git checkout` keeps a changed file if the two commits have the same one."""
    assert unhang("apply", checkout) == 0
    carried = (checkout / METRIC).read_bytes()
    before = cli.unpack_targets(checkout.parent / "before", SWIFT)
    other(checkout, ("ms-swift", "4.6.0"))
    now = cli.tree(checkout)
    (checkout / METRIC).write_bytes(carried)
    assert unhang("revert", checkout) == 0
    assert (checkout / METRIC).read_bytes() == (before / METRIC).read_bytes()
    assert {name for name, data in cli.tree(checkout).items() if data != now.get(name)} == {
        METRIC, ".unhang/receipt.json"
    }  # fmt: skip


def test_force_never_writes_a_file_of_another_release(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unhang("apply", checkout, "--fix", "mean-metric-dtype") == 0
    edit_inside(checkout / METRIC)
    edit(checkout / "swift/version.py", lambda data: data.replace(b"4.1.0", b"4.1.1"))
    before = cli.tree(checkout)
    capsys.readouterr()
    for force in ([], ["--force"]):
        assert unhang("revert", checkout, *force) == 1
        err = capsys.readouterr().err
        assert ("error[edited]" in err, "--force" in err) == (True, False)
        assert cli.tree(checkout) == before


def test_one_fix_beside_another_whose_function_was_edited(in_memory: Path) -> None:
    site = cli.unpack_targets(in_memory / "site", ("ms-swift", "3.8.0"))
    file = site / "swift/plugin/metric.py"
    plain = file.read_bytes()
    assert unhang("apply", site) == 0
    edit(file, lambda data: re.sub(rb"( *)(# unhang infer-metric-rank0)", rb"\1pass\n\1\2", data))
    edited = file.read_bytes()
    assert unhang("revert", site, "--fix", "infer-metric-rank0") == 1
    assert file.read_bytes() == edited
    assert unhang("revert", site, "--fix", "mean-metric-dtype") == 0
    assert b"# unhang mean-metric-dtype" not in file.read_bytes()
    assert b"pass\n    # unhang infer-metric-rank0" in file.read_bytes()
    assert_row_holds(site, file)
    assert unhang("revert", site, "--force") == 0
    assert file.read_bytes() == plain
    assert (site / "swift/plugin/metric.py.unhang-kept").exists()
    assert not (site / ".unhang").exists()


def test_one_fix_that_somebody_took_out_beside_another(in_memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = cli.unpack_targets(in_memory / "site", ("ms-swift", "3.8.0"))
    file = site / "swift/plugin/metric.py"
    plain = file.read_bytes()
    assert unhang("apply", site) == 0
    edit(file, lambda data: own_lines.put_back(data, plain, ["MeanMetric.compute"]))
    now = file.read_bytes()
    assert unhang("revert", site, "--fix", "mean-metric-dtype") == 0
    assert "was restored since: mean-metric-dtype is not in it any more" in capsys.readouterr().err
    assert file.read_bytes() == now
    assert unhang("revert", site) == 0
    assert file.read_bytes() == plain
    assert not (site / ".unhang").exists()


def test_a_forged_receipt_without_the_function_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unhang("apply", site, "--fix", "mean-metric-dtype") == 0
    edit(site / METRIC)
    (blob,) = (site / ".unhang/pristine").iterdir()
    (site / ".unhang/pristine" / sha256(b"x = 1\n")).write_bytes(b"x = 1\n")
    edit(site / ".unhang/receipt.json", lambda data: data.replace(blob.name.encode(), sha256(b"x = 1\n").encode()))
    before = cli.tree(site)
    assert unhang("revert", site) == 2
    assert "error[bad-receipt]" in capsys.readouterr().err
    assert cli.tree(site) == before


def assert_row_holds(site: Path, file: Path) -> None:
    (record,) = site.glob("*.dist-info/RECORD")
    data = record.read_bytes()
    assert dist_info.update(data, {str(file.relative_to(site)): file.read_bytes()}) == data


# The RECORD


@pytest.mark.parametrize("name", ["ms-swift-4.1.0.dist-info", "MS.Swift-4.1.0.dist-info"])
def test_a_folder_with_the_name_as_another_installer_spells_it(site: Path, name: str) -> None:
    before = cli.tree(site)
    assert unhang("apply", site) == 0
    (site / LISTED).rename(site / name)
    edit(site / MPU)
    assert unhang("revert", site, "--fix", "expert-dp-warmup") == 0
    assert_row_holds(site, site / MPU)
    assert unhang("revert", site) == 0
    edit(site / MPU, lambda data: data.removeprefix(b"# mine\n"))
    (site / name).rename(site / LISTED)
    assert unhang("revert", site) == 0
    assert cli.tree(site) == before, "and RECORD's row of the original is back"


def test_a_folder_that_is_gone(site: Path) -> None:
    """As in an image that was made small."""
    assert unhang("apply", site) == 0
    shutil.rmtree(site / LISTED)
    edit(site / MPU)
    assert unhang("revert", site) == 0
    plain = cli.unpack_targets(site.parent / "plain", SWIFT)
    shutil.rmtree(plain / LISTED)
    edit(site / MPU, lambda data: data.removeprefix(b"# mine\n"))
    assert unhang("revert", site) == 0
    assert cli.tree(site) == cli.tree(plain)


def test_a_file_that_was_reinstalled_as_a_link(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by uv with --link-mode=symlink."""
    assert unhang("apply", site) == 0
    cache = cli.unpack_targets(site.parent / "cache", SWIFT)
    shutil.copy(cache / LISTED / "RECORD", site / LISTED / "RECORD")
    for name in [entry["path"] for entry in json.loads((site / ".unhang/receipt.json").read_text())["files"]]:
        (site / name).unlink()
        (site / name).symlink_to(cache / name)
    now = cli.tree(site)
    assert unhang("revert", site) == 0
    assert "was reinstalled or restored since" in capsys.readouterr().err
    assert cli.tree(site) == {name: data for name, data in now.items() if ".unhang" not in name}
    assert (site / MPU).is_symlink()


def test_a_wheel_with_the_fixes_in_it_is_another_release(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files are those that we wrote."""
    assert unhang("apply", site) == 0
    (site / LISTED).rename(site / "ms_swift-4.1.0+unhang.1.dist-info")
    now = {name: data for name, data in cli.tree(site).items() if ".unhang" not in name}
    assert unhang("revert", site) == 1, "they are still patched, and no receipt can undo that"
    err = capsys.readouterr().err
    assert "is of ms_swift-4.1.0+unhang.1 now" in err
    assert "patched, and no receipt has its original bytes" in err
    assert {name: data for name, data in cli.tree(site).items() if ".unhang" not in name} == now


def test_another_build_of_the_same_version_with_upstreams_own_fix(site: Path) -> None:
    """Its shape is that of ours, but it has no comment of ours, and the RECORD is not the one that we wrote."""
    assert unhang("apply", site, "--fix", "mean-metric-dtype") == 0
    edit(site / METRIC, lambda data: re.sub(rb" *# unhang .*\n", b"", data))
    edit(site / LISTED / "RECORD", lambda data: dist_info.update(data, {METRIC: (site / METRIC).read_bytes()}))
    before = {name: data for name, data in cli.tree(site).items() if ".unhang" not in name}
    assert unhang("revert", site) == 0
    assert cli.tree(site) == before


def test_without_the_comment_it_is_ours_by_its_shape_as_long_as_nothing_was_installed_over_it(site: Path) -> None:
    before = cli.tree(site)
    assert unhang("apply", site, "--fix", "mean-metric-dtype") == 0
    edit(site / METRIC, lambda data: re.sub(rb" *# unhang .*\n", b"", data))
    assert unhang("revert", site) == 0
    assert cli.tree(site) == before


# A receipt that does not name the lines of its functions: they could not be put back alone, or it is from 2026-11-22


@pytest.fixture
def older(site: Path) -> Path:
    assert unhang("apply", site) == 0
    edit(site / ".unhang/receipt.json", lambda data: re.sub(rb' *"lines": "\w+",\n', b"", data))
    assert b'"lines"' not in (site / ".unhang/receipt.json").read_bytes()
    return site


def test_an_older_receipt_reverts_to_the_byte_and_refuses_an_edited_file(older: Path) -> None:
    plain = cli.unpack_targets(older.parent / "plain", SWIFT)
    edit(older / MPU)
    edited = (older / MPU).read_bytes()
    assert unhang("revert", older) == 1
    assert (older / MPU).read_bytes() == edited
    assert unhang("revert", older, "--force") == 0
    kept = older / f"{MPU}.unhang-kept"
    assert kept.read_bytes() == edited
    kept.unlink()
    assert cli.tree(older) == cli.tree(plain)


def test_after_an_upgrade_an_older_receipt_undoes_nothing(older: Path) -> None:
    shutil.rmtree(older / LISTED)
    new = cli.unpack_targets(older.parent / "new", ("ms-swift", "4.6.0"))
    shutil.rmtree(older / "swift")
    shutil.copytree(new, older, dirs_exist_ok=True)
    assert unhang("revert", older, "--force") == 0
    assert cli.tree(older) == cli.tree(new)


# What `apply` drops


def test_only_what_an_installer_has_written_since_goes_with_the_next_apply(site: Path) -> None:
    fix = ("--fix", "mean-metric-dtype")
    plain = cli.unpack_targets(site.parent / "plain", SWIFT)
    assert unhang("apply", site, *fix) == 0
    shutil.copy(plain / METRIC, site / METRIC)
    assert unhang("apply", site, "--fix", "tp-logps-gradient") == 0
    assert unhang("revert", site, "--fix", "tp-logps-gradient") == 0
    assert (site / ".unhang").exists(), "no installer's row says so"
    shutil.copy(plain / LISTED / "RECORD", site / LISTED / "RECORD")
    assert unhang("apply", site, "--skip", "mean-metric-dtype", "--dry-run") == 0
    assert unhang("apply", site, "--fix", "moe-aux-tracker-hang") == 0
    assert (site / ".unhang").exists(), "neither run is about it"
    assert unhang("apply", site, "--kind", "wrong-values") == 0
    assert len(originals(site)) == 9
    assert unhang("revert", site, "--kind", "wrong-values") == 0
    assert unhang("apply", site, *fix) == 0
    assert unhang("revert", site) == 0
    assert cli.tree(site) == cli.tree(plain)


def test_without_permission_it_stays_and_apply_does_not_fail_for_that(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unhang("apply", site, "--fix", "mean-metric-dtype") == 0
    shutil.copy(cli.unpack_targets(site.parent / "plain", SWIFT) / METRIC, site / METRIC)
    before = cli.tree(site)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "run", refuse)
        assert unhang("apply", site, "--fix", "moe-aux-tracker-hang") == 0
    assert cli.tree(site) == before
