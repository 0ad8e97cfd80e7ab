"""The part of a rewrite that needs LibCST: parse a few statements, change them, and leave every other byte as it was.

LibCST sees only the statements that an edit spans, never the file. Nothing here is imported by ``unhang check``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import libcst as cst

if TYPE_CHECKING:
    from unhang.codemods.base import Edit, Statements

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class SpanError(Exception):
    """The statements of an edit do not have their lines to themselves, so they cannot be replaced by whole lines."""


def apply(rows: Sequence[str], edits: Sequence[Edit], unit: str) -> list[str]:
    """The lines of a file (see ``lines``) with these edits done.

    ``unit`` is one level of the file's indentation. The lines that no edit spans come back as they were. Raises
    SpanError where an edit's statements share a line with other code.
    """
    rows = list(rows)
    ordered = sorted(edits, key=lambda edit: edit.first, reverse=True)
    if any(later.first <= earlier.last for later, earlier in zip(ordered, ordered[1:])):
        raise SpanError("two of its edits overlap")
    for edit in ordered:
        rows[edit.first - 1 : edit.last] = lines(_rewritten(rows[edit.first - 1 : edit.last], edit, unit))
    return rows


def lines(text: str) -> list[str]:
    """The lines of a text as Python counts them, each with its own line end; str.splitlines knows more of these."""
    return _LINE.findall(text)


def _rewritten(rows: list[str], edit: Edit, unit: str) -> str:
    """The new text of an edit's lines.

    They are parsed as the body of made-up ``if`` blocks, which keeps their indentation; the first of these also tells
    LibCST what one level of indentation is.
    """
    newline = "\r\n" if rows[0].endswith("\r\n") else rows[0][-1] if rows[0][-1] in "\r\n" else "\n"
    ended = rows[-1][-1] in "\r\n"
    indentation = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    if not indentation.startswith(unit):
        raise SpanError(f"line {edit.first} is not indented like the function around it")
    head = f"if _:{newline}" if indentation == unit else f"if _:{newline}{unit}if _:{newline}"
    module = cst.parse_module(head + "".join(rows) + ("" if ended else newline))
    wrapper = module.body[0]
    block_ = body_of(cst.ensure_type(wrapper, cst.If).body)[0] if indentation != unit else wrapper
    inner = cst.ensure_type(block_, cst.If).body
    changed = module.with_deep_changes(_indented(inner), body=edit.change(body_of(inner)))
    code = cst.ensure_type(changed, cst.Module).code
    return code[len(head) :] if ended else code[len(head) : -len(newline)]


def suite(template: str) -> Statements:
    """The statements of a template, with its comments and blank lines; a blank first line is kept."""
    module = cst.parse_module(template)
    first, *rest = cast("Sequence[cst.SimpleStatementLine]", module.body)
    first = first.with_changes(leading_lines=[*module.header, *first.leading_lines])
    return [node.with_changes(leading_lines=[_bare(line) for line in node.leading_lines]) for node in (first, *rest)]


def _bare(line: cst.EmptyLine) -> cst.EmptyLine:
    """A blank line without the indentation that it would get in its new place."""
    return line if line.comment else line.with_changes(indent=False)


def after_blank_line(statement: cst.BaseStatement) -> cst.BaseStatement:
    """The statement with one blank line above it."""
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def source(statement: cst.BaseStatement) -> str:
    """A statement's code in Python's own spelling, to compare with a short literal of ours."""
    return ast.unparse(ast.parse(cst.Module([]).code_for_node(statement.with_changes(leading_lines=[]))))


def block(statements: Sequence[cst.BaseStatement], like: cst.BaseSuite) -> cst.IndentedBlock:
    """A block of these statements, with the header (the comment behind the colon) and indentation of another."""
    return _indented(like).with_changes(body=list(statements))


def body_of(suite_: cst.BaseSuite) -> Statements:
    """The statements of an indented block, as a list to change."""
    return list(_indented(suite_).body)


def _indented(suite_: cst.BaseSuite) -> cst.IndentedBlock:
    if not isinstance(suite_, cst.IndentedBlock):
        raise SpanError("a block stands on the line of its own header")
    return suite_


def elif_(test: str, template: str) -> cst.If:
    """An ``elif`` arm with a template's statements, after a blank line."""
    header = [cst.EmptyLine(indent=False)]
    return cst.If(cst.parse_expression(test), cst.IndentedBlock(suite(template)), leading_lines=header)


def without(nodes: Statements, template: str) -> Statements:
    """These statements, less those that stand in the template."""
    dropped = set(template.splitlines())
    return [node for node in nodes if source(node) not in dropped]
