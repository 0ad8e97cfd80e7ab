"""Mutations of one function in a file's own text: what a hand edit, a merge or a fork may have done to it.

Each operator takes a file and a random generator, and returns the new text of the file; it raises NothingToDo if it
finds nothing to work on. The operators in ``FORMATTING`` should keep the function's AST, those in ``CHANGING`` should
change it, but no caller relies on that: they compare the ASTs.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from unhang.shapes import shape

UNIT = b"    "
Expression = TypeVar("Expression", bound=ast.expr)
Chosen = TypeVar("Chosen")


class NothingToDo(Exception):
    """An operator finds nothing to work on."""


class Place(NamedTuple):
    """A statement that shares no line with another one, and its block."""

    node: ast.stmt
    block: list[ast.stmt]
    first: int
    """Its first line, counted from 0; that of the first decorator if it has any."""
    last: int
    """The line after its last line."""
    indentation: bytes


class Text:
    """A file, and the function in it to mutate."""

    def __init__(self, data: bytes, name: str, focus: str = "") -> None:
        self.data, self.name = data, name
        self.tree = ast.parse(data)
        (self.function,) = shape.find(self.tree, name)
        self.lines = data.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self._focus = re.compile(focus or "$^")

    def places(self) -> list[Place]:
        """Return all statements of the function, also of nested ones, that whole lines can move."""
        found = [self._place(node, block) for block in _blocks(self.function) for node in block]
        return [place for place in found if place is not None]

    def pick(self, choice: random.Random, wanted: Callable[[Place], bool] = lambda place: True) -> Place:
        """Return one of these statements; every second time one with code that the fix is about."""
        found = [place for place in self.places() if wanted(place)]
        if choice.random() < 0.5:
            near = [place for place in found if self._focus.search(self.text(place).decode(errors="replace"))]
            found = [place for place in near if place.last - place.first < 12] or near or found
        return _choose(choice, found)

    def place_of(self, node: ast.stmt) -> Place:
        """Return the place of a statement."""
        for place in self.places():
            if place.node is node:
                return place
        raise NothingToDo

    def nodes(self, *kinds: type[Expression]) -> list[Expression]:
        """Return the expressions of these kinds in the function, except those in f-strings and annotations."""
        left_out = set()
        for node in ast.walk(self.function):
            if isinstance(node, ast.JoinedStr):
                left_out |= {id(inner) for inner in ast.walk(node) if inner is not node}
            for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if annotation is not None:
                    left_out |= {id(inner) for inner in ast.walk(annotation)}
        return [node for node in ast.walk(self.function) if isinstance(node, kinds) and id(node) not in left_out]

    def one(self, choice: random.Random, *kinds: type[Expression]) -> Expression:
        """Return one expression of these kinds; every second time one that the fix is about."""
        found = self.nodes(*kinds)
        if choice.random() < 0.5:
            near = [node for node in found if self._focus.search(ast.unparse(node)) and _height(node) < 6]
            found = near or found
        return _choose(choice, found)

    def text(self, place: Place) -> bytes:
        return b"".join(self.lines[place.first : place.last])

    def with_lines(self, first: int, last: int, new: bytes) -> bytes:
        return b"".join([*self.lines[:first], new, *self.lines[last:]])

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def with_node(self, node: ast.expr | ast.arg, new: str | ast.AST) -> bytes:
        """Return the file with an expression replaced."""
        text = new if isinstance(new, str) else ast.unparse(new)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        end = self.offset(node.end_lineno, node.end_col_offset)
        return self.data[:start] + text.encode() + self.data[end:]

    def names(self) -> list[str]:
        """Return the names that the function uses; those that the fix is about count four times."""
        found = sorted({node.id for node in self.nodes(ast.Name)})
        return found + 3 * [name for name in found if self._focus.search(name)]

    def _place(self, node: ast.stmt, block: list[ast.stmt]) -> Place | None:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(item.lineno for item in decorators)]) - 1
        last = node.end_lineno or node.lineno
        before = self.lines[node.lineno - 1][: node.col_offset]
        after = self.lines[last - 1][node.end_col_offset or 0 :].strip()
        if before.strip() or (after and not after.startswith(b"#")):
            return None
        if self.lines[node.lineno - 1][node.col_offset :].startswith(b"elif"):
            return None
        return Place(node, block, first, last, before)


Operator = Callable[[Text, random.Random], bytes]


# -- statements -------------------------------------------------------------------------------------------------------


def drop(text: Text, choice: random.Random) -> bytes:
    """Drop a statement."""
    place = text.pick(choice)
    left = place.indentation + b"pass\n" if len(place.block) == 1 else b""
    return text.with_lines(place.first, place.last, left)


def swap(text: Text, choice: random.Random) -> bytes:
    """Swap a statement and its neighbour."""
    place = text.pick(choice, lambda place: place.node is not place.block[-1])
    other = text.place_of(place.block[place.block.index(place.node) + 1])
    if other.first < place.last:
        raise NothingToDo
    between = b"".join(text.lines[place.last : other.first])
    return text.with_lines(place.first, other.last, text.text(other) + between + text.text(place))


def move(text: Text, choice: random.Random) -> bytes:
    """Move a statement to before another statement, in any block."""
    place, other = text.pick(choice), text.pick(choice)
    if len(place.block) == 1:
        raise NothingToDo
    if not (other.first >= place.last or other.last <= place.first):
        raise NothingToDo
    moved = _indented(text.text(place), place.indentation, other.indentation)
    lines = list(text.lines)
    lines[other.first : other.first] = [moved]
    shift = 1 if other.first <= place.first else 0
    del lines[place.first + shift : place.last + shift]
    return b"".join(lines)


def duplicate(text: Text, choice: random.Random) -> bytes:
    """Duplicate a statement."""
    place = text.pick(choice)
    return text.with_lines(place.last, place.last, text.text(place))


def copy_elsewhere(text: Text, choice: random.Random) -> bytes:
    """Copy a statement to another place."""
    place, other = text.pick(choice), text.pick(choice)
    return text.with_lines(other.first, other.first, _indented(text.text(place), place.indentation, other.indentation))


def wrap(text: Text, choice: random.Random) -> bytes:
    """Wrap a statement in an if, a try, a with, a loop or a function."""
    place = text.pick(choice, lambda place: place.node is not text.function.body[0])
    head, tail = choice.choice(
        [
            (f"if {_condition(text, choice)}:", ""),
            (f"if {_condition(text, choice)}:", ""),
            ("if True:", ""),
            ("try:", "except Exception:\n    pass"),
            ("try:", "finally:\n    pass"),
            ("with memoryview(b''):", ""),
            ("for fuzz_round in range(1):", ""),
            ("for fuzz_round in range(2):", ""),
            ("while True:", "    break"),
            ("def fuzz_wrapped():", "fuzz_wrapped()"),
            ("if False:\n    pass\nelse:", ""),
        ]
    )
    inner = _indented(text.text(place), place.indentation, place.indentation + UNIT)
    return text.with_lines(
        place.first, place.last, _block(head, place.indentation) + inner + _block(tail, place.indentation)
    )


def unwrap(text: Text, choice: random.Random) -> bytes:
    """Replace an if, a with or a loop by its body."""
    kinds = (ast.If, ast.With, ast.For, ast.Try)
    place = text.pick(choice, lambda place: isinstance(place.node, kinds))
    return text.with_lines(place.first, place.last, _moved(text, getattr(place.node, "body", []), place.indentation))


def hoist(text: Text, choice: random.Random) -> bytes:
    """Move the last statement of an if after it."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and not place.node.orelse)
    if not isinstance(place.node, ast.If) or len(place.node.body) < 2:
        raise NothingToDo
    inner = text.place_of(place.node.body[-1])
    moved = _indented(text.text(inner), inner.indentation, place.indentation)
    return text.with_lines(inner.first, place.last, moved)


