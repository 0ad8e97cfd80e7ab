"""The search finds what `import` would: every way of installing is really done, and `import` itself is the measure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from support import environments as make
from support.environments import Env, agree, make_env
from unhang.errors import UnhangError
from unhang.find.environment import choose, for_source, for_target
from unhang.find.locate import search
from unhang.records import Installation, Search


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    """An empty environment of the test's own."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return make_env(tmp_path / "env")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels of the stand-ins, by short names."""
    root = tmp_path_factory.mktemp("wheels")
    sources = {
        "core-0.16.1": make.project(make.core(root / "core"), "megatron-core", "0.16.1"),
        "mcore-0.17.0": make.project(make.tree(root / "mcore"), "megatron-core", "0.17.0"),
        "verl": make.project(make.verl(root / "verl"), "verl", "0.7.1"),
        "swift": make.project(make.swift(root / "swift"), "ms-swift", "4.6.0"),
    }
    return {name: make.build(source, root / "out" / name) for name, source in sources.items()}


def by_upstream(found: Search) -> dict[str, Installation]:
    assert len({i.upstream for i in found.installations}) == len(found.installations)
    return {i.upstream: i for i in found.installations}


def warning(found: Search) -> str:
    assert len(found.warnings) == 1, found.warnings
    return found.warnings[0]


# Nothing, and namesakes


def test_nothing(env: Env) -> None:
    assert agree(env)[1:] == ((), ())


def test_a_script_that_is_not_there(env: Env) -> None:
    with pytest.raises(UnhangError) as caught:
        env.search(script=env.prefix / "gone.py")
    assert (caught.value.code, caught.value.path) == ("no-script", str(env.prefix / "gone.py"))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("verl", {"verl/__init__.py": "", "verl/protocol.py": ""}),
        ("verl", {"verl.py": ""}),
        ("swift", {"swift/__init__.py": "", "swift/common/__init__.py": "", "swift/proxy/__init__.py": ""}),
        ("swift", {"swift/__init__.py": "", "swift/version.py": "__version__ = '2.0'\n"}),
    ],
)
def test_a_namesake_is_no_installation(env: Env, name: str, files: dict[str, str]) -> None:
    make.write(env.site, files)
    found = agree(env, namesakes=(name,))
    assert found.installations == ()
    place = env.site / (name if len(files) > 1 else f"{name}.py")
    what = {"verl": "the verl framework", "swift": "ms-swift"}[name]
    assert warning(found) == f"`import {name}` finds {place}, which is not {what}"


def test_a_plain_folder_that_is_a_checkout(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.verl(tmp_path / "work" / "verl")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "work"))
    found = agree(env)
    assert found.installations == ()
    folder = tmp_path / "work" / "verl"
    assert warning(found) == f"`import verl` finds {folder}, a checkout, whose package is {folder / 'verl'}"


