"""What a diff does to a file, name by name: each edit gives what the diff has, or is left with a reason."""

import ast
import difflib

import pytest

from unhang.draft import exactly, patch
from unhang.errors import UnhangError
from unhang.rewrite import one_file
from unhang.shapes import binding, shape

FILE = "verl/one.py"
PLAIN = """\
import os
from typing import Any, List

try:
    import fast
except ImportError:
    fast = None

if fast is None:
    os.mode = 1
    os.path.mode = 1
LIMIT = 3
register("one")


class Loop(Base):
    '''A loop.'''

    size: int = 1

    @property
    def first(self):
        # of x
        return self.x

    def last(self, a, b):
        if a:
            return b
        return a


if fast:

    class Fast:
        def go(self):
            return 1
else:
    Fast = None


@overload
def run(x): ...
def run(x):
    return x
"""


def parted(before: str, after: str) -> tuple[exactly.Part, str]:
    """Return what becomes of the changes, and the file after the edits."""
    rows = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{FILE}", f"b/{FILE}"
    )
    result = patch.apply("".join(rows), lambda path: [(path, before)], "verl 1.0")
    (file,) = result.files
    part, data = exactly.part("my-fix", "verl", file), before.encode()
    for one in part.bound:
        data, was, now = one_file.exactly(data, one.target, one.codemod)
        assert (was, now) == (one.before, one.after)
    return part, data.decode()


def replaced(*pairs: tuple[str, str]) -> str:
    text = PLAIN
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


CHANGES = {
    "a constant": ["LIMIT = 3", "LIMIT = 4"],
    "an annotation": ["LIMIT = 3", "LIMIT: int = 3"],
    "an import that is added": ["import os\n", "import os\nimport sys\n"],
    "one more name of an import": ["Any, List", "Any, Dict, List"],
    "one name less": ["Any, List", "Any"],
    "an import from elsewhere": ["from typing import Any, List", "from collections.abc import Any, List"],
    "an import that falls back now": ["import os\n", "try:\n    import os\nexcept ImportError:\n    os = None\n"],
    "an import that is tried": ["LIMIT = 3\n", "LIMIT = 3\ntry:\n    import new\nexcept ImportError:\n    new = 1\n"],
    "what is bound if not": ["fast = None", "fast = False"],
    "an attribute": ["size: int = 1\n", "size: int = 1\n    '''How many.'''\n    shape: tuple = ()\n"],
    "a first attribute": ["    size: int = 1\n", "    a: int = 0\n    b: int = 0\n    size: int = 1\n"],
    "a decorator": ["@property\n", "@cached\n    @property\n"],
    "a signature": ["def last(self, a, b):", "def last(\n        self,\n        a,\n        b=1,  # why\n    ):"],
    "a coroutine": ["def last(", "async def last("],
    "a signature and body": [" b):\n        if a:\n            return b", " c):\n        if a:\n            return c"],
    "two methods that are added": ["    def last", "    def x(self): pass\n\n    def y(self): pass\n\n    def last"],
    "a method that goes": ["    @property\n    def first(self):\n        # of x\n        return self.x\n", ""],
    "a class that is added": ["@overload", "class New:\n    x = '''\ntext'''\n\n\n@overload"],
    "a class with another base": ["class Loop(Base):", "class Loop(Base, Other):"],
    "a class under a condition": ["return 1\n", "return 2\n\n        def stop(self):\n            pass\n"],
    "a function among overloads": ["    return x\n", "    return x + 1\n"],
    "one more overload": ["def run(x): ...\n", "def run(x): ...\n@overload\ndef run(x, y): ...\n"],
    "a function before a class": ["    class Fast:", "    def help():\n        pass\n\n    class Fast:"],
    "an attribute of another module": ["os.mode = 1", "# why\n    os.mode = 2"],
    "an attribute with more dots": ["os.path.mode = 1", "os.path.mode: int = 2"],
    "an attribute that is set no more": ["os.mode = 1", "# os.mode = 1"],
    "a nested function": ["return self.x\n", "def inner():\n            return self.x\n        return inner()\n"],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("unit", ["    ", "\t"], ids=["spaces", "tabs"])
def test_each_change_of_what_a_name_is_bound_to(change: list[str], unit: str) -> None:
    before, after = PLAIN.replace("    ", unit), replaced((change[0], change[1])).replace("    ", unit)
    part, result = parted(before, after)
    assert not part.left
    assert not part.ignored
    assert part.bound
    for tree in (ast.parse(after), ast.parse(result)):
        for one in part.bound:
            is_bound = binding.statements(tree, one.target.function)
            assert one.after == binding.of(tree if is_bound else ast.parse(after), one.target)


def test_all_of_them_at_once_bind_each_name_as_the_diff_does() -> None:
    alone = (
        "an import that falls back now",
        "a signature and body",
        "a coroutine",
        "an annotation",
        "one name less",
        "an attribute that is set no more",
    )
    other = ("one more name of an import", "what is bound if not", "a first attribute", "a function before a class")
    pairs = [(old, new) for name, (old, new) in CHANGES.items() if name not in (*alone, *other, "a method that goes")]
    pairs = [pair for pair in pairs if pair[0] not in ("import os\n", "LIMIT = 3\n")]
    after = replaced(*pairs)
    part, result = parted(PLAIN, after)
    assert not part.left
    names = shape.bound_names(ast.parse(after))
    for name in names:
        there, here = (binding.statements(ast.parse(code), name) or [] for code in (after, result))
        assert binding.digest(there, name) == binding.digest(here, name), name


def test_a_name_goes_where_the_diff_has_it() -> None:
    part, result = parted(PLAIN, replaced(("LIMIT = 3\n", "LIMIT = 3\nA = 1\nB = A\n")))
    assert result.index("LIMIT") < result.index("A = 1") < result.index("B = A") < result.index("register")
    assert [it.target.beside for it in part.bound] == [("after", "LIMIT")] * 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('register("one")', 'register("two")'), 'it changes code that binds no name: register("one")'),
        (
            ("    os.mode = 1\n", "    os.mode = 1\n    Loop.size = 2\n"),
            "it changes code that binds no name: Loop.size = 2",
        ),
        (
            ("    os.mode = 1\n", "    os.mode = 1\n    os.other = 2\n"),
            "os.other: not found: a name beside which os.other",
        ),
        (("if fast:", "if fast and LIMIT:"), "it changes code that binds no name: if fast:"),
        (('register("one")\n', 'register("one")\nB = 1\nregister(B)\n'), "B: not found: a name beside which B"),
    ],
)
def test_what_binds_no_name_is_left(change: tuple[str, str], why: str) -> None:
    part, _ = parted(PLAIN, replaced(change))
    ((place, reason),) = part.left.items()
    assert place.startswith(f"{FILE}, hunk @@ -")
    assert reason.startswith(why)


