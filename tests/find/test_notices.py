"""The warnings of a search: namesakes, copies that hide others, a working directory in the way."""

import os
import shutil
from pathlib import Path

import pytest

from support import environments as make
from support.environments import Env, agree
from unhang.records import Search


def warning(found: Search) -> str:
    assert len(found.warnings) == 1, found.warnings
    return found.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("verl", {"verl/__init__.py": "", "verl/protocol.py": ""}),
        ("verl", {"verl.py": ""}),
        ("swift", {"swift/__init__.py": "", "swift/common/__init__.py": "", "swift/proxy/__init__.py": ""}),
        ("swift", {"swift/__init__.py": "", "swift/version.py": "__version__ = '2.0'\n"}),
    ],
)
def test_a_namesake_is_not_an_installation(env: Env, name: str, files: dict[str, str]) -> None:
    make.write(env.site, files)
    found = agree(env, namesakes=(name,))
    assert found.installations == ()
    place = env.site / (name if len(files) > 1 else f"{name}.py")
    what = {"verl": "the verl framework", "swift": "ms-swift"}[name]
    assert warning(found) == f"`import {name}` finds {place}, which is not {what}"


def test_a_namesake_that_hides_the_framework(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.swift(env.site)
    monkeypatch.setenv("PYTHONPATH", str(make.write(tmp_path / "cloud", {"swift/__init__.py": ""})))
    found = agree(env, namesakes=("swift",))
    assert found.installations == ()
    assert warning(found).endswith(f"{tmp_path}/cloud/swift, which is not ms-swift; it hides {env.site}/swift")


def test_a_megatron_with_neither_part_and_an_init_file_that_sets_its_own_path(env: Env) -> None:
    for files in {"megatron/energon/__init__.py": ""}, {"megatron/__init__.py": ""}:
        make.write(env.site, files)
        found = agree(env)
        assert found.installations == ()
        assert warning(found).startswith(f"`import megatron` finds {env.site}/megatron, which has neither")
    init = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    make.write(make.tree(env.site), {"megatron/__init__.py": init})
    found = agree(env)
    assert len(found.installations) == 2
    assert warning(found).startswith(f"{env.site}/megatron/__init__.py changes its search path at run time")


def test_an_init_file_that_hides_the_other_part(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.write(make.core(env.site), {"megatron/__init__.py": ""})
    monkeypatch.setenv("PYTHONPATH", str(make.tree(tmp_path / "tree")))
    found = agree(env)
    (core,) = found.installations
    assert (core.root, core.shadowed) == (str(env.site), (str(tmp_path / "tree" / "megatron" / "core"),))
    hidden = tmp_path / "tree" / "megatron" / "training"
    assert warning(found) == f"`import megatron.training` fails: {env.site}/megatron/__init__.py hides {hidden}"


def test_a_working_directory_that_a_job_could_import(env: Env, tmp_path: Path) -> None:
    make.tree(env.site)
    checkout = make.verl(make.tree(tmp_path / "checkout"))
    make.write(checkout, {"swift/__init__.py": ""})  # a namesake gives no warning
    found = agree(env, cwd=checkout)
    assert [i.root for i in found.installations] == [str(env.site)] * 2
    megatron, verl = found.warnings
    instead = f"could import {checkout}/megatron instead of {env.site}/megatron/core: "
    assert instead in megatron
    assert f"could import {checkout}/verl though the environment has none: " in verl


def test_a_working_directory_that_is_on_the_path(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = make.tree(tmp_path / "checkout")
    (checkout / "run.py").write_text("")
    assert len(agree(env, cwd=checkout).warnings) == 1
    assert agree(env, cwd=checkout, script=checkout / "run.py").warnings == ()
    elsewhere = make.write(tmp_path / "elsewhere", {"run.py": ""}) / "run.py"
    found = agree(env, cwd=checkout, script=elsewhere)  # then the working directory is not on the path
    assert (found.installations, found.warnings) == ((), ())
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    assert agree(env, cwd=checkout).warnings == ()


def test_packages_in_archives(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 not really")
    verl = shutil.make_archive(str(tmp_path / "verl"), "zip", make.verl(tmp_path / "one"))
    core = shutil.make_archive(str(tmp_path / "core"), "zip", make.core(tmp_path / "two"))  # a namespace
    entries = [str(tmp_path / "broken.zip"), verl, core]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    found = agree(env, namesakes=("verl", "megatron.core"))
    assert found.installations == ()
    places = [f"{core}/megatron/core", f"{verl}/verl"]
    for place, text in zip(places, found.warnings, strict=True):
        assert f"finds {place}, inside an archive" in text
