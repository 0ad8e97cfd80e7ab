"""A diff as edits: together they give what it gives, in any order, and each can be taken back."""

import ast
import random

import pytest

from unhang.codemods.exact import Text
from unhang.draft import exactly
from unhang.draft.exactly import Bound
from unhang.draft.patch import Patched
from unhang.rewrite import one_file

FILE = "widgets/a.py"
PLAIN = '''\
"""A module."""
import os
import sys

LIMIT = 3
TABLE = {
    "a": 1,
    "b": 2,
}


class Loop:
    """How."""

    size = 1

    @property
    def r(self):
        return self._r

    @r.setter
    def r(self, v):
        self._r = v

    def run(self, x):
        # why
        if x:
            return x
        return os.sep


def run(x):
    """Run."""
    return x


def walk(x):
    return x
'''


def bound(after: str, before: str = PLAIN) -> list[Bound]:
    return exactly.part("my-fix", "widgets", Patched(FILE, before, after))


def applied(text: str, parts: list[Bound]) -> str:
    for it in parts:
        text = one_file.exactly(text.encode(), it.target, it.codemod)[0].decode()
    return text


def plain(text: str) -> str:
    return "".join(row for row in text.splitlines(keepends=True) if "# unhang my-fix: " not in row)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("LIMIT = 3", "LIMIT = 4", ["line-5"]),
        ("        # why\n", "", ["line-26"]),
        ('"""Run."""', '"""Run it."""', ["line-33"]),
        ("return os.sep", "return sys.path", ["Loop.run"]),
        ("def walk(x):\n    return x\n", "def walk(x):\n    return x + 1\n", ["walk"]),
        ("def walk(x):\n    return x\n", "def walk(x):\n    return x + 1", ["line-38"]),
        (
            "    return x\n\n\ndef walk",
            "    return x + 1\n\n\ndef other():\n    pass\n\n\ndef walk",
            ["run", "line-35"],
        ),
        ("        self._r = v\n", "        self._r = v\n\n    def s(self):\n        return 1\n", ["line-25"]),
        ("import sys\n", "", ["line-3"]),
        ("import sys\n", "import sys\nimport sys\n", ["line-4"]),
        ("    def run(self, x):", "    async def run(self, x, *, y=1):", ["Loop.run"]),
        ('    "a": 1,\n    "b": 2,\n', '    "a": 9,\n', ["line-7"]),
        ("def run(x):", "def ran(x):", ["line-32"]),
    ],
)
def test_each_change_is_of_a_function_or_of_lines(old: str, new: str, names: list[str]) -> None:
    assert PLAIN.count(old) == 1
    after = PLAIN.replace(old, new)
    found = bound(after)
    assert [it.target.function for it in found] == names
    assert [it.target.text for it in found] == [name.startswith("line-") for name in names]
    assert plain(applied(PLAIN, found)) == after


def test_comments_and_docstrings_are_told_from_code() -> None:
    after = PLAIN.replace("# why", "# because").replace('"""Run."""', '"""Run it."""').replace("LIMIT = 3", "LIMIT = 4")
    assert {it.target.function: it.is_code for it in bound(after)} == {
        "line-5": True,
        "line-26": False,
        "line-33": False,
    }


def test_the_names_that_a_function_uses_now_are_named() -> None:
    (one,) = bound(PLAIN.replace("return os.sep", "return LIMIT + len(sys.path)"))
    assert one.uses == ("LIMIT", "sys")


@pytest.mark.parametrize("seed", range(60))
def test_any_change_in_any_order_and_back(seed: str) -> None:
    """Of lines that are blank, alike, at the ends of the file or beside each other, too."""
    chosen = random.Random(seed)
    rows = PLAIN.split("\n")
    for _ in range(chosen.randint(1, 6)):
        at = chosen.randrange(len(rows))
        how = chosen.choice(("drop", "twice", "new", "comment", "blank"))
        if how == "drop":
            del rows[at]
        else:
            space = rows[at][: len(rows[at]) - len(rows[at].lstrip())]
            rows.insert(at, {"twice": rows[at], "new": f"{space}x{at} = 1", "comment": f"{space}# x", "blank": ""}[how])
    after = "\n".join(rows)
    if after == PLAIN or not rows:
        return
    found = bound(after)
    both = [(it, it.codemod.swaps) for it in found]
    chosen.shuffle(both)
    text = PLAIN
    for it, swaps in both:
        text = Text(text).edited(swaps, f"# unhang my-fix: {it.target.function}")
    assert plain(text) == after
    assert is_same_code(text, after)
    chosen.shuffle(both)
    for _, swaps in both:
        text = Text(text).edited([it.undone for it in swaps], without="# unhang my-fix: ")
    assert text == PLAIN


def is_same_code(text: str, other: str) -> bool:
    try:
        tree = ast.parse(other)
    except SyntaxError:
        return True
    return ast.dump(ast.parse(text)) == ast.dump(tree)


@pytest.mark.parametrize("old", ["\ufeff", "x = 1"])
def test_a_file_that_is_no_module_is_lines_alone(old: str) -> None:
    text = f'{old}\n{{"a": 1,\n "b": 2}}'
    (one,) = exactly.part("my-fix", "widgets", Patched("widgets/a.json", text, text.replace("2", "3")))
    assert one.target.text
    assert one.codemod.edited(text, one.target, "") == text.replace("2", "3")


def test_what_two_files_have_alike_and_a_diff_makes_unlike_is_told_apart() -> None:
    def names(after: str, others: list[Bound]) -> list[str]:
        patched = Patched("widgets/b.py", PLAIN, after)
        return [it.target.function for it in exactly.part("my-fix", "widgets", patched, {}, others, [FILE])]

    new = PLAIN.replace("return x", "return 1").replace("LIMIT = 3", "LIMIT = 4")
    first = bound(new)
    assert {"line-5", "walk"} <= {it.target.function for it in first}
    again = names(new, first)
    assert "walk" in again
    assert "line-5" not in again
    other = names(new.replace("return 1", "return 2"), first)
    assert not {"walk", "line-5"} & {*other}
    assert len(other) == len({*other} - {it.target.function for it in first})
