"""The packs that are installed beside unhang: found without an import, read once, and kept for their folder's time."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from support import cli, packed
from unhang.find import editable
from unhang.plugins import entry_points
from unhang.plugins.entry_points import folders, modules


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's site-packages with one pack."""
    found = tmp_path / "env" / "lib" / "site-packages"
    found.mkdir(parents=True)
    packed.distribution(found, packed.pack(tmp_path / "acme"))
    monkeypatch.setattr(entry_points, "_sites", lambda: [str(found)])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    settled(found)
    return found


def settled(folder: Path) -> None:
    """Let a folder have changed some time ago."""
    then = time.time() - 60
    os.utime(folder, (then, then))


def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob("packs/*.json"))


def test_which_modules_an_entry_points_file_names() -> None:
    text = (
        "[console_scripts]\na = b:c\n[unhang.packs]\n# d = e\none = acme.pack\n two=other [x]\nbad = ../x\n[z]\nq = r\n"
    )
    assert modules(text) == ["acme.pack", "other"]
    assert modules("one = acme\n") == []


def test_it_is_read_once_and_again_when_the_folder_changes(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = environ(tmp_path)
    assert folders(where) == [str(site / "acme_pack")]
    (file,) = kept(tmp_path)
    monkeypatch.setattr(entry_points, "_in_site", lambda site: iter(["again"]))
    assert folders(where) == [str(site / "acme_pack")]
    (site / "new").mkdir()
    assert folders(where) == [str(site / "again")]
    assert json.loads(file.read_text())["packs"] == [[str(site), "acme_pack"]], "it may still be changing"
    settled(site)
    assert folders(where) == [str(site / "again")]
    assert json.loads(file.read_text())["packs"] == [[str(site), "again"]]


def test_a_pack_whose_folder_is_gone_is_not_forgotten(site: Path, tmp_path: Path) -> None:
    shutil.rmtree(site / "acme_pack")
    assert folders(environ(tmp_path)) == [str(site / "acme_pack")], "whoever loads it says that it is gone"


def test_what_others_may_write_is_not_believed(site: Path, tmp_path: Path) -> None:
    where = environ(tmp_path)
    folders(where)
    (file,) = kept(tmp_path)
    forged = file.read_text().replace("acme_pack", "forged")
    file.write_text(forged)
    assert folders(where) == [str(site / "forged")], "ours, and believed"
    file.chmod(0o666)
    assert folders(where) == [str(site / "acme_pack")]
    for text in ("[]", "{", "[" * 10**5, '{"times": {}, "packs": ["/x"]}'):
        file.write_text(text)
        file.chmod(0o600)
        assert folders(where) == [str(site / "acme_pack")]
    file.unlink()
    (tmp_path / "other.json").write_text(forged)
    file.symlink_to(tmp_path / "other.json")
    assert folders(where) == [str(site / "acme_pack")]


def test_nothing_is_kept_where_no_bytecode_is_wanted_or_nothing_can_be(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert folders({"XDG_CACHE_HOME": str(tmp_path / "file")}) == [str(site / "acme_pack")]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert folders(environ(tmp_path)) == [str(site / "acme_pack")]
    assert kept(tmp_path) == []


def test_only_this_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "elsewhere" / "site-packages"
    other.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(other), str(tmp_path), *sys.path])
    sites = entry_points._sites()
    assert str(other) not in sites
    assert all(
        site.startswith((sys.prefix, sys.base_prefix, str(Path(entry_points.__file__).parents[1]))) for site in sites
    )


@pytest.mark.parametrize("mode", ["a path", "a finder"])
def test_an_editable_pack_is_found_where_its_own_environment_has_it(
    mode: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither PYTHONPATH nor the working directory can put another in its place, also not for a later run."""
    real, forged = tmp_path / "checkout", tmp_path / "forged"
    real.mkdir()
    shutil.move(site / "acme_pack", real / "acme_pack")
    (real / "acme_pack/__init__.py").touch()
    shutil.copytree(real, forged)
    monkeypatch.setattr(sys, "path", [str(forged), *sys.path])
    monkeypatch.chdir(forged)
    if mode == "a path":
        (site / "acme.pth").write_text(f"# where it is\nimport nothing\n{real}\n")
    else:
        finder = editable.Finder({"acme_pack": str(real / "acme_pack")}, {}, "", None)
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    settled(site)
    for _ in range(2):
        assert folders(environ(tmp_path)) == [str(real / "acme_pack")]
    (file,) = kept(tmp_path)
    assert str(tmp_path / "forged") not in file.read_text()


@pytest.mark.parametrize("home", ["", "here", None])
def test_nothing_is_kept_or_believed_without_an_absolute_cache(
    home: str | None, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders(environ(tmp_path))
    (file,) = kept(tmp_path)
    forged = file.read_text().replace("acme_pack", "forged")
    monkeypatch.chdir(tmp_path)
    for folder in (".cache", "here/.cache"):
        (tmp_path / folder / "unhang/packs").mkdir(parents=True, mode=0o700)
        (tmp_path / folder / "unhang/packs" / file.name).write_text(forged)
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError))
    else:
        monkeypatch.setenv("HOME", home)
    assert folders({}) == folders({"XDG_CACHE_HOME": "here/.cache"}) == [str(site / "acme_pack")]


@pytest.mark.parametrize("whose", ["open", "another's", "a link"])
def test_a_cache_of_which_others_may_change_the_folder_is_none(whose: str, site: Path, tmp_path: Path) -> None:
    folders(environ(tmp_path))
    (file,) = kept(tmp_path)
    file.write_text(file.read_text().replace("acme_pack", "forged"))
    if whose == "open":
        file.parent.chmod(0o750)
    elif whose == "a link":
        file.parent.rename(tmp_path / "elsewhere")
        file.parent.symlink_to(tmp_path / "elsewhere")
    elif os.geteuid():
        pytest.skip("only root can give a folder away")
    else:
        os.chown(file.parent, 1001, 1001)
    before = file.read_bytes()
    assert folders(environ(tmp_path)) == [str(site / "acme_pack")]
    assert file.read_bytes() == before, "nothing is kept there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_makes_no_cache_in_the_home_of_another(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 1001, 1001)
    assert folders(environ(tmp_path)) == [str(site / "acme_pack")]
    assert not any((tmp_path / "cache").iterdir())


def test_check_looks_no_packs_up_in_the_folders_again(tmp_path: Path) -> None:
    """It opens what was kept, and no entry_points.txt."""
    code = (
        "import sys; opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(args[0]) if event in ('open', 'os.listdir') else None)\n"
        "from unhang.cli.main import main\n"
        f"main(['check', '--allow-none', '--target', {str(tmp_path)!r}])\n"
        "print(); print(*[name for name in map(str, opened) if 'entry_points.txt' in name or 'dist-info' in name])"
    )
    home = tmp_path / "home"
    env = {"XDG_CACHE_HOME": str(home), "PYTHONDONTWRITEBYTECODE": ""}
    cli.python("-c", code, env=env)
    if not kept_in(home):
        pytest.skip("this environment changed a moment ago, or cannot be kept")
    ran = cli.python("-c", code, env=env)
    assert ran.out.splitlines()[-1:] == [""], ran


def kept_in(home: Path) -> list[Path]:
    return list(home.rglob("packs/*.json"))
