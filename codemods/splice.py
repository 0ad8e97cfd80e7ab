"""The part of a rewrite that needs LibCST: parse a few statements, change them, and keep every other byte.

LibCST sees only the statements that an edit spans, never the file. ``unhang check`` does not import this module.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import libcst as cst

if TYPE_CHECKING:
    from unhang.codemods.edit import Edit, Statements


class SpanError(Exception):
    """The statements of an edit share a line with other code, so whole lines cannot replace them."""


def apply(rows: Sequence[str], edits: Sequence[Edit], unit: str) -> list[str]:
    """Return the lines of a file (see ``lines``) with these edits applied.

    ``unit`` is one level of the file's indentation. Lines that no edit spans stay the same. Raises SpanError where
    edits overlap, or an edit's statements share a line with other code.
    """
    rows = list(rows)
    ordered = sorted(edits, key=lambda edit: edit.first, reverse=True)
    if any(later.first <= earlier.last for later, earlier in zip(ordered, ordered[1:])):
        raise SpanError("two edits overlap")
    for edit in ordered:
        # only the last line of a file may lack its end
        newline = _end(rows[edit.first - 1]) or _end(rows[edit.first - 2]) or "\n"
        rows[edit.first - 1 : edit.last] = lines(_rewritten(rows[edit.first - 1 : edit.last], edit, unit, newline))
    return rows


def lines(text: str) -> list[str]:
    """Split a text into lines as Python counts them, with their line ends; str.splitlines splits at more characters."""
    return list(io.StringIO(text, newline=""))


def _end(row: str) -> str:
    return row[len(row.rstrip("\r\n")) :]


def _rewritten(rows: list[str], edit: Edit, unit: str, newline: str) -> str:
    """Return the new text of an edit's lines.

    The lines are parsed as the body of one or two added ``if`` blocks, which keeps their indentation. The first block
    also shows LibCST what one level of indentation is.
    """
    ended = rows[-1][-1] in "\r\n"
    indentation = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    if not indentation.startswith(unit):
        raise SpanError(f"line {edit.first} is not indented like the function around it")
    head = f"if _:{newline}" if indentation == unit else f"if _:{newline}{unit}if _:{newline}"
    module = cst.parse_module(head + "".join(rows) + ("" if ended else newline))
    wrapper = module.body[0]
    block_ = body_of(cst.ensure_type(wrapper, cst.If).body)[0] if indentation != unit else wrapper
    inner = cst.ensure_type(block_, cst.If).body
    nodes = body_of(inner)
    if any(isinstance(node, cst.SimpleStatementLine) and len(node.body) > 1 for node in nodes):
        raise SpanError(f"two statements share a line of lines {edit.first} to {edit.last}")
    changed = module.with_deep_changes(_indented(inner), body=edit.change(nodes))
    code = cst.ensure_type(changed, cst.Module).code
    if not code.endswith(newline):
        code += newline  # LibCST drops a \r at the end of a module
    return code[len(head) :] if ended else code[len(head) : -len(newline)]


def suite(template: str) -> Statements:
    """Parse a template into statements, with its comments and blank lines, also a blank first line."""
    module = cst.parse_module(template)
    first, *rest = cast("Sequence[cst.SimpleStatementLine]", module.body)
    first = first.with_changes(leading_lines=[*module.header, *first.leading_lines])
    return [node.with_changes(leading_lines=[_bare(line) for line in node.leading_lines]) for node in (first, *rest)]


def _bare(line: cst.EmptyLine) -> cst.EmptyLine:
    """Return a blank line without the indentation that LibCST would add to it."""
    return line if line.comment else line.with_changes(indent=False)


def after_blank_line(statement: cst.BaseStatement) -> cst.BaseStatement:
    """Return the statement with one blank line above it."""
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def block(statements: Sequence[cst.BaseStatement], like: cst.BaseSuite) -> cst.IndentedBlock:
    """Return a block of these statements, with the header (the comment after the colon) and indentation of ``like``."""
    return _indented(like).with_changes(body=list(statements))


def body_of(suite_: cst.BaseSuite) -> Statements:
    """Return the statements of an indented block, as a new list."""
    return list(_indented(suite_).body)


def _indented(suite_: cst.BaseSuite) -> cst.IndentedBlock:
    if not isinstance(suite_, cst.IndentedBlock):
        raise SpanError("a block is on the same line as its header")
    return suite_


def elif_(test: str, template: str) -> cst.If:
    """Return an ``elif`` arm with a template's statements and a blank line above it."""
    header = [cst.EmptyLine(indent=False)]
    return cst.If(cst.parse_expression(test), cst.IndentedBlock(suite(template)), leading_lines=header)


def changed(
    statement: cst.BaseStatement,
    code: str,
    place: tuple[int, int],
    change: Callable[[cst.BaseExpression], cst.BaseExpression],
    comment: str,
) -> cst.BaseStatement:
    """Return a statement with one expression changed, and a comment above it.

    ``code`` is Python's own dump of the expression, ``place`` says which of how many such expressions it is. Raises
    SpanError where LibCST sees another number of them.
    """
    visitor = _Changes(code, place[0], change)
    done = cst.ensure_type(statement.visit(visitor), type(statement))
    if visitor.found != place[1]:
        raise SpanError(f"an expression is there {visitor.found} times, and not {place[1]} times")
    lines_ = [*cast("cst.SimpleStatementLine", statement).leading_lines, cst.EmptyLine(comment=cst.Comment(comment))]
    return done.with_changes(leading_lines=lines_)