def sink(text: Text, choice: random.Random) -> bytes:
    """Move a statement to the end of the block before it."""
    place = text.pick(choice, lambda place: place.node is not place.block[0] and len(place.block) > 1)
    before = place.block[place.block.index(place.node) - 1]
    if not isinstance(before, (ast.If, ast.With, ast.For, ast.FunctionDef)):
        raise NothingToDo
    ending = before.orelse[-1] if isinstance(before, ast.If) and before.orelse else before.body[-1]
    indentation = text.lines[ending.lineno - 1][: ending.col_offset]
    if indentation.strip():
        raise NothingToDo
    return text.with_lines(place.first, place.last, _indented(text.text(place), place.indentation, indentation))


def swap_branches(text: Text, choice: random.Random) -> bytes:
    """Swap the two branches of an if."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and bool(place.node.orelse))
    assert isinstance(place.node, ast.If)
    start, end = _rows(place.node.body)
    start_2, end_2 = _rows(place.node.orelse)
    if text.lines[start_2 : start_2 + 1] and text.lines[start_2].strip().startswith(b"elif"):
        raise NothingToDo
    lines = text.lines
    swapped = [*lines[start_2:end_2], *lines[end:start_2], *lines[start:end]]
    return text.with_lines(start, end_2, b"".join(swapped))


_INERT = (
    "import logging as fuzz_logging\nfuzz_logging.getLogger('fuzz').debug('here')",
    "fuzz_value = 0",
    "fuzz_value: int = 1",
    "fuzz_first, fuzz_second = 1, 2",
    "assert True",
    "assert 1 + 1 == 2, 'arithmetic'",
    "'a note'",
    "pass",
    "fuzz_names = sorted(['a', 'b'])\nfor fuzz_name in fuzz_names:\n    len(fuzz_name)",
    "if False:\n    raise RuntimeError('never')",
    "def fuzz_helper(fuzz_argument):\n    return fuzz_argument",
    "fuzz_items = {}\nfuzz_items['a'] = 1",
    "fuzz_lambda = lambda: None",
    "str(0)",
)


def insert_inert(text: Text, choice: random.Random) -> bytes:
    """Insert statements that do not affect the others: logging, assertions, new names."""
    return _insert(text, choice, choice.choice(_INERT))


def insert_active(text: Text, choice: random.Random) -> bytes:
    """Insert a statement that may change what the others do."""
    names = text.names()
    first, second = choice.choice(names), choice.choice(names)
    return _insert(
        text,
        choice,
        choice.choice(
            [
                f"{first} = None",
                f"{first} = {second}",
                f"{first} = 0",
                f"del {first}",
                f"{first}({second})",
                f"{first} = {second} = 1",
                f"({first} := {second})",
                f"for {first} in ():\n    pass",
                f"import os as {first}",
                f"def {first}(*_, **__):\n    return None",
                f"if {_condition(text, choice)}:\n    return",
                f"if {_condition(text, choice)}:\n    return {first}",
                f"if {_condition(text, choice)}:\n    {first} = {second}",
                "return",
                "raise ValueError('fuzz')",
                "torch.distributed.barrier()",
                "torch.distributed.all_reduce(torch.zeros(1, device=0), group=None)",
                "globals().clear()",
                f"{first}.fuzz = {second}",
                f"args.sft = {choice.choice(['True', 'False'])}",
                f"self.config.fp8 = {choice.choice(['True', 'None'])}",
            ]
        ),
    )


# -- names, values, arguments -----------------------------------------------------------------------------------------


def rename_everywhere(text: Text, choice: random.Random) -> bytes:
    """Rename a local name everywhere."""
    arguments = {node.arg for node in ast.walk(text.function) if isinstance(node, ast.arg)}
    declared = {
        name for node in ast.walk(text.function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
    }
    found = text.nodes(ast.Name)
    stored = {node.id for node in found if isinstance(node.ctx, ast.Store)} - arguments - declared
    if not stored:
        raise NothingToDo
    name = choice.choice(sorted(stored))
    spots = [node for node in found if node.id == name]
    data = text.data
    for node in sorted(spots, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        start = text.offset(node.lineno, node.col_offset)
        data = data[:start] + f"{name}_renamed".encode() + data[start + len(name.encode()) :]
    return data


def rename_once(text: Text, choice: random.Random) -> bytes:
    """Change a name in one place."""
    node = text.one(choice, ast.Name)
    return text.with_node(node, choice.choice([node.id + "_", *_sample(text.names(), choice, 3)]))


def rename_attribute(text: Text, choice: random.Random) -> bytes:
    """Change an attribute in one place."""
    node = text.one(choice, ast.Attribute)
    others = sorted({other.attr for other in text.nodes(ast.Attribute)})
    new = choice.choice([node.attr + "_", *_sample(others, choice, 3)])
    return text.with_node(node, ast.Attribute(node.value, new, node.ctx))


def constants(text: Text, choice: random.Random) -> bytes:
    """Change a constant."""
    node = text.one(choice, ast.Constant)
    value = node.value
    others = [item.value for item in text.nodes(ast.Constant)]
    same = [other for other in others if type(other) is type(value) and other != value]
    simple = {bool: not value, int: 1 if value == 0 else 0, str: f"{value!s}_", type(None): 0}.get(type(value))
    more = choice.sample(same, min(2, len(same)))
    if type(value) is int:
        more += [value + 1, value - 1, -value]
    return text.with_node(node, repr(choice.choice([simple, *more])))


def operators(text: Text, choice: random.Random) -> bytes:
    """Change a comparison, a condition or an operator."""
    node = text.one(choice, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.BinOp)
    new: ast.AST
    if isinstance(node, ast.Compare):
        others: list[ast.cmpop] = [ast.Eq(), ast.NotEq(), ast.Lt(), ast.GtE(), ast.Is(), ast.IsNot(), ast.In()]
        new = ast.Compare(node.left, [choice.choice(others), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        others_: list[ast.expr] = [
            ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values),
            ast.BoolOp(node.op, node.values[::-1]),
            node.values[0],
            node.values[-1],
        ]
        new = choice.choice(others_)
    elif isinstance(node, ast.UnaryOp):
        new = node.operand
    elif isinstance(node, ast.IfExp):
        new = choice.choice([ast.IfExp(node.test, node.orelse, node.body), node.body, node.orelse])
    else:
        assert isinstance(node, ast.BinOp)
        new = choice.choice([ast.BinOp(node.right, node.op, node.left), node.left, node.right])
    return text.with_node(node, f"({ast.unparse(new)})")


def tests(text: Text, choice: random.Random) -> bytes:
    """Strengthen, weaken, negate or replace the test of an if or a conditional expression."""
    conditions = [node.test for node in ast.walk(text.function) if isinstance(node, (ast.If, ast.IfExp, ast.Assert))]
    if not conditions:
        raise NothingToDo
    node, other = choice.choice(conditions), ast.unparse(choice.choice(conditions))
    was = ast.unparse(node)
    spellings = [f"not ({was})", f"({was}) or ({other})", f"({was}) and ({other})", f"({was}) or True", other]
    return text.with_node(node, choice.choice([*spellings, f"({was}) and False", f"({was}) and True", "True"]))


def value(text: Text, choice: random.Random) -> bytes:
    """Change the value that is assigned or returned."""
    place = text.pick(choice, lambda place: isinstance(place.node, (ast.Assign, ast.Return, ast.AnnAssign)))
    node = getattr(place.node, "value", None)
    if not isinstance(node, ast.expr):
        raise NothingToDo
    names = text.names()
    was = ast.unparse(node)
    return text.with_node(node, choice.choice(["None", "0", choice.choice(names), f"({was}, {was})", f"({was}) or 1"]))


def call_arguments(text: Text, choice: random.Random) -> bytes:
    """Add, drop or reorder a call's arguments."""
    node = text.one(choice, ast.Call)
    positional, named = list(node.args), list(node.keywords)
    kind = choice.randrange(5)
    if kind == 0 and positional:
        positional.pop(choice.randrange(len(positional)))
    elif kind == 1 and named:
        named.pop(choice.randrange(len(named)))
    elif kind == 2 and len(positional) > 1:
        positional.reverse()
    elif kind == 3:
        positional.append(ast.Name(choice.choice(text.names())))
    else:
        named.append(ast.keyword("fuzz", ast.Constant(None)))
    return text.with_node(node, ast.Call(node.func, positional, named))


