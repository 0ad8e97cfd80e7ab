"""`unhang pack build`: the wheel on disk, and in an environment."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from support import cli, packed


@pytest.fixture(autouse=True)
def _four_fixes() -> None:
    """These tests are about a pack's fix, beside all of ours."""


def test_it_writes_the_wheel_and_says_so(tmp_path: Path) -> None:
    folder = packed.pack(tmp_path / "acme")
    ran = cli.called_with_all("pack", "build", folder, "-o", tmp_path / "dist")
    assert (ran.code, [path.name for path in (tmp_path / "dist").iterdir()]) == (
        0,
        ["unhang_pack_acme-1.2-py3-none-any.whl"],
    )
    assert f"wrote {tmp_path}/dist/unhang_pack_acme-1.2-py3-none-any.whl: 1 fix\n" in ran.out


def test_what_is_unpacked_from_it_is_a_pack(tmp_path: Path) -> None:
    folder = packed.pack(tmp_path / "acme")
    assert cli.called_with_all("pack", "build", folder, "-o", tmp_path).code == 0
    zipfile.ZipFile(tmp_path / "unhang_pack_acme-1.2-py3-none-any.whl").extractall(tmp_path / "site")
    listed = cli.called_with_all("list", "--pack", tmp_path / "site" / "unhang_pack_acme", packed.ID)
    assert listed.code == 0
    assert "(acme 1.2)" in listed.out


def test_a_pack_without_a_fix_gives_no_wheel(tmp_path: Path) -> None:
    folder = packed.pack(tmp_path / "acme")
    for part in ("patches", "compat"):
        shutil.rmtree(folder / part)
    ran = cli.called_with_all("pack", "build", folder, "-o", tmp_path / "dist")
    assert (ran.code, "there is no fix of acme 1.2" in ran.err, (tmp_path / "dist").exists()) == (2, True, False)


def test_a_pack_that_is_not_as_it_must_be_gives_no_wheel(tmp_path: Path) -> None:
    folder = packed.pack(tmp_path / "acme")
    (folder / "pack.json").write_text(json.dumps({"schema": 1, "name": "acme"}))
    ran = cli.called_with_all("pack", "build", folder, "-o", tmp_path / "dist")
    assert (ran.code, (tmp_path / "dist").exists()) == (2, False)
    assert "error[bad-pack]" in ran.err
