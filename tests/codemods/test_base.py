"""What the codemods share: each helper finds its statements, or names the anchor that it did not find once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from unhang.codemods import base, splice
from unhang.codemods.base import AnchorError, span
from unhang.codemods.edit import Edit
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


CODE = "def f():\n    # first\n    a()\n\n    # second\n    b()  # last\n"


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (
            base.followed_by("\n# ours\nc()"),
            "    # first\n    a()\n\n    # second\n    b()  # last\n\n    # ours\n    c()\n",
        ),
        (base.preceded_by("# ours\nc()"), "    # ours\n    c()\n\n    a()\n\n    # second\n    b()  # last\n"),
        (base.only_first, "    # first\n    a()\n"),
        (base.instead("# ours\nc()\nd()"), "    # first\n    # ours\n    c()\n    d()  # last\n"),
        (
            base.inside("# ours\nc()\nwith d:\n    pass"),
            "    # ours\n    c()\n    with d:\n        # first\n        a()\n\n        # second\n        b()  # last\n",
        ),
    ],
    ids=["followed_by", "preceded_by", "only_first", "instead", "inside"],
)
def test_changes_of_whole_statements(change: Callable[[Statements], Statements], result: str) -> None:
    first, last = function(CODE).body
    rows = splice.lines(CODE)
    edit = span(first, last, change)
    assert (edit.first, edit.last) == (3, 6)
    whole = edit._replace(first=2)  # with the comment above the first statement
    assert "".join(splice.apply(rows, [whole], "    ")) == "def f():\n" + result


INSIDE = """\
def f(x):
    g(x, y)
    if h(
        x,
        a or b,  # why
    ):
        g(g(x, y), k=a or b)  # whose
    return g()
"""
_G, _H = "g(x, y)", "h(x, a or b)"


def spelled(code: str, number: int = 0) -> tuple[Function, ast.expr]:
    """The function, and its expression of this code."""
    whole = function(INSIDE)
    found = [node for node in ast.walk(whole) if isinstance(node, ast.expr) and ast.unparse(node) == code]
    return whole, sorted(found, key=lambda node: (node.lineno, node.col_offset))[number]


def call(code: str, number: int = 0) -> tuple[Function, ast.Call]:
    whole, found = spelled(code, number)
    assert isinstance(found, ast.Call)
    return whole, found


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        (base.replaced_by(*spelled(_G), "z", "# why"), "    g(x, y)\n    if", "    # why\n    z\n    if"),
        (base.with_argument(*call(_G), "k=1", "# why"), "    g(x, y)\n    if", "    # why\n    g(x, y, k=1)\n    if"),
        (
            base.replaced_by(*spelled(_G, 1), "z", "# why"),
            "        g(g(x, y), k=a or b)  # whose\n",
            "        # why\n        g(z, k=a or b)  # whose\n",
        ),
        (base.with_argument(*call("g()"), "k=1", "# why"), "    return g()", "    # why\n    return g(k=1)"),
        (
            base.with_argument(*call(_H), "k=1", "# why"),
            "    if h(\n        x,\n        a or b,  # why\n",
            "    # why\n    if h(\n        x,\n        a or b,  # why\n        k=1,\n",
        ),
        (
            base.guarded_by(*spelled("a or b"), "c", "# why"),
            "    if h(\n        x,\n        a or b,",
            "    # why\n    if h(\n        x,\n        (a or b) and c,",
        ),
        (
            base.guarded_by(*spelled("g()"), "c if d else e", "# why"),
            "    return g()",
            "    # why\n    return g() and (c if d else e)",
        ),
    ],
)
def test_edits_of_an_expression(edit: Edit, old: str, new: str) -> None:
    assert INSIDE.count(old) == 1
    assert "".join(splice.apply(splice.lines(INSIDE), [edit], "    ")) == INSIDE.replace(old, new)


def test_a_name_that_is_no_expression_is_not_taken_for_one() -> None:
    code = "def f(it):\n    for x in it:\n        it = x.it = g(lambda it: it.it, it=1)\n"
    whole = function(code)
    (loop,) = (node for node in whole.body if isinstance(node, ast.For))
    done = "".join(splice.apply(splice.lines(code), [base.replaced_by(whole, loop.iter, "z", "# why")], "    "))
    assert done == code.replace("    for x in it", "    # why\n    for x in z")


@pytest.mark.parametrize(
    ("edit", "anchor", "old", "new"),
    [
        (base.before, "if h(x, a or b):\n    ...", "    if h(", "    # ours\n    c()\n\n    if h("),
        (base.after, "g(x, y)", "    if h(", "    # ours\n    c()\n    if h("),
        (base.after, "g(g(x, y), k=a or b)", "# whose\n", "# whose\n        # ours\n        c()\n"),
    ],
)
def test_statements_are_added_beside_one_that_begins_like_no_other(
    edit: Callable[[Function, str, str], Edit], anchor: str, old: str, new: str
) -> None:
    added = "# ours\nc()\n"
    done = "".join(splice.apply(splice.lines(INSIDE), [edit(function(INSIDE), anchor, added)], "    "))
    assert done == INSIDE.replace(old, new)
    with pytest.raises(AnchorError, match=r"^not found: .* without what is added$"):
        edit(function(done), anchor, added)
    with pytest.raises(AnchorError, match=r"^not found: if h"):
        edit(function(INSIDE), "if h(x, a):\n    ...", added)


def test_calls_and_what_they_give_for_a_keyword() -> None:
    found = base.calls(function(INSIDE), "g")
    assert [ast.unparse(call) for call in found] == [_G, "g(g(x, y), k=a or b)", _G, "g()"]
    assert [given and ast.unparse(given) for given in (base.argument(call, "k") for call in found)] == [
        None, "a or b", None, None,
    ]  # fmt: skip