def parameters(text: Text, choice: random.Random) -> bytes:
    """Add, drop, rename or reorder a parameter of the function or a nested one, or change a default."""
    found = [node for node in ast.walk(text.function) if isinstance(node, ast.FunctionDef)]
    node = choice.choice(found)
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): pass"))).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    new = arguments.args
    kind = choice.randrange(5)
    if kind == 0:
        new.kwonlyargs.append(ast.arg("fuzz_argument"))
        new.kw_defaults.append(ast.Constant(None))
    elif kind == 1 and new.defaults:
        new.defaults[choice.randrange(len(new.defaults))] = ast.Constant(choice.choice([None, True, 0]))
    elif kind == 2 and new.args:
        changed = choice.choice(new.args)
        changed.arg += "_renamed"
    elif kind == 3 and len(new.args) > len(new.defaults):
        new.args.pop(choice.randrange(len(new.args) - len(new.defaults)))
    elif len(new.args) > 1:
        new.args.reverse()
    return _with_parameters(text, node, ast.unparse(new))


def decorate(text: Text, choice: random.Random) -> bytes:
    """Decorate a nested function or the function itself."""
    found = [place for place in text.places() if isinstance(place.node, ast.FunctionDef)]
    if found and choice.random() < 0.7:
        place = choice.choice(found)
        return text.with_lines(place.first, place.first, place.indentation + b"@(lambda function: function)\n")
    first = min([text.function.lineno, *(node.lineno for node in text.function.decorator_list)]) - 1
    indentation = text.lines[text.function.lineno - 1][: text.function.col_offset]
    return text.with_lines(first, first, indentation + b"@staticmethod\n")