def test_a_namesake_that_hides_the_framework(
    env: Env, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make.extract(wheels["swift"], env.site)
    monkeypatch.setenv("PYTHONPATH", str(make.write(tmp_path / "cloud", {"swift/__init__.py": ""})))
    found = agree(env, namesakes=("swift",))
    assert found.installations == ()
    assert warning(found).endswith(f"{tmp_path}/cloud/swift, which is not ms-swift; it hides {env.site}/swift")


@pytest.mark.parametrize("init", [{}, {"megatron/__init__.py": ""}])
def test_a_megatron_with_neither_part(env: Env, init: dict[str, str]) -> None:
    make.write(env.site, {"megatron/energon/__init__.py": "", **init})
    found = agree(env)
    assert found.installations == ()
    assert warning(found).startswith(f"`import megatron` finds {env.site}/megatron, which has neither")


def test_what_an_uninstall_leaves_behind(env: Env) -> None:
    make.write(env.site, {"megatron/core/__pycache__/x.pyc": "", "megatron/core/datasets/helpers_cpp.so": ""})
    assert agree(env).installations == ()


# Wheels


def test_wheels(env: Env, wheels: dict[str, Path]) -> None:
    env.install(wheels["mcore-0.17.0"], wheels["verl"], wheels["swift"])
    found = agree(env)
    site = str(env.site)

    def wheel(upstream: str, version: str, folder: str, distribution: str) -> Installation:
        record = f"{site}/{distribution}-{version}.dist-info/RECORD"
        assert os.path.isfile(record)
        return Installation(upstream, version, site, f"{site}/{folder}", "wheel", record, ())

    assert found.installations == (
        wheel("megatron-core", "0.17.0", "megatron/core", "megatron_core"),
        wheel("megatron-lm", "0.17.0", "megatron/training", "megatron_core"),
        wheel("verl", "0.7.1", "verl", "verl"),
        wheel("ms-swift", "4.6.0", "swift", "ms_swift"),
    )
    assert found.warnings == ()
    target = search(for_target(site), cwd=site)
    assert target.installations == found.installations
    assert target.environment.state_dir == f"{site}/.unhang"


def test_nothing_is_imported(env: Env) -> None:
    make.swift(make.verl(make.tree(env.site)))
    for init in env.site.rglob("*/__init__.py"):
        if "unhang" not in init.parts:
            init.write_text("raise SystemExit('imported')")
    found = env.search()
    assert len(found.installations) == 4
    assert len(json.loads(env.run("-c", make.IN_PROCESS))[1]) == 4


def test_nothing_is_written(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    make.write(make.tree(env.site), {"mine.py": "", "mine.pth": "import mine\n"})
    before = sorted(env.prefix.rglob("*"))
    assert len(env.search().installations) == 2
    assert sorted(env.prefix.rglob("*")) == before


@pytest.mark.parametrize("version", ["0.10.0", "0.17.0rc0", "0.15.0rc7"])
def test_version_of_megatron(env: Env, version: str) -> None:
    make.tree(env.site, version)
    assert {i.version for i in env.search().installations} == {version}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MAJOR = 0\nMINOR = 16\n",
        "MAJOR = x\nMINOR = 16\nPATCH = 0\n",
        "def f():\n    MAJOR = 1\nMINOR = 16\nPATCH = 0",
    ],
)
def test_version_that_is_not_said(env: Env, text: str) -> None:
    make.write(make.tree(env.site), {"megatron/core/package_info.py": text})
    assert [i.version for i in env.search().installations] == [None, None]


def test_version_in_other_spellings(env: Env) -> None:
    info = (
        "# \u00a9\nMAJOR: int = 0  # zero\r\nMINOR=18\nPATCH  =  2 \nPRE_RELEASE = \"rc1\"  # 'x'\nVERSION = (MAJOR,)\n"
    )
    (make.tree(env.site) / "megatron" / "core" / "package_info.py").write_text(info, encoding="latin-1")
    assert [i.version for i in env.search().installations] == ["0.18.2rc1"] * 2
    make.write(make.verl(env.site), {"verl/version/version": "\n0.8.0.dev\r\n"})
    assert by_upstream(env.search())["verl"].version == "0.8.0.dev"


# Whose RECORD


def leftover(env: Env, folder: str, rows: str) -> Path:
    return make.write(env.site, {f"{folder}/RECORD": rows}) / folder / "RECORD"


def test_a_record_that_does_not_list_the_package(env: Env) -> None:
    make.tree(env.site, "0.17.0")
    leftover(env, "megatron_core-0.17.0.dist-info", "megatron/core/utils.pyc,,\nold/megatron/core/__init__.py,,\n")
    leftover(env, "megatron_core-0.12.0.dist-info", "megatron_core-0.12.0.dist-info/METADATA,,\n")
    assert [(i.kind, i.record) for i in agree(env).installations] == [("source", None)] * 2


def test_each_package_by_its_own_row(env: Env) -> None:
    make.tree(env.site, "0.16.1")  # training copied in beside an old wheel, which never had it
    record = leftover(env, "megatron_core-0.16.1.dist-info", "megatron/core/__init__.py,,\r\nmegatron/core/x.py,,\r\n")
    found = by_upstream(agree(env))
    assert (found["megatron-core"].kind, found["megatron-core"].record) == ("wheel", str(record))
    assert (found["megatron-lm"].kind, found["megatron-lm"].record) == ("source", None)


def test_a_record_under_another_spelling_of_the_version(env: Env) -> None:
    make.verl(env.site, "0.8.0.dev")
    rows = "verl/__init__.py,,\n"
    new = leftover(env, "verl-0.8.0.dev0.dist-info", rows)
    os.utime(leftover(env, "verl-0.9.0.dist-info", rows), (1, 1))
    os.utime(new, (2, 2))
    leftover(env, "verl_tools-0.8.0.dist-info", rows)  # another distribution, whatever it claims
    assert by_upstream(env.search())["verl"].record == str(new)


# Editable installs, and source trees


