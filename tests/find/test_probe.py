"""The probe asks the import system of any interpreter as `import` does, and imports and writes nothing."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support import environments as make
from support.environments import Env, agree
from unhang.find.environment import choose
from unhang.find.locate import ask_probe, search
from unhang.records import Environment


def test_nothing_is_imported_or_written(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    make.write(make.swift(make.verl(make.tree(env.site))), {"mine.py": "", "mine.pth": "import mine\n"})
    for init in env.site.rglob("*/__init__.py"):
        if "unhang" not in init.parts:
            init.write_text("raise SystemExit('imported')")
    before = sorted(env.prefix.rglob("*"))
    assert len(env.search().installations) == 4
    assert sorted(env.prefix.rglob("*")) == before
    assert len(json.loads(env.run("-c", make.IN_PROCESS))[1]) == 4


def test_an_old_namespace_package(env: Env, tmp_path: Path) -> None:
    # The -nspkg.pth file of setuptools' namespace_packages makes the parent's module when the interpreter starts.
    line = "import sys, types; m = sys.modules.setdefault('megatron', types.ModuleType('megatron')); m.__path__ = "
    (env.site / "megatron-nspkg.pth").write_text(f"{line}['{tmp_path}/checkout/megatron']\n")
    make.core(env.site)
    make.tree(tmp_path / "checkout")
    assert {i.root for i in agree(env).installations} == {str(tmp_path / "checkout")}


def test_a_finder_without_the_parent(env: Env) -> None:
    """`import` does not ask a finder for a module whose parent does not exist."""
    finder = """\
        import importlib.util, os.path
        init = os.path.join(os.path.dirname(__file__), "elsewhere", "__init__.py")
        class Finder:
            def find_spec(self, name, *args):
                if name == "megatron.core": return importlib.util.spec_from_file_location(name, init)
        """
    pth = "import sys, only; sys.meta_path.append(only.Finder())\n"
    make.write(env.site, {"elsewhere/__init__.py": "", "only.py": finder, "only.pth": pth})
    assert agree(env)[1:4] == ((), (), ())


def test_a_finder_that_import_does_not_reach_may_raise(env: Env) -> None:
    finder = "class Bad:\n    def find_spec(self, *args): raise OSError('stale file handle')\n"
    make.write(env.site, {"bad.py": finder, "bad.pth": "import sys, bad; sys.meta_path.append(bad.Bad())\n"})
    for module in (make.tree, make.verl, make.swift, make.bridge, make.mcore_bridge, make.trl):
        module(env.site)
    assert len(env.search().installations) == 7


def test_our_own_entry_on_the_path_is_dropped(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job does not have the folder of our entry point, or the one where `python -m unhang` runs, on its path."""
    decoy = make.verl(tmp_path / "decoy")
    for folder in decoy, env.site:
        (folder / "runner.py").write_text(make.IN_PROCESS)
    (env.prefix / "runner").symlink_to(decoy / "runner.py")
    inside = [env.run(str(decoy / "runner.py")), env.run("runner"), env.run("-m", "runner", cwd=decoy)]
    assert [json.loads(text)[1] for text in inside] == [[]] * 3
    if sys.version_info >= (3, 11):
        monkeypatch.setenv("PYTHONPATH", str(decoy))  # with -P, Python adds no entry of its own
        (verl,) = json.loads(env.run("-P", "-m", "runner", cwd=decoy))[1]
        assert verl[0] == "verl"