# -- comments and layout ----------------------------------------------------------------------------------------------


def comment_above(text: Text, choice: random.Random) -> bytes:
    """Add a comment on its own line."""
    place = text.pick(choice)
    words = choice.choice(
        ["# a note", "#", "# TODO: mpu.is_pipeline_last_stage() \u2014 se\u00f1al", "# type: ignore", "#!x"]
    )
    indentation = choice.choice([place.indentation, b"", place.indentation + b"  "])
    return text.with_lines(place.first, place.first, indentation + words.encode() + b"\n")


def comment_after(text: Text, choice: random.Random) -> bytes:
    """Add a comment after a statement."""
    place = text.pick(choice)
    if text.lines[place.last - 1].count(b"#") or not text.lines[place.last - 1].strip():
        raise NothingToDo
    line = text.lines[place.last - 1].rstrip(b"\r\n")
    return text.with_lines(place.last - 1, place.last, line + b"  # noqa" + _end(text.lines[place.last - 1]))


def blank_lines(text: Text, choice: random.Random) -> bytes:
    """Add blank lines, with or without white space in them."""
    place = text.pick(choice)
    blank = choice.choice([b"\n", b"\n\n\n", b"        \n", b"\x0c\n", b" \t \n"])
    return text.with_lines(place.first, place.first, blank)