def test_what_uses_a_name_that_is_left_is_left_too() -> None:
    added = ('register("one")\n', 'register("one")\nB = os.sep\nB = register(B)\n')
    part, result = parted(PLAIN, replaced(added, ("            return b\n", "            return B\n")))
    assert (part.bound, result) == ((), PLAIN)
    assert sorted(part.left.values()) == ["B: not found: B in one place", "Loop.last: it uses B, which is left"]


def test_what_uses_a_name_that_the_fix_binds_stays() -> None:
    part, _ = parted(PLAIN, replaced(("LIMIT = 3\n", "LIMIT = 3\nA = 1\n"), ("return b\n", "return A\n")))
    assert {it.target.function for it in part.bound} == {"A", "Loop.last"}


ONE = """\
import sys

if sys:
    A = 1
else:
    B = 2
X = 1
Y = X


class C:
    k = 1
    l = 2


"""
LAST = "def f(a):\n    return a\n"
IN_A_CLASS = "class D:\n    if C:\n        x = 1\n"
ELSEWHERE = {
    "an import in an else": ["if sys:\n    import y\n", "if sys:\n    import y\nelse:\n    import z as y\n"],
    "a constant in an else": ["if sys:\n    Z = 1\n", "if sys:\n    Z = 1\nelse:\n    Z = 2\n"],
    "an attribute in an else": [f"{IN_A_CLASS}    y = 2\n", f"{IN_A_CLASS}    else:\n        x = 2\n    y = 2\n"],
    "out of a loop": ["for i in range(3):\n    V = i\n", "for i in range(3):\n    pass\nV = i\n"],
    "two that change places": ["X = 1\nY = X\n", "Y = X\nX = 1\n"],
    "two attributes that change places": ["    k = 1\n    l = 2\n", "    l = 2\n    k = 1\n"],
    "into an else": ["    B = 2\nX = 1\n", "    B = 3\n    X = 1\n"],
}  # fmt: skip


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("more", ["", " + 1"], ids=["alone", "beside what fits"])
def test_a_statement_that_the_edits_put_elsewhere_is_left(change: list[str], more: str) -> None:
    """Each name may be bound as in the diff, and the file still not be as in the diff."""
    old, new = change
    whole = f"{ONE}{LAST}" if old in ONE else f"{ONE}{old}\n\n{LAST}"
    part, _ = parted(whole, whole.replace(old, new).replace("return a", f"return a{more}"))
    assert {it.target.function for it in part.bound} == ({"f"} if more else set())
    assert [why for why in part.left.values() if why.endswith(": its edits do not give what the diff has")]


