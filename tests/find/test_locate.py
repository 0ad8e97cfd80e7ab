"""The search finds what `import` finds, with every way of installing: both are run and compared.

pip installs one wheel and one editable wheel; the other tests unzip theirs into site-packages, which is much faster.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from support import environments as make
from support.environments import Env, agree
from unhang.errors import UnhangError
from unhang.find.environment import choose, for_source, for_target
from unhang.find.locate import search
from unhang.records import Installation, Search


def by_upstream(found: Search) -> dict[str, Installation]:
    assert len({i.upstream for i in found.installations}) == len(found.installations)
    return {i.upstream: i for i in found.installations}


def test_a_script_that_is_not_there(env: Env) -> None:
    with pytest.raises(UnhangError) as caught:
        env.search(script=env.prefix / "gone.py")
    assert (caught.value.code, caught.value.path) == ("no-script", str(env.prefix / "gone.py"))


def test_what_an_uninstall_leaves_behind(env: Env) -> None:
    assert agree(env)[1:4] == ((), (), ())
    make.write(env.site, {"megatron/core/__pycache__/x.pyc": "", "megatron/core/datasets/helpers_cpp.so": ""})
    assert agree(env).installations == ()


@pytest.mark.slow
def test_wheels(env: Env, wheels: dict[str, Path]) -> None:
    env.install(wheels["mcore-0.17.0"])
    for name in ("verl", "swift"):
        make.extract(wheels[name], env.site)
    found = agree(env)
    site = str(env.site)

    def wheel(upstream: str, version: str, folder: str, distribution: str) -> Installation:
        record = f"{site}/{distribution}-{version}.dist-info/RECORD"
        assert os.path.isfile(record)
        return Installation(upstream, version, site, site, f"{site}/{folder}", "wheel", record, ())

    assert found.installations == (
        wheel("megatron-core", "0.17.0", "megatron/core", "megatron_core"),
        wheel("megatron-lm", "0.17.0", "megatron/training", "megatron_core"),
        wheel("verl", "0.7.1", "verl", "verl"),
        wheel("ms-swift", "4.6.0", "swift", "ms_swift"),
    )
    assert found.warnings == ()
    target = search(for_target(site), cwd=site)
    assert target.installations == found.installations


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lenient", "compat", "strict"])
@pytest.mark.parametrize("layout", ["flat", "src"])
def test_editable(env: Env, tmp_path: Path, mode: str, layout: str) -> None:
    checkout = tmp_path / "checkout"
    top = checkout / "src" if layout == "src" else checkout
    make.trl(make.mcore_bridge(make.bridge(make.swift(make.verl(make.tree(top))))))
    make.project(checkout, "megatron-core", "0.17.0", "src" if layout == "src" else ".")
    make.extract(make.build(checkout, tmp_path / "out", editable=mode), env.site)
    (pth,) = env.site.glob("__editable__*.pth")
    assert ("import " in pth.read_text()) == (mode == "lenient" and layout == "flat")  # whether it adds a finder
    found = agree(env)
    assert found.warnings == ()
    assert {i.upstream: (i.kind, i.record, i.shadowed) for i in found.installations} == dict.fromkeys(
        make.MODULES, ("editable", None, ())
    )
    if mode != "strict":  # this mode makes a tree of links
        assert {i.root for i in found.installations} == {str(top)}
        assert by_upstream(found)["megatron-lm"].package_dir == str(top / "megatron" / "training")


@pytest.mark.slow
def test_editable_megatron_beside_other_parts_of_the_namespace(env: Env, tmp_path: Path) -> None:
    make.write(env.site, {"megatron/energon/__init__.py": ""})
    make.project(make.tree(tmp_path / "checkout"), "megatron-core", "0.17.0")
    env.install(make.build(tmp_path / "checkout", tmp_path / "out", editable="lenient"))
    found = agree(env)
    assert [i.root for i in found.installations] == [str(tmp_path / "checkout")] * 2
    assert found.warnings == ()


@pytest.mark.slow
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
    first, second = str(tmp_path / "first"), str(tmp_path / "second" / "verl")
    assert verl == Installation(
        "verl", "0.8.0", first, os.path.realpath(first), f"{first}/verl", "source", None, (second, f"{env.site}/verl")
    )


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
    assert training.kind == ("source" if first == "tree" else "editable")


def test_training_alone_has_no_version(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.core(env.site)
    monkeypatch.setenv("PYTHONPATH", str(make.training(tmp_path / "part")))
    found = by_upstream(agree(env))
    assert (found["megatron-core"].root, found["megatron-core"].version) == (str(env.site), "0.16.1")
    assert (found["megatron-lm"].root, found["megatron-lm"].version) == (str(tmp_path / "part"), None)


def test_script_through_a_link(env: Env, wheels: dict[str, Path], tmp_path: Path) -> None:
    make.extract(wheels["mcore-0.17.0"], env.site)
    script = make.tree(tmp_path / "Megatron-LM", "0.16.0") / "pretrain_gpt.py"
    script.write_text("")
    link = tmp_path / "jobs" / "run.py"
    make.verl(link.parent)  # beside the link: not on the path
    link.symlink_to(script)
    found = by_upstream(agree(env, script=link))
    assert list(found) == ["megatron-core", "megatron-lm"]
    core = found["megatron-core"]
    assert (core.kind, core.version, core.root) == ("source", "0.16.0", str(script.parent))
    assert core.shadowed == (str(env.site / "megatron" / "core"),)


def test_a_linked_package(env: Env, tmp_path: Path) -> None:
    make.verl(tmp_path / "checkout")
    (env.site / "verl").symlink_to(tmp_path / "checkout" / "verl")
    # what the link replaced, which does not own its files
    make.write(env.site, {"verl-0.7.1.dist-info/RECORD": "verl/__init__.py,,\n"})
    (verl,) = agree(env).installations
    assert (verl.root, verl.package_dir) == (str(env.site), str(tmp_path / "checkout" / "verl"))
    assert (verl.kind, verl.record) == ("source", None)


@pytest.mark.parametrize(
    ("link", "to", "real_root"),
    [
        ("path/verl", "checkout/verl", "checkout"),
        ("path/verl", "other/verl-0.7.1", "other"),  # a link to a package of another name
        ("path", "checkout", "checkout"),  # a link above the package
    ],
)
def test_the_real_root_holds_the_files(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, to: str, real_root: str
) -> None:
    made = make.verl(tmp_path / "made")
    for path in to, link:
        (tmp_path / path).parent.mkdir(exist_ok=True)
    (made if link == "path" else made / "verl").rename(tmp_path / to)
    (tmp_path / link).symlink_to(tmp_path / to)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    found = agree(env)
    (verl,) = found.installations
    assert (verl.root, verl.real_root) == (str(tmp_path / "path"), str(tmp_path / real_root))
    assert found.roots == (verl.real_root,)


def test_the_roots_of_a_search_are_those_of_installations_and_those_on_the_path_with_state(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("left", "other/.unhang", "site"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "left" / ".unhang").symlink_to("gone")  # what is wrong with it is not for the search to say
    (tmp_path / "link").symlink_to(tmp_path / "other")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(tmp_path / name) for name in ("left", "link", "site", "no")))
    make.tree(env.site)
    assert agree(env).roots == tuple(sorted([str(env.site), f"{tmp_path}/left", f"{tmp_path}/other"]))
    for of_folder in (for_target, for_source):
        assert search(of_folder(f"{tmp_path}/link"), cwd="/").roots == (f"{tmp_path}/other",)
        assert search(of_folder(f"{tmp_path}/site"), cwd="/").roots == ()


@pytest.mark.parametrize("first", ["link", "checkout"])
def test_a_link_above_the_package(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    make.verl(tmp_path / "checkout")
    (tmp_path / "link").symlink_to(tmp_path / "checkout")
    entries = [str(tmp_path / first), str(tmp_path / "link"), str(tmp_path / "checkout")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    (verl,) = agree(env).installations
    assert (verl.package_dir, verl.shadowed) == (str(tmp_path / first / "verl"), ())


@pytest.mark.parametrize("of_folder", [for_target, for_source])
def test_a_folder(tmp_path: Path, of_folder: type, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = of_folder(str(make.tree(tmp_path / "here")))
    make.verl(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))  # the import system is not asked
    found = search(environment, cwd=str(tmp_path / "elsewhere"))
    assert found.environment == environment
    assert [(i.upstream, i.kind, i.package_dir, i.version) for i in found.installations] == [
        ("megatron-core", "source", f"{tmp_path}/here/megatron/core", "0.17.0"),
        ("megatron-lm", "source", f"{tmp_path}/here/megatron/training", "0.17.0"),
    ]
    assert found.warnings == ()
    make.verl(tmp_path / "verl")
    found = search(for_source(str(tmp_path)), cwd=str(tmp_path))
    assert found.installations == ()
    (warning,) = found.warnings
    assert warning == f"`import verl` finds {tmp_path}/verl, a checkout, whose package is {tmp_path}/verl/verl"


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


def test_the_search_reads_as_little_in_a_crowded_environment(env: Env, wheels: dict[str, Path]) -> None:
    for name in ("mcore-0.17.0", "verl", "swift"):
        make.extract(wheels[name], env.site)
    code = (
        "import sys; seen = []; sys.addaudithook(lambda event, args: "
        "seen.append(f'{event} {args[0]}') if event in ('open', 'os.listdir', 'os.scandir') else None)\n"
        + make.IN_PROCESS
        + "slow = {'pathlib', 'importlib.metadata', 'importlib.util', 'dataclasses', 'inspect', 'ast', 'subprocess'}\n"
        + "print(json.dumps(sorted(slow & set(sys.modules)))); print(json.dumps(seen))"
    )
    env.run("-B", "-c", code)  # the first run may write bytecode
    _, slow, seen = map(json.loads, env.run("-B", "-c", code).splitlines())
    for number in range(300):
        (env.site / f"dist{number}-1.0.dist-info").mkdir()
    _, _, seen_when_full = map(json.loads, env.run("-B", "-c", code).splitlines())
    assert slow == []
    assert seen_when_full == seen
    assert sum("RECORD" in event for event in seen) == 3  # the two upstreams of megatron share one
    assert f"os.listdir {env.site}" not in seen  # the interpreter has cached it since its start


def test_our_own_interpreter_is_known_by_other_names(env: Env) -> None:
    code = (
        "import os, sys, unhang.find.environment as e\n"
        "for name in (sys.executable, sys.prefix + '/bin/python3', os.path.realpath(sys.executable)):\n"
        "    print(e.is_own(*e.choose(name, '/', {})[:2]))"
    )
    assert env.run("-c", code).split() == ["True", "True", "False"]


def test_a_search_of_our_own_interpreter_restores_the_path() -> None:
    before = sys.path[:]
    search(choose(None, "/", {}), script=__file__, cwd="/")
    assert sys.path == before
