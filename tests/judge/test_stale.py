"""Which bytecode an import runs although its code is not that of the source: what real interpreters do decides."""

import marshal
import os
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from support import pycs
from unhang.find import environment
from unhang.judge.stale import stale
from unhang.records import Environment, Search

OLD, NEW = b"VALUE = 'old'\n", b"VALUE = 'new'\n"
HEAD = MAGIC_NUMBER + b"\1\0\0\0" + b"\0" * 8
ASKED = Search(Environment(sys.executable, "/", "--python"), (), (), cache_tag=pycs.TAG)
FOLDER = Search(Environment(None, "/", "--target"), (), ())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mod.py"
    path.write_bytes(NEW)
    return path


def found(source: Path, search: Search = ASKED) -> list[Path]:
    return [Path(code.path) for code in stale({str(source): source.read_bytes()}, search)]


def imported(source: Path, *options: str) -> str:
    """Return what a fresh interpreter imports, without writing bytecode; else the error."""
    code = f"import sys; sys.path.insert(0, {str(source.parent)!r}); import mod; print(mod.VALUE)"
    command = [sys.executable, "-B", *options, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1].partition(":")[0]


@pytest.mark.parametrize("level", ["", "opt-1", "opt-2"])
@pytest.mark.parametrize(
    ("code", "other"),
    [
        (OLD, True), (NEW, False), (b"# a comment\n\n" + NEW, False), (b"VALUE = 'new'; OTHER = 1\n", True),
        (b"VALUE = True\n", True), (NEW + b"def f(x): return x\n", True),
    ],
)  # fmt: skip
def test_unchecked_bytecode_is_stale_if_its_code_is_another(source: Path, code: bytes, other: bool, level: str) -> None:
    path = pycs.unchecked(source, code, ".".join(filter(None, (pycs.TAG, level))))
    assert found(source) == [path] * other
    options = {"": [], "opt-1": ["-O"], "opt-2": ["-OO"]}[level]
    assert imported(source, *options) == {OLD: "old", b"VALUE = True\n": "True"}.get(code, "new")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"def f():\n    return 0.0\n", b"def f():\n    return -0.0\n"), (b"X = 1\n", b"X = True\n"),
        (b"def f(a):\n    return a.b\n", b"def f(a):\n    return a.c\n"), (b"X = x in {1, 2}\n", b"X = x in {1, 3}\n"),
        (b"def f(a, b=1): pass\n", b"def f(a, b=2): pass\n"), (b"class A:\n    '''a'''\n", b"class A:\n    '''b'''\n"),
        (b"def f():\n    try: a()\n    except B: c()\n", b"def f():\n    try: a()\n    finally: c()\n"),
        (b"def f():\n    return lambda: (1, (2, 'x'))\n", b"def f():\n    return lambda: (1, (2, 'y'))\n"),
    ],
)  # fmt: skip
def test_small_differences_count_and_equal_code_is_equal(source: Path, old: bytes, new: bytes) -> None:
    for before, after in (old, new), (new, old):
        source.write_bytes(after)
        path = pycs.unchecked(source, before)
        assert found(source) == [path]
        path = pycs.unchecked(source, after)
        assert found(source) == []


def test_an_import_compares_the_other_kinds_itself(source: Path) -> None:
    """Right by time and size, or by the hash, it counts as compiled from the source: as an import has it."""
    path = pycs.unchecked(source, OLD)
    pycs.marked(path, b"\3")  # checked hash
    assert (found(source), imported(source)) == ([], "new")
    pycs.marked(path, b"\0" * 12)
    assert (found(source), imported(source)) == ([], "new")
    pycs.marked(path, b"\5")  # flags that no Python has: an import ignores the file
    assert (found(source), imported(source)) == ([], "new")
    pycs.marked(path, pycs.times(source))
    assert (found(source), imported(source)) == ([], "old"), "who forges this can do so, and docs/promises.md says it"


def test_a_forged_hash_is_no_evidence(source: Path) -> None:
    path = pycs.unchecked(source, OLD)
    pycs.with_hash_of(path, NEW)
    assert found(source) == found(source, FOLDER) == [path]


