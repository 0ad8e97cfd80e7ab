"""What is read of an environment is what its interpreter answers, on every kind that can be made here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import environments as make
from unhang.errors import UnhangError
from unhang.find import environment, locate, reading
from unhang.plugins import packs
from unhang.records import Environment

NAMES = ("roll", "areal")
OWN = f"3.{sys.version_info.minor}"
OTHERS = [f"3.{minor}" for minor in range(8, 15) if f"3.{minor}" != OWN]
PYENV = Path.home() / ".pyenv/versions"


def answers(python: Path, script_folder: str = "") -> object:
    """Check that reading and asking agree; return the answer."""
    place = Environment(str(python), "", ".venv", "not to be run")
    read = locate._probe(place, script_folder, os.getcwd(), NAMES)
    asked = locate._asked(str(python), script_folder, os.getcwd(), NAMES)
    assert json.loads(json.dumps(read)) == json.loads(json.dumps(asked))
    prefix = environment.ask(str(python), "import sys; answer = sys.prefix", cwd="/", form=str)
    assert reading.start(str(python), [*packs.modules()]).prefix == prefix
    return read


def must_ask(python: Path) -> str:
    """Return why an interpreter must be asked."""
    with pytest.raises(reading.MustAsk) as caught:
        reading.start(str(python), [*packs.modules(), *NAMES])
    return str(caught.value)


def a_base(top: Path, version: str, debian: bool = False) -> Path:
    """Make a Python of its own, as conda does, for that of this machine may have .pth files; return its interpreter."""
    own = [Path(sys.base_prefix, "bin", f"python{version}")]
    found = [Path("/usr/bin/python3")] if debian else [*own, *PYENV.glob(f"{version}.*/bin/python{version}")]
    python = next(filter(Path.exists, found), None) or shutil.which(f"python{version}")
    if not python:
        pytest.skip("no such Python on this machine")
    code = "import json, os, sys; print(json.dumps([os.path.realpath(sys.executable), os.path.dirname(os.__file__)]))"
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no such Python on this machine")
    program, stdlib = map(Path, json.loads(done.stdout))
    if debian and not (stdlib.parent / "python3" / "dist-packages").is_dir():
        pytest.skip("not on Debian")
    name = program.name
    lib = top / "lib" / name
    (top / "bin").mkdir(parents=True)
    shutil.copy(program, top / "bin")
    (top / "bin/python3").symlink_to(name)
    (top / "bin/python").symlink_to("python3")
    for folder in ("site-packages", "dist-packages"):
        (lib / folder).mkdir(parents=True)
    for path in stdlib.iterdir():
        if path.name not in ("site-packages", "dist-packages", "sitecustomize.py"):
            (lib / path.name).symlink_to(path)
    if debian:
        (top / "local/lib" / name / "dist-packages").mkdir(parents=True)
        (top / "lib/python3/dist-packages").mkdir(parents=True)
        shutil.copy(stdlib / "sitecustomize.py", lib)
    return top / "bin/python"


def site_of(python: Path) -> Path:
    (found,) = python.parent.parent.glob("lib/python3.*/site-packages")
    return found


def plain(base: Path, prefix: Path) -> None:
    make.run(str(base), "-m", "venv", "--without-pip", str(prefix), cwd=prefix.parent)


def copied(base: Path, prefix: Path) -> None:
    make.run(str(base), "-m", "venv", "--without-pip", "--copies", str(prefix), cwd=prefix.parent)


def with_system(base: Path, prefix: Path) -> None:
    make.run(str(base), "-m", "venv", "--without-pip", "--system-site-packages", str(prefix), cwd=prefix.parent)


def of_uv(base: Path, prefix: Path) -> None:
    make.run(make.uv(), "venv", "-q", "--offline", "--python", str(base), str(prefix), cwd=prefix.parent)


def of_uv_with_system(base: Path, prefix: Path) -> None:
    words = ("--system-site-packages", "--python", str(base), str(prefix))
    make.run(make.uv(), "venv", "-q", "--offline", *words, cwd=prefix.parent)


def of_virtualenv(base: Path, prefix: Path) -> None:
    """As virtualenv leaves it: like venv's, with more keys, and a .pth file with code."""
    plain(base, prefix)
    config = prefix / "pyvenv.cfg"
    version = next(line.partition("=")[2].strip() for line in config.read_text().splitlines() if "version" in line)
    home = base.parent
    config.write_text(
        f"home = {home}\nimplementation = CPython\nversion_info = {version}.final.0\nvirtualenv = 20.36.1\n"
        f"include-system-site-packages = false\nbase-prefix = {home.parent}\nbase-executable = {base}\n"
    )
    make.write(site_of(prefix / "bin/python"), {"_virtualenv.pth": "import _virtualenv", "_virtualenv.py": ""})


