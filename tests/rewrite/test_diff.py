"""The diff: `git apply` and `patch` read it back into the planned bytes, whatever these are."""

import subprocess
from pathlib import Path

import pytest

from unhang.records import Environment
from unhang.rewrite.diff import Changed, render


def changed(root: Path, name: str, before: bytes, after: bytes) -> Changed:
    return str(root), str(root / name), before, after


def searched(folder: Path, python: str | None = None) -> Environment:
    return Environment(python, str(folder), "--target")


def test_the_paths_are_relative_to_the_folder_that_was_searched(tmp_path: Path) -> None:
    assert render(searched(tmp_path), [], {}) == b""
    files = [changed(tmp_path / "src", name, b"a\n", b"b\n") for name in ("verl/two.py", "verl/one.py")]
    section = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    both = "".join(section.format(f"src/verl/{name}.py") for name in ("one", "two"))
    assert render(searched(tmp_path), files, {}).decode() == f"# in {tmp_path}\n{both}"


def test_an_interpreter_has_a_section_for_each_root(tmp_path: Path) -> None:
    files = [changed(tmp_path / root, "verl/one.py", b"a\n", b"b\n") for root in ("site", "checkout")]
    lines = render(searched(tmp_path, "python"), files, {}).decode().splitlines()
    assert [line for line in lines if line.startswith("# in ")] == [
        f"# in {tmp_path / root}" for root in ("checkout", "site")
    ]
    assert lines.count("--- a/verl/one.py") == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"x = '\xff\xfe\x85'\nb\n", b"x = '\xff\xfe\x85'\nc\n"),
        ("x = '\u4e2d\u2028'\n".encode(), "x = '\u4e2d\u2028'\ny = 1\n".encode()),
        (b"a\r\nb\r\n", b"a\r\nc\r\nb\r\n"),
        (b"a\rb\n", b"a\rc\n"),
        (b"a\n\x0cb\n", b"a\n\x0cc\n"),
        (b"a\nb", b"a\nc"),
        (b"a\nb", b"a\nb\nc\n"),
        (b"a\nb\n", b"a\nc"),
        (b"a", b"b\n"),
    ],
)
@pytest.mark.parametrize("tool", [("git", "apply"), ("patch", "-s", "-p1", "--binary")])
def test_both_tools_make_the_planned_bytes_of_it(
    tool: tuple[str, ...], before: bytes, after: bytes, tmp_path: Path
) -> None:
    (tmp_path / "one.py").write_bytes(before)
    (tmp_path / "two.py").write_bytes(before)
    files = [changed(tmp_path, name, before, after) for name in ("one.py", "two.py")]
    notes = {file[1]: ["run: a\nb", "--- a/one.py"] for file in files}
    diff = render(searched(tmp_path), files, notes)
    assert diff.count(b"# run: a\\nb\n# --- a/one.py\n---") == 2
    subprocess.run(tool, input=diff, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "one.py").read_bytes() == (tmp_path / "two.py").read_bytes() == after