def of_a_job(python: str, cwd: Path) -> list[list[str]]:
    """Return what the probe computes for an isolated interpreter: the path of a job, and what was not run."""
    return list(ask_probe(python, "answer = job_path('')", cwd=str(cwd), form=([str], [str])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["base", "venv", "venv with the system's"])
@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(8, 15)])
def test_the_path_of_a_job_is_computed_as_python_has_it(
    version: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{sys.base_prefix}/bin/python{version}"  # sys._base_executable of 3.10 is the virtual environment's
    python = own if os.path.exists(own) else interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    if kind != "base":
        system = ["--system-site-packages"] if "system" in kind else []
        make.run(python, "-m", "venv", "--without-pip", *system, "env", cwd=tmp_path)
        python = f"{tmp_path}/env/bin/python"
        (site,) = tmp_path.glob("env/lib/python*/site-packages")
        make.write(site, {"z.pth": f"{tmp_path}/path\n"})
    entries = [str(tmp_path / "path"), "relative/../x", "", f"{tmp_path}/gone"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    user = Path(make.run(python, "-c", "import site; print(site.getusersitepackages())", cwd=tmp_path).strip())
    lines = ("# comment", "", f"{tmp_path}/one", "import sys", "below  ", f"{tmp_path}/missing", f"{tmp_path}/path")
    files = {"b.pth": "\n".join([*lines, site_of(python)]), "a.pth": f"{tmp_path}/two", "c.txt": f"{tmp_path}/three"}
    make.write(user, {**files, "distutils-precedence.pth": "import os"})
    for folder in tmp_path / "one", tmp_path / "two", tmp_path / "path", user / "below":
        folder.mkdir()

    def truth() -> list[str]:
        shown = make.run(python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))", cwd=tmp_path)
        return list(json.loads(shown))  # without what -c adds

    path, not_run = of_a_job(python, tmp_path)
    assert path == truth()
    assert (str(user) in path) == (kind != "venv")
    assert not_run == ([f"{user}/b.pth"] if kind != "venv" else [])
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setenv("PYTHONPATH", "")
    path, not_run = of_a_job(python, tmp_path)
    assert (path, not_run) == (truth(), [])


def site_of(python: str) -> str:
    """Return the last site-packages of an interpreter."""
    return make.run(python, "-c", "import site; print(site.getsitepackages()[-1])", cwd=Path("/")).strip()


def interpreter(version: str) -> str | None:
    """Return a Python of this version on this machine, if there is one other than our own."""
    if version == f"3.{sys.version_info.minor}":
        return None
    candidates = [*sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))]
    for candidate in (*candidates, shutil.which(f"python{version}")):
        command = [candidate or "false", "-c", "import venv"]  # Debian has a package of its own for venv
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(8, 15)])
def test_another_python(wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no other Python {version} on this machine")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    prefix = tmp_path / "env"
    make.run(python, "-m", "venv", "--without-pip", str(prefix), cwd=tmp_path)
    env = Env(prefix, prefix / "bin" / "python", prefix / "lib" / f"python{version}" / "site-packages")
    make.extract(wheels["core-0.16.1"], env.site)
    checkout = make.project(make.training(make.verl(tmp_path / "checkout")), "verl", "0.7.1")
    make.extract(make.build(checkout, tmp_path / "out", editable="lenient"), env.site)
    found = env.search()
    truth = json.loads(env.run("-c", make.TRUTH))
    assert {make.MODULES[i.upstream]: f"{i.package_dir}/__init__.py" for i in found.installations} == {
        name: file for name, file in truth.items() if file
    }
    assert [(i.upstream, i.kind) for i in found.installations] == [
        ("megatron-core", "wheel"),
        ("megatron-lm", "editable"),
        ("verl", "editable"),
    ]


NAMES = ("areal", "megatron.bridge", "roll")


def test_other_packages_are_found_as_import_finds_them_and_not_imported(env: Env, tmp_path: Path) -> None:
    make.core(env.site)
    make.write(env.site, {"megatron/bridge/__init__.py": "raise SystemExit", "roll.py": "raise SystemExit"})
    make.write(tmp_path / "checkout", {"areal/__init__.py": "raise SystemExit"})
    finder = """\
        import importlib.util
        class Finder:
            def find_spec(self, name, *args):
                if name == "areal":
                    return importlib.util.spec_from_file_location(name, FILE, submodule_search_locations=[FOLDER])
        """
    folder = str(tmp_path / "checkout/areal")
    constants = f"FOLDER = {folder!r}\nFILE = FOLDER + '/__init__.py'\n"
    pth = "import sys, only; sys.meta_path.append(only.Finder())\n"
    make.write(env.site, {"only.py": constants + textwrap.dedent(finder), "only.pth": pth})
    found = {"areal": folder, "megatron.bridge": f"{env.site}/megatron/bridge"}
    place = choose(str(env.python), str(tmp_path), {})
    assert search(place, cwd=str(tmp_path), beside=NAMES).packages == found, "and a plain module is no package"
    code = f"from unhang.find import probe; import sys; print(probe.packages({NAMES!r}, list(sys.path)))"
    assert env.run("-c", code).strip() == repr(found), "in its own process too"
    target = Environment(None, str(env.site), "--target")
    assert search(target, cwd=str(tmp_path), beside=NAMES).packages == {"megatron.bridge": found["megatron.bridge"]}


def test_a_finder_that_fails_for_another_package_stops_nothing(env: Env, tmp_path: Path) -> None:
    make.core(env.site)
    finder = "class Bad:\n    def find_spec(self, name, *args):\n        if name == 'roll': raise OSError('stale')\n"
    make.write(env.site, {"bad.py": finder, "bad.pth": "import sys, bad; sys.meta_path.insert(0, bad.Bad())\n"})
    make.write(env.site, {"areal/__init__.py": ""})
    found = search(choose(str(env.python), str(tmp_path), {}), cwd=str(tmp_path), beside=NAMES)
    assert found.packages == {"areal": f"{env.site}/areal"}
    assert [one.upstream for one in found.installations] == ["megatron-core"]