def fewer_blank_lines(text: Text, choice: random.Random) -> bytes:
    """Drop blank lines between the statements."""
    places = text.places()
    gone = {row for place in places for row in _before(place, places)}
    blank = [row for row in gone if not text.lines[row].strip()]
    if not blank:
        raise NothingToDo
    dropped = set(choice.sample(sorted(blank), choice.randint(1, len(blank))))
    return b"".join(line for row, line in enumerate(text.lines) if row not in dropped)


def no_comments(text: Text, choice: random.Random) -> bytes:
    """Drop the comments that are on their own lines."""
    assert text.function.end_lineno is not None
    rows = set()
    for token in tokenize.tokenize(io.BytesIO(text.data).readline):
        row = token.start[0]
        if token.type == tokenize.COMMENT and text.function.lineno < row <= text.function.end_lineno:
            if not token.line[: token.start[1]].strip():
                rows.add(row - 1)
    if not rows:
        raise NothingToDo
    return b"".join(line for row, line in enumerate(text.lines) if row not in rows)


def trailing_space(text: Text, choice: random.Random) -> bytes:
    """Add white space at the end of a line."""
    place = text.pick(choice)
    line = text.lines[place.last - 1]
    return text.with_lines(place.last - 1, place.last, line.rstrip(b"\r\n") + b"  \t" + _end(line))


def parentheses(text: Text, choice: random.Random) -> bytes:
    """Add parentheses."""
    node = text.one(choice, ast.Call, ast.Compare, ast.BoolOp, ast.Constant)
    if node.lineno != node.end_lineno:
        raise NothingToDo
    start, end = text.offset(node.lineno, node.col_offset), text.offset(node.lineno, node.end_col_offset or 0)
    return text.data[:start] + b"(" + text.data[start:end] + b")" + text.data[end:]


