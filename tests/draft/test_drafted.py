"""The functions of a changed file that become rewrites, and the changes that are left to a person."""

from __future__ import annotations

import difflib

import pytest

from unhang.draft import patch
from unhang.draft.drafted import Drafted, by_name, drafted, is_inside
from unhang.errors import UnhangError

BEFORE = """\
import os


def free(a):
    return run(a)


class Engine:
    def step(self, batch):
        loss = self.model(batch)
        return loss

    @property
    def twice(self):
        return 1

    @twice.setter
    def twice(self, value):
        self.value = value
"""


def draft(old: str, new: str) -> Drafted:
    assert BEFORE.count(old) == 1
    after = BEFORE.replace(old, new)
    text = "".join(difflib.unified_diff(BEFORE.splitlines(True), after.splitlines(True), "a/x.py", "b/x.py"))
    (file,) = patch.apply(text, lambda path: [(path, BEFORE)], "verl 1.0").files
    return drafted("my-fix", "verl", file)


@pytest.mark.parametrize(
    ("old", "new", "function", "uses"),
    [
        ("    return run(a)", "    return run(a, os)", "free", ("os",)),
        ("        return loss\n", "        os.sync()\n        return loss\n", "Engine.step", ("os",)),
    ],
)
def test_a_changed_function_is_a_target(old: str, new: str, function: str, uses: tuple[str, ...]) -> None:
    (rewrite,), left = draft(old, new)
    assert (rewrite.target.fix, rewrite.target.upstream, rewrite.target.file) == ("my-fix", "verl", "x.py")
    assert rewrite.target.function == function
    assert set(uses) <= set(rewrite.uses)
    assert rewrite.before != rewrite.after
    assert [line for line in left if "run" not in line] == []


@pytest.mark.parametrize(
    ("old", "new", "rewrites", "told"),
    [
        ("import os", "import os\nimport sys", 0, "it changes code outside of a function: import sys"),
        ("def free(a):", "def own():\n    pass\n\n\ndef free(a):", 0, "outside of a function: def own():"),
        ("def free(a):", "def free(a, b):", 0, "x.py, free: the diff changes its signature or a decorator"),
        (
            "        return 1\n",
            "        return 2\n",
            0,
            "outside of a function: return 1",
        ),  # which of the two, who knows
        (
            "    return run(a)",
            "    return go(a)",
            1,
            "x.py, free: it uses go, which the file does not define or import",
        ),
    ],
)
def test_what_no_codemod_can_change_is_named(old: str, new: str, rewrites: int, told: str) -> None:
    done = draft(old, new)
    assert len(done.rewrites) == rewrites
    (line,) = done.left
    assert told in line
    assert line.startswith("x.py, ")


def test_a_name_that_the_diff_imports_is_imported_in_the_function() -> None:
    after = BEFORE.replace("import os\n", "import os\nfrom a.b import go as run\n").replace("run(a)", "run(a, os)")
    (rewrite,), left = drafted("my-fix", "verl", patch.Patched("x.py", BEFORE, after))
    assert left == ("x.py, line 2: it changes code outside of a function: from a.b import go as run",)
    assert [item.new for item in rewrite.replacements] == ["from a.b import go as run\nreturn run(a, os)\n"]
    assert rewrite.uses == ("os",)


def test_one_codemod_does_the_functions_of_one_name_if_they_change_alike() -> None:
    (first,), _ = draft("    return run(a)", "    return run(a, os)")
    alike = first._replace(target=first.target._replace(file="y.py"))
    other = alike._replace(replacements=())
    assert by_name([first, alike]) == ((first, alike), [])
    kept, (left,) = by_name([first, other])
    assert kept == (first,)
    assert left == "y.py, free: x.py has this function too, and the diff changes it in another way"


def test_a_line_is_in_a_function_or_not() -> None:
    assert [is_inside(BEFORE, [number]) for number in (1, 4, 5, 8, 9, 11)] == [False, True, True, False, True, True]


def test_comments_outside_are_no_change() -> None:
    assert draft("import os\n", "import os\n\n# a comment\n") == Drafted((), ())


def test_a_file_that_does_not_parse_afterwards_is_refused() -> None:
    with pytest.raises(UnhangError, match="does not parse") as caught:
        draft("    return run(a)", "    return run(a")
    assert caught.value.code == "bad-patch"
