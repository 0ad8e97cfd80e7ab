"""Mutations of one function in a file's own text: what a hand edit, a merge or a fork may have done to it.

Each operator takes a file, and a source of random choices; it gives the new text of the file, or None where it finds
nothing to work on. The operators of ``FORMATTING`` are meant to leave the function's AST as it was, those of
``CHANGING`` to change it; nobody relies on that: whoever uses them compares the ASTs.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable, Iterator
from typing import NamedTuple

from unhang.shapes import shape

UNIT = b"    "


class Place(NamedTuple):
    """A statement that has its lines to itself, in the block it stands in."""

    node: ast.stmt
    block: list[ast.stmt]
    first: int
    """Its first line, counted from 0, a decorator's where it has one."""
    last: int
    """The line after its last."""
    indentation: bytes


class Text:
    """A file, and the one function in it that is to be mutated."""

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
        """All statements of the function, nested functions' too, that can be moved by whole lines."""
        found = [self._place(node, block) for block in _blocks(self.function) for node in block]
        return [place for place in found if place is not None]

    def pick(self, choice: random.Random, wanted: Callable[[Place], bool] = lambda place: True) -> Place | None:
        """One of these statements; every second time one that what the fix is about stands in."""
        found = [place for place in self.places() if wanted(place)]
        if choice.random() < 0.5:
            near = [place for place in found if self._focus.search(self.text(place).decode(errors="replace"))]
            found = [place for place in near if place.last - place.first < 12] or near or found
        return choice.choice(found) if found else None

    def nodes(self, *kinds: type[ast.AST]) -> list[ast.expr]:
        """The expressions of these kinds in the function, but for those in f-strings and annotations."""
        left_out = set()
        for node in ast.walk(self.function):
            if isinstance(node, ast.JoinedStr):
                left_out |= {id(inner) for inner in ast.walk(node) if inner is not node}
            for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if annotation is not None:
                    left_out |= {id(inner) for inner in ast.walk(annotation)}
        return [
            node
            for node in ast.walk(self.function)
            if isinstance(node, kinds) and isinstance(node, ast.expr) and id(node) not in left_out
        ]

    def one(self, choice: random.Random, *kinds: type[ast.AST]) -> ast.expr | None:
        """One expression of these kinds, every second time one of those that the fix is about."""
        found = self.nodes(*kinds)
        if choice.random() < 0.5:
            near = [node for node in found if self._focus.search(ast.unparse(node)) and _height(node) < 6]
            found = near or found
        return choice.choice(found) if found else None

    def text(self, place: Place) -> bytes:
        return b"".join(self.lines[place.first : place.last])

    def with_lines(self, first: int, last: int, new: bytes) -> bytes:
        return b"".join([*self.lines[:first], new, *self.lines[last:]])

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def with_node(self, node: ast.expr | ast.arg, new: str | ast.AST) -> bytes:
        """The file with an expression replaced."""
        text = new if isinstance(new, str) else ast.unparse(new)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        end = self.offset(node.end_lineno, node.end_col_offset)
        return self.data[:start] + text.encode() + self.data[end:]

    def names(self) -> list[str]:
        """The names that the function uses, those that the fix is about more than once."""
        found = sorted({node.id for node in self.nodes(ast.Name) if isinstance(node, ast.Name)})
        return found + 3 * [name for name in found if self._focus.search(name)]

    def _place(self, node: ast.stmt, block: list[ast.stmt]) -> Place | None:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(item.lineno for item in decorators)]) - 1
        last = node.end_lineno or node.lineno
        before = self.lines[node.lineno - 1][: node.col_offset]
        behind = self.lines[last - 1][node.end_col_offset or 0 :].strip()
        if before.strip() or (behind and not behind.startswith(b"#")):
            return None
        if self.lines[node.lineno - 1][node.col_offset :].startswith(b"elif"):
            return None
        return Place(node, block, first, last, before)


Operator = Callable[[Text, random.Random], "bytes | None"]


# -- statements -------------------------------------------------------------------------------------------------------


def drop(text: Text, choice: random.Random) -> bytes | None:
    """A statement is gone."""
    place = text.pick(choice)
    if place is None:
        return None
    left = place.indentation + b"pass\n" if len(place.block) == 1 else b""
    return text.with_lines(place.first, place.last, left)


def swap(text: Text, choice: random.Random) -> bytes | None:
    """A statement and its neighbour change places."""
    place = text.pick(choice, lambda place: place.node is not place.block[-1])
    if place is None:
        return None
    following = place.block[place.block.index(place.node) + 1]
    other = next((found for found in text.places() if found.node is following), None)
    if other is None or other.first < place.last:
        return None
    between = b"".join(text.lines[place.last : other.first])
    return text.with_lines(place.first, other.last, text.text(other) + between + text.text(place))


