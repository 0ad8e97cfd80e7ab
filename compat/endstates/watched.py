"""An unknown function that tells which of its new statements run, and what its new conditions are."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

from unhang.compat.endstates.endstate import Source
from unhang.shapes import shape
from unhang.shapes.branches import words

WATCH = "__unhang_watch__"
"""The name by which the function finds ``Watched.watch`` among the built-ins."""
_KNOWN_DECORATORS = {"GPUMemoryLogger", "internal_api", "staticmethod", "classmethod", "deprecated", "deprecate_args"}
"""Those of known shapes, without which the function does the same. No decorator runs."""
_LOGS = {"print", "logging", "logger", "warnings"}


class Unlike(NamedTuple):
    """The lines of the statements of a function that differ from the closest known shape."""

    changed: Sequence[int] | None = None
    """None if no known shape is close: then all may differ."""
    added: Sequence[int] = ()
    moved: Sequence[int] = ()
    missing: Sequence[int] = ()
    """Of what comes after a statement that is missing."""
    gone: Sequence[int] = ()
    """The same, if no statement of its kind was added elsewhere."""

    @property
    def here(self) -> list[int] | None:
        """The lines of the statements that are there and differ."""
        return None if self.changed is None else [*self.changed, *self.added, *self.moved]


class Watched(ast.NodeTransformer):
    """A function whose unknown statements tell that they run, and their conditions what they are."""

    def __init__(self, source: Source, unlike: Unlike, held: Collection[str]) -> None:
        tree = ast.parse(source.text)
        (function,) = shape.find(tree, source.name)
        self.held = held
        self.statements: list[tuple[int, str]] = []
        self.seen: dict[int, set[bool]] = {}
        self.conditions: dict[int, tuple[int, str]] = {}
        self.ran: set[int] = set()
        self.decorators: list[str] = []
        inside = sorted(
            (node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function),
            key=lambda node: (node.lineno, node.col_offset),
        )
        here = unlike.here
        if here is None or function.lineno in here:
            names = (ast.unparse(it.func if isinstance(it, ast.Call) else it) for it in function.decorator_list)
            self.decorators = [name for name in names if name.rpartition(".")[2] not in _KNOWN_DECORATORS]
        self.suspects: set[ast.stmt] = set(inside) if here is None else set()
        self.neighbours: set[ast.stmt] = set()
        for line in here or ():
            if line != function.lineno:
                at = next((node.lineno for node in inside if node.lineno >= line), 0)
                self.suspects |= {node for node in inside if node.lineno == at}
        for line in unlike.missing:
            at = next((at for at, node in enumerate(inside) if node.lineno >= line), len(inside))
            self.neighbours |= {*inside[max(at - 1, 0) : at + 1]}
        new = {*(unlike.changed or ()), *unlike.added}
        self.loops = [node for node in inside if isinstance(node, ast.For) and (here is None or node.lineno in new)]
        self.doubtful = [
            f"a statement is missing near line {line}, and nothing shows what it did" for line in unlike.gone
        ]
        for node in ast.walk(function):
            if not isinstance(node, (ast.ExceptHandler, ast.With)) or not (here is None or node.lineno in here):
                continue
            if isinstance(node, ast.With):
                if not all(words(item.context_expr) <= {"contextlib", "nullcontext"} for item in node.items):
                    self.doubtful.append(f"line {node.lineno} enters a context, and no known shape enters it there")
            elif not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                self.doubtful.append(f"line {node.lineno} passes over errors, and no known shape does")
        self.simple = [
            node for node in inside if (here is None or node.lineno in new) and not _is_inert(node, function)
        ]
        busy = {node.lineno for node in inside if node in self.neighbours or not _is_idle(node, function)}
        self.idle = {*unlike.added} - busy
        self.original, self.source = source, source
        if self.suspects or self.neighbours:
            self._mark(function)
            self.source = Source(ast.unparse(ast.fix_missing_locations(tree)), source.name)

    def watch(self, number: int, value: Any = None, plain: bool = False) -> Any:
        """Be told that a statement runs, or what a condition is."""
        if number in self.conditions:
            if plain and type(value) not in (bool, int, float, str, list, tuple, dict, type(None)):
                return value
            self.seen.setdefault(number, set()).add(bool(value))
            return value if plain else bool(value)
        self.ran.add(number)
        return None

    def doubts(self) -> Iterator[str]:
        """Yield why the runs do not tell what the function does."""
        if self.decorators:
            yield f"the end state does not run its decorator @{self.decorators[0]}"
        yield from self.doubtful
        for number, (line, text) in enumerate(self.statements):
            if number in self.conditions:
                if len(outcomes := self.seen.get(number, set())) < 2:
                    always = f"{outcomes == {True}}".lower() + " in every setting" if outcomes else "never asked"
                    yield f"line {line} is in no known shape, and its condition `{text}` is {always}"
            elif number not in self.ran and line not in self.idle:
                yield f"line {line}, where it differs from the closest known shape, runs in no setting"

    def without(self) -> Iterator[tuple[int, Source]]:
        """Yield the line of each new statement that is no block, and the file without it, or without a part of it.

        Of a new loop, only what it runs over has its parts left out.
        """
        rows = self.original.text.split("\n")
        for node in self.simple:
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            margin = rows[first][: node.col_offset]
            for new in ("pass", *lessened(node)):
                text = [*rows[:first], *(f"{margin}{row}" for row in new.split("\n")), *rows[last:]]
                yield node.lineno, self.original._replace(text="\n".join(text))
        for loop in self.loops:
            over = loop.iter
            first, last = over.lineno - 1, (over.end_lineno or over.lineno) - 1
            before = rows[first].encode()[: over.col_offset].decode()
            behind = rows[last].encode()[over.end_col_offset :].decode()
            for new in lessened(ast.Expr(over)):
                text = [*rows[:first], f"{before}{new}{behind}", *rows[last + 1 :]]
                yield loop.lineno, self.original._replace(text="\n".join(text))

    def _mark(self, node: ast.AST) -> None:
        for name, block in ast.iter_fields(node):
            if (
                isinstance(block, list)
                and block
                and isinstance(block[0], (ast.stmt, ast.ExceptHandler, ast.match_case))
            ):
                for inner in block:
                    self._mark(inner)
                is_elif = isinstance(node, ast.If) and name == "orelse" and [*map(type, block)] == [ast.If]
                block[:] = [new for inner in block for new in self._marked(inner, is_elif)]

    def _marked(self, statement: Any, is_elif: bool) -> list[Any]:
        """Return the statement with what tells that it runs."""
        line = getattr(statement, "lineno", 0)
        mark = []
        if statement in self.suspects | self.neighbours and not is_elif and not isinstance(statement, ast.Raise):
            mark = [ast.Expr(self._call(line, ""))]
        if statement in self.suspects:
            self.line = line
            for name, value in ast.iter_fields(statement):
                if name == "test" and isinstance(statement, (ast.If, ast.While)):
                    statement.test = self._condition(value)
                elif isinstance(value, ast.expr):
                    setattr(statement, name, self.visit(value))
                elif isinstance(value, list) and name in ("targets", "items", "keywords", "bases"):
                    value[:] = [self.visit(it) for it in value]
        return [*mark, statement]

    def _call(self, line: int, text: str, *given: ast.expr) -> ast.Call:
        self.statements.append((line, text))
        number = len(self.statements) - 1
        if given:
            self.conditions[number] = line, text
        return ast.Call(ast.Name(WATCH, ast.Load()), [ast.Constant(number), *given], [])

    def _condition(self, test: ast.expr, *plain: ast.expr) -> ast.expr:
        """Return a condition that tells what it is, and so does each of its parts."""
        if isinstance(test, ast.BoolOp) and not plain:
            test.values = [self._condition(value) for value in test.values]
            return test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._condition(test.operand)
            return test
        text = ast.unparse(test)
        if isinstance(test, ast.Constant) or words(test) <= {*self.held}:  # or no name at all
            return test
        inner = self.visit(test)
        return self._call(self.line, text if len(text) < 80 else f"{text[:77]}...", inner, *plain)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self._condition(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Watch all but the last: that one is only a value."""
        plain = ast.Constant(True)
        node.values = [*(self._condition(value, plain) for value in node.values[:-1]), self.visit(node.values[-1])]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.iter, node.ifs = self.visit(node.iter), [self._condition(test) for test in node.ifs]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.body = self.visit(node.body)
        return node