def test_of_an_interpreter_only_its_own_counts_and_without_one_every_tag(source: Path) -> None:
    other = pycs.unchecked(source, OLD, "cpython-399")
    assert (found(source), found(source, FOLDER)) == ([], [other])
    fresh = pycs.unchecked(source, NEW, "cpython-398.opt-1")
    assert found(source, FOLDER) == [other], f"{fresh} has the hash of the source"
    pycs.unchecked(source, OLD, f"{pycs.TAG}-pytest-8.3.4")
    pycs.unchecked(source, OLD, f"{pycs.TAG}.opt-mine")
    assert found(source) == [], "no import reads these"
    assert found(source, ASKED._replace(cache_tag="")) == [], "an interpreter without bytecode"
    mine = pycs.unchecked(source, OLD)
    assert found(source) == [mine]
    mine.write_bytes(b"\0" + mine.read_bytes()[1:])
    assert (found(source), imported(source)) == ([], "new"), "of another Python, by its magic number"


def test_below_a_prefix_too(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / str(source.parent).lstrip("/")
    path = pycs.unchecked(source, OLD, folder=folder)
    assert found(source) == []
    assert found(source, ASKED._replace(pycache_prefix=str(tmp_path / "cache"))) == [path]


def doubled() -> bytes:
    """Return a tuple of a few hundred bytes that is longer than any memory once it is written out."""
    value: Any = ()
    for _ in range(60):
        value = (value, value)
    return marshal.dumps(value)


HOSTILE = {
    "cut off": HEAD,
    "cut off later": HEAD + marshal.dumps(compile("x = 1\ny = 2\n", "", "exec"))[:-9],
    "no code": HEAD + marshal.dumps("text"),
    "garbage": HEAD + os.urandom(4096),
    "a tuple of two thousand million": HEAD + b"(\xff\xff\xff\x7f",
    "a string of two thousand million": HEAD + b"s\xff\xff\xff\x7f",
    "nested deeply": HEAD + b"(\1\0\0\0" * 100_000,
    "sixty times doubled": HEAD + doubled(),
    "a reference to nothing": HEAD + b"r\xff\0\0\0",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_cannot_be_compared_is_stale(kind: str, source: Path) -> None:
    """An import of it fails, or worse; and it costs us nothing but the child that has looked at it."""
    path = pycs.unchecked(source, OLD)
    path.write_bytes(HOSTILE[kind])
    assert found(source) == found(source, FOLDER) == [path]


def test_what_is_too_large_or_no_file_or_not_ours_to_read(source: Path) -> None:
    path = pycs.unchecked(source, OLD)
    os.truncate(path, 1 << 40)
    assert found(source) == [path]
    for make in (os.mkfifo, os.mkdir, lambda it: os.symlink("/dev/zero", it), lambda it: os.symlink("nowhere", it)):
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        assert found(source) == []
    path.unlink()
    path.write_bytes(HEAD[:15])
    assert (found(source), imported(source)) == ([], "new"), "an import ignores it"


def test_one_that_ends_the_process_does_not_speak_for_the_others(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.py"
    other.write_bytes(NEW)
    bad, good = pycs.unchecked(source, OLD), pycs.unchecked(other, NEW)
    ask = environment.ask

    def fragile(python: str, code: str, *words: str, **how: object) -> object:
        return ask(python, "import os; os.abort()" if str(bad) in words else code, *words, **how)  # type: ignore[arg-type]

    monkeypatch.setattr("unhang.judge.stale.ask", fragile)
    sources = {str(path): path.read_bytes() for path in (source, other)}
    assert [code.path for code in stale(sources, ASKED)] == [str(bad)]
    assert good.exists()


def test_a_broken_interpreter_proves_nothing(source: Path) -> None:
    path = pycs.unchecked(source, NEW, "cpython-399")  # of our own tag, our own interpreter compares
    broken = ASKED._replace(environment=Environment("/bin/false", "/", "--python"), cache_tag="cpython-399")
    assert found(source, broken) == [path]


def test_nothing_of_a_job_runs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pycs.unchecked(source, f"open({str(tmp_path / 'ran')!r}, 'w')\n".encode())
    (tmp_path / "marshal.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(found(source)) == 1
    assert not (tmp_path / "ran").exists()