def move(text: Text, choice: random.Random) -> bytes | None:
    """A statement stands elsewhere in the function: at another statement of any block."""
    place, other = text.pick(choice), text.pick(choice)
    if place is None or other is None or len(place.block) == 1:
        return None
    if not (other.first >= place.last or other.last <= place.first):
        return None
    moved = _indented(text.text(place), place.indentation, other.indentation)
    lines = list(text.lines)
    lines[other.first : other.first] = [moved]
    shift = 1 if other.first <= place.first else 0
    del lines[place.first + shift : place.last + shift]
    return b"".join(lines)


def duplicate(text: Text, choice: random.Random) -> bytes | None:
    """A statement stands there twice."""
    place = text.pick(choice)
    return None if place is None else text.with_lines(place.last, place.last, text.text(place))


def copy_elsewhere(text: Text, choice: random.Random) -> bytes | None:
    """A statement stands in another place as well."""
    place, other = text.pick(choice), text.pick(choice)
    if place is None or other is None:
        return None
    return text.with_lines(other.first, other.first, _indented(text.text(place), place.indentation, other.indentation))


def wrap(text: Text, choice: random.Random) -> bytes | None:
    """A statement stands in an if, a try, a with, a loop or a function of its own."""
    place = text.pick(choice, lambda place: place.node is not text.function.body[0])
    if place is None:
        return None
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


def unwrap(text: Text, choice: random.Random) -> bytes | None:
    """The body of an if, a with or a loop stands there without it."""
    kinds = (ast.If, ast.With, ast.For, ast.Try)
    place = text.pick(choice, lambda place: isinstance(place.node, kinds))
    if place is None:
        return None
    return text.with_lines(place.first, place.last, _moved(text, getattr(place.node, "body", []), place.indentation))


def hoist(text: Text, choice: random.Random) -> bytes | None:
    """The last statement of a block stands behind it."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and not place.node.orelse)
    if place is None or not isinstance(place.node, ast.If) or len(place.node.body) < 2:
        return None
    inner = next((found for found in text.places() if found.node is getattr(place.node, "body", [None])[-1]), None)
    if inner is None:
        return None
    moved = _indented(text.text(inner), inner.indentation, place.indentation)
    return text.with_lines(inner.first, place.last, moved)


def sink(text: Text, choice: random.Random) -> bytes | None:
    """A statement stands at the end of the block before it."""
    place = text.pick(choice, lambda place: place.node is not place.block[0] and len(place.block) > 1)
    if place is None:
        return None
    before = place.block[place.block.index(place.node) - 1]
    if not isinstance(before, (ast.If, ast.With, ast.For, ast.FunctionDef)):
        return None
    ending = before.orelse[-1] if isinstance(before, ast.If) and before.orelse else before.body[-1]
    indentation = text.lines[ending.lineno - 1][: ending.col_offset]
    if indentation.strip():
        return None
    return text.with_lines(place.first, place.last, _indented(text.text(place), place.indentation, indentation))


def swap_branches(text: Text, choice: random.Random) -> bytes | None:
    """The two branches of an if change places."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and bool(place.node.orelse))
    if place is None or not isinstance(place.node, ast.If):
        return None
    start, end = _rows(place.node.body)
    start_2, end_2 = _rows(place.node.orelse)
    if text.lines[start_2 : start_2 + 1] and text.lines[start_2].strip().startswith(b"elif"):
        return None
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


def insert_inert(text: Text, choice: random.Random) -> bytes | None:
    """Statements that do nothing to the others: logging, assertions, names of their own."""
    return _insert(text, choice, choice.choice(_INERT))


def insert_active(text: Text, choice: random.Random) -> bytes | None:
    """A statement that may change what the others do."""
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