KINDS = (plain, copied, with_system, of_uv, of_uv_with_system, of_virtualenv)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the tests a home of their own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        *((OWN, kind) for kind in KINDS),
        *(pytest.param("debian", kind, marks=pytest.mark.slow) for kind in KINDS),
        *(
            pytest.param(version, kind, marks=pytest.mark.slow)
            for version in OTHERS
            for kind in (plain, copied, with_system)
        ),
    ],
)
def test_environments_of_each_kind(
    version: str, kind: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = a_base(tmp_path / "base", version, debian=version == "debian")
    answers(base)
    kind(base, tmp_path / "env")
    python = tmp_path / "env/bin/python"
    answers(python)
    # Each place has its own copy: which one wins shows the order.
    name = base.resolve().name
    user = tmp_path / f"home/.local/lib/{name}/site-packages"
    folders = [site_of(python), base.parent.parent / f"lib/{name}/site-packages", user, tmp_path / "job"]
    if version == "debian":
        folders.append(tmp_path / "base/local/lib" / name / "dist-packages")
    for folder in folders:
        make.verl(make.core(folder))
        make.write(folder, {"roll/__init__.py": "", "x.pth": f"{tmp_path}/more\n# x\n\n../relative\n/no/such\n"})
        (folder.parent / "relative").mkdir(exist_ok=True)
    make.training(make.swift(tmp_path / "more"))
    for _ in range(2):
        answers(python)
        answers(base, str(tmp_path / "job"))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/job::{tmp_path}/more")
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "caches"))
    make.write(tmp_path / "job", {"sitecustomize.py": "", "usercustomize.py": ""})
    make.write(user, {"code.pth": "import os\n"})
    assert "code.pth" in str(answers(base))


@pytest.mark.parametrize("mode", ["lenient", "compat", "strict"])
@pytest.mark.parametrize("layout", ["flat", pytest.param("src", marks=pytest.mark.slow)])
def test_editable_installs_of_setuptools(mode: str, layout: str, env: make.Env, tmp_path: Path) -> None:
    where = "." if layout == "flat" else "src"
    source = make.verl(make.core(tmp_path / "checkout" / where))
    make.bridge(source)
    make.project(tmp_path / "checkout", "megatron-core", "0.16.1", where)
    make.extract(make.build(tmp_path / "checkout", tmp_path / "out", editable=mode), env.site)
    answers(env.python)
    make.training(env.site)  # another portion of the namespace
    assert str(tmp_path / "checkout") in str(answers(env.python)) or mode == "strict"


def test_a_finder_is_read_only_as_setuptools_has_written_it(env: make.Env, tmp_path: Path) -> None:
    source = make.project(make.verl(tmp_path / "checkout"), "verl", "0.7.1")
    make.extract(make.build(source, tmp_path / "out", editable="lenient"), env.site)
    (finder,) = env.site.glob("__editable__*_finder.py")
    answers(env.python)
    text = finder.read_text()
    edits = ("return None", "return 1"), ("= {", "= 1 or {"), ("import sys", "import os, sys")
    for other in (text.replace(*edit, 1) for edit in edits):
        assert other != text
        finder.write_text(other)
        assert "runs code when it starts" in must_ask(env.python)


BOMB = "/\n" * (1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("x.pth", "import os\n", "runs code"),
        ("x.pth", "import\tos\n", "runs code"),
        ("x.pth", "import _virtualenv; import os\n", "runs code"),
        ("distutils-precedence.pth", "import os; evil()\n", "runs code"),
        ("x.pth", "import __editable___x_finder; __editable___x_finder.install()\n", "runs code"),
        ("x.pth", "/caf\xe9\n", "is not plain text"),
        ("x.pth", "/x\x0c/y\n", "is not plain text"),
        (".x.pth", "/x\n", "counts in some versions"),
        ("x.pth", BOMB, "is not a small file"),
        ("sitecustomize.py", "", "runs when it starts"),
        ("sitecustomize/__init__.py", "", "runs when it starts"),
        ("../../../bin/pyvenv.cfg", "home = /\n", "unusual place"),
        ("../../../pyvenv.cfg", "home = /\n", "does not say whose"),
        ("../../../pyvenv.cfg", "version = 3.11\n", "does not say whose"),
        ("../../../pyvenv.cfg", "home = /a\nHome = /b\n", "has two of home"),
        ("../../../pyvenv.cfg", "home = /a\nversion = 3.11\n", "/a"),
        ("../../../bin/python._pth", "", "._pth"),
    ],
)
def test_what_is_not_known_exactly_is_asked(file: str, text: str, why: str, env: make.Env) -> None:
    answers(env.python)
    path = env.site / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    assert why in must_ask(env.python)