def _is_inert(node: ast.stmt, function: ast.AST) -> bool:
    """Return whether a statement is a block, fails loudly, imports, or does nothing."""
    blocks = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
    return hasattr(node, "body") or isinstance(node, blocks) or _is_idle(node, function)


def _is_idle(node: ast.stmt, function: ast.AST) -> bool:
    """Return whether a statement does nothing, only logs, or names what nothing reads."""
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if any(isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) for inner in ast.walk(node)):
        return False
    if isinstance(node, ast.Import):
        return all(alias.name in _LOGS and alias.asname is None for alias in node.names)
    calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        chain = [node.value, node.value.func, getattr(getattr(node.value.func, "value", None), "func", None)]
        return (
            all(call in chain or call.func in chain for call in calls)
            and ast.unparse(node).split("(")[0].split(".")[0] in _LOGS
        )
    if isinstance(node, ast.Assign) and not calls and all(isinstance(target, ast.Name) for target in node.targets):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        inner = [*ast.walk(function)]
        reads = {it.id for it in inner if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load)}
        shared = {name for it in inner if isinstance(it, (ast.Global, ast.Nonlocal)) for name in it.names}
        return names.isdisjoint(reads | shared)
    return False


def lessened(statement: ast.stmt) -> Iterator[str]:
    """Yield a statement without each of its arguments, and with another value for each of its numbers."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value = cast("float", node.value) + 1
            yield ast.unparse(statement)
            node.value -= 1
        elif isinstance(node, ast.Call):
            for arguments in cast("tuple[list[ast.AST], ...]", (node.args, node.keywords)):
                for at in range(len(arguments)):
                    left = arguments.pop(at)
                    yield ast.unparse(statement)
                    arguments.insert(at, left)


def moved(unlike: Unlike, before: Source, after: Source) -> Unlike:
    """Return the lines of the rewritten file that have the same text."""
    pairs = difflib.SequenceMatcher(None, before.text.split("\n"), after.text.split("\n"), autojunk=False)
    there = {a + at + 1: b + at + 1 for a, b, size in pairs.get_matching_blocks() for at in range(size)}
    lines = ([there[line] for line in found if line in there] if found is not None else None for found in unlike)
    return Unlike(*lines)  # type: ignore[arg-type]
