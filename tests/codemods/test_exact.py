"""Lines that take the place of others: found by what is around them, exactly once."""

import pytest

from unhang.codemods.base import AnchorError
from unhang.codemods.exact import EDGE, Exact, Swap, Text
from unhang.shapes.catalog import Target

TARGET = Target("my-fix", "widgets", "widgets/a.py", "line-2", exact=True, text=True)
PLAIN = "import os\nimport re\n\n\nclass A:\n    x = 1\n\n\nclass B:\n    x = 1\n"
SWAP = Swap(("import re",), ("import sys",), ("import os",), ("",))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_its_ends_and_its_mark_are_the_files(end: str) -> None:
    text = PLAIN.replace("\n", end)
    found = Text(text).edited([SWAP], "# unhang my-fix: unproved")
    assert found == text.replace("import re", f"# unhang my-fix: unproved{end}import sys")
    assert Text(found).edited([SWAP.undone], without="# unhang my-fix: ") == text


def test_in_a_file_of_both_ends_a_line_keeps_its_own() -> None:
    text = PLAIN.replace("import re\n", "import re\r\n")
    assert Text(text).edited([SWAP]) == text.replace("import re", "import sys")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLAIN.replace("import re", "import re "), "not found: import re"),
        (PLAIN.replace("import os", "import io"), "not found"),
        (PLAIN * 2, "found 2 times"),
        ("", "not found"),
    ],
)
def test_lines_that_are_not_there_once_are_refused(text: str, why: str) -> None:
    with pytest.raises(AnchorError, match=why):
        Text(text).edited([SWAP])
    assert Exact(SWAP).shape(text, TARGET) is None


def test_two_edits_of_one_line_are_refused() -> None:
    with pytest.raises(AnchorError):
        Text(PLAIN).edited([SWAP, SWAP])


def test_the_lines_further_above_say_in_which_class_it_is() -> None:
    swap = Swap(("    x = 1",), ("    x = 2",), (), (), ("class B:",))
    assert Text(PLAIN).edited([swap]) == PLAIN.removesuffix("1\n") + "2\n"
    assert Text(PLAIN.replace("class B", "class C")).places(swap) == []


@pytest.mark.parametrize(("text", "newline"), [("a\nb", "a\nb\n"), ("a\nb\n", "a\nb"), ("b", "b\n")])
def test_a_newline_at_the_end_is_a_line(text: str, newline: str) -> None:
    old, new = (tuple(it.split("\n")[-1:]) if it.endswith("\n") else () for it in (text, newline))
    assert Text(text).edited([Swap(old, new, ("b",), (EDGE,))]) == newline


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('X = """\na\n"""\n', 'X = """\nb\n"""\n'), ("X = 1 + \\\n    2\n", "X = 1 + \\\n    3\n"),
        ("#!/bin/a\nX = 1\n", "#!/bin/b\nX = 1\n"),
    ],
)  # fmt: skip
def test_no_mark_stands_where_it_would_change_something(old: str, new: str) -> None:
    before, after = (it.split("\n") for it in (old, new))
    at = next(at for at, pair in enumerate(zip(before, after)) if pair[0] != pair[1])
    swap = Swap((before[at],), (after[at],), (), (before[at + 1],))
    assert Text(old).edited([swap], "# unhang my-fix: unproved") == new


def test_a_text_is_before_or_after_or_neither() -> None:
    one = Exact(SWAP)
    before, after = one.shapes
    assert before != after
    done = one.edited(PLAIN, TARGET, "# unhang my-fix: unproved")
    assert [one.shape(it, TARGET) for it in (PLAIN, done, PLAIN.replace("re\n", "io\n"))] == [before, after, None]
    beside = done.replace("import os\n", "import os\nimport ast\n")
    assert one.shape(beside, TARGET) == after, "by its mark, whatever is around it now"


GONE = Exact(Swap(("import re",), (), ("import os",), ("",)))


@pytest.mark.parametrize(
    ("text", "is_done"),
    [
        ("import io\n\n\nX = 1\n", True),
        ("import io\nimport re as regex\n", False),
        ("import io\nif io:\n    import re\n", False),
        ("import io\nimport re\n", False),
        ("import io\nimport (\n", False),
    ],
)
def test_a_removal_is_done_where_the_name_is_not_bound(text: str, is_done: bool) -> None:
    assert (GONE.shape(text, TARGET) == GONE.shapes[1]) is is_done


def test_an_import_is_there_wherever_it_stands() -> None:
    added = Exact(Swap((), ("import re",), ("import os",), ("",)))
    assert added.shape("import io\nimport re\n", TARGET) == added.shapes[1]
    for text in ("import io\nimport ast as re\n", "if 0:\n    import re\n", "def f():\n    import re\n"):
        assert added.shape(text, TARGET) is None, text


def test_a_method_that_is_gone_from_its_class() -> None:
    rows = ("    def f(self):", "        return 1")
    gone = Exact(Swap(rows, (), ("    y = 1",), ("    z = 1",), ("class A:",)))
    assert gone.shape("class A:\n    w = 1\n", TARGET) == gone.shapes[1]
    for text in (
        "class A:\n    def f(self): pass\n",
        "class C:\n    w = 1\n",
        "class A:\n    def g(self):\n        return 1\n",
    ):
        assert gone.shape(text, TARGET) is None, text


@pytest.mark.parametrize("swaps", [(), (7,), (Swap((1,), (), (), ()),)])  # type: ignore[arg-type]
def test_what_is_no_edit_is_refused(swaps: tuple[Swap, ...]) -> None:
    with pytest.raises(TypeError):
        Exact(*swaps)


def test_two_edits_that_write_the_same_lines_are_told_apart() -> None:
    text = "a\nx\nb\nx\nc\n"
    first, last = (Exact(Swap(("x",), ("y",), (above,), (below,))) for above, below in ("ab", "bc"))
    once = first.edited(text, TARGET, "# unhang my-fix: unproved")
    assert (first.shape(once, TARGET), last.shape(once, TARGET)) == (first.shapes[1], last.shapes[0])
    twice = last.edited(once, TARGET, "# unhang my-fix: unproved")
    assert (first.shape(twice, TARGET), last.shape(twice, TARGET)) == (first.shapes[1], last.shapes[1])
