"""Overlays: what a job with PYTHONPATH=DIR imports, in every process of it, and when it must refuse to."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import cli, environments, wheels
from unhang.deliver import overlay_folder
from unhang.deliver.overlay import MARK, Overlay
from unhang.errors import UnhangError
from unhang.store import disk

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import startup

STATE = "megatron/core/parallel_state.py"
EXPERTS = "megatron/core/transformer/moe/experts.py"
MODULE = "megatron.core.parallel_state"
OVERLAY = ["--fix", "expert-dp-warmup"]
RELEASES = [("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0")]
# In place of what the module imports: it is defined there, and never run.
STUBS = {
    "torch/__init__.py": """\
        class Anything:
            def __getattr__(self, name): return self
            def __call__(self, *arguments, **named): return self
        def __getattr__(name):
            if name.startswith("__"): raise AttributeError(name)
            return Anything()
        """,
    "numpy/__init__.py": "",
    "megatron/core/utils.py": "def __getattr__(name): return lambda first, *rest: first\n",
    "megatron/core/inference/__init__.py": "",
    "megatron/core/inference/symmetric_memory.py": "SymmetricMemoryManager = object\n",
}
JOB = """\
    import inspect, json, multiprocessing, pickle, subprocess, sys

    def look():
        from megatron.core import parallel_state as module
        assert pickle.loads(pickle.dumps(module.RankGenerator)) is module.RankGenerator
        marks = [inspect.getsource(it).count("# unhang ") for it in (module, module.initialize_model_parallel)]
        return [module.__file__, module.__spec__.origin, *marks]

    if __name__ == "__main__":
        told = {"here": look()}
        for method in "spawn", "fork", "forkserver":
            with multiprocessing.get_context(method).Pool(1) as pool:
                told[method] = pool.apply(look)
        child = "import job, json; print(json.dumps(job.look()))"
        nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
        done = subprocess.run([sys.executable, "-c", nested], check=True, capture_output=True)
        told["grandchild"] = json.loads(done.stdout)
        print(json.dumps(told))
    """
LOOK = f"import {MODULE} as m; print(m.__file__)"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A namespace package that can really be imported, with one module of a real release."""
    return install(tmp_path / "site")


def install(folder: Path) -> Path:
    environments.write(environments.core(folder, "0.17.1"), STUBS)
    source = wheels.read("megatron-core", "0.17.1", STATE)
    assert source is not None
    (folder / STATE).write_bytes(source)
    return folder


def make(folder: Path, *arguments: str | os.PathLike[str]) -> cli.Ran:
    ran = cli.unhang("overlay", folder, *OVERLAY, *arguments)
    assert ran.code == 0, ran.err
    return ran


def job(code: str, *path: Path, options: tuple[str, ...] = (), cwd: Path | None = None) -> cli.Ran:
    """Run Python with these folders in PYTHONPATH."""
    return cli.python(*options, "-c", code, env={"PYTHONPATH": os.pathsep.join(map(str, path))}, cwd=cwd)


def contents(folder: Path) -> dict[str, tuple[int, str, int]]:
    """Mode, bytes and time of each file; bytecode comes beside them, so of folders mode alone."""
    times = {name: (folder / name).stat().st_mtime_ns for name in cli.tree(folder) if (folder / name).is_file()}
    return {name: (*told, times.get(name, 0)) for name, told in cli.tree(folder).items()}


def test_every_fix_of_real_releases_is_in_the_overlay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    site, patched = (cli.unpack(tmp_path / name, *RELEASES) for name in ("site", "patched"))
    before = contents(site)
    ran = cli.unhang("overlay", tmp_path / "overlay", "--target", site, "--output-format", "json")
    assert ran.code == 0
    assert contents(site) == before
    assert set(cli.verdicts(ran).values()) == {"applied", "not-affected"}
    assert cli.unhang("apply", "--target", patched).code == 0
    check = cli.unhang("check", "--target", patched, "--output-format", "json")
    assert ran.json["digest"] == check.json["digest"], "the same code runs"
    (manifest,) = (tmp_path / "overlay").glob(".unhang-overlay/*/manifest.json")
    modules = json.loads(manifest.read_text())["modules"]
    assert len(modules) == 5
    for told in modules.values():
        rewritten = manifest.parent / "modules" / told["file"]
        assert rewritten.read_bytes() == (patched / told["file"]).read_bytes() != (site / told["file"]).read_bytes()
        assert cli.tree(site)[told["file"]][1] == told["original"]
        assert cli.tree(patched)[told["file"]][1] == told["rewritten"]
    assert "Patch every node" in ran.err


