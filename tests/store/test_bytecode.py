"""No interpreter runs stale bytecode of a rewritten source, and bytecode that was there is compiled again."""

import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import cli, pycs
from support import environments as make
from support.pycs import TAG, UNCHECKED
from unhang.find.bytecode import NO_CACHES, Caches, cached
from unhang.store import bytecode, disk, state
from unhang.store.lock import exclusive
from unhang.store.transaction import FileChange, commit


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mod.py"
    path.write_text("VALUE = 1\n")
    return path


def compiled(source: Path, mode: str = "timestamp", optimize: int = 0) -> Path:
    invalidation = getattr(py_compile.PycInvalidationMode, mode.upper().replace("-", "_"))
    return Path(str(py_compile.compile(str(source), optimize=optimize, invalidation_mode=invalidation)))


def rewrite(source: Path, new: bytes = b"VALUE = 2\n", caches: Caches = NO_CACHES) -> None:
    folder = str(source.parent / ".unhang")
    with exclusive(folder):
        commit([FileChange(str(source), source.read_bytes(), new)], state_dir=folder, caches=caches)


def value(source: Path, *options: str) -> str:
    """Return what a fresh interpreter imports, without writing bytecode."""
    code = f"import sys; sys.path.insert(0, {str(source.parent)!r}); import mod; print(mod.VALUE)"
    return subprocess.check_output([sys.executable, "-B", *options, "-c", code], text=True, timeout=60).strip()


