"""Mutations of one function in a file's own text: what a hand edit, a merge or a fork may have done to it.

Each operator takes a file and a random generator, and returns the new text of the file; it raises NothingToDo if it
finds nothing to work on. The operators in ``FORMATTING`` should keep the function's AST, those in ``CHANGING`` should
change it, but no caller relies on that: they compare the ASTs.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from unhang.shapes import shape

UNIT = b"    "
SIMPLE = (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return, ast.Pass)
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
        return _choose(random.Random(0), [place for place in self.places() if place.node is node])

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
            short = (node for node in found if (node.end_lineno or 0) - node.lineno < 6)
            found = [node for node in short if self._focus.search(ast.unparse(node))] or found
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
    """Move a statement to before or after another statement, in any block."""
    place, other = text.pick(choice), text.pick(choice)
    if len(place.block) == 1 or (other.first < place.last and place.first < other.last):
        raise NothingToDo
    lines: list[bytes] = [*text.lines]
    lines[place.first : place.last] = [b""] * (place.last - place.first)
    row = choice.choice([other.first, other.last])
    return b"".join([*lines[:row], _indented(text.text(place), place.indentation, other.indentation), *lines[row:]])


def copy_elsewhere(text: Text, choice: random.Random) -> bytes:
    """Copy a statement to another place."""
    place, other = text.pick(choice), text.pick(choice)
    return text.with_lines(other.first, other.first, _indented(text.text(place), place.indentation, other.indentation))


def wrap(text: Text, choice: random.Random) -> bytes:
    """Wrap a statement in an if, a try, a with, a loop or a function."""
    place = text.pick(choice, lambda place: place.node is not text.function.body[0])
    heads = [f"if {_condition(text, choice)}:"] * 2 + [
        "if True:",
        "with memoryview(b''):",
        "if False:\n    pass\nelse:",
    ]
    heads += [f"for fuzz_round in range({count}):" for count in (1, 2)]
    tails = {
        "try:": choice.choice(["except Exception:\n    pass", "finally:\n    pass"]),
        "while True:": "    break",
        "def fuzz_wrapped():": "fuzz_wrapped()",
    }
    head = choice.choice([*heads, *tails])
    inner = _indented(text.text(place), place.indentation, place.indentation + UNIT)
    before, after = (_block(code, place.indentation) for code in (head, tails.get(head, "")))
    return text.with_lines(place.first, place.last, before + inner + after)


def unwrap(text: Text, choice: random.Random) -> bytes:
    """Replace an if, a with or a loop by its body."""
    kinds = (ast.If, ast.With, ast.For, ast.Try)
    place = text.pick(choice, lambda place: isinstance(place.node, kinds))
    start, end = _rows(getattr(place.node, "body", []))
    code = b"".join(text.lines[start:end])
    old = code[: len(code) - len(code.lstrip(b" \t"))]
    return text.with_lines(place.first, place.last, _indented(code, old, place.indentation))


def swap_branches(text: Text, choice: random.Random) -> bytes:
    """Swap the two branches of an if."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and bool(place.node.orelse))
    assert isinstance(place.node, ast.If)
    (start, end), (start_2, end_2) = _rows(place.node.body), _rows(place.node.orelse)
    lines = text.lines
    if lines[start_2].strip().startswith(b"elif"):
        raise NothingToDo
    return text.with_lines(start, end_2, b"".join([*lines[start_2:end_2], *lines[end:start_2], *lines[start:end]]))


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
    first, second = choice.choices(text.names(), k=2)
    condition = _condition(text, choice)
    codes = (
        *(
            f"{first} = None",
            f"{first} = {second}",
            f"{first} = 0",
            f"{first} = {second} = 1",
            f"({first} := {second})",
        ),
        *(f"del {first}", f"{first}({second})", f"{first}.fuzz = {second}", f"import os as {first}"),
        *(f"for {first} in ():\n    pass", f"def {first}(*_, **__):\n    return None"),
        *(f"if {condition}:\n    {code}" for code in ("return", f"return {first}", f"{first} = {second}")),
        *("return", "raise ValueError('fuzz')", "globals().clear()", "torch.distributed.barrier()"),
        "torch.distributed.all_reduce(torch.zeros(1, device=0), group=None)",
        f"args.sft = {choice.choice(['True', 'False'])}",
        f"self.config.fp8 = {choice.choice(['True', 'None'])}",
    )
    return _insert(text, choice, choice.choice(codes))


# -- names, values, arguments -----------------------------------------------------------------------------------------


