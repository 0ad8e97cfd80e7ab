"""Mutants made by rules: each changes one place of what a rewrite added to a function."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from support.sources import Source
from unhang.shapes.shape import has_docstring

RANK = "torch.distributed.get_rank()"
TP, CP, DP, PP = (
    f"mpu.get_{name}_rank()"
    for name in ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
)


class Mutant(NamedTuple):
    """A rewritten file with one change."""

    name: str
    """What was changed, by which rule."""
    text: str


class Change(NamedTuple):
    """A replacement of some code; nodes and statements are named by their place in the text."""

    rule: str
    start: int
    end: int
    new: str


class Added:
    """A rewritten file, and what the rewrite added to it."""

    def __init__(self, source: Source, ranks: Sequence[str], others: Sequence[str]) -> None:
        self.before, self.text = source.data.decode(), source.rewritten.data.decode()
        self.function = source.rewritten.function
        self.ranks, self.others = ranks, others
        """The expressions for a rank of this process, and the names of groups that are not meant."""
        self.starts = [0]
        for line in self.text.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        rows = difflib.SequenceMatcher(None, self.before.splitlines(), self.text.splitlines(), autojunk=False)
        self.hunks = [code for code in rows.get_opcodes() if code[0] != "equal"]
        (outer,) = (it for it in ast.parse(self.text).body if it.lineno <= self.function.lineno <= (it.end_lineno or 0))
        lines = self.text.splitlines(keepends=True)
        self.head, self.tail = "".join(lines[: outer.lineno - 1]), "".join(lines[outer.end_lineno :])
        self.lines = {line for _, _, _, first, last in self.hunks for line in range(first + 1, last + 1)}

    def nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes that begin on a line that the rewrite added."""
        for node in ast.walk(self.function):
            if getattr(node, "lineno", 0) in self.lines:
                yield node

    def blocks(self) -> Iterator[list[ast.stmt]]:
        """Yield each block of the function."""
        for node in ast.walk(self.function):
            for name in ("body", "orelse", "handlers"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node is, in bytes."""
        places = [getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")]
        return self.starts[places[0] - 1] + places[1], self.starts[places[2] - 1] + places[3]

    def code(self, node: ast.AST) -> str:
        first, last = self.span(node)
        return self.text.encode()[first:last].decode()


Rule = Callable[[Added], Iterator[tuple[ast.AST, str]]]


def gate(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Open, shut or turn around a condition; drop or join its parts otherwise."""
    for node in added.nodes():
        if isinstance(node, ast.If):
            yield from ((node.test, new) for new in ("True", "False", f"not ({added.code(node.test)})"))
        elif isinstance(node, ast.BoolOp):
            parts = [f"({added.code(value)})" for value in node.values]
            word = "and" if isinstance(node.op, ast.And) else "or"
            yield node, f"({' or '.join(parts) if word == 'and' else ' and '.join(parts)})"
            for index in range(len(parts)):
                yield node, f"({f' {word} '.join(parts[:index] + parts[index + 1 :])})"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            new = {ast.Eq: "!=", ast.Gt: ">=", ast.Is: "is not", ast.In: "not in"}.get(type(node.ops[0]))
            if new:
                yield node, f"{added.code(node.left)} {new} {added.code(node.comparators[0])}"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, added.code(node.operand)


def rank(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Make a condition, or a call alone, depend on the rank."""
    for node in added.nodes():
        for each in added.ranks:
            for which in (f"{each} == 0", f"{each} != 0"):
                if isinstance(node, ast.If):
                    yield node.test, f"({added.code(node.test)}) and {which}"
                elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                    yield node, f"{which} and {added.code(node)}"


def group(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Use another group, or the world."""
    for node in added.nodes():
        if isinstance(node, ast.keyword) and node.arg == "group":
            yield node, "group=None"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "group" in node.value.lower():
            yield from ((node, repr(other)) for other in added.others)


def order(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Go through a series backwards, on all ranks or on some."""
    for node in added.nodes():
        if isinstance(node, ast.For):
            yield node.iter, f"({added.code(node.iter)})[::-1]"
            yield from ((node.iter, f"({added.code(node.iter)})[:: 1 - 2 * ({each} % 2)]") for each in added.ranks)


def field(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Leave out a statement, or one name of several."""
    for node in added.nodes():
        if isinstance(node, (ast.Assign, ast.Expr, ast.Continue, ast.ImportFrom)):
            yield node, "pass"
        elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
            for index in range(len(node.elts)):
                left = node.elts[:index] + node.elts[index + 1 :]
                yield node, f"({', '.join(map(added.code, left))},)"


def count(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Change a number, or how often something is done."""
    for node in added.nodes():
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield from ((node, str(node.value + step)) for step in (1, -1) if node.value + step >= 0)
        elif isinstance(node, ast.For):
            yield from ((node.iter, f"({added.code(node.iter)}){part}") for part in ("[:1]", "[1:]"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, f"[{added.code(node)} for _ in range(2)]"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from ((node, added.code(side)) for side in (node.left, node.right))


def device(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Put a tensor on another device."""
    for node in added.nodes():
        if isinstance(node, ast.keyword) and node.arg == "device":
            yield node, "device='cpu'"
            yield node, "device='meta'"


def dtype(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Give a tensor another dtype."""
    for node in added.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "zeros" in node.func.attr:
            given = [*map(added.code, node.args), *map(added.code, node.keywords), "dtype=torch.float32"]
            yield node, f"{added.code(node.func)}({', '.join(given)})"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "new_zeros":
            yield node, added.code(node).replace("new_zeros", "new_ones")


def backend(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Look at some parts of a composite backend only."""
    for node in added.nodes():
        if isinstance(node, ast.Name) and node.id == "backends" and isinstance(node.ctx, ast.Load):
            yield from ((node, f"backends{part}") for part in ("[:1]", "[-1:]"))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            yield node, f"[{added.code(node.func.value)}]"


def cut(added: Added) -> Iterator[tuple[ast.AST, str]]:
    """Take another slice, or another element."""
    for node in added.nodes():
        if isinstance(node, ast.Subscript):
            of = added.code(node.value)
            if isinstance(node.slice, ast.Slice):
                yield from ((node, f"{of}{part}") for part in ("[:]", "[:1]", "[:0].detach()"))
            else:
                yield from ((node, f"{of}[{index}]") for index in (0, 1, -1) if str(index) != added.code(node.slice))


def _moved(added: Added, forward: bool) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each added statement and its neighbour, before or after it."""
    for block in added.blocks():
        statements = block[1:] if has_docstring(added.function) and block is added.function.body else block
        for one, two in zip(statements, statements[1:]):
            if all(isinstance(it, ast.Assign) and isinstance(it.value, ast.Constant) for it in (one, two)):
                continue  # two constants may come in any order
            first, second = (it.lineno in added.lines for it in (one, two))
            if first if forward else second and not first:
                yield one, two


RULES: dict[str, Rule] = {
    **{"gate": gate, "rank": rank, "group": group, "order": order, "field": field, "count": count},
    **{"device": device, "dtype": dtype, "backend": backend, "slice": cut},
}


def mutants(added: Added) -> Iterator[Mutant]:
    """Yield every mutant that the rules make: each parses and is another one than the rewritten file."""
    seen = {_tree(added, added.text), _tree(added, added.before)}
    names: dict[str, int] = {}
    for name, text in _every(added):
        try:
            tree = _tree(added, text)
        except SyntaxError:
            continue
        if tree not in seen:
            seen.add(tree)
            names[name] = names.get(name, 0) + 1
            yield Mutant(name + (f" ({names[name]})" if names[name] > 1 else ""), text)


def _tree(added: Added, text: str) -> str:
    """Return the syntax tree of a text; of the function or its class alone, where all else is as with our rewrite."""
    is_rest_ours = text.startswith(added.head) and text.endswith(added.tail)
    return ast.dump(ast.parse(text[len(added.head) : len(text) - len(added.tail)] if is_rest_ours else text))


def _every(added: Added) -> Iterator[tuple[str, str]]:
    data = added.text.encode()
    for kind, rule in RULES.items():
        for node, new in rule(added):
            first, last = added.span(node)
            text = (data[:first] + new.encode() + data[last:]).decode()
            code = added.code(node)
            line = data[:first].count(b"\n") + 1
            short = new.replace(code, "...") if len(code) > 1 else new
            yield f"{kind}, line {line}: {_line(code)} -> {_line(short)}", text
    for kind, forward in ("early", False), ("late", True):
        for one, two in _moved(added, forward):
            (start, middle), (end, last) = added.span(one), added.span(two)
            line = data[:start].count(b"\n") + 1
            swapped = data[:start] + data[end:last] + data[middle:end] + data[start:middle] + data[last:]
            yield f"{kind}, line {line}: {_line(added.code(one))} <-> {_line(added.code(two))}", swapped.decode()
    lines, old = added.text.splitlines(keepends=True), added.before.splitlines(keepends=True)
    for number, (_, first, last, start, end) in enumerate(added.hunks, 1):
        yield f"one side only: without part {number}", "".join([*lines[:start], *old[first:last], *lines[end:]])
        alone = [code for code in added.hunks if code[3] != start]
        if len(added.hunks) > 2:
            made = list(lines)
            for _, first_, last_, start_, end_ in reversed(alone):
                made[start_:end_] = old[first_:last_]
            yield f"one side only: part {number} alone", "".join(made)


def _line(code: str) -> str:
    """Return code on one line, shortened."""
    short = " ".join(code.split())
    return short if len(short) <= 70 else f"{short[:40]} ... {short[-25:]}"
