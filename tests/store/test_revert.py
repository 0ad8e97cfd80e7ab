"""Reverting with edits of the user's, after a reinstall or an uninstall, and with `--force`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, environments

VERL = ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
KEPT = f"{ENGINE}.unhang-kept"
BROKEN = b"def broken(:\n"
GATE = b"        output = {}\n"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cli.unpack(tmp_path_factory.mktemp("pristine") / "site", VERL)


@pytest.fixture
def site(pristine: Path, in_memory: Path) -> Path:
    """A patched copy."""
    folder = Path(shutil.copytree(pristine, in_memory / "site"))
    cli.applied("--target", folder)
    return folder


def edit(data: bytes) -> bytes:
    return b"# my own line\n" + data


def edit_inside(data: bytes) -> bytes:
    """Edit the function that was rewritten."""
    assert data.count(GATE) == 1
    return data.replace(GATE, GATE + b"        mine = 1\n")


def test_force_without_an_edit_keeps_no_copy(site: Path, pristine: Path) -> None:
    assert cli.called("revert", "--force", "--target", site).code == 0
    assert cli.tree(site) == cli.tree(pristine)


@pytest.mark.parametrize(
    ("change", "wanted"), [(edit, (0, "applied", "edited since")), (edit_inside, (1, "drifted", "has been edited"))]
)
def test_apply_never_overwrites_an_edit_of_the_users(
    site: Path, change: Callable[[bytes], bytes], wanted: tuple[int, str, str]
) -> None:
    (site / ENGINE).write_bytes(change((site / ENGINE).read_bytes()))
    before = cli.tree(site)
    ran = cli.called("apply", "--target", site, "--output-format", "json")
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"]) == wanted[:2]
    assert wanted[2] in result["detail"]
    assert cli.called("diff", "--unknown", "--target", site).out == "", "and shows no token for it"
    assert cli.tree(site) == before


@pytest.mark.parametrize("change", [edit_inside, lambda data: edit(edit_inside(data)), lambda data: BROKEN])
def test_revert_refuses_without_force_and_keeps_a_copy_with_it(
    site: Path, pristine: Path, change: Callable[[bytes], bytes]
) -> None:
    edited = change((site / ENGINE).read_bytes())
    (site / ENGINE).write_bytes(edited)
    before = cli.tree(site)
    refused = cli.called("revert", "--target", site)
    assert refused.code == 1
    assert f"`unhang revert --target {site} --force`, which keeps your version as {site / KEPT}" in refused.err
    assert cli.tree(site) == before

    other = cli.called("revert", "--force", "--fix", "expert-dp-warmup", "--target", site)
    assert (other.code, cli.tree(site)) == (0, before), "that fix is not in this file"

    forced = cli.called("revert", "--force", "--target", site)
    assert forced.code == 0
    assert f"your version is kept as {site / KEPT}" in forced.err
    assert (site / KEPT).read_bytes() == edited
    (site / KEPT).unlink()
    assert cli.tree(site) == cli.tree(pristine), "the RECORD too, and nothing of ours is left"


def test_a_copy_is_never_overwritten(site: Path) -> None:
    (site / KEPT).write_text("of last time")
    (site / f"{KEPT}2").symlink_to("/nowhere")
    (site / ENGINE).write_bytes(BROKEN)
    assert cli.called("revert", "--force", "--target", site).code == 0
    assert (site / KEPT).read_text() == "of last time"
    assert (site / f"{KEPT}3").read_bytes() == BROKEN


def test_an_edited_file_does_not_stop_the_others(tmp_path: Path) -> None:
    both = cli.unpack(tmp_path / "site", VERL, ("ms-swift", "4.6.0"))
    before = cli.tree(both)
    cli.applied("--target", both)
    (both / ENGINE).write_bytes(BROKEN)
    ran = cli.called("revert", "--target", both)
    assert (ran.code, "reverted 1 file" in ran.err, "error[edited]" in ran.err) == (1, True, True)
    left = {path for path, now in cli.tree(both).items() if now != before.get(path) and ".unhang" not in path}
    assert left == {ENGINE, "verl-0.7.1.dist-info/RECORD"}
    assert cli.called("revert", "--force", "--target", both).code == 0
    assert {path for path in cli.tree(both) if path not in before} == {KEPT}


def test_the_original_of_a_file_that_was_uninstalled_stays_until_it_is_installed_again(
    site: Path, pristine: Path
) -> None:
    for folder in site.iterdir():
        if folder.name != ".unhang":
            shutil.rmtree(folder)
    assert cli.called("check", "--target", site).code == 2, "there is nothing to look at"
    ran = cli.called("revert", "--target", site)
    assert (ran.code, f"{ENGINE} is gone; its original stays in {site}/.unhang" in ran.err) == (0, True)
    assert "delete that folder" in ran.err
    shutil.copytree(pristine, site, dirs_exist_ok=True)
    assert cli.called("revert", "--target", site).code == 0
    assert cli.tree(site) == cli.tree(pristine)


def test_a_checkout_that_is_no_longer_installed_keeps_its_own_receipt(pristine: Path, tmp_path: Path) -> None:
    env = environments.make_env(tmp_path / "env")
    cli.unpack(env.site, ("ms-swift", "4.6.0"))
    checkout = Path(shutil.copytree(pristine, tmp_path / "checkout"))
    (env.site / "mine.pth").write_text(f"{checkout}\n")
    before = cli.tree(env.site)
    cli.applied("--python", env.python)
    (env.site / "mine.pth").unlink()
    patched = cli.tree(checkout)
    assert patched != cli.tree(pristine)
    ran = cli.called("revert", "--python", env.python)
    assert (ran.code, f"reverted 1 file in {env.site}" in ran.err) == (0, True)
    assert cli.tree(checkout) == patched
    (env.site / "mine.pth").write_text(f"{checkout}\n")
    assert cli.tree(env.site) == before
    assert cli.called("revert", "--source", checkout).code == 0
    assert cli.tree(checkout) == cli.tree(pristine)


def test_a_receipt_whose_bytes_are_gone_refuses_before_anything_is_written(site: Path) -> None:
    (site / ENGINE).write_bytes(BROKEN)
    (blob,) = (site / ".unhang/pristine").iterdir()
    blob.unlink()
    before = cli.tree(site)
    for force in ([], ["--force"]):
        ran = cli.called("revert", "--target", site, *force)
        assert ran.code == (2 if force else 1)
        assert cli.tree(site) == before
    assert "error[bad-receipt]" in ran.err