_KINDS: dict[str, type[object]] = {
    "Attribute": cst.Attribute,
    "Call": cst.Call,
    "Name": cst.Name,
    "Subscript": cst.Subscript,
}
"""LibCST's class for Python's of the same meaning: to spell all other nodes as well would take most of the time."""
_NAMES = ("attr", "keyword", "name", "target")


class _Changes(cst.CSTTransformer):
    """Changes one of the expressions that have the same code."""

    def __init__(self, code: str, number: int, change: Callable[[cst.BaseExpression], cst.BaseExpression]) -> None:
        super().__init__()
        self.code, self.number, self.change, self.found = code, number, change, 0
        self.kind: type[object] = _KINDS.get(code.partition("(")[0], cst.BaseExpression)
        self.chosen: cst.CSTNode | None = None
        self.names: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        # Python has no expression there: the name of an attribute, a keyword or a definition, a name that is assigned
        self.names.update(one for field in _NAMES if isinstance(one := getattr(node, field, None), cst.CSTNode))
        if isinstance(node, self.kind) and node not in self.names and _dump(node) == self.code:
            self.chosen = node if self.found == self.number else self.chosen
            self.found += 1
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if original_node is not self.chosen:
            return updated_node
        old = cast("cst.BaseExpression", updated_node)
        new = self.change(old)
        return new if new.lpar else new.with_changes(lpar=old.lpar, rpar=old.rpar)


def _dump(node: cst.CSTNode) -> str:
    try:
        tree = ast.parse(f"({cst.Module([]).code_for_node(node)}\n)", mode="eval")
    except SyntaxError:  # such as a part of an f-string
        return ""
    return ast.dump(tree.body)


def with_argument(call: cst.BaseExpression, argument: str, at: int) -> cst.Call:
    """Return a call with one more argument, the ``at``-th or the last, laid out as the others are."""
    call = cst.ensure_type(call, cst.Call)
    (new,) = cst.ensure_type(cst.parse_expression(f"f({argument})"), cst.Call).args
    before, rest = call.args[:at], call.args[at:]
    if not before:
        return call.with_changes(args=[new])
    *others, last = before
    between: cst.Comma | cst.MaybeSentinel = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    after = last.comma
    if rest:
        between, after = after, _without_comment(after)
    elif others:
        between = others[-1].comma
        space, closing = (getattr(comma, "whitespace_after", None) for comma in (between, after))
        if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(closing, cst.ParenthesizedWhitespace):
            # a comment stays with the argument on its line
            between = cst.Comma(whitespace_after=closing.with_changes(indent=space.indent, last_line=space.last_line))
            after = _without_comment(after)
    return call.with_changes(args=[*others, last.with_changes(comma=between), new.with_changes(comma=after), *rest])


def _without_comment(comma: cst.Comma | cst.MaybeSentinel) -> cst.Comma | cst.MaybeSentinel:
    """Return a comma with the line end after it, but not the comments there."""
    space = getattr(comma, "whitespace_after", None)
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    bare = cst.TrailingWhitespace(newline=space.first_line.newline)
    return cst.Comma(whitespace_after=space.with_changes(first_line=bare, empty_lines=[]))


def on_own_line(call: cst.Call) -> cst.Call:
    """Return a call with its arguments on a line of their own, unless a line ends before them already."""
    if not isinstance(call.whitespace_before_args, cst.SimpleWhitespace):
        return call
    *others, last = call.args
    inner = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    end = last.with_changes(whitespace_after_arg=cst.ParenthesizedWhitespace(indent=True))
    return call.with_changes(whitespace_before_args=inner, args=[*others, end])


def guarded_by(old: cst.BaseExpression, condition: str) -> cst.BooleanOperation:
    """Return ``old and condition``, each in parentheses where it needs them."""
    left = old if old.lpar or not _binds_less_than_and(old) else _in_parentheses(old)
    right = cst.parse_expression(condition)
    return cst.BooleanOperation(left, cst.And(), _in_parentheses(right) if _binds_less_than_and(right) else right)


def _binds_less_than_and(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.BooleanOperation):
        return not node.lpar and isinstance(node.operator, cst.Or)
    return not node.lpar and isinstance(node, (cst.IfExp, cst.Lambda, cst.NamedExpr))


def _in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def instead(nodes: Statements, template: str) -> Statements:
    """Return a template's statements, with the comments above the first of ``nodes`` and after the last."""
    first, *rest = suite(template)
    above = cast("cst.SimpleStatementLine", nodes[0]).leading_lines
    own = cast("cst.SimpleStatementLine", first).leading_lines
    made = [first.with_changes(leading_lines=[*above, *own]), *rest]
    old = nodes[-1]
    if isinstance(old, cst.SimpleStatementLine) and isinstance(made[-1], cst.SimpleStatementLine):
        made[-1] = made[-1].with_changes(trailing_whitespace=old.trailing_whitespace)
    return made


def without(nodes: Statements, block: Sequence[ast.stmt], gone: Sequence[ast.stmt]) -> Statements:
    """Return the nodes of a block without those of some of its statements, and without the comments above these."""
    if len(nodes) != len(block):
        raise SpanError("two statements share a line")
    return [node for node, statement in zip(nodes, block) if statement not in gone]