def semicolon(text: Text, choice: random.Random) -> bytes:
    """Put two statements on one line."""
    simple = (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return, ast.Pass)
    place = text.pick(choice, lambda place: isinstance(place.node, simple) and place.node is not place.block[-1])
    other = text.place_of(place.block[place.block.index(place.node) + 1])
    if not isinstance(other.node, simple) or text.lines[place.last - 1].count(b"#"):
        raise NothingToDo
    joined = text.text(place).rstrip() + b"; " + text.text(other).lstrip()
    return text.with_lines(place.first, other.last, joined)


def one_line_block(text: Text, choice: random.Random) -> bytes:
    """Put a block on the same line as its header."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and len(place.node.body) == 1)
    assert isinstance(place.node, ast.If)
    body = place.node.body[0]
    if isinstance(body, (ast.If, ast.For, ast.With, ast.FunctionDef, ast.Try)) or body.lineno != body.end_lineno:
        raise NothingToDo
    if body.lineno != (place.node.test.end_lineno or 0) + 1 or b"#" in text.lines[body.lineno - 2]:
        raise NothingToDo
    header = text.lines[body.lineno - 2].rstrip()
    return text.with_lines(body.lineno - 2, body.lineno, header + b" " + text.lines[body.lineno - 1].lstrip())


def spacing(text: Text, choice: random.Random) -> bytes:
    """Change the white space around the sign of an assignment, or break the line after it."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.Assign))
    assert isinstance(place.node, ast.Assign)
    start = text.offset(place.node.value.lineno, place.node.value.col_offset)
    if not text.data[:start].endswith(b"= "):
        raise NothingToDo  # perhaps in parentheses
    return text.data[: start - 2] + choice.choice([b"   =   ", b"=", b"= \\\n        ", b" =\t"]) + text.data[start:]


def explode(text: Text, choice: random.Random) -> bytes:
    """Split a call over several lines."""
    node = text.one(choice, ast.Call)
    if node.lineno != node.end_lineno or not (node.args or node.keywords):
        raise NothingToDo
    first = min([*node.args, *(item.value for item in node.keywords)], key=lambda item: item.col_offset)
    start, end = text.offset(node.lineno, first.col_offset), text.offset(node.lineno, node.end_col_offset or 0)
    if node.args and text.data[start - 1 : start] == b"(":
        return text.data[:start] + b"\n            " + text.data[start : end - 1] + b",\n        )" + text.data[end:]
    raise NothingToDo


def quotes(text: Text, choice: random.Random) -> bytes:
    """Change the quotes around a string."""
    node = text.one(choice, ast.Constant)
    if not isinstance(node.value, str) or not node.value.isidentifier():
        raise NothingToDo
    spelling = choice.choice([f"'{node.value}'", f'"{node.value}"', f"'''{node.value}'''", f"r'{node.value}'"])
    return text.with_node(node, spelling)


def docstring(text: Text, choice: random.Random) -> bytes:
    """Add, change or drop a docstring."""
    found = [text.function, *(node for node in ast.walk(text.function) if isinstance(node, ast.FunctionDef))]
    function = choice.choice(found)
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        left = b"" if len(function.body) > 1 and choice.random() < 0.5 else b'"""Another."""\n'
        indentation = text.lines[first.lineno - 1][: first.col_offset] if left else b""
        return text.with_lines(first.lineno - 1, first.end_lineno or 0, indentation + left)
    indentation = text.lines[first.lineno - 1][: first.col_offset]
    if indentation.strip() or getattr(first, "decorator_list", None):
        raise NothingToDo
    return text.with_lines(first.lineno - 1, first.lineno - 1, indentation + b'"""A docstring."""\n')


def reindent(text: Text, choice: random.Random) -> bytes:
    """Indent a block deeper than the others."""
    place = text.pick(choice, lambda place: isinstance(place.node, (ast.If, ast.For, ast.With, ast.FunctionDef)))
    if b'"""' in text.text(place) or b"'''" in text.text(place) or b"\\\n" in text.text(place):
        raise NothingToDo
    start, end = _rows(getattr(place.node, "body", []))
    if start <= place.first:
        raise NothingToDo
    deeper = b"".join(b"  " + line if line.strip() else line for line in text.lines[start:end])
    return text.with_lines(start, end, deeper)