def processes(site: Path, overlay: Path, work: Path) -> dict[str, list[Any]]:
    environments.write(work, {"job.py": JOB})
    ran = cli.python(work / "job.py", env={"PYTHONPATH": f"{overlay}:{site}:{work}"})
    assert ran.code == 0, ran.err
    told: dict[str, list[Any]] = ran.json
    return told


def test_every_process_of_a_job_imports_the_rewritten_module(site: Path, tmp_path: Path) -> None:
    overlay, plain = tmp_path / "overlay", tmp_path / "plain"
    plain.mkdir()
    make(overlay, "--target", site)
    for told in processes(site, overlay, tmp_path / "work").values():
        assert told[0] == told[1]
        assert Path(told[0]).is_relative_to(overlay)
        assert told[2] == told[3] > 0, "inspect shows what runs"
    told = processes(site, plain, tmp_path / "work")
    assert sorted(told) == ["fork", "forkserver", "grandchild", "here", "spawn"]
    assert list(told.values()) == [[str(site / STATE)] * 2 + [0, 0]] * 5


def test_a_read_only_site_packages(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    mount = ["mount", "--bind", str(site), str(site)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(site)], check=True)
        before = contents(site)
        assert cli.unhang("apply", "--target", site).code == 2
        make(overlay, "--target", site)
        told = processes(site, overlay, tmp_path / "work")
        assert len(told) == 5
        assert all(Path(file).is_relative_to(overlay) for file, *_ in told.values())
        assert contents(site) == before
    finally:
        subprocess.run(["umount", str(site)], check=True)


