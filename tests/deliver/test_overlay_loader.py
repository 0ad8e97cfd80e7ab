"""The loader of an overlay: which originals and rewritten files it accepts."""

from pathlib import Path

from support import cli, overlays
from support.overlays import FIX, LOOK, MODULE, STATE, job


def test_a_changed_original_is_refused_until_the_overlay_is_made_again(site: Path, overlay: Path) -> None:
    (site / STATE).write_bytes((site / STATE).read_bytes() + b"\n# changed\n")
    ran = job(f"try: import {MODULE}\nexcept ImportError as e: print(e.name, e)", overlay, site)
    assert ran.out.startswith(f"{MODULE} unhang overlay: {site / STATE} is not the file that the overlay was made from")
    assert f"make it again (unhang overlay {overlay}), or remove {overlay} from PYTHONPATH" in ran.out
    assert ran.err.count("is not the file") == 1, "reported, though the code swallows the error"
    assert job("import megatron.core.utils", overlay, site).code == 0
    overlays.make(overlay, site)
    assert job(LOOK, overlay, site).out.startswith(str(overlay))


def test_an_edited_rewritten_file_is_refused_until_the_overlay_is_made_again(site: Path, overlay: Path) -> None:
    assert job(LOOK, overlay, site).code == 0  # writes bytecode, which must not hide the edit
    (edited,) = overlay.rglob("parallel_state.py")
    edited.write_bytes(edited.read_bytes().replace(b"# unhang", b"# edited", 1))
    ran = job(LOOK, overlay, site)
    assert "ImportError: unhang overlay: " in ran.err
    assert "has changed since the overlay was made" in ran.err
    overlays.make(overlay, site)
    assert job(LOOK, overlay, site).code == 0


def test_an_original_that_apply_has_patched_is_the_same_code(site: Path, overlay: Path) -> None:
    cli.applied("--target", site, *FIX)
    assert job(LOOK, overlay, site).out.startswith(str(overlay))
    assert "overlay of 0 modules" in overlays.make(overlay, site).err
    assert job(LOOK, overlay, site).out.split() == [str(site / STATE)]


def test_a_missing_original_is_python_s_own_error(site: Path, overlay: Path) -> None:
    (site / STATE).unlink()
    assert f"ModuleNotFoundError: No module named '{MODULE}'" in job(LOOK, overlay, site).err


def test_a_damaged_manifest_is_an_import_error(site: Path, overlay: Path) -> None:
    (manifest,) = overlay.glob(".unhang-overlay/*/manifest.json")
    manifest.write_text("{")
    assert f"ImportError: unhang overlay: the overlay {manifest.parent} is damaged" in job(LOOK, overlay, site).err