def rename_everywhere(text: Text, choice: random.Random) -> bytes | None:
    """A local name is another one, wherever it stands."""
    arguments = {node.arg for node in ast.walk(text.function) if isinstance(node, ast.arg)}
    declared = {
        name for node in ast.walk(text.function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
    }
    found = [node for node in text.nodes(ast.Name) if isinstance(node, ast.Name)]
    stored = {node.id for node in found if isinstance(node.ctx, ast.Store)} - arguments - declared
    if not stored:
        return None
    name = choice.choice(sorted(stored))
    spots = [node for node in found if node.id == name]
    data = text.data
    for node in sorted(spots, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        start = text.offset(node.lineno, node.col_offset)
        data = data[:start] + f"{name}_renamed".encode() + data[start + len(name.encode()) :]
    return data


def rename_once(text: Text, choice: random.Random) -> bytes | None:
    """One name, in one place, is another."""
    node = text.one(choice, ast.Name)
    if not isinstance(node, ast.Name):
        return None
    return text.with_node(node, choice.choice([node.id + "_", *_sample(text.names(), choice, 3)]))


def rename_attribute(text: Text, choice: random.Random) -> bytes | None:
    """One attribute, or called method, is another."""
    node = text.one(choice, ast.Attribute)
    if not isinstance(node, ast.Attribute):
        return None
    others = sorted({other.attr for other in text.nodes(ast.Attribute) if isinstance(other, ast.Attribute)})
    new = choice.choice([node.attr + "_", *_sample(others, choice, 3)])
    return text.with_node(node, ast.Attribute(node.value, new, node.ctx))


def constants(text: Text, choice: random.Random) -> bytes | None:
    """A constant is another one."""
    node = text.one(choice, ast.Constant)
    if not isinstance(node, ast.Constant):
        return None
    value = node.value
    others = [item.value for item in text.nodes(ast.Constant) if isinstance(item, ast.Constant)]
    same = [other for other in others if type(other) is type(value) and other != value]
    simple = {bool: not value, int: 1 if value == 0 else 0, str: f"{value}_", type(None): 0}.get(type(value))
    more = choice.sample(same, min(2, len(same)))
    if type(value) is int:
        more += [value + 1, value - 1, -value]
    return text.with_node(node, repr(choice.choice([simple, *more])))


def operators(text: Text, choice: random.Random) -> bytes | None:
    """A comparison, a condition or an operator is another."""
    node = text.one(choice, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.BinOp)
    if node is None:
        return None
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


def tests(text: Text, choice: random.Random) -> bytes | None:
    """What an if, or a conditional expression, asks is more, less or the contrary."""
    asked = [node.test for node in ast.walk(text.function) if isinstance(node, (ast.If, ast.IfExp, ast.Assert))]
    if not asked:
        return None
    node, other = choice.choice(asked), ast.unparse(choice.choice(asked))
    was = ast.unparse(node)
    spellings = [f"not ({was})", f"({was}) or ({other})", f"({was}) and ({other})", f"({was}) or True", other]
    return text.with_node(node, choice.choice([*spellings, f"({was}) and False", f"({was}) and True", "True"]))


def value(text: Text, choice: random.Random) -> bytes | None:
    """What is assigned, or returned, is something else."""
    place = text.pick(choice, lambda place: isinstance(place.node, (ast.Assign, ast.Return, ast.AnnAssign)))
    node = getattr(place.node, "value", None) if place is not None else None
    if not isinstance(node, ast.expr):
        return None
    names = text.names()
    was = ast.unparse(node)
    return text.with_node(node, choice.choice(["None", "0", choice.choice(names), f"({was}, {was})", f"({was}) or 1"]))


def call_arguments(text: Text, choice: random.Random) -> bytes | None:
    """A call has an argument more or less, or has them in another order."""
    node = text.one(choice, ast.Call)
    if not isinstance(node, ast.Call):
        return None
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


def parameters(text: Text, choice: random.Random) -> bytes | None:
    """The function itself, or a nested one, has a parameter more or less, or another default."""
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


def decorate(text: Text, choice: random.Random) -> bytes | None:
    """A nested function, or the function itself, is decorated, or a generator."""
    found = [place for place in text.places() if isinstance(place.node, ast.FunctionDef)]
    if found and choice.random() < 0.7:
        place = choice.choice(found)
        return text.with_lines(place.first, place.first, place.indentation + b"@(lambda function: function)\n")
    first = min([text.function.lineno, *(node.lineno for node in text.function.decorator_list)]) - 1
    indentation = text.lines[text.function.lineno - 1][: text.function.col_offset]
    return text.with_lines(first, first, indentation + b"@staticmethod\n")


# -- what has no meaning ----------------------------------------------------------------------------------------------


def comment_above(text: Text, choice: random.Random) -> bytes | None:
    """A comment on a line of its own."""
    place = text.pick(choice)
    if place is None:
        return None
    words = choice.choice(
        ["# a note", "#", "# TODO: mpu.is_pipeline_last_stage() \u2014 se\u00f1al", "# type: ignore", "#!x"]
    )
    indentation = choice.choice([place.indentation, b"", place.indentation + b"  "])
    return text.with_lines(place.first, place.first, indentation + words.encode() + b"\n")


def comment_behind(text: Text, choice: random.Random) -> bytes | None:
    """A comment behind a statement."""
    place = text.pick(choice)
    if place is None or text.lines[place.last - 1].count(b"#") or not text.lines[place.last - 1].strip():
        return None
    line = text.lines[place.last - 1].rstrip(b"\r\n")
    return text.with_lines(place.last - 1, place.last, line + b"  # noqa" + _end(text.lines[place.last - 1]))


def blank_lines(text: Text, choice: random.Random) -> bytes | None:
    """Blank lines, with or without white space in them."""
    place = text.pick(choice)
    blank = choice.choice([b"\n", b"\n\n\n", b"        \n", b"\x0c\n", b" \t \n"])
    return None if place is None else text.with_lines(place.first, place.first, blank)


def fewer_blank_lines(text: Text, choice: random.Random) -> bytes | None:
    """Blank lines between the statements are gone."""
    places = text.places()
    gone = {row for place in places for row in _before(place, places)}
    blank = [row for row in gone if not text.lines[row].strip()]
    if not blank:
        return None
    dropped = set(choice.sample(sorted(blank), choice.randint(1, len(blank))))
    return b"".join(line for row, line in enumerate(text.lines) if row not in dropped)


def no_comments(text: Text, choice: random.Random) -> bytes | None:
    """The comments that have lines of their own are gone."""
    assert text.function.end_lineno is not None
    rows = set()
    for token in tokenize.tokenize(io.BytesIO(text.data).readline):
        row = token.start[0]
        if token.type == tokenize.COMMENT and text.function.lineno < row <= text.function.end_lineno:
            if not token.line[: token.start[1]].strip():
                rows.add(row - 1)
    return b"".join(line for row, line in enumerate(text.lines) if row not in rows) if rows else None


def trailing_space(text: Text, choice: random.Random) -> bytes | None:
    """White space at the end of a line."""
    place = text.pick(choice)
    if place is None:
        return None
    line = text.lines[place.last - 1]
    return text.with_lines(place.last - 1, place.last, line.rstrip(b"\r\n") + b"  \t" + _end(line))


def parentheses(text: Text, choice: random.Random) -> bytes | None:
    """Parentheses that were not needed."""
    node = text.one(choice, ast.Call, ast.Compare, ast.BoolOp, ast.Constant)
    if node is None or node.lineno != node.end_lineno:
        return None
    start, end = text.offset(node.lineno, node.col_offset), text.offset(node.lineno, node.end_col_offset or 0)
    return text.data[:start] + b"(" + text.data[start:end] + b")" + text.data[end:]


def semicolon(text: Text, choice: random.Random) -> bytes | None:
    """Two statements on one line."""
    simple = (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return, ast.Pass)
    place = text.pick(choice, lambda place: isinstance(place.node, simple) and place.node is not place.block[-1])
    if place is None:
        return None
    following = place.block[place.block.index(place.node) + 1]
    other = next((found for found in text.places() if found.node is following), None)
    if other is None or not isinstance(following, simple) or text.lines[place.last - 1].count(b"#"):
        return None
    joined = text.text(place).rstrip() + b"; " + text.text(other).lstrip()
    return text.with_lines(place.first, other.last, joined)


def one_line_block(text: Text, choice: random.Random) -> bytes | None:
    """A block on the line of its own header."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and len(place.node.body) == 1)
    if place is None or not isinstance(place.node, ast.If):
        return None
    body = place.node.body[0]
    if isinstance(body, (ast.If, ast.For, ast.With, ast.FunctionDef, ast.Try)) or body.lineno != body.end_lineno:
        return None
    if body.lineno != (place.node.test.end_lineno or 0) + 1 or b"#" in text.lines[body.lineno - 2]:
        return None
    header = text.lines[body.lineno - 2].rstrip()
    return text.with_lines(body.lineno - 2, body.lineno, header + b" " + text.lines[body.lineno - 1].lstrip())


def spacing(text: Text, choice: random.Random) -> bytes | None:
    """More white space around the sign of an assignment, or a line break behind it."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.Assign))
    if place is None or not isinstance(place.node, ast.Assign):
        return None
    start = text.offset(place.node.value.lineno, place.node.value.col_offset)
    if not text.data[:start].endswith(b"= "):
        return None  # in parentheses, perhaps
    return text.data[: start - 2] + choice.choice([b"   =   ", b"=", b"= \\\n        ", b" =\t"]) + text.data[start:]


def explode(text: Text, choice: random.Random) -> bytes | None:
    """A call, folded over lines."""
    node = text.one(choice, ast.Call)
    if not isinstance(node, ast.Call) or node.lineno != node.end_lineno or not (node.args or node.keywords):
        return None
    first = min([*node.args, *(item.value for item in node.keywords)], key=lambda item: item.col_offset)
    start, end = text.offset(node.lineno, first.col_offset), text.offset(node.lineno, node.end_col_offset or 0)
    if node.args and text.data[start - 1 : start] == b"(":
        return text.data[:start] + b"\n            " + text.data[start : end - 1] + b",\n        )" + text.data[end:]
    return None


def quotes(text: Text, choice: random.Random) -> bytes | None:
    """Other quotes around a string."""
    node = text.one(choice, ast.Constant)
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or not node.value.isidentifier():
        return None
    spelling = choice.choice([f"'{node.value}'", f'"{node.value}"', f"'''{node.value}'''", f"r'{node.value}'"])
    return text.with_node(node, spelling)


def docstring(text: Text, choice: random.Random) -> bytes | None:
    """A docstring is added, changed, or gone."""
    found = [text.function, *(node for node in ast.walk(text.function) if isinstance(node, ast.FunctionDef))]
    function = choice.choice(found)
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        left = b"" if len(function.body) > 1 and choice.random() < 0.5 else b'"""Another."""\n'
        indentation = text.lines[first.lineno - 1][: first.col_offset] if left else b""
        return text.with_lines(first.lineno - 1, first.end_lineno or 0, indentation + left)
    indentation = text.lines[first.lineno - 1][: first.col_offset]
    if indentation.strip() or getattr(first, "decorator_list", None):
        return None
    return text.with_lines(first.lineno - 1, first.lineno - 1, indentation + b'"""A docstring."""\n')


def reindent(text: Text, choice: random.Random) -> bytes | None:
    """A block is indented deeper than the others are."""
    place = text.pick(choice, lambda place: isinstance(place.node, (ast.If, ast.For, ast.With, ast.FunctionDef)))
    if place is None or b'"""' in text.text(place) or b"'''" in text.text(place) or b"\\\n" in text.text(place):
        return None
    start, end = _rows(getattr(place.node, "body", []))
    if start <= place.first:
        return None
    deeper = b"".join(b"  " + line if line.strip() else line for line in text.lines[start:end])
    return text.with_lines(start, end, deeper)


def line_ends(text: Text, choice: random.Random) -> bytes | None:
    """Other line ends, a byte-order mark, or no line end at the end of the file."""
    if b"\r" in text.data or text.data.startswith(b"\xef\xbb\xbf"):
        return None
    kind = choice.randrange(3)
    if kind == 0:
        return text.data.replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf" + text.data if kind == 1 else text.data.rstrip(b"\n")


def around(text: Text, choice: random.Random) -> bytes | None:
    """The rest of the file has another function or comment."""
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
    *(comment_above, comment_behind, blank_lines, fewer_blank_lines, no_comments, trailing_space, parentheses),
    *(semicolon, one_line_block, spacing, explode, quotes, docstring, reindent, line_ends, around),
)
NAMED = {operator.__name__: operator for operator in (*CHANGING, *FORMATTING)}


# -- shared -----------------------------------------------------------------------------------------------------------


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
            for inner in block:
                yield from _blocks(inner)
    for handler in getattr(node, "handlers", []):
        yield from _blocks(handler)


def _insert(text: Text, choice: random.Random, code: str) -> bytes | None:
    """Put code before or behind a statement."""
    place = text.pick(choice)
    if place is None:
        return None
    row = place.first if choice.random() < 0.5 else place.last
    return text.with_lines(row, row, _block(code, place.indentation))


def _condition(text: Text, choice: random.Random) -> str:
    """A condition, as often as not one that the function itself asks."""
    asked = [ast.unparse(node.test) for node in ast.walk(text.function) if isinstance(node, ast.If)]
    names = [name for name in text.names() if name.isidentifier()]
    return choice.choice(
        [
            *_sample(asked, choice, 3),
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
    """The rows between a statement and the one before it in its block."""
    index = place.block.index(place.node)
    return range(place.block[index - 1].end_lineno or 0, place.first) if index else range(0)


def _height(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0)


def _end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]


def _with_parameters(text: Text, node: ast.FunctionDef, new: str) -> bytes | None:
    """The file with another list of parameters, between the parentheses of a def."""
    start = text.offset(node.lineno, node.col_offset)
    opening = text.data.index(b"(", start)
    depth, end = 0, opening
    for end in range(opening, len(text.data)):
        depth += {40: 1, 41: -1}.get(text.data[end], 0)
        if depth == 0:
            break
    return text.data[: opening + 1] + new.encode() + text.data[end:]
