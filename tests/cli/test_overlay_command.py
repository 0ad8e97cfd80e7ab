"""`unhang overlay`: what a job with PYTHONPATH=DIR imports in each of its processes, and what is reported."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import cli, environments, overlays
from support.overlays import FIX, LOOK, STATE, STUBS, contents, job, make

EXPERTS = "megatron/core/transformer/moe/experts.py"
RELEASES = [("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0")]
JOB = """\
    import inspect, json, multiprocessing, pickle, subprocess, sys

    def look():
        from megatron.core import parallel_state as module
        assert pickle.loads(pickle.dumps(module.RankGenerator)) is module.RankGenerator
        marks = [inspect.getsource(it).count("# unhang ") for it in (module, module.initialize_model_parallel)]
        return [module.__file__, module.__spec__.origin, *marks]

    if __name__ == "__main__":
        seen = {"here": look()}
        for method in "spawn", "fork", "forkserver":
            with multiprocessing.get_context(method).Pool(1) as pool:
                seen[method] = pool.apply(look)
        child = "import job, json; print(json.dumps(job.look()))"
        nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
        done = subprocess.run([sys.executable, "-c", nested], check=True, capture_output=True)
        seen["grandchild"] = json.loads(done.stdout)
        print(json.dumps(seen))
    """
Seen = tuple[str, str, int, int]
"""What a process of the job imports: file, origin, and our marks in the source of the module and of a function."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return overlays.install(tmp_path / "site")


def processes(site: Path, overlay: Path, work: Path) -> dict[str, Seen]:
    environments.write(work, {"job.py": JOB})
    ran = cli.python(work / "job.py", env={"PYTHONPATH": f"{overlay}:{site}:{work}"})
    assert ran.code == 0, ran.err
    return {name: tuple(seen) for name, seen in ran.json.items()}


@pytest.mark.slow
def test_it_has_every_fix_of_real_releases_and_touches_nothing_else(tmp_path: Path) -> None:
    site, patched = (cli.unpack(tmp_path / name, *RELEASES) for name in ("site", "patched"))
    before = contents(site)
    ran = cli.installed("overlay", tmp_path / "overlay", "--target", site, "--output-format", "json")
    assert ran.code == 0
    assert contents(site) == before
    assert cli.installed("apply", "--target", patched).code == 0
    check = cli.installed("check", "--target", patched, "--output-format", "json")
    assert (check.code, cli.verdicts(ran)) == (0, cli.verdicts(check))
    assert ran.json["digest"] == check.json["digest"], "the same code runs"
    (manifest,) = (tmp_path / "overlay").glob(".unhang-overlay/*/manifest.json")
    modules = json.loads(manifest.read_text())["modules"]
    assert len(modules) >= 7
    for entry in modules.values():
        rewritten = manifest.parent / "modules" / entry["file"]
        assert rewritten.read_bytes() == (patched / entry["file"]).read_bytes() != (site / entry["file"]).read_bytes()
        assert cli.tree(site)[entry["file"]][1] == entry["original"]
        assert cli.tree(patched)[entry["file"]][1] == entry["rewritten"]
    assert "Patch every node" in ran.err


def test_every_process_of_a_job_imports_the_rewritten_module(site: Path, tmp_path: Path) -> None:
    make(tmp_path / "overlay", site)
    found = processes(site, tmp_path / "overlay", tmp_path / "work")
    assert sorted(found) == ["fork", "forkserver", "grandchild", "here", "spawn"]
    for seen in found.values():
        assert seen[0] == seen[1]
        assert Path(seen[0]).is_relative_to(tmp_path / "overlay")
        assert seen[2] == seen[3] > 0, "inspect shows what runs"