def rename_everywhere(text: Text, choice: random.Random) -> bytes:
    """Rename a local name everywhere."""
    nodes, found = [*ast.walk(text.function)], text.nodes(ast.Name)
    fixed = {node.arg for node in nodes if isinstance(node, ast.arg)}
    fixed |= {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    name = _choose(choice, sorted({node.id for node in found if isinstance(node.ctx, ast.Store)} - fixed))
    ends = sorted(text.offset(node.lineno, node.end_col_offset or 0) for node in found if node.id == name)
    parts = [text.data[start:end] for start, end in zip([0, *ends], [*ends, None])]
    return b"_renamed".join(parts)


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
    same = [item.value for item in text.nodes(ast.Constant) if type(item.value) is type(value) and item.value != value]
    more: list[Any] = [{bool: not value, str: f"{value!s}_", type(None): 0}.get(type(value))]
    if type(value) is int:
        more = [1 if value == 0 else 0, value + 1, value - 1, -value]
    return text.with_node(node, repr(choice.choice([*more, *_sample(same, choice, 2)])))


def operators(text: Text, choice: random.Random) -> bytes:
    """Change a comparison, a condition or an operator."""
    node = text.one(choice, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.BinOp)
    new: list[ast.expr]
    if isinstance(node, ast.Compare):
        others = (ast.Eq(), ast.NotEq(), ast.Lt(), ast.GtE(), ast.Is(), ast.IsNot(), ast.In())
        new = [ast.Compare(node.left, [other, *node.ops[1:]], node.comparators) for other in others]
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        new = [ast.BoolOp(other, node.values), ast.BoolOp(node.op, node.values[::-1]), node.values[0], node.values[-1]]
    elif isinstance(node, ast.UnaryOp):
        new = [node.operand]
    elif isinstance(node, ast.IfExp):
        new = [ast.IfExp(node.test, node.orelse, node.body), node.body, node.orelse]
    else:
        assert isinstance(node, ast.BinOp)
        new = [ast.BinOp(node.right, node.op, node.left), node.left, node.right]
    return text.with_node(node, f"({ast.unparse(choice.choice(new))})")


def tests(text: Text, choice: random.Random) -> bytes:
    """Strengthen, weaken, negate or replace the test of an if or a conditional expression."""
    found = [node.test for node in ast.walk(text.function) if isinstance(node, (ast.If, ast.IfExp, ast.Assert))]
    node, other = _choose(choice, found), ast.unparse(_choose(choice, found))
    was = ast.unparse(node)
    combined = [f"({was}) {word} {right}" for word in ("or", "and") for right in (f"({other})", "True")]
    return text.with_node(node, choice.choice([*combined, f"not ({was})", f"({was}) and False", other, "True"]))


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
    node = choice.choice([node for node in ast.walk(text.function) if isinstance(node, shape.Function)])
    (copy,) = ast.parse(f"def f({ast.unparse(node.args)}): pass").body
    assert isinstance(copy, ast.FunctionDef)
    new, kind = copy.args, choice.randrange(5)
    if kind == 0:
        new.kwonlyargs.append(ast.arg("fuzz_argument"))
        new.kw_defaults.append(ast.Constant(None))
    elif kind == 1 and new.defaults:
        new.defaults[choice.randrange(len(new.defaults))] = ast.Constant(choice.choice([None, True, 0]))
    elif kind == 2 and new.args:
        choice.choice(new.args).arg += "_renamed"
    elif kind == 3 and len(new.args) > len(new.defaults):
        new.args.pop(choice.randrange(len(new.args) - len(new.defaults)))
    else:
        new.args.reverse()
    end = opening = text.data.index(b"(", text.offset(node.lineno, node.col_offset))
    depth = 1
    while depth:
        end += 1
        depth += {40: 1, 41: -1}.get(text.data[end], 0)
    return text.data[: opening + 1] + ast.unparse(new).encode() + text.data[end:]


def decorate(text: Text, choice: random.Random) -> bytes:
    """Decorate a nested function or the function itself."""
    nested = [
        node for node in ast.walk(text.function) if isinstance(node, shape.Function) and node is not text.function
    ]
    chosen = choice.choice(nested) if nested and choice.random() < 0.7 else text.function
    row = min([chosen.lineno, *(node.lineno for node in chosen.decorator_list)]) - 1
    indentation = text.lines[chosen.lineno - 1][: chosen.col_offset]
    name = b"@staticmethod\n" if chosen is text.function else b"@(lambda function: function)\n"
    return text.with_lines(row, row, indentation + name)


# -- comments and layout ----------------------------------------------------------------------------------------------


def line_above(text: Text, choice: random.Random) -> bytes:
    """Add a comment on its own line, or blank lines, with or without white space in them."""
    place = text.pick(choice)
    words = ["# a note", "#", "# TODO: mpu.is_pipeline_last_stage() \u2014 se\u00f1al", "# type: ignore", "#!x"]
    comment = choice.choice([place.indentation, b"", place.indentation + b"  "]) + choice.choice(words).encode()
    new = choice.choice([comment, comment, b"", b"\n\n", b"        ", b"\x0c", b" \t "])
    return text.with_lines(place.first, place.first, new + b"\n")


def fewer_lines(text: Text, choice: random.Random) -> bytes:
    """Drop comments on their own lines, and blank lines."""
    rows = range(text.function.lineno, text.function.end_lineno or 0)
    found = [row for row in rows if not text.lines[row].partition(b"#")[0].strip()]
    if not found:
        raise NothingToDo
    dropped = choice.sample(found, choice.randint(1, len(found)))
    return b"".join(line for row, line in enumerate(text.lines) if row not in dropped)


def line_end(text: Text, choice: random.Random) -> bytes:
    """Add white space or a comment at the end of a line."""
    row = text.pick(choice).last - 1
    line = text.lines[row].rstrip(b"\r\n")
    more = choice.choice([b"  \t", b"  # noqa"])
    return text.with_lines(row, row + 1, line + more + text.lines[row][len(line) :])


def semicolon(text: Text, choice: random.Random) -> bytes:
    """Put two statements on one line."""
    place = text.pick(choice, lambda place: isinstance(place.node, SIMPLE) and place.node is not place.block[-1])
    other = text.place_of(place.block[place.block.index(place.node) + 1])
    if not isinstance(other.node, SIMPLE) or text.lines[place.last - 1].count(b"#"):
        raise NothingToDo
    joined = text.text(place).rstrip() + b"; " + text.text(other).lstrip()
    return text.with_lines(place.first, other.last, joined)


def one_line_block(text: Text, choice: random.Random) -> bytes:
    """Put a block on the same line as its header."""
    place = text.pick(choice, lambda place: isinstance(place.node, ast.If) and len(place.node.body) == 1)
    assert isinstance(place.node, ast.If)
    body = place.node.body[0]
    if isinstance(body, (ast.If, ast.For, ast.With, shape.Function, ast.Try)) or body.lineno != body.end_lineno:
        raise NothingToDo
    if body.lineno != (place.node.test.end_lineno or 0) + 1 or b"#" in text.lines[body.lineno - 2]:
        raise NothingToDo
    header = text.lines[body.lineno - 2].rstrip()
    return text.with_lines(body.lineno - 2, body.lineno, header + b" " + text.lines[body.lineno - 1].lstrip())


def respell(text: Text, choice: random.Random) -> bytes:
    """Write a simple statement as ``ast.unparse`` does: other quotes, parentheses, white space and line breaks."""

    def other(place: Place) -> bool:
        return isinstance(place.node, SIMPLE) and ast.unparse(place.node).encode() != text.text(place).strip()

    place = text.pick(choice, other)
    return text.with_lines(place.first, place.last, place.indentation + ast.unparse(place.node).encode() + b"\n")


def explode(text: Text, choice: random.Random) -> bytes:
    """Split a call over several lines."""
    node = text.one(choice, ast.Call)
    if node.lineno != node.end_lineno or not node.args:
        raise NothingToDo
    first = text.offset(node.lineno, node.args[0].col_offset)
    start, end = text.data[:first], text.offset(node.lineno, node.end_col_offset or 0)
    if not start.endswith(b"("):
        raise NothingToDo
    return start + b"\n            " + text.data[first : end - 1] + b",\n        )" + text.data[end:]


def docstring(text: Text, choice: random.Random) -> bytes:
    """Add, change or drop a docstring."""
    function = choice.choice([node for node in ast.walk(text.function) if isinstance(node, shape.Function)])
    first = function.body[0]
    row, indentation = first.lineno - 1, text.lines[first.lineno - 1][: first.col_offset]
    if ast.get_docstring(function) is not None:
        drop = len(function.body) > 1 and choice.random() < 0.5
        return text.with_lines(row, first.end_lineno or 0, b"" if drop else indentation + b'"""Another."""\n')
    if indentation.strip() or getattr(first, "decorator_list", None):
        raise NothingToDo
    return text.with_lines(row, row, indentation + b'"""A docstring."""\n')


def reindent(text: Text, choice: random.Random) -> bytes:
    """Indent a block deeper than the others."""
    place = text.pick(choice, lambda place: isinstance(place.node, (ast.If, ast.For, ast.With, shape.Function)))
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


CHANGING: tuple[Operator, ...] = (
    *(drop, swap, move, copy_elsewhere, wrap, unwrap, swap_branches, insert_inert, insert_active),
    *(rename_everywhere, rename_once, rename_attribute, constants, operators, tests, value, call_arguments),
    *(parameters, decorate),
)
FORMATTING: tuple[Operator, ...] = (
    *(line_above, line_end, fewer_lines, semicolon, one_line_block, respell, explode, docstring, reindent),
    *(line_ends, around),
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
    tests = [ast.unparse(node.test) for node in ast.walk(text.function) if isinstance(node, ast.If)]
    name, other = choice.choices(text.names(), k=2)
    return choice.choice([*_sample(tests, choice, 3), name, f"not {other}", "torch.distributed.get_rank() == 0"])


def _sample(items: list[Chosen], choice: random.Random, count: int) -> list[Chosen]:
    return choice.sample(items, min(count, len(items)))


def _block(code: str, indentation: bytes) -> bytes:
    return b"".join(indentation + line.encode() + b"\n" for line in code.splitlines())


def _indented(code: bytes, old: bytes, new: bytes) -> bytes:
    lines = code.splitlines(keepends=True)
    return b"".join(new + line[len(old) :] if line.startswith(old) else line for line in lines)


def _rows(block: list[ast.stmt]) -> tuple[int, int]:
    decorated = [item.lineno for item in getattr(block[0], "decorator_list", [])]
    return min([block[0].lineno, *decorated]) - 1, block[-1].end_lineno or block[-1].lineno