def line_ends(text: Text, choice: random.Random) -> bytes:
    """Change the line ends, add a byte-order mark, or drop the last line end."""
    if b"\r" in text.data or text.data.startswith(b"\xef\xbb\xbf"):
        raise NothingToDo
    kind = choice.randrange(3)
    if kind == 0:
        return text.data.replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf" + text.data if kind == 1 else text.data.rstrip(b"\n")


def around(text: Text, choice: random.Random) -> bytes:
    """Add a function or a comment at the end of the file."""
    more = choice.choice([b"\n\ndef fuzz_function():\n    return None\n", b"# the end\n", b"\n\n\n"])
    return text.data + (b"" if text.data.endswith(b"\n") else b"\n") + more


STATEMENTS = (drop, swap, move, duplicate, copy_elsewhere, wrap, unwrap, hoist, sink, swap_branches)
EXPRESSIONS = (
    *(rename_everywhere, rename_once, rename_attribute, constants, operators, tests, value, call_arguments),
    *(parameters, decorate),
)
INSERTIONS = (insert_inert, insert_active)
CHANGING: tuple[Operator, ...] = (*STATEMENTS, *EXPRESSIONS, *INSERTIONS)
FORMATTING: tuple[Operator, ...] = (
    *(comment_above, comment_after, blank_lines, fewer_blank_lines, no_comments, trailing_space, parentheses),
    *(semicolon, one_line_block, spacing, explode, quotes, docstring, reindent, line_ends, around),
)
NAMED = {operator.__name__: operator for operator in (*CHANGING, *FORMATTING)}


# -- shared -----------------------------------------------------------------------------------------------------------


def _choose(choice: random.Random, found: list[Chosen]) -> Chosen:
    if not found:
        raise NothingToDo
    return choice.choice(found)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
            for inner in block:
                yield from _blocks(inner)
    for handler in getattr(node, "handlers", []):
        yield from _blocks(handler)


def _insert(text: Text, choice: random.Random, code: str) -> bytes:
    """Insert code before or after a statement."""
    place = text.pick(choice)
    row = place.first if choice.random() < 0.5 else place.last
    return text.with_lines(row, row, _block(code, place.indentation))


def _condition(text: Text, choice: random.Random) -> str:
    """Return a condition, often one that the function itself tests."""
    conditions = [ast.unparse(node.test) for node in ast.walk(text.function) if isinstance(node, ast.If)]
    names = [name for name in text.names() if name.isidentifier()]
    return choice.choice(
        [
            *_sample(conditions, choice, 3),
            choice.choice(names),
            f"not {choice.choice(names)}",
            "torch.distributed.get_rank() == 0",
        ]
    )


def _sample(items: list[str], choice: random.Random, count: int) -> list[str]:
    return choice.sample(items, min(count, len(items)))


def _block(code: str, indentation: bytes) -> bytes:
    return b"".join(indentation + line.encode() + b"\n" for line in code.splitlines())


def _indented(code: bytes, old: bytes, new: bytes) -> bytes:
    lines = code.splitlines(keepends=True)
    return b"".join(new + line[len(old) :] if line.startswith(old) else line for line in lines)


def _moved(text: Text, block: list[ast.stmt], indentation: bytes) -> bytes:
    start, end = _rows(block)
    code = b"".join(text.lines[start:end])
    return _indented(code, code[: len(code) - len(code.lstrip(b" \t"))], indentation)


def _rows(block: list[ast.stmt]) -> tuple[int, int]:
    decorated = [item.lineno for item in getattr(block[0], "decorator_list", [])]
    return min([block[0].lineno, *decorated]) - 1, block[-1].end_lineno or block[-1].lineno


def _before(place: Place, places: list[Place]) -> range:
    """Return the rows between a statement and the one before it in its block."""
    index = place.block.index(place.node)
    return range(place.block[index - 1].end_lineno or 0, place.first) if index else range(0)


def _height(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0)


def _end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]


def _with_parameters(text: Text, node: ast.FunctionDef, new: str) -> bytes:
    """Return the file with other parameters between the parentheses of a def."""
    start = text.offset(node.lineno, node.col_offset)
    opening = text.data.index(b"(", start)
    depth, end = 0, opening
    for end in range(opening, len(text.data)):
        depth += {40: 1, 41: -1}.get(text.data[end], 0)
        if depth == 0:
            break
    return text.data[: opening + 1] + new.encode() + text.data[end:]
