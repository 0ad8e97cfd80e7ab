"""What `import` would execute is judged: stale bytecode makes `applied` false, and `apply` deletes it."""

import errno
import marshal
import os
import shutil
import zipfile
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from support import cli, overlays, pycs, wheels, whole
from support import environments as make
from support.overlays import FIX, LOOK, MODULE, STATE
from support.transactions import Blow, die
from support.wheel_files import records
from support.whole import Stage
from unhang.store import dist_info

CODE = "stale-bytecode"
CORE = "megatron_core-0.17.1.dist-info"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a module that has its fix, to import and to patch."""
    site = overlays.install(tmp_path / "site")
    old = (site / STATE).read_bytes()
    cli.applied("--target", site, *FIX)
    (tmp_path / "old.py").write_bytes(old)
    return site


@pytest.fixture
def stale(site: Path, tmp_path: Path) -> Path:
    """Bytecode of that module from before the fix."""
    return pycs.unchecked(site / STATE, (tmp_path / "old.py").read_bytes())


def fail(operation: object, arguments: tuple[object, ...]) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def check(site: Path, *words: str | Path, env: dict[str, str] | None = None) -> tuple[int, str, str | None]:
    """Return the exit code of `check`, with the verdict and its code."""
    ran = cli.called("check", "--target", site, *FIX, *words, "--output-format", "json", env=env)
    (found,) = ran.json["results"]
    return ran.code, found["verdict"], found["code"]


def test_the_job_runs_the_old_code_and_every_command_says_so(site: Path, stale: Path) -> None:
    """The source is as it should be, and `apply` had nothing to write."""
    job = f"import {MODULE} as m; print('_warm_up' in str(vars(m).keys()) or 'unhang' in repr(vars(m)), m.__cached__)"
    assert str(stale) in overlays.job(job, site).out
    assert check(site) == (1, "drifted", CODE)
    checked = cli.called("check", "--target", site, *FIX)
    assert (
        f"the source is applied, but `import` runs stale bytecode, compiled from other code and never checked: {stale}"
        in checked.out
    )
    assert f"help: unhang apply --target {site}" in checked.out
    assert checked.out.splitlines()[-1].startswith(f"  unhang apply --target {site}")
    required = cli.called("check", "--target", site, "--require", FIX[1])
    assert (required.code, "required fix not in place: expert-dp-warmup is drifted" in required.err) == (1, True)
    sarif = cli.called("check", "--target", site, *FIX, "--output-format", "sarif").json["runs"][0]["results"]
    assert [(it["level"], it["properties"]["code"]) for it in sarif] == [("error", CODE)]
    assert "::error file=" in cli.called("check", "--target", site, *FIX, "--output-format", "github").out
    before = cli.tree(site)
    diff = cli.called("diff", "--target", site, *FIX)
    assert (diff.code, diff.out, f"would delete stale bytecode: {stale}\n" in diff.err) == (1, "", True)
    dry = cli.called("apply", "--dry-run", "--target", site, *FIX, "--require", FIX[1], "--output-format", "json")
    assert (dry.code, f"would delete stale bytecode: {stale}\n" in dry.err) == (0, True)
    assert (cli.tree(site), stale.exists()) == (before, True)
    applied = cli.called("apply", "--target", site, *FIX, "--require", FIX[1], "--output-format", "json")
    assert (applied.code, stale.exists(), cli.tree(site)) == (0, False, before)
    assert f"deleted stale bytecode: {stale}\n" in applied.err
    assert (applied.json["digest"], applied.json["results"][0]["verdict"]) == (dry.json["digest"], "applied")
    assert applied.json["roots"] == [{"root": str(site), "changed": True, "error": None}]
    assert check(site) == (0, "applied", None)
    again = cli.called("apply", "--target", site, *FIX)
    assert (again.code, "nothing was changed: there was nothing left to do" in again.err) == (0, True)
    assert str(stale) not in overlays.job(LOOK, site).err


def test_the_digest_is_of_the_code_that_runs(site: Path, stale: Path) -> None:
    digests = [cli.called("check", "--target", site, *FIX, "--output-format", "json").json["digest"] for _ in "ab"]
    stale.unlink()
    assert digests[0] == digests[1] != cli.called("check", "--target", site, "--output-format", "json").json["digest"]
    assert cli.called("check", "--target", site, *FIX, "--expect-digest", digests[0]).code == 1


def test_an_interpreter_is_judged_by_its_own_bytecode(site: Path, stale: Path, tmp_path: Path) -> None:
    env = make.make_env(tmp_path / "env")
    shutil.copytree(site, env.site, dirs_exist_ok=True)
    mine = env.site / stale.relative_to(site)
    other = mine.rename(mine.with_name(f"{Path(STATE).stem}.cpython-399.pyc"))
    words = ["--python", str(env.python), *FIX]
    assert cli.called("check", *words).code == 0
    assert check(env.site) == (1, "drifted", CODE)
    level = mine.with_name(f"{Path(STATE).stem}.{pycs.TAG}.opt-2.pyc")
    shutil.copy(stale, level)
    assert cli.called("check", *words).code == 1
    below = tmp_path / "cache" / str(mine.parent.parent).lstrip("/") / mine.name
    below.parent.mkdir(parents=True)
    level.rename(below)
    prefix = {"PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
    assert (cli.called("check", *words).code, cli.unhang("check", *words, env=prefix).code) == (0, 1)
    assert cli.called("apply", *words, env=prefix).code == 0
    assert (cli.called("check", *words, env=prefix).code, below.exists(), other.exists()) == (0, False, True)


def test_what_is_needed_or_unaffected_gets_a_note(site: Path, tmp_path: Path) -> None:
    new = (site / STATE).read_bytes()
    assert cli.called("revert", "--target", site).code == 0
    path = pycs.unchecked(site / STATE, new)
    (found,) = cli.called("check", "--target", site, *FIX, "--output-format", "json").json["results"]
    assert (found["verdict"], found["code"]) == ("needed", None)
    (note,) = found["notes"]
    assert note.endswith(f"runs stale bytecode, compiled from other code and never checked: {path}; delete it")
    cli.applied("--target", site, *FIX)
    assert check(site) == (0, "applied", None)
    want = compile((site / STATE).read_bytes(), str(site / STATE), "exec", dont_inherit=True)
    assert marshal.loads(path.read_bytes()[16:]) == want


def test_what_upstream_fixed_is_not_fixed_while_older_code_runs(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("ms-swift", "4.6.0"))
    file = site / "swift/metrics/utils.py"
    stale = pycs.unchecked(file, b"class MeanMetric: pass\n")
    words = ["--target", str(site), "--fix", "mean-metric-dtype"]
    overlay = tmp_path / "overlay"
    for command in ["overlay", str(overlay)], ["overlay", str(overlay), "--check"]:
        ran = cli.installed(*command, *words, "--output-format", "json")
        found = [(it["verdict"], it["code"]) for it in ran.json["results"] if it["file"] == "swift/metrics/utils.py"]
        assert (ran.code, found) == (0, [("fixed-upstream", None)])
    ran = cli.installed("check", *words, "--output-format", "json")
    found = [(it["verdict"], it["code"]) for it in ran.json["results"] if it["file"] == "swift/metrics/utils.py"]
    assert (ran.code, found) == (1, [("drifted", CODE)])
    before = cli.tree(site)
    assert cli.installed("apply", *words).code == 0
    assert (stale.exists(), cli.tree(site)) == (False, before), "and there is no receipt of it"
    assert cli.installed("check", *words).code == 0


@pytest.mark.slow
def test_an_accepted_rewrite_is_not_settled_while_older_code_runs(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    file = site / "verl/workers/engine/megatron/transformer_impl.py"
    old = file.read_bytes().replace(b"        self.engine", b"        print('x')\n        self.engine", 1)
    function = old.index(b"def forward_backward_batch")
    old = old[:function] + old[function:].replace(b"\n        tu.", b"\n        print('edited')\n        tu.", 1)
    file.write_bytes(old)
    words = ["--target", str(site), "--fix", "mtp-cp-deadlock"]
    shown = cli.called("diff", "--unknown", *words).out
    token = shown.partition("to accept what follows: ")[2].split()[0]
    cli.applied(*words, "--accept", token)
    assert cli.called("check", *words, "--accept", token).code == 0
    stale = pycs.unchecked(file, old)
    ran = cli.called("check", *words, "--accept", token, "--output-format", "json")
    (found,) = ran.json["results"]
    assert (ran.code, found["code"], found["accepted"]) == (1, CODE, False)
    assert "the source is accepted, but" in found["detail"]
    cli.applied(*words, "--accept", token)
    assert (cli.called("check", *words, "--accept", token).code, stale.exists()) == (0, False)


def test_a_module_without_its_source_is_not_missing(site: Path) -> None:
    """`compileall -b`, and the sources deleted: an import runs what nobody can judge."""
    module = site / STATE
    pycs.unchecked(module, module.read_bytes()).rename(module.with_suffix(".pyc"))
    assert check(site) == (0, "applied", None), "no import reads it beside the source"
    module.unlink()
    assert overlays.job(LOOK, site).out.strip() == str(module.with_suffix(".pyc"))
    assert check(site) == (1, "drifted", "only-bytecode")
    assert cli.called("apply", "--target", site, *FIX).code == 1
    assert module.with_suffix(".pyc").exists()


@pytest.mark.parametrize("other", ["/__init__.py", ".abi3.so", EXTENSION_SUFFIXES[0]])
def test_what_an_import_takes_before_the_file_is_not_passed_over(site: Path, other: str) -> None:
    """A module that became a package, or was compiled, and a source that an installer or a person left behind."""
    module = site / STATE
    beside = Path(f"{module.with_suffix('')}{other}")
    beside.parent.mkdir(exist_ok=True)
    beside.write_text("raise SystemExit('this runs')\n")
    assert "/" not in other or "this runs" in overlays.job(LOOK, site).err
    assert check(site) == (1, "drifted", "shadowed")
    ran = cli.called("apply", "--target", site, *FIX)
    assert (ran.code, f"an import may run {MODULE.rpartition('.')[2]}{other[:1]}" in ran.out) == (1, True)
    beside.unlink()
    assert check(site) == (0, "applied", None), "an empty folder is no package"


def test_an_overlay_goes_around_what_cannot_be_deleted(site: Path, stale: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    made = cli.called("overlay", overlay, "--target", site, *FIX)
    assert (made.code, "overlay of 1 module" in made.err, stale.exists()) == (0, True, True)
    assert overlays.job(LOOK, overlay, site).out.startswith(str(overlay))
    ran = cli.called("overlay", overlay, "--check", "--target", site, *FIX, "--output-format", "json")
    (found,) = ran.json["results"]
    assert (ran.code, found["verdict"], found["code"]) == (0, "applied", None)


@pytest.mark.parametrize("name", ["sitecustomize.py", "loader.py"])
def test_stale_bytecode_of_an_overlay_s_own_files(name: str, site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    (site / STATE).write_bytes((tmp_path / "old.py").read_bytes())
    overlays.make(overlay, site)
    (own,) = overlay.rglob(name)
    words = ["overlay", str(overlay), "--target", str(site), *FIX]
    assert cli.called(*words, "--check").code == 0
    stale = pycs.unchecked(own, b"")
    ran = cli.called(*words, "--check", "--output-format", "json")
    assert (ran.code, ran.json["results"][0]["code"]) == (1, "overlay-outdated")
    assert cli.called(*words).code == 0
    assert cli.called(*words, "--check").code == 0
    assert not stale.exists() or stale.read_bytes()[4:8] != b"\1\0\0\0"
    assert overlays.job(LOOK, overlay, site).out.startswith(str(overlay))


def test_the_loader_of_an_overlay_runs_no_unchecked_bytecode(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    (site / STATE).write_bytes((tmp_path / "old.py").read_bytes())
    overlays.make(overlay, site)
    (module,) = overlay.rglob("parallel_state.py")
    stale = pycs.unchecked(module, b"__file__ = 'stale'\n")
    assert overlays.job(LOOK, overlay, site, options=("-B",)).out.strip() == str(module)
    assert overlays.job(LOOK, overlay, site, env={"PYTHONDONTWRITEBYTECODE": ""}).out.strip() == str(module)
    assert stale.read_bytes()[4:8] == b"\0" * 4, "compiled anew, and checked from now on"
    assert cli.called("overlay", overlay, "--check", "--target", site, *FIX).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("blow", [die, pytest.param(fail, marks=pytest.mark.slow)])
def test_a_run_that_only_deletes_bytecode_may_end_anywhere(blow: Blow, stage: Stage) -> None:
    """Whatever it left, the next run finds out and ends it."""

    def prepared() -> tuple[Path, Path]:
        prefix = stage.fresh(applied=True)
        return prefix, pycs.unchecked(prefix / "site" / whole.ENGINE, stage.shared.read_bytes())

    prefix, stale = prepared()
    whole_run = whole.run(prefix, "apply")
    assert (whole_run.code, stale.exists(), whole.tree(prefix)) == (0, False, stage.applied)
    for at in range(len(whole_run.operations)):
        prefix, stale = prepared()
        code = whole.run(prefix, "apply", blow=blow, at=at).code
        assert code or not stale.exists(), "no run says that all is well while old code runs"
        assert whole.run(prefix, "check").code == stale.exists()
        assert whole.run(prefix, "apply").code == 0
        assert whole.tree(prefix) == stage.applied
        assert whole.stale_bytecode(prefix / "site") == []


Carried = Callable[..., Path]


@pytest.fixture
def carried(tmp_path: Path) -> Carried:
    """Gives a wheel of ms-swift that carries bytecode: of a file to change, of another target, and of no target."""

    def of(code: bytes | None, *files: str) -> Path:
        folder = cli.unpack(tmp_path / "unpacked", ("ms-swift", "4.6.0"))
        rows = ""
        for file in files:
            path = pycs.unchecked(folder / file, code or (folder / file).read_bytes())
            rows += f"{path.relative_to(folder)},sha256=AAAA,{path.stat().st_size}\n"
        record = folder / "ms_swift-4.6.0.dist-info/RECORD"
        record.write_text(rows + record.read_text())
        wheel = tmp_path / wheels.fetch("ms-swift", "4.6.0").name
        with zipfile.ZipFile(wheel, "w") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, str(path.relative_to(folder)))
        return wheel

    return of


CHANGED, PLAIN = "swift/megatron/utils/megatron_lm_utils.py", "swift/version.py"
UPSTREAMS_OWN = "swift/metrics/utils.py"


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.endswith(".pyc")}


@pytest.mark.slow
def test_a_wheel_carries_no_bytecode_of_a_changed_file(carried: Carried, tmp_path: Path) -> None:
    before = carried(None, CHANGED, PLAIN, UPSTREAMS_OWN)
    ran = cli.called("wheel", before, "-o", tmp_path / "out", "--require", "expert-dp-warmup")
    (after,) = (tmp_path / "out").glob("*.whl")
    assert (ran.code, len(names(before)), names(before) - names(after)) == (
        0, 3, {f"swift/megatron/utils/__pycache__/megatron_lm_utils.{pycs.TAG}.pyc"}
    )  # fmt: skip
    listed = {name for name in records(after) if name.endswith(".pyc")}
    assert listed == names(after)
    site = tmp_path / "installed"
    with zipfile.ZipFile(after) as archive:
        archive.extractall(site)
        assert (
            "removed, since it was compiled"
            in archive.read(next(n for n in archive.namelist() if "NOTICE" in n)).decode()
        )
    assert cli.called("check", "--target", site, "--require", "expert-dp-warmup").code == 0


@pytest.mark.slow
def test_a_wheel_carries_no_stale_bytecode_of_upstream_s_own_fix(carried: Carried, tmp_path: Path) -> None:
    before = carried(b"class MeanMetric: pass\n", UPSTREAMS_OWN)
    words = "--fix", "mean-metric-dtype"
    ran = cli.installed("wheel", before, "-o", tmp_path / "out", *words, "--output-format", "json")
    assert (ran.code, {it["code"] for it in ran.json["wheels"][0]["results"]}) == (0, {None})
    (after,) = (tmp_path / "out").glob("*.whl")
    assert (len(names(before)), names(after)) == (1, set())


def test_record_has_no_hash_of_bytecode_that_apply_deletes(site: Path, stale: Path, tmp_path: Path) -> None:
    """A wheel carried it, so its row has a hash. What pip compiles has none."""
    for when in "already rewritten", "to rewrite":
        info = site / CORE
        info.mkdir(exist_ok=True)
        name = str(stale.relative_to(site))
        rows = f"megatron/core/__init__.py,,\nmegatron/core/package_info.py,,\n{STATE},sha256=AAAA,3\n"
        (info / "RECORD").write_text(f"{rows}{name},sha256=AAAA,3\n")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.17.1\n")
        cli.applied("--target", site, *FIX)
        assert stale.exists() is (when == "to rewrite"), "what was there is compiled again"
        assert dist_info.row((info / "RECORD").read_bytes(), name) == f"{name},,", when
        old = (tmp_path / "old.py").read_bytes()
        (site / STATE).write_bytes(old)
        pycs.unchecked(site / STATE, old)