@pytest.mark.parametrize("mode", ["lenient", "compat", "strict"])
@pytest.mark.parametrize("layout", ["flat", "src"])
def test_editable(env: Env, tmp_path: Path, mode: str, layout: str) -> None:
    checkout = tmp_path / "checkout"
    top = checkout / "src" if layout == "src" else checkout
    make.swift(make.verl(make.tree(top)))
    make.project(checkout, "megatron-core", "0.17.0", "src" if layout == "src" else ".")
    make.extract(make.build(checkout, tmp_path / "out", editable=mode), env.site)
    (pth,) = env.site.glob("__editable__*.pth")
    assert ("import " in pth.read_text()) == (mode == "lenient" and layout == "flat")  # a finder of setuptools, or not
    found = agree(env)
    assert found.warnings == ()
    assert {i.upstream: (i.kind, i.record, i.shadowed) for i in found.installations} == dict.fromkeys(
        make.MODULES, ("editable", None, ())
    )
    if mode != "strict":  # which makes a tree of links of its own
        assert {i.root for i in found.installations} == {str(top)}
        assert by_upstream(found)["megatron-lm"].package_dir == str(top / "megatron" / "training")


def test_editable_megatron_beside_other_parts_of_the_namespace(env: Env, tmp_path: Path) -> None:
    make.write(env.site, {"megatron/energon/__init__.py": ""})
    make.project(make.tree(tmp_path / "checkout"), "megatron-core", "0.17.0")
    make.extract(make.build(tmp_path / "checkout", tmp_path / "out", editable="lenient"), env.site)
    found = agree(env)
    assert [i.root for i in found.installations] == [str(tmp_path / "checkout")] * 2
    assert found.warnings == ()


def test_a_wheel_hides_an_editable_install_by_finder(env: Env, wheels: dict[str, Path], tmp_path: Path) -> None:
    make.extract(wheels["verl"], env.site)
    make.project(make.verl(tmp_path / "checkout", "0.8.0"), "verl", "0.8.0")
    make.extract(make.build(tmp_path / "checkout", tmp_path / "out", editable="lenient"), env.site)
    (verl,) = agree(env).installations
    assert (verl.kind, verl.version) == ("wheel", "0.7.1")
    assert verl.shadowed == (str(tmp_path / "checkout" / "verl"),)


