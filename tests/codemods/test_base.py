"""What the codemods share: each helper finds its statements, or names the anchor that it did not find once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from unhang.codemods import base, splice
from unhang.codemods.base import AnchorError, span
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements


def body(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def function(text: str) -> Function:
    (found,) = body(text)
    assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
    return found


def test_no_unlisted_shape_is_fixed_upstream_unless_a_codemod_says_so() -> None:
    assert not base.Codemod().fixed_upstream(function("def f(): pass"))


def test_an_anchor_must_occur_once() -> None:
    one, two = body("x = 1\nx = 1")
    assert base.once([one], "x = 1") is one
    with pytest.raises(AnchorError, match=r"^not found: x = 1$"):
        base.once([], "x = 1")
    with pytest.raises(AnchorError, match=r"^found 2 times, expected once: x = 1$"):
        base.once([one, two], "x = 1")


def test_statements_match_a_template_whatever_their_layout() -> None:
    assert base.matches(body("x = f( 1,\n 2)  # a comment\ny = 'a'"), 'x = f(1, 2)\ny = "a"')
    assert not base.matches(body("x = f(1, 3)"), "x = f(1, 2)")
    assert not base.matches(body("x = 1\ny = 2"), "x = 1")
    assert not base.matches(body("x = 1"), "x = 1\ny = 2")


def test_a_name_of_ours_is_refused() -> None:
    base.refuse_own(function("def f(): x = 1"), {"ours"})
    with pytest.raises(AnchorError, match=r"^not found: f without ours, which is ours$"):
        base.refuse_own(function("def f(): ours = 1"), {"ours"})


def test_every_identifier_and_string_is_mentioned() -> None:
    code = """
def outer(argument, *, keyword=default):
    global shared
    import package.module as alias
    owner.attribute = call(named='text', other=1)
    class Inner: ...
"""
    names = {"outer", "argument", "keyword", "default", "shared", "package.module", "alias", "owner", "attribute"}
    assert base.mentioned(*body(code)) == names | {"call", "named", "text", "other", "Inner"}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = y\nw += y\ndel v", {"x", "w", "v"}),
        ("for x, *y in z: pass\nwith a as w: pass\n(v := 1)", {"x", "y", "w", "v"}),
        ("import a.b, c as d\nfrom a import e as f", {"a", "d", "f"}),
        ("try: pass\nexcept E as error: pass", {"error"}),
        ("def f():\n    global g\n    x = 1", {"f", "g", "x"}),
        ("class C: x = 1", {"C", "x"}),
        ("match a:\n    case [x, *y]: pass", {"x", "y"}),
        ("x.y = z[0] = 1", set()),
    ],
)
def test_every_way_to_bind_a_name_is_known(code: str, names: set[str]) -> None:
    assert base.bound(*body(code)) == names


CODE = "def f():\n    # first\n    a()\n\n    # second\n    b()\n"


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (base.followed_by("\n# ours\nc()"), "    # first\n    a()\n\n    # second\n    b()\n\n    # ours\n    c()\n"),
        (base.preceded_by("# ours\nc()"), "    # ours\n    c()\n\n    a()\n\n    # second\n    b()\n"),
        (base.only_first, "    # first\n    a()\n"),
    ],
    ids=["followed_by", "preceded_by", "only_first"],
)
def test_changes_of_whole_statements(change: Callable[[Statements], Statements], result: str) -> None:
    first, last = function(CODE).body
    rows = splice.lines(CODE)
    edit = span(first, last, change)
    assert (edit.first, edit.last) == (3, 6)
    whole = edit._replace(first=2)  # with the comment above the first statement
    assert "".join(splice.apply(rows, [whole], "    ")) == "def f():\n" + result