def test_without_it_every_process_of_the_job_imports_the_original(site: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    seen = processes(site, tmp_path / "empty", tmp_path / "work")
    assert list(seen.values()) == [(str(site / STATE), str(site / STATE), 0, 0)] * 5


def test_a_read_only_site_packages(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    mount = ["mount", "--bind", str(site), str(site)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(site)], check=True)
        before = contents(site)
        assert cli.called("apply", "--target", site).code == 2
        make(overlay, site)
        seen = processes(site, overlay, tmp_path / "work")
        assert len(seen) == 5
        assert all(Path(file).is_relative_to(overlay) for file, *_ in seen.values())
        assert contents(site) == before
    finally:
        subprocess.run(["umount", str(site)], check=True)


def test_folders_without_write_permission(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, site)
    paths = [path for root in (site, overlay) for path in (root, *root.rglob("*"))]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = contents(site), contents(overlay)
    try:
        assert job(LOOK, overlay, site).out.startswith(str(overlay))
        make(overlay, site)
        assert (contents(site), contents(overlay)) == before
    finally:
        for path in paths:
            path.chmod(0o755)


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("lenient", "compat")), "strict"]
)
def test_an_editable_install(mode: str, tmp_path: Path) -> None:
    project, overlay = overlays.install(tmp_path / "project"), tmp_path / "overlay"
    environments.project(project, "megatron-core", "0.17.1")
    env = environments.make_env(tmp_path / "env")
    env.install(environments.build(project, tmp_path / "wheels", editable=mode))
    for name in "torch", "numpy":
        environments.write(env.site, {f"{name}/__init__.py": STUBS[f"{name}/__init__.py"]})
    ran = cli.called("overlay", overlay, *FIX, "--python", env.python)
    assert ran.code == 0, ran.err
    assert Path(env.run("-c", LOOK).strip()).resolve() == (project / STATE).resolve()
    seen = environments.run("env", f"PYTHONPATH={overlay}", str(env.python), "-c", LOOK, cwd=tmp_path)
    assert seen.startswith(str(overlay))


def test_a_kind_narrows_it(pristine: Path, tmp_path: Path) -> None:
    ran = cli.called("overlay", tmp_path / "overlay", "--target", pristine, "--kind", "wrong-values")
    assert (ran.code, "overlay of 1 module in" in ran.err) == (0, True)
    assert "changes numbers: sft-packed-seq-broadcast; " in ran.err


def test_a_second_run_changes_nothing_and_another_release_replaces_it(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    make(overlay, site)
    before = contents(overlay)
    assert "nothing was changed" in make(overlay, site).err
    assert contents(overlay) == before
    overlays.put(site, "0.16.1")
    assert "PYTHONPATH" in make(overlay, site).err
    assert len(list(overlay.glob(".unhang-overlay/*"))) == 1, "the old one is gone, and no lock is left"
    assert {path.name for path in overlay.iterdir()} - {"__pycache__"} == {".unhang-overlay", "sitecustomize.py"}
    assert job(LOOK, overlay, site).out.startswith(str(overlay))


def test_a_blocked_fix_exits_1_and_the_others_go_in(tmp_path: Path) -> None:
    site = cli.unpack(tmp_path / "site", RELEASES[0])
    source = (site / EXPERTS).read_text()
    (site / EXPERTS).write_text(re.sub(r"(def forward\(\s*self,)", r"\1 added=None,", source))
    ran = cli.called("overlay", tmp_path / "overlay", "--target", site, "--require", "empty-expert-hang")
    assert ran.code == 1
    assert "blocked: empty-expert-hang" in ran.err
    assert ran.err.splitlines()[-1].startswith("required fix not in place: empty-expert-hang")
    assert "required fix not in place: expert" not in ran.err
    assert "overlay of 2 modules" in ran.err


def damaged(name: str) -> Callable[[Path, Path], None]:
    """Return a function that cuts off the second half of a file of the overlay."""

    def damage(overlay: Path, _site: Path) -> None:
        (path,) = overlay.rglob(name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def hide(overlay: Path, _site: Path) -> None:
    environments.write(overlay.with_name("first"), {"sitecustomize.py": ""})


OVERLAY, ORIGINAL, OUTDATED = "applied", "needed", "drifted"
CHECKS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "as it was made": (lambda overlay, site: None, OVERLAY),
    "the original has the same rewrite": (lambda _, site: cli.called("apply", *FIX, "--target", site), OVERLAY),
    "another release": (lambda _, site: overlays.put(site, "0.16.1"), OUTDATED),
    "an edited original": (lambda _, site: (site / STATE).write_text("x = 1\n"), OUTDATED),
    "an edited module": (damaged("parallel_state.py"), OUTDATED),
    "a damaged manifest": (damaged("manifest.json"), OUTDATED),
    "a damaged loader": (damaged("loader.py"), OUTDATED),
    "a damaged hook": (damaged("sitecustomize.py"), OUTDATED),
    "no content": (lambda overlay, _: shutil.rmtree(next(overlay.glob(".unhang-overlay/*"))), OUTDATED),
    "no hook": (lambda overlay, _: (overlay / "sitecustomize.py").unlink(), ORIGINAL),
    "another sitecustomize before it": (hide, ORIGINAL),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "expected"), CHECKS.values(), ids=CHECKS)