def test_folders_that_may_not_be_written(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    for root in site, overlay:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = contents(site), contents(overlay)
    try:
        assert job(LOOK, overlay, site).out.startswith(str(overlay))
        make(overlay, "--target", site)
        assert (contents(site), contents(overlay)) == before
    finally:
        for root in site, overlay:
            for path in [root, *root.rglob("*")]:
                path.chmod(0o755)


def test_no_other_module_is_answered_for(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    code = "import megatron.core.utils as m, megatron.core as c; print(m.__file__, c.__file__)"
    ran = job(code, tmp_path / "overlay", site)
    assert ran.out.split() == [str(site / "megatron/core/utils.py"), str(site / "megatron/core/__init__.py")]
    ran = job("import sys; print(*sys.modules)", tmp_path / "overlay", site)
    idle = job("import sys; print(*sys.modules)", site)
    extra = set(ran.out.split()) - set(idle.out.split())
    assert extra <= {"sitecustomize"}, "no hashlib, no json until a module is asked for"


def test_an_original_that_changed_is_refused_and_not_mixed(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    (site / STATE).write_bytes((site / STATE).read_bytes() + b"\n# changed\n")
    ran = job(f"try: import {MODULE}\nexcept ImportError as e: print(e.name, e)", overlay, site)
    assert ran.out.startswith(f"{MODULE} unhang overlay: {site / STATE} is not the file that this was made from")
    assert f"make it anew (unhang overlay {overlay}), or take {overlay} off PYTHONPATH" in ran.out
    assert ran.err.count("is not the file") == 1, "told, though whoever imports it swallows the error"
    assert job("import megatron.core.utils", overlay, site).code == 0
    make(overlay, "--target", site)
    assert job(LOOK, overlay, site).out.startswith(str(overlay)), "made anew, it is for the file as it is now"


def test_a_rewritten_file_that_was_edited_is_refused(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    assert job(LOOK, overlay, site).code == 0  # bytecode, where there is any, must not hide it
    (edited,) = overlay.rglob("parallel_state.py")
    edited.write_bytes(edited.read_bytes().replace(b"# unhang", b"# edited", 1))
    ran = job(LOOK, overlay, site)
    assert "ImportError: unhang overlay: " in ran.err
    assert "was changed since it was made" in ran.err
    make(overlay, "--target", site)
    assert job(LOOK, overlay, site).code == 0


def test_an_original_that_apply_has_patched_since_is_the_same_code(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    assert cli.unhang("apply", "--target", site, *OVERLAY).code == 0
    assert job(LOOK, overlay, site).out.startswith(str(overlay))
    ran = make(overlay, "--target", site)
    assert "overlay of 0 modules" in ran.err
    assert job(LOOK, overlay, site).out.split() == [str(site / STATE)]


def test_where_the_package_is_gone_import_says_so(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    (site / STATE).unlink()
    assert f"ModuleNotFoundError: No module named '{MODULE}'" in job(LOOK, tmp_path / "overlay", site).err


def test_an_overlay_made_anew_under_a_process_is_a_clear_error(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    code = f"import shutil; shutil.rmtree({str(overlay)!r}); import {MODULE}"
    assert f"ImportError: unhang overlay: {overlay}/.unhang-overlay/" in job(code, overlay, site).err


@pytest.mark.parametrize("mode", ["lenient", "strict", "compat"])
def test_an_editable_install(mode: str, tmp_path: Path) -> None:
    project = install(tmp_path / "project")
    environments.project(project, "megatron-core", "0.17.1")
    wheel = environments.build(project, tmp_path / "wheels", editable=mode)
    env = environments.make_env(tmp_path / "env")
    env.install(wheel)
    for name in "torch", "numpy":
        environments.write(env.site, {f"{name}/__init__.py": STUBS[f"{name}/__init__.py"]})
    original = env.run("-c", LOOK).strip()
    ran = cli.unhang("overlay", tmp_path / "overlay", *OVERLAY, "--python", env.python)
    if mode == "strict":  # links that lead out: neither `apply` nor this follows them
        assert ran.code == 1
        assert "blocked: expert-dp-warmup" in ran.err
        assert "a link that leads out" in ran.err
        return
    assert ran.code == 0, ran.err
    told = subprocess.run(
        [env.python, "-c", LOOK],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "overlay")},
        capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    assert told.stdout.startswith(str(tmp_path / "overlay"))
    assert Path(original).resolve() == (project / STATE).resolve()


def test_a_sitecustomize_further_down_the_path_runs_and_is_the_one_in_sys_modules(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    theirs = environments.write(tmp_path / "theirs", {"sitecustomize.py": "print('ran once', __name__)\nmark = 7\n"})
    code = f"import sitecustomize as s; print(s.mark, s.__file__); {LOOK}"
    ran = job(code, tmp_path / "overlay", theirs, site)
    assert ran.out.splitlines()[:2] == ["ran once sitecustomize", f"7 {theirs / 'sitecustomize.py'}"]
    assert ran.out.splitlines()[2].startswith(str(tmp_path / "overlay"))
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    ran = job(LOOK, tmp_path / "overlay", theirs, site)
    assert "Error in sitecustomize" in ran.err
    assert "ValueError: theirs" in ran.err
    assert ran.out.startswith(str(tmp_path / "overlay")), "as python does it: told, and gone on"


def test_of_two_overlays_the_first_on_the_path_wins(site: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in first, second:
        make(folder, "--target", site)
    assert job(LOOK, first, second, site).out.startswith(str(first))
    assert job(LOOK, second, first, site).out.startswith(str(second))


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_what_disables_it(option: str, site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    code = f"import sys; sys.path.append({str(site)!r}); {LOOK}"
    assert job(code, tmp_path / "overlay", options=(option,)).out.split() == [str(site / STATE)]
    assert job(code, tmp_path / "overlay").out.startswith(str(tmp_path / "overlay"))


def test_again_changes_nothing_and_another_release_replaces_it(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    before = contents(overlay)
    assert "nothing was changed" in make(overlay, "--target", site).err
    assert contents(overlay) == before
    source = wheels.read("megatron-core", "0.16.1", STATE)
    assert source is not None
    (site / STATE).write_bytes(source)
    assert "PYTHONPATH" in make(overlay, "--target", site).err
    assert len(list(overlay.glob(".unhang-overlay/*"))) == 1, "the old one is gone, and no lock is left"
    assert {path.name for path in overlay.iterdir()} - {"__pycache__"} == {".unhang-overlay", "sitecustomize.py"}
    assert job(LOOK, overlay, site).out.startswith(str(overlay))


def test_bytecode_is_kept_in_the_overlay_and_never_stale(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    for version in "0.17.1", "0.16.1", "0.17.1":
        source = wheels.read("megatron-core", version, STATE)
        assert source is not None
        (site / STATE).write_bytes(source)
        make(overlay, "--target", site)
        for _ in range(2):
            env = {"PYTHONPATH": f"{overlay}:{site}", "PYTHONDONTWRITEBYTECODE": ""}
            assert cli.python("-c", LOOK, env=env).out.startswith(str(overlay))
        assert len(list(overlay.rglob("parallel_state.*.pyc"))) == 1
        assert len(list(overlay.glob("__pycache__/sitecustomize.*.pyc"))) == 1


@pytest.mark.parametrize("name", ["notes.txt", "sitecustomize.py", "megatron"])
def test_a_folder_that_is_not_ours_is_refused(name: str, site: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).write_text("theirs")
    ran = cli.unhang("overlay", theirs, "--target", site)
    assert ran.code == 2
    assert "error[not-empty]" in ran.err
    assert [path.name for path in theirs.iterdir()] == [name]
    (theirs / name).unlink()
    make(theirs, "--target", site)
    (theirs / "sitecustomize.py").write_text("theirs")
    assert "error[not-empty]" in cli.unhang("overlay", theirs, "--target", site).err


def test_a_name_that_pythonpath_cannot_hold_and_a_file_are_refused(site: Path, tmp_path: Path) -> None:
    assert "error[bad-option]" in cli.unhang("overlay", tmp_path / "a:b", "--target", site).err
    (tmp_path / "file").touch()
    assert "error[not-a-folder]" in cli.unhang("overlay", tmp_path / "file", "--target", site).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "site"]


def test_a_blocked_fix_exits_1_and_the_others_go_in(tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", RELEASES[0])
    source = (site / EXPERTS).read_text()
    (site / EXPERTS).write_text(re.sub(r"(def forward\(\s*self,)", r"\1 added=None,", source))
    ran = cli.unhang("overlay", tmp_path / "overlay", "--target", site, "--require", "empty-expert-hang")
    assert ran.code == 1
    assert "blocked: empty-expert-hang" in ran.err
    assert ran.err.splitlines()[-1].startswith("required fix not in place: empty-expert-hang")
    assert "required fix not in place: expert" not in ran.err
    assert "overlay of 2 modules" in ran.err


def test_check_tells_of_the_originals_and_says_that_there_is_an_overlay(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, "--target", site)
    env = {"PYTHONPATH": f"{overlay}:{site}"}
    ran = cli.unhang("check", *OVERLAY, "--python", sys.executable, env=env)
    assert ran.code == 1
    assert "needed" in ran.out
    assert f"warning: PYTHONPATH has the overlay {overlay}" in ran.err
    assert "overlay" not in cli.unhang("check", *OVERLAY, "--target", site, env=env).err


def test_many_that_make_the_same_overlay_at_once_all_succeed(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    command = [sys.executable, "-m", "unhang", "overlay", overlay, *OVERLAY, "--target", site]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/") for _ in range(4)]
    told = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * 4, told
    assert sum("written" in said for said in told) == 1
    assert len(list(overlay.glob(".unhang-overlay/*"))) == 1
    assert job(LOOK, overlay, site).out.startswith(str(overlay))


def test_whatever_operation_fails_the_folder_holds_the_old_overlay_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Overlay(name * 16, MARK + name.encode(), {"a": b"1", "modules/b": b"2"}, ()) for name in "ab")
    held = []
    for failing in range(1, 100):
        folder = tmp_path / str(failing)
        overlay_folder.bring(str(folder), old)
        left = iter(range(1, 1000))

        def run(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if next(left) == failing:  # noqa: B023
                raise OSError(errno.ENOSPC, "No space left on device")
            return operation(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(disk, "run", run)
            try:
                overlay_folder.bring(str(folder), new)
            except UnhangError as error:
                assert error.code == "disk-full"
            else:
                break
        holds = [overlay_folder._holds(str(folder), it) for it in (old, new)]
        assert any(holds)
        held.append(holds[1])
        assert overlay_folder.bring(str(folder), new) != holds[1], "the next run does what is left to do"
        assert overlay_folder._holds(str(folder), new)
    assert held == sorted(held)
    assert set(held) == {False, True}, "some failed before the rename that counts, some after it"


def test_bytecode_of_the_hook_is_there_from_the_start_and_stays_right_in_a_copy(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "made", "--target", site)
    (cached,) = (tmp_path / "made").glob("__pycache__/*")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "made", copy, copy_function=shutil.copyfile)  # of another time
    told = job("pass", copy, options=("-v",)).err
    assert f"# code object from '{copy / '__pycache__' / cached.name}'" in told
    hook = copy / "sitecustomize.py"
    hook.write_bytes(hook.read_bytes() + b"print('edited')\n")
    assert job("pass", copy).out == "edited\n"


def test_an_interpreter_that_cannot_compile_the_hook_is_no_error(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    before = contents(tmp_path / "overlay")
    overlay_folder.compile_hook(str(tmp_path / "overlay"), "/bin/false")
    overlay_folder.compile_hook(str(tmp_path / "overlay"), str(tmp_path / "nothing"))
    assert contents(tmp_path / "overlay") == before


def test_the_hook_has_nothing_in_it_that_only_readers_need(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    tree = ast.parse((tmp_path / "overlay/sitecustomize.py").read_bytes())
    assert tree.body, "and yet it says something"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert)
        assert getattr(node, "annotation", None) is None or isinstance(node, ast.AnnAssign)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            assert ast.get_docstring(node) is None


def test_starting_up_costs_under_two_milliseconds_of_processor_time(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", "--target", site)
    took = startup.measure(tmp_path / "overlay", sys.executable, 40, tmp_path / "copies")
    least, median, *_ = startup.added(took, startup.COMPILED)
    assert min(least, median) < 2, "a fifth of it, where nothing else runs: docs/overlay.md"
    least, median, *_ = startup.added(took, startup.UNCOMPILED)
    assert min(least, median) < 4, "less than half of it, where nothing else runs: docs/overlay.md"