def test_no_bytecode_no_subprocess(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert cached(str(source)) == []
    assert bytecode.survey([str(source)]) == ()
    bytecode.recompile(sys.executable, ())


def test_bytecode_in_the_folder_of_the_source_is_never_run_and_stays(source: Path) -> None:
    """`compileall -b` writes it. A revert could not restore it, and no import reads it."""
    beside = source.with_suffix(".pyc")
    py_compile.compile(str(source), cfile=str(beside), invalidation_mode=UNCHECKED)
    rewrite(source)
    assert beside.exists()
    assert value(source) == "2"


def test_the_bytecode_of_every_interpreter_is_deleted(source: Path) -> None:
    folder = source.parent / "__pycache__"
    folder.mkdir()
    for name in pycs.OF_MOD:
        (folder / name).touch()
    rewrite(source)
    assert list(folder.iterdir()) == []


def test_the_folders_of_deleted_bytecode_are_synced_before_the_run_is_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may bring the old bytecode back, after the source has its new bytes."""
    log: list[tuple[str, str]] = []

    def run(operation: Callable[..., Any], *words: Any, **more: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{words[0]}") if isinstance(words[0], int) else os.fspath(words[0])
        log.append((operation.__name__, path))
        return operation(*words, **more)

    monkeypatch.setattr(disk, "run", run)
    prefix = tmp_path / "prefix"
    paths = [pycs.unchecked(source, b""), pycs.unchecked(source, b"", folder=prefix / str(tmp_path).lstrip("/"))]
    rewrite(source, caches=Caches(str(prefix), ()))
    done = log.index(("rename", str(tmp_path / ".unhang" / state.READY)))
    for path in paths:
        gone = log.index(("unlink", str(path)))
        assert ("fsync", str(path.parent)) in log[gone:done]
    log.clear()
    again = pycs.unchecked(source, b"")
    bytecode.remove([str(again)])
    assert log == [("unlink", str(again)), ("fsync", str(again.parent))]
    log.clear()
    rewrite(source, b"VALUE = 3\n")
    assert ("fsync", str(again.parent)) in log, "a run that was killed may have deleted it, and not come to its sync"


def test_stale_bytecode_would_run_without_the_transaction(source: Path) -> None:
    """Otherwise the other tests show nothing."""
    compiled(source, "unchecked-hash")
    source.write_text("VALUE = 2\n")
    assert value(source) == "1"


def test_bytecode_that_an_import_writes_meanwhile_is_never_run(source: Path) -> None:
    """The import read the old source, and writes after the transaction."""
    old = compiled(source)
    late = old.read_bytes()
    rewrite(source)
    assert not old.exists()
    old.write_bytes(late)
    assert value(source) == "2"


def test_bytecode_below_a_prefix_is_deleted_too(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a module that is imported by another name of its folder."""
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    (tmp_path / "alias").symlink_to(tmp_path)
    caches = Caches(str(tmp_path / "elsewhere"), ((str(tmp_path), str(tmp_path / "alias")),))
    for name in (source, tmp_path / "alias" / "mod.py"):
        source.write_text("VALUE = 1\n")
        path = tmp_path / "elsewhere" / str(name.parent).lstrip("/") / f"mod.{TAG}.pyc"
        py_compile.compile(str(name), cfile=str(path), invalidation_mode=UNCHECKED)
        assert value(name) == "1"
        rewrite(source, caches=caches)
        assert not path.exists()
        assert value(name) == "2"


def test_a_job_with_a_prefix_runs_what_apply_wrote(tmp_path: Path) -> None:
    """The interpreter is another one, isolated from the variable, and its environment is known by two names."""
    env = make.make_env(tmp_path / "env")
    cli.unpack_targets(env.site, ("verl", "0.7.1"))
    (tmp_path / "link").symlink_to("env")
    prefix = {"PYTHONPYCACHEPREFIX": "cache"}
    source = f"{env.site.relative_to(env.prefix)}/verl/workers/engine/megatron/transformer_impl.py"
    paths = []
    for name in (tmp_path / "env" / source, tmp_path / "link" / source):
        path = tmp_path / "cache" / str(name.parent).lstrip("/") / f"{name.stem}.{TAG}.pyc"
        py_compile.compile(str(name), cfile=str(path), invalidation_mode=UNCHECKED)
        paths.append(path)
    stale = [path.read_bytes() for path in paths]
    ran = cli.unhang("apply", "--python", tmp_path / "link", cwd=tmp_path, env=prefix)
    assert ran.code == 0, ran
    left = [path.read_bytes() if path.exists() else b"" for path in paths]
    assert not {*left} & {*stale}


@pytest.mark.parametrize("optimize", [0, 1, 2])
@pytest.mark.parametrize("mode", ["timestamp", "checked-hash", "unchecked-hash"])
def test_what_was_compiled_is_compiled_again_in_its_mode(source: Path, mode: str, optimize: int) -> None:
    path = compiled(source, mode, optimize)
    before = bytecode.survey([str(source)])
    assert before == (bytecode.Compiled(str(source), str(path), mode, str(optimize or ""), TAG),)
    rewrite(source)
    assert not path.exists()
    assert value(source) == "2", "stale bytecode is never run, even if size and second are the same"
    bytecode.recompile(sys.executable, before)
    assert bytecode.survey([str(source)]) == before
    assert value(source) == "2"
    # An import runs it: when the source changes, unchecked bytecode still has the new value.
    if mode == "unchecked-hash":
        source.write_text("VALUE = 3\n")
        assert value(source, *["-O"] * optimize) == "2"


def test_the_target_interpreter_compiles_only_its_own(source: Path) -> None:
    ours = compiled(source)
    theirs = ours.with_name("mod.cpython-399.pyc")
    theirs.write_bytes(ours.read_bytes())
    before = bytecode.survey([str(source)])
    rewrite(source)
    bytecode.recompile(sys.executable, before)
    assert (len(before), ours.exists(), theirs.exists()) == (2, True, False)


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_an_interpreter_that_fails_is_not_an_error(source: Path, python: str) -> None:
    path = compiled(source)
    before = bytecode.survey([str(source)])
    rewrite(source)
    bytecode.recompile(python, before)
    assert not path.exists()


def test_a_source_that_does_not_compile_does_not_stop_the_others(tmp_path: Path) -> None:
    sources = [tmp_path / "bad.py", tmp_path / "mod.py"]
    for path in sources:
        path.write_text("VALUE = 1\n")
        compiled(path)
    before = bytecode.survey(map(str, sources))
    rewrite(sources[0], b"VALUE = \n")
    rewrite(sources[1])
    bytecode.recompile(sys.executable, before)
    assert [Path(entry.path).name for entry in bytecode.survey(map(str, sources))] == [f"mod.{TAG}.pyc"]


def test_files_that_are_not_bytecode_are_not_compiled_again(source: Path) -> None:
    cache = source.parent / "__pycache__"
    cache.mkdir()
    (cache / f"mod.{TAG}.pyc").write_bytes(b"short")
    (cache / f"mod.{TAG}.opt-1.pyc").write_bytes(b"\0\0\0\0\xff\0\0\0" + b"\0" * 8)
    (cache / f"mod.{TAG}.opt-2.pyc").mkdir()
    assert bytecode.survey([str(source)]) == ()
    assert len(cached(str(source))) == 2
    rewrite(source)
    assert os.listdir(cache) == [f"mod.{TAG}.opt-2.pyc"]  # a folder, which no import reads


def test_bytecode_of_another_source_behind_a_link_gets_no_code_of_this_one(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    pyc = compiled(source, "unchecked-hash")
    (pyc.rename(other / pyc.name).parent / "beside").touch()
    (tmp_path / "__pycache__").rmdir()
    (tmp_path / "__pycache__").symlink_to(other)
    before = bytecode.survey([str(source)])
    rewrite(source)
    bytecode.recompile(sys.executable, before)
    assert [path.name for path in other.iterdir()] == ["beside"]
    assert value(source) == "2"


def test_no_code_of_the_environment_runs(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter that compiles imports nothing from the working directory or PYTHONPATH."""
    compiled(source)
    before = bytecode.survey([str(source)])
    evil = source.parent / "evil"
    evil.mkdir()
    (evil / "py_compile.py").write_text(f"open({str(evil / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(evil)
    monkeypatch.setenv("PYTHONPATH", str(evil))
    bytecode.recompile(sys.executable, before)
    assert not os.path.exists(evil / "ran")