def test_check_judges_what_the_job_imports(
    change: Callable[[Path, Path], object], expected: str, site: Path, tmp_path: Path
) -> None:
    overlay, first = tmp_path / "overlay", tmp_path / "first"
    make(overlay, site)
    first.mkdir()
    change(overlay, site)
    before = contents(tmp_path)
    env = {"PYTHONPATH": f"{first}:{overlay}:{site}"}
    ran = cli.unhang("check", *FIX, "--python", sys.executable, "--output-format", "json", env=env)
    (result,) = ran.json["results"]
    assert (ran.code, result["verdict"]) == (int(expected != OVERLAY), expected)
    assert (result["location"], result["overlay"]) == (str(site), None if expected == ORIGINAL else str(overlay))
    assert len(ran.json["warnings"]) == (expected == ORIGINAL)
    look = job(LOOK, first, overlay, site)
    if expected == OUTDATED:
        assert (result["code"], look.code == 1 or "Error in sitecustomize" in look.err) == ("overlay-outdated", True)
        assert result["hint"].startswith(f"make the overlay again: `unhang overlay {overlay} --python ")
    else:
        assert look.out.startswith(str(overlay if expected == OVERLAY else site))
    if expected == OVERLAY:
        assert result["detail"] == f"in the overlay {overlay}"
    prologue = cli.called("overlay", "--check", overlay, *FIX, "--target", site, "--output-format", "json")
    if change is hide:
        assert prologue.code == 0, "the overlay comes first"
    elif expected == ORIGINAL:
        assert prologue.json["error"]["code"] == "no-overlay"
    else:
        assert prologue.code == ran.code
        assert [{**row, "hint": ""} for row in prologue.json["results"]] == [{**result, "hint": ""}]
    assert contents(tmp_path) == before
    assert "in the overlay" not in cli.unhang("check", *FIX, "--target", site, env=env).out


def test_the_first_of_two_overlays_is_judged_and_digests_equal_those_of_apply(site: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make(first, site)
    shutil.copytree(first, second)
    damaged("parallel_state.py")(second, site)
    for folders, code in (([first, second], 0), ([second, first], 1)):
        env = {"PYTHONPATH": ":".join(map(str, [*folders, site]))}
        ran = cli.unhang("check", "--python", sys.executable, "--upstream", "megatron-core", *FIX, env=env)
        assert (ran.code, job(LOOK, *folders, site).code) == (code, code)
        assert ran.out.splitlines()[1] == f"overlay: {folders[0]}, before {folders[1]}"
    assert f"\n  unhang overlay {second}" in ran.out
    words = [*FIX, "--target", str(site), "--output-format", "json"]
    overlaid = cli.called("overlay", "--check", first, *words).json["digest"]
    cli.called("apply", *words)
    assert cli.called("check", *words).json["digest"] == overlaid
    env = {"PYTHONPATH": f"{first}:{site}"}
    for command in "apply", "diff":
        ran = cli.unhang(command, *FIX, "--python", sys.executable, env=env)
        assert f"warning: PYTHONPATH has the overlay {first}; this run is about the originals" in ran.err
