"""Patches of others, tried: on a made-up package, what an original and a fix of a pack do in the three cases."""

import ast
from pathlib import Path

import pytest

from tried import page, patches, steps, trees
from tried.originals import GIT, Original, Upstream
from unhang.store import dist_info

BEFORE = "def size(items):\n    total = len(items)\n    return total\n"
AFTER = BEFORE.replace("len(items)", "len(items) + 1")
WIDGETS = Upstream("widgets", "1.0", "widgets")
SCRIPT = """\
import os

def patch(root):
    path = os.path.join(root, "widgets", "core.py")
    text = open(path).read()
    if "len(items)" in text:
        open(path, "w").write(text.replace("len(items)", "len(items) + 1"))
    else:
        print("WARNING the snippet was not found")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    files = {"widgets/__init__.py": "", "widgets/core.py": BEFORE, "widgets/other.py": "x = 1\n"}
    info = {"METADATA": "Metadata-Version: 2.1\nName: widgets\nVersion: 1.0\n"}
    rows = {name: text.encode() for name, text in files.items()}
    info["RECORD"] = dist_info.listing(rows, "widgets-1.0.dist-info/RECORD").decode()
    files |= {f"widgets-1.0.dist-info/{name}": text for name, text in info.items()}
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


def tried(site: Path, folder: Path, call: str, source: str) -> steps.Tried:
    (folder / "work").mkdir()
    (folder / "patch").write_text(source)
    (folder / "patch.py").write_text(source)
    given = folder / ("patch" if call == GIT else "patch.py")
    return steps.tried(Original("theirs", "", WIDGETS, call, "one-more"), given, site, folder / "pack", folder / "work")


def test_a_script_that_warns_ends_with_0_and_a_pack_with_1(site: Path, tmp_path: Path) -> None:
    found = tried(site, tmp_path, "patch(root)", SCRIPT)
    assert list(found.targets) == ["widgets/core.py size"]
    assert not found.left
    assert (site / "widgets/core.py").read_text() == BEFORE, "the release stays as it is"
    assert {case: (seen.code, seen.files) for case, seen in found.theirs.items()} == {
        "applied": (0, "as the patch"), "drifted": (0, "untouched"), "reverted": (0, "changed otherwise"),
    }  # fmt: skip
    assert {case: (seen.code, seen.files) for case, seen in found.ours.items()} == {
        "applied": (0, "as the patch"), "drifted": (1, "untouched"), "reverted": (0, "untouched"),
    }  # fmt: skip
    assert "1 became a fix as a whole" in page.tried([found], "abc")


def test_a_diff_is_applied_as_git_does(site: Path, tmp_path: Path) -> None:
    diff = trees.diff({"widgets/core.py": BEFORE}, {"widgets/core.py": AFTER})
    found = tried(site, tmp_path, GIT, diff)
    assert (found.theirs["applied"].code, found.theirs["drifted"].code, found.theirs["reverted"].code) == (0, 1, 1)


@pytest.mark.parametrize(
    ("before", "after", "drifted"),
    [
        ("a = f(b)\n", "a = f(c)\n", "a = f(b_)\n"),
        ("x = [\n    'one',\n]\n", "x = [\n    'one',\n    'two',\n]\n", "x_ = [\n    'one',\n]\n"),
        ("import os\na = 1\n", "import os\nb = 2\na = 1\n", "import os_\na = 1\n"),
    ],
)
def test_a_drifted_file_differs_in_one_name(before: str, after: str, drifted: str) -> None:
    assert trees.drifted(before, after) == drifted
    ast.parse(drifted)


def test_why_a_hunk_is_left_has_nothing_of_upstreams() -> None:
    line = "a/b.py, hunk @@ -1,2 +1,2 @@: it changes code that binds no name: their.line = 1"
    assert page.why(line) == "it changes code that binds no name"


def test_why_a_patch_is_no_fix_is_the_error_and_not_where_it_was_met() -> None:
    ended = steps.Ran(2, "error[nothing-to-rewrite]: a/b.py, hunk @@ -1 +1 @@: x: it is gone\n  in: /tmp/a\n")
    found = steps.Tried(Original("theirs", "", WIDGETS, GIT, "one-more"), 1, ended, (), (), {}, {})
    assert "| no: x: it is gone |" in page.tried([found], "abc")


def test_each_public_patch_is_named_once_and_what_came_of_them_is_counted() -> None:
    every = patches.sources()
    assert len(every) >= 60
    assert len({it.sha256 for it in every}) == len(every)
    assert all(len(it.sha256) == 64 and len(it.commit) == 40 for it in every)
    came = [
        patches.Came(every[0], "whole", 1, 2),
        patches.Came(every[1], "no wheel"),
        patches.Came(every[2], "WRONG: a"),
    ]
    assert "Of 2 public patches" in patches.text(came)
    assert "**1 became packs whole**" in patches.text(came)
    assert "1 gave anything else" in patches.text(came)


def test_git_is_given_the_sections_whose_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "change.patch").write_text(
        "--- a/src/w/a.py\n+++ b/src/w/a.py\n@@ -1 +1 @@\n-a\n+b\n"
        "--- a/src/setup.py\n+++ b/src/setup.py\n@@ -1 +1 @@\n-a\n+b\n"
    )
    (tmp_path / "there" / "w").mkdir(parents=True)
    (tmp_path / "there" / "w" / "a.py").write_text("a\n")
    assert patches.given(tmp_path / "change.patch", tmp_path / "there") == ""
    assert (tmp_path / "there" / "w" / "a.py").read_text() == "b\n"
    assert "patch does not apply" in patches.given(tmp_path / "change.patch", tmp_path / "there")
