"""The part of a rewrite that needs LibCST: what an edit does not span stays the same, byte for byte."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst
import pytest

from unhang.codemods import splice
from unhang.codemods.edit import Edit
from unhang.codemods.splice import SpanError

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

CODE = "def f(x):\n    if x:\n        a()  # why\n        b()\n    return x\n"


def same(nodes: Statements) -> Statements:
    return nodes


def doubled(nodes: Statements) -> Statements:
    return [*nodes, *nodes]


def apply(text: str, *edits: Edit, unit: str = "    ") -> str:
    return "".join(splice.apply(splice.lines(text), edits, unit))


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb\r\n", "a\rb\n\r", "", "\n", "a\x0cb\u2028c\x85d\n"])
def test_lines_keep_their_ends_and_are_split_only_where_python_does(text: str) -> None:
    assert "".join(splice.lines(text)) == text
    assert len(splice.lines(text)) == len(text.encode().splitlines())


def test_edits_in_any_order_change_only_their_own_lines() -> None:
    edits = [Edit(3, 3, doubled), Edit(5, 5, doubled)]
    once = CODE.replace("a()  # why\n", "a()  # why\n        a()  # why\n")
    assert apply(CODE, edits[0]) == once
    assert apply(CODE, *edits) == apply(CODE, *reversed(edits)) == once + "    return x\n"


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("\n", "\r"), ("    ", "\t"), ("    ", "  ")])
def test_new_lines_have_the_line_ends_and_the_indentation_of_the_file(old: str, new: str) -> None:
    edit = Edit(3, 3, lambda nodes: splice.suite("if y:\n    c()\n"))
    done = apply(CODE.replace(old, new), edit, unit="    ".replace(old, new))
    assert done == CODE.replace("        a()  # why\n", "        if y:\n            c()\n").replace(old, new)


def test_an_edit_of_the_last_line_keeps_its_end_and_adds_no_trailing_space() -> None:
    assert apply(CODE[:-1], Edit(5, 5, same)) == CODE[:-1]
    assert apply(CODE[:-1], Edit(5, 5, doubled)) == CODE + "    return x"
    assert apply(CODE[:-1].replace("\n", "\r\n"), Edit(5, 5, doubled)) == (CODE + "    return x").replace("\n", "\r\n")
    added = apply(CODE, Edit(5, 5, lambda nodes: [*nodes, *splice.suite("\n# ours\nc()")]))
    assert added == CODE + "\n    # ours\n    c()\n"


def test_what_cannot_be_replaced_by_whole_lines_is_refused() -> None:
    with pytest.raises(SpanError, match="two edits overlap"):
        apply(CODE, Edit(2, 4, same), Edit(4, 5, same))
    with pytest.raises(SpanError, match="line 1 is not indented like the function around it"):
        apply("def f(): return 1\n", Edit(1, 1, same))
    with pytest.raises(SpanError, match="two statements share a line of lines 2 to 2"):
        apply("def f(x):\n    a(); b()\n    return x\n", Edit(2, 2, same))
    statement = cst.ensure_type(cst.parse_statement("if x: a()\n"), cst.If)
    with pytest.raises(SpanError, match="same line as its header"):
        splice.body_of(statement.body)


def test_statements_of_a_block_are_left_out_unless_two_share_a_line() -> None:
    block = ast.parse("a()\nb()\n").body
    nodes = splice.suite("# a comment\na()\nb()\n")
    assert splice.without(nodes, block, block[:1]) == nodes[1:]
    with pytest.raises(SpanError, match="two statements share a line"):
        splice.without(splice.suite("a(); b()\n"), block, [])


def test_an_elif_arm_and_a_block_like_another() -> None:
    def change(nodes: Statements) -> Statements:
        (node,) = nodes
        statement = cst.ensure_type(node, cst.If)
        body = splice.block(splice.suite("d()"), statement.body)
        return [statement.with_changes(body=body, orelse=splice.elif_("y", "# ours\nc()"))]

    text = "def f(x):\n  if x:  # header\n     a()\n  b()\n"
    done = "def f(x):\n  if x:  # header\n     d()\n\n  elif y:\n    # ours\n    c()\n  b()\n"
    assert apply(text, Edit(2, 3, change), unit="  ") == done
