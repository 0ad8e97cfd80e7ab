"""A diff applied in memory, on files that are made up."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable

import pytest

from unhang.draft import patch
from unhang.errors import UnhangError

BEFORE = "".join(f"line {number}\n" for number in range(1, 31))
AFTER = BEFORE.replace("line 5\n", "line five\n").replace("line 20\n", "").replace("line 25\n", "line 25\nmore\n")


def diff(before: str, after: str, name: str = "a/x.py") -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    return "".join(lines).replace(f"--- {name}", f"--- a/{name}").replace(f"+++ {name}", f"+++ b/{name}")


def apply(text: str, **files: str) -> patch.Result:
    def read(path: str) -> list[tuple[str, str]]:
        content = files.get(path.replace("/", "_").removesuffix(".py"))
        return [] if content is None else [(path, content)]

    return patch.apply(text, read, "verl 1.0")


def test_each_hunk_is_applied_and_its_lines_are_told() -> None:
    (file,) = apply(diff(BEFORE, AFTER), a_x=BEFORE).files
    assert (file.file, file.before, file.after) == ("a/x.py", BEFORE, AFTER)
    assert [(change.removed, change.added) for change in file.changes] == [
        (range(5, 6), range(5, 6)),
        (range(20, 21), range(20, 20)),
        (range(26, 26), range(25, 26)),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_any_edit_of_a_file_comes_out_whole_also_some_lines_off(seed: int) -> None:
    dice = random.Random(seed)
    before = [f"{dice.randrange(6)}\n" for _ in range(60)]
    after = [line for line in before for _ in range(dice.choice((0, 1, 1, 1, 1, 2)))]
    text = diff("".join(before), "".join(after))
    assert apply(text, a_x="".join(before)).files[0].after == "".join(after)
    # the number of the file's first lines, which no hunk mentions, may differ
    unique = [f"own {number}\n" for number in range(dice.randrange(1, 9))]
    whole = [f"{number} {line}" for number, line in enumerate(before)]
    changed = [line for line in whole if dice.random() < 0.9]
    if changed != whole:
        moved = apply(diff("".join(whole), "".join(changed)), a_x="".join([*unique, *whole])).files[0]
        assert moved.after == "".join([*unique, *changed])


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("no diff\n", "bad-patch", "no unified diff in it"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n-b\n", "bad-patch", "this is not a unified diff: "),
        (diff("a\nb\n", "a\nc\n"), "patch-does-not-fit", "a/x.py, hunk @@ -1,2 +1,2 @@"),
    ],
)
def test_what_is_no_diff_of_the_release_is_refused(text: str, code: str, message: str) -> None:
    with pytest.raises(UnhangError, match=message.replace("+", r"\+")) as caught:
        apply(text, a_x=BEFORE)
    assert caught.value.code == code
    assert caught.value.hint


def test_other_files_are_named() -> None:
    text = diff(BEFORE, AFTER) + diff("a\n", "b\n", "tests/t.py") + diff("a\n", "b\n", "setup.cfg")
    text += "--- /dev/null\n+++ b/a/new.py\n@@ -0,0 +1 @@\n+x\n--- a/a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    text += "--- a/a/empty.py\n+++ b/a/empty.py\n@@ -0,0 +1 @@\n+x\n"
    assert apply(text, a_x=BEFORE).left == (
        "tests/t.py: verl 1.0 has no such file",
        "setup.cfg: verl 1.0 has no such file",
        "a/new.py: the diff adds it",
        "a/old.py: the diff removes it",
        "a/empty.py: verl 1.0 has no such file",
    )
    result = patch.apply(text, lambda path: [(path, BEFORE)] if path == "a/x.py" else [], "verl 1.0", matters=is_new)
    assert (result.left, len(result.out)) == (("a/new.py: the diff adds it",), 4)


def is_new(path: str, added: bool) -> bool:
    return added and path == "a/new.py"


SERIES = "From 1 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: x\n\n---\n a/x.py | 2 +-\n\n{}-- \n2.34.1\n\n"


@pytest.mark.parametrize("name", ["x.py", "a b.py", "caf\u00e9.py"])
@pytest.mark.parametrize(
    "time", ["", "\t2019-11-24 17:23:10.3 -0500", " 2019-11-24 17:23:10.3 -0500", "  Mon Jan  1 00:00:00 2024"]
)
def test_mails_are_applied_in_order_whatever_their_headers_have(name: str, time: str) -> None:
    texts = ["a\nb\n", "a\nc\n", "a\nd\n"]
    mails = [diff(*pair, f"a/{name}").replace(f"{name}\n", f"{name}{time}\n") for pair in zip(texts, texts[1:])]
    (done,) = patch.apply("".join(map(SERIES.format, mails)), lambda path: [(path, texts[0])], "verl 1.0").files
    assert (done.file, done.before, done.after) == (f"a/{name}", texts[0], texts[2])


def test_a_last_line_of_context_may_be_missing() -> None:
    text = diff("a\nb\nc\n", "a\nd\nc\n")
    assert text.endswith(" c\n")
    assert apply(text.removesuffix(" c\n"), a_x="a\nb\nc\n").files[0].after == "a\nd\nc\n"
    with pytest.raises(UnhangError, match="as many lines as it says"):
        apply(text.removesuffix("+d\n c\n"), a_x="a\nb\nc\n")


@pytest.mark.parametrize("kind", ["old mode 100644\nnew mode 100755\n", "Binary files a/a/x.py and b/a/x.py differ\n"])
def test_what_is_no_change_of_lines(kind: str) -> None:
    text = f"diff --git a/a/x.py b/a/x.py\n{kind}" + diff("a\n", "b\n", "a/y.py")
    result = apply(text, a_x="x\n", a_y="a\n")
    assert [it.file for it in result.files] == ["a/y.py"]
    assert [*result.left, *result.out] == [f"a/x.py: {'it is no text' if 'Binary' in kind else 'the mode of the file'}"]


def test_the_tab_that_git_writes_behind_a_path_with_a_space_is_not_part_of_it() -> None:
    notes = "--- a/a b.md\t\n+++ b/a b.md\t\n@@ -1 +1 @@\n-x\n+y\n--- /dev/null\n+++ b/c d.md\t\n@@ -0,0 +1 @@\n+x\n"
    result = apply(notes + diff(BEFORE, AFTER), a_x=BEFORE)
    assert [file.after for file in result.files] == [AFTER]
    assert result.left == ("a b.md: verl 1.0 has no such file", "c d.md: the diff adds it")


def test_a_file_that_moved_is_the_only_one_with_the_lines() -> None:
    places = [("b/x.py", "other\n"), ("c/x.py", BEFORE)]
    result = patch.apply(diff(BEFORE, AFTER), lambda path: places, "verl 1.0")
    assert [(file.file, file.after) for file in result.files] == [("c/x.py", AFTER)]
    assert result.left == ("a/x.py: in verl 1.0 it is c/x.py; see whether that is the same code",)
    for unclear, why in (places[0], "no such file"), (places[1], "several files that may be it"):
        result = patch.apply(diff(BEFORE, AFTER), lambda path, it=unclear: [it, it], "verl 1.0")  # type: ignore[misc]
        assert result == ((), (f"a/x.py: verl 1.0 has {why}",), ())


def test_a_hunk_that_does_not_fit_is_left_to_a_person_only_outside_of_a_function() -> None:
    release = BEFORE.replace("line 5\n", "line 6\n")
    asked = []

    def outside(path: str, numbers: Iterable[int]) -> bool:
        asked.append((path, [*numbers]))
        return False

    result = patch.apply(diff(BEFORE, AFTER), lambda path: [(path, release)], "verl 1.0", outside)
    assert asked == [("a/x.py", [5, 5, 6])]
    assert result.files[0].after == AFTER.replace("line five\n", "line 6\n")
    (left,) = result.left
    assert left.endswith("it changes code outside of a function, and does not fit")


def test_a_mode_and_what_an_installer_writes_are_left_out_with_a_line_each() -> None:
    moded = "diff --git a/a/x.py b/a/x.py\nold mode 100644\nnew mode 100755\n"
    result = apply(moded + diff(BEFORE, AFTER), a_x=BEFORE)
    assert ([it.after for it in result.files], result.out) == ([AFTER], ("a/x.py: the mode of the file",))
    assert apply(moded, a_x=BEFORE) == patch.Result((), (), ("a/x.py: the mode of the file",))
    installed = apply(diff("License: A\n", "License: B\n", "x-1.0.dist-info/METADATA"))
    assert (installed.left or installed.out) == ("x-1.0.dist-info/METADATA: an installer writes it",)


@pytest.mark.parametrize(
    ("text", "does"),
    [("-a\r\n+b\r\n", False), ("-a\r\n-b\n+c\r\n+d\n", False), ("+b\r\n", False), ("-a\r\n+a\n", True)],
)
def test_a_diff_that_changes_how_lines_end_is_known(text: str, does: bool) -> None:
    assert patch.changes_ends(f"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n{text}") is does