def test_a_pipe_is_not_opened(env: make.Env) -> None:
    os.mkfifo(env.site / "x.pth")
    assert "is not a small file" in must_ask(env.python)


@pytest.mark.parametrize("kind", ["a script", "another version", "a copy of something", "no library"])
def test_an_interpreter_that_may_be_another_is_asked(kind: str, env: make.Env, tmp_path: Path) -> None:
    real = env.python.resolve()
    env.python.unlink()
    if kind == "a script":
        env.python.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    elif kind == "another version":
        env.python.symlink_to(f"{tmp_path}/bin/python3.9")
        (tmp_path / "bin").mkdir()
        shutil.copy(real, tmp_path / "bin/python3.9")
    elif kind == "a copy of something":
        shutil.copy("/bin/sh", env.python)
    else:
        (tmp_path / "bin").mkdir()
        shutil.copy(real, tmp_path / "bin" / real.name)
        env.python.symlink_to(tmp_path / "bin" / real.name)
        config = env.prefix / "pyvenv.cfg"
        config.write_text(config.read_text().replace(str(real.parent), str(tmp_path / "bin")))
    must_ask(env.python)


def test_a_namespace_package_that_a_pth_file_makes(env: make.Env) -> None:
    line = (
        "import sys, types, os;has_mfs = sys.version_info > (3, 5);"
        "p = os.path.join(sys._getframe(1).f_locals['sitedir'], *({0!r},));"
        "importlib = has_mfs and __import__('importlib.util');has_mfs and __import__('importlib.machinery');"
        "m = has_mfs and sys.modules.setdefault({0!r}, importlib.util.module_from_spec("
        "importlib.machinery.PathFinder.find_spec({0!r}, [os.path.dirname(p)])));"
        "m = m or sys.modules.setdefault({0!r}, types.ModuleType({0!r}));"
        "mp = (m or []) and m.__dict__.setdefault('__path__',[]);(p not in mp) and mp.append(p)\n"
    )
    make.write(env.site, {"google/protobuf/__init__.py": "", "megatron/other/__init__.py": ""})
    make.core(env.site)
    (env.site / "google-nspkg.pth").write_text(line.format("google"))
    answers(env.python)
    (env.site / "megatron-nspkg.pth").write_text(line.format("megatron"))
    assert "makes the package megatron" in must_ask(env.python)


def test_nothing_of_an_environment_runs(env: make.Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where it is found, owned by the user, and could be run."""
    make.verl(env.site)
    monkeypatch.setattr("unhang.find.environment._run", None)
    (tmp_path / ".venv").symlink_to(env.prefix)
    found = locate.search(environment.choose(None, str(tmp_path), {}), cwd=str(tmp_path))
    assert [one.upstream for one in found.installations] == ["verl"]


def test_our_own_environment_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "start", None)
    place = environment.choose(None, str(tmp_path), {"VIRTUAL_ENV": sys.prefix})
    assert locate.search(place, cwd=str(tmp_path)).environment.found_by == "$VIRTUAL_ENV"


def test_an_untrusted_one_that_must_be_asked_is_an_error(env: make.Env, tmp_path: Path) -> None:
    (env.site / "x.pth").write_text("import os\n")
    place = Environment(str(env.python), str(env.prefix), ".venv", "/x belongs to user 7")
    with pytest.raises(UnhangError) as caught:
        locate.search(place, cwd=str(tmp_path))
    assert (caught.value.code, caught.value.path) == ("untrusted-environment", str(env.python))
    assert "x.pth runs code when it starts), and nobody has named it: /x belongs to user 7" in caught.value.message
    assert caught.value.hint == f"if you trust it, name it with --python {env.python}"
    assert locate.search(place._replace(objection=""), cwd=str(tmp_path)).installations == ()