def test_a_docstring_that_no_edit_has_is_named_beside_code_that_fits() -> None:
    old = f'{LAST}\n\nclass C:\n    """a"""\n    x = 1\n'
    part, _ = parted(old, old.replace('"a"', '"b"').replace("return a", "return a + 1"))
    assert ({it.target.function for it in part.bound}, part.left) == ({"f"}, {})
    assert part.ignored == (f"{FILE}, C",)


def test_comments_and_docstrings_are_ignored_and_said() -> None:
    part, result = parted(PLAIN, replaced(("# of x", "# of y"), ("'''A loop.'''", "'''A\n    loop.'''")))
    assert (part.bound, part.left, result) == ((), {}, PLAIN)
    assert len(part.ignored) == 1
    assert part.ignored[0].startswith(f"{FILE}, hunk @@ -")


def test_what_the_text_uses_and_the_file_binds() -> None:
    part, _ = parted(PLAIN, replaced(("return x\n", "return os.path(LIMIT, x, len, new)\n")))
    assert [it.uses for it in part.bound] == [("LIMIT", "os")]


def test_a_file_that_does_not_parse_afterwards() -> None:
    with pytest.raises(UnhangError, match="does not parse"):
        parted(PLAIN, replaced(("LIMIT = 3", "LIMIT = (")))


def unmarked(text: str) -> str:
    return "".join(row for row in text.splitlines(keepends=True) if not row.lstrip().startswith("# unhang "))


WORDS = """\
import os

LIMIT = 3


class Loop(Base):
    '''A loop.'''

    size: int = 1
    '''How many.'''

    def first(self):
        '''Return x.

        Or not.
        '''
        # of x
        a = self.x

        # the end
        return a

    def last(self, a):
        '''Return a.'''
        if a:
            # why
            return a
        # none
        log(1)
        return None


def run(x):
    # one
    log(x)
    # two
    y = x
    # three
    return y
"""
WORDED = """\
import os

# How far.
# Not further.
LIMIT = 4


def begin():
    '''Begin.'''
    # here


class Loop(Base):
    '''A loop.'''

    size: int = 1
    '''How many.'''

    shape: int = 2
    '''How long.'''
    more: int = 3

    def first(self):
        '''Return x.

        Always.
        '''
        # of x and y
        a = self.y

        # now
        log(a)

        # the end
        return a

    # a comment above
    def between(self):
        '''Between.'''

    def last(self, a, *, b=1):
        '''Return a, or b.'''
        if a:
            # return a
            # was here
            return b

        # log(1)
        # return None


def run(x):
    # one, two

    log(x)
    # two
    y = x
    # three
    return y + 1  # four
"""


def test_an_edit_brings_its_comments_docstrings_and_blank_lines() -> None:
    part, result = parted(WORDS, WORDED)
    assert not part.left
    assert unmarked(result) == WORDED
    assert result.count("# unhang my-fix: ") >= len(part.bound)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_all_lines_are_as_in_the_diff(change: list[str]) -> None:
    after = replaced((change[0], change[1]))
    result = unmarked(parted(PLAIN, after)[1])
    for whole, alone in ALONE.items():
        result = result.replace(alone, whole) if whole in after else result
    assert result == after


ALONE = {
    "from typing import Any, Dict, List\n": "from typing import Any, List\nfrom typing import Dict\n",
    "from collections.abc import Any, List\n": "from collections.abc import List\nfrom collections.abc import Any\n",
}
"""Each name of an import is a target, for another release may import others in the same statement."""


def test_a_comment_at_the_end_of_a_line_that_stays_is_alone_left_out() -> None:
    """What stands between that line and what is added comes with the edit."""
    after = PLAIN.replace(
        "            return b\n        return a",
        "            return b  # its\n        # but\n        log(a)\n        return a",
    )
    assert unmarked(parted(PLAIN, after)[1]) == after.replace("  # its", "")


def test_comments_that_a_release_has_otherwise_stay() -> None:
    part, _ = parted(WORDS, WORDED)
    data = WORDS.replace("# one\n", "# mine\n").replace("'''Return a.'''", "'''Mine.'''").encode()
    for one in part.bound:
        data, _, now = one_file.exactly(data, one.target, one.codemod)
        assert now == one.after
    wanted = WORDED.replace("# one, two\n\n", "# mine\n").replace("'''Return a, or b.'''", "'''Mine.'''")
    assert unmarked(data.decode()) == wanted