def test_python_path(env: Env, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.extract(wheels["verl"], env.site)
    make.verl(tmp_path / "first", "0.8.0")
    make.verl(tmp_path / "second", "0.9.0")
    entries = ["/nowhere", f"{tmp_path}/first/", str(tmp_path / "second"), str(tmp_path / "first")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    (verl,) = agree(env).installations
    assert verl == Installation(
        "verl",
        "0.8.0",
        str(tmp_path / "first"),
        str(tmp_path / "first" / "verl"),
        "source",
        None,
        (str(tmp_path / "second" / "verl"), str(env.site / "verl")),
    )


def test_a_pth_file(env: Env, tmp_path: Path) -> None:
    make.tree(tmp_path / "checkout")
    (env.site / "mine.pth").write_text(f"{tmp_path}/checkout\n")
    assert [(i.kind, i.root) for i in agree(env).installations] == [("editable", str(tmp_path / "checkout"))] * 2


def test_an_old_namespace_package(env: Env, tmp_path: Path) -> None:
    # The -nspkg.pth file of setuptools' namespace_packages makes the parent's module as the interpreter starts.
    lines = (
        "import sys, types, os; import importlib.util, importlib.machinery; "
        f"m = sys.modules.setdefault('megatron', types.ModuleType('megatron')); "
        f"m.__path__ = ['{tmp_path}/checkout/megatron']"
    )
    (env.site / "megatron-nspkg.pth").write_text(lines + "\n")
    make.core(env.site)
    make.tree(tmp_path / "checkout")
    assert {i.root for i in agree(env).installations} == {str(tmp_path / "checkout")}


def test_a_finder_without_the_parent(env: Env) -> None:
    """A finder may know a module that `import` never asks it for, as its parent is nowhere."""
    finder = """\
        import importlib.util, os.path
        init = os.path.join(os.path.dirname(__file__), "elsewhere", "__init__.py")
        class Finder:
            def find_spec(self, name, *args):
                if name == "megatron.core": return importlib.util.spec_from_file_location(name, init)
        """
    make.write(
        env.site,
        {
            "elsewhere/__init__.py": "",
            "only.py": finder,
            "only.pth": "import sys, only; sys.meta_path.append(only.Finder())\n",
        },
    )
    assert agree(env)[1:] == ((), ())


# One namespace, two places


@pytest.mark.parametrize("first", ["tree", "wheel"])
def test_an_old_wheel_beside_a_tree(
    env: Env, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    make.extract(wheels["core-0.16.1"], env.site)
    checkout = make.tree(tmp_path / "Megatron-LM", "0.16.0rc0")
    if first == "tree":
        monkeypatch.setenv("PYTHONPATH", str(checkout))
    else:
        (env.site / "late.pth").write_text(f"{checkout}\n")
    found = by_upstream(agree(env))
    core, training = found["megatron-core"], found["megatron-lm"]
    places = {"tree": str(checkout / "megatron" / "core"), "wheel": str(env.site / "megatron" / "core")}
    assert core.package_dir == places.pop(first)
    assert core.shadowed == tuple(places.values())
    assert (core.kind, core.version) == (("source", "0.16.0rc0") if first == "tree" else ("wheel", "0.16.1"))
    assert (training.root, training.version, training.shadowed) == (str(checkout), "0.16.0rc0", ())


def test_training_alone_has_no_version(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.core(env.site)
    monkeypatch.setenv("PYTHONPATH", str(make.training(tmp_path / "part")))
    found = by_upstream(agree(env))
    assert (found["megatron-core"].root, found["megatron-core"].version) == (str(env.site), "0.16.1")
    assert (found["megatron-lm"].root, found["megatron-lm"].version) == (str(tmp_path / "part"), None)


def test_an_init_file_hides_the_other_part(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.write(make.core(env.site), {"megatron/__init__.py": ""})
    monkeypatch.setenv("PYTHONPATH", str(make.tree(tmp_path / "tree")))
    found = agree(env)
    (core,) = found.installations
    assert (core.root, core.shadowed) == (str(env.site), (str(tmp_path / "tree" / "megatron" / "core"),))
    hidden = tmp_path / "tree" / "megatron" / "training"
    assert warning(found) == f"`import megatron.training` fails: {env.site}/megatron/__init__.py hides {hidden}"


def test_an_init_file_that_sets_its_own_path(env: Env) -> None:
    init = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    make.write(make.tree(env.site), {"megatron/__init__.py": init})
    found = agree(env)
    assert len(found.installations) == 2
    assert warning(found).startswith(f"{env.site}/megatron/__init__.py changes its search path at run time")


# Scripts, and the working directory


def test_script(env: Env, wheels: dict[str, Path], tmp_path: Path) -> None:
    make.extract(wheels["mcore-0.17.0"], env.site)
    script = make.tree(tmp_path / "Megatron-LM", "0.16.0") / "pretrain_gpt.py"
    script.write_text("")
    wheel = by_upstream(agree(env))["megatron-core"]
    core = by_upstream(agree(env, script=script))["megatron-core"]
    assert (core.kind, core.version, core.root) == ("source", "0.16.0", str(script.parent))
    assert core.shadowed == (wheel.package_dir,)


def test_script_through_a_link(env: Env, tmp_path: Path) -> None:
    script = make.tree(tmp_path / "Megatron-LM") / "pretrain_gpt.py"
    script.write_text("")
    link = tmp_path / "jobs" / "run.py"
    make.verl(link.parent)  # beside the link: not on the path
    link.symlink_to(script)
    assert [i.upstream for i in agree(env, script=link).installations] == ["megatron-core", "megatron-lm"]


def test_working_directory_that_a_job_could_import(env: Env, wheels: dict[str, Path], tmp_path: Path) -> None:
    make.extract(wheels["mcore-0.17.0"], env.site)
    checkout = make.verl(make.tree(tmp_path / "checkout"))
    make.write(checkout, {"swift/__init__.py": ""})  # no framework: no warning
    found = agree(env, cwd=checkout)
    assert [i.root for i in found.installations] == [str(env.site)] * 2
    megatron, verl = found.warnings
    instead = f"could import {checkout}/megatron instead of {env.site}/megatron/core: "
    assert instead in megatron
    assert f"could import {checkout}/verl though the environment has none: " in verl


def test_working_directory_that_is_the_one_used(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = make.tree(tmp_path / "checkout")
    (checkout / "run.py").write_text("")
    assert len(agree(env, cwd=checkout).warnings) == 1
    assert agree(env, cwd=checkout, script=checkout / "run.py").warnings == ()
    elsewhere = make.write(tmp_path / "elsewhere", {"run.py": ""}) / "run.py"
    assert agree(env, cwd=checkout, script=elsewhere)[1:] == ((), ())  # it is not on the path of such a job
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    assert agree(env, cwd=checkout).warnings == ()


@pytest.mark.parametrize(
    "how",
    [
        "script",
        "-m",
        pytest.param("-P", marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no -P")),
    ],
)
def test_our_own_place_on_the_path_is_dropped(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A copy beside our own entry point, or in the folder where `python -m unhang` runs, is not what a job has."""
    decoy = make.verl(tmp_path / "decoy")
    runner = env.site / "runner.py"
    runner.write_text(make.IN_PROCESS)
    if how == "script":
        shutil.move(runner, decoy / "runner.py")
        (env.prefix / "runner").symlink_to(decoy / "runner.py")
        inside = [env.run(str(decoy / "runner.py")), env.run("runner")]
    elif how == "-m":
        inside = [env.run("-m", "runner", cwd=decoy)]
    else:
        monkeypatch.setenv("PYTHONPATH", str(decoy))  # with -P, the first entry is no addition for the program
        (text,) = [env.run("-P", "-m", "runner", cwd=decoy)]
        assert [i[0] for i in json.loads(text)[1]] == ["verl"]
        return
    assert [json.loads(text)[1] for text in inside] == [[]] * len(inside)


# Odd entries on the path


def test_archives(env: Env, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 not really")
    core = shutil.make_archive(
        str(tmp_path / "core"), "zip", make.core(tmp_path / "tree")
    )  # lists folders: a namespace
    entries = [str(tmp_path / "broken.zip"), str(wheels["verl"]), core]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    found = agree(env, namesakes=("verl", "megatron.core"))
    assert found.installations == ()
    places = [f"{core}/megatron/core", f"{wheels['verl']}/verl"]
    for place, text in zip(places, found.warnings, strict=True):
        assert f"finds {place}, inside an archive" in text


def test_a_linked_package(env: Env, tmp_path: Path) -> None:
    make.verl(tmp_path / "checkout")
    (env.site / "verl").symlink_to(tmp_path / "checkout" / "verl")
    leftover(
        env, "verl-0.7.1.dist-info", "verl/__init__.py,,\n"
    )  # of what the link replaced: not the owner of its files
    (verl,) = agree(env).installations
    assert (verl.root, verl.package_dir) == (str(env.site), str(tmp_path / "checkout" / "verl"))
    assert (verl.kind, verl.record) == ("source", None)


@pytest.mark.parametrize("first", ["link", "checkout"])
def test_a_link_above_the_package(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    make.verl(tmp_path / "checkout")
    (tmp_path / "link").symlink_to(tmp_path / "checkout")
    entries = [str(tmp_path / first), str(tmp_path / "link"), str(tmp_path / "checkout")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    (verl,) = agree(env).installations
    assert (verl.package_dir, verl.shadowed) == (str(tmp_path / first / "verl"), ())


# Folders without an interpreter


@pytest.mark.parametrize("of_folder", [for_target, for_source])
def test_a_folder(tmp_path: Path, of_folder: type, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = of_folder(str(make.tree(tmp_path / "here")))
    make.verl(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))  # nobody asks an import system
    found = search(environment, cwd=str(tmp_path / "elsewhere"))
    assert found.environment == environment
    assert [(i.upstream, i.kind, i.package_dir, i.version) for i in found.installations] == [
        ("megatron-core", "source", f"{tmp_path}/here/megatron/core", "0.17.0"),
        ("megatron-lm", "source", f"{tmp_path}/here/megatron/training", "0.17.0"),
    ]
    assert found.warnings == ()


def test_a_folder_with_none(tmp_path: Path) -> None:
    assert search(for_source(str(tmp_path)), cwd=str(tmp_path))[1:] == ((), ())
    make.verl(tmp_path / "verl")
    found = search(for_source(str(tmp_path)), cwd=str(tmp_path))
    assert found.installations == ()
    assert f"{tmp_path}/verl, a checkout, whose package is {tmp_path}/verl/verl" in warning(found)


# Failure


def test_a_finder_that_raises(env: Env) -> None:
    finder = """\
        class Bad:
            def find_spec(self, name, *args):
                if name == "verl": raise OSError("stale file handle")
        """
    make.write(env.site, {"bad.py": finder, "bad.pth": "import sys, bad; sys.meta_path.insert(0, bad.Bad())\n"})
    with pytest.raises(UnhangError) as caught:
        env.search()
    assert (caught.value.code, caught.value.path) == ("broken-interpreter", str(env.python))
    assert caught.value.message.endswith("OSError: stale file handle")
    code = make.IN_PROCESS.replace("found =", "import unhang.errors\ntry: found =").replace(
        "print(json", "except unhang.errors.UnhangError as e: print(e.code, e.message)\nelse: print(json"
    )
    assert env.run("-c", code).strip() == "broken-interpreter the import system fails: OSError: stale file handle"


def test_a_finder_that_raises_too_late_to_matter(env: Env) -> None:
    finder = "class Bad:\n    def find_spec(self, *args): raise OSError('stale file handle')\n"
    make.write(env.site, {"bad.py": finder, "bad.pth": "import sys, bad; sys.meta_path.append(bad.Bad())\n"})
    for module in (make.tree, make.verl, make.swift):
        module(env.site)
    assert len(env.search().installations) == 4


def test_an_interpreter_that_dies(env: Env) -> None:
    (env.site / "sitecustomize.py").write_text("import os; os.write(2, b'boom\\n'); os._exit(7)")
    with pytest.raises(UnhangError) as caught:
        env.search()
    assert (caught.value.code, caught.value.message) == ("broken-interpreter", "the interpreter does not answer: boom")


# Other Pythons, and the price


@cache
def interpreters() -> dict[str, str]:
    """Return the other Pythons on this machine that the probe should run on, by version."""
    versions = [f"3.{minor}" for minor in range(8, 20)]
    places = [Path.home() / ".pyenv" / "versions", Path("/usr")]
    found: dict[str, str] = {}
    for version in versions:
        candidates = [path for place in places for path in sorted(place.glob(f"{version}.*/bin/python{version}"))]
        candidates += [Path(path) for path in [shutil.which(f"python{version}")] if path]
        for candidate in candidates:
            code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version and version != f"3.{sys.version_info.minor}":
                found.setdefault(version, str(candidate))
    return found


@pytest.mark.parametrize(
    "version", ["3.8", *(pytest.param(f"3.{minor}", marks=pytest.mark.slow) for minor in range(9, 15))]
)
def test_another_python(wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no other Python {version} on this machine")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    make.run(python, "-m", "venv", "--without-pip", str(tmp_path / "env"), cwd=tmp_path)
    env = Env(
        tmp_path / "env", tmp_path / "env" / "bin" / "python", tmp_path / f"env/lib/python{version}/site-packages"
    )
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


def test_the_price_does_not_grow_with_the_environment(env: Env, wheels: dict[str, Path]) -> None:
    for name in ("mcore-0.17.0", "verl", "swift"):
        make.extract(wheels[name], env.site)
    code = (
        "import sys; seen = []; sys.addaudithook(lambda event, args: "
        "seen.append(f'{event} {args[0]}') if event in ('open', 'os.listdir', 'os.scandir') else None)\n"
        + make.IN_PROCESS
        + "slow = {'pathlib', 'importlib.metadata', 'importlib.util', 'dataclasses', 'inspect', 'ast', 'subprocess'}\n"
        + "print(json.dumps(sorted(slow & set(sys.modules)))); print(json.dumps(seen))"
    )
    env.run("-B", "-c", code)  # the first of all may write bytecode
    _, slow, seen = map(json.loads, env.run("-B", "-c", code).splitlines())
    for number in range(300):
        (env.site / f"dist{number}-1.0.dist-info").mkdir()
    _, _, seen_when_full = map(json.loads, env.run("-B", "-c", code).splitlines())
    assert slow == []
    assert seen_when_full == seen
    assert sum("RECORD" in event for event in seen) == 3  # megatron's two upstreams share one
    assert f"os.listdir {env.site}" not in seen  # the interpreter has read it as it started, and remembers


def test_our_own_interpreter_is_known_by_other_names(env: Env) -> None:
    """The same interpreter under another name of it is not started again; its base, which shares the file, is."""
    code = (
        "import os, sys, unhang.find.environment as e, unhang.find.locate as locate\n"
        "for name in (sys.executable, sys.prefix + '/bin/python3', os.path.realpath(sys.executable)):\n"
        "    print(locate._is_own(e.choose(name, '/', {})))"
    )
    assert env.run("-c", code).split() == ["True", "True", "False"]


def test_choosing_then_searching_our_own() -> None:
    """The environment of the tests themselves, which has none of the four."""
    environment = choose(None, "/", {})
    before = sys.path[:]
    found = search(environment, script=__file__, cwd="/")
    assert sys.path == before
    assert found.installations == search(environment, cwd="/").installations
    assert [i for i in search(environment, cwd="/").installations if i.root.startswith(sys.prefix)] == []
