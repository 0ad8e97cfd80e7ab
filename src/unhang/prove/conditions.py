"""Follows which way each condition of a function goes, instruction by instruction, over all runs of a scene."""

from __future__ import annotations

import ast
import dis
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType


_TOOL = 4
"""A number that no debugger, profiler or coverage tool has."""


class Conditions:
    """A context in which the conditions of some code are followed, until all went both ways; what was seen of them."""

    def __init__(self, code: CodeType, text: str, held: Mapping[str, str]) -> None:
        """``code`` is compiled from ``text``; ``held`` has patterns of conditions that need not go both ways.

        Or the name of a function in the code: then none of its conditions need.
        """
        self.codes, self.held, self.lines = [*_functions(code)], held, text.splitlines()
        nodes = [*ast.walk(ast.parse(text))]
        self.asserted = {
            line
            for node in nodes
            if isinstance(node, ast.Assert)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        self.heads = {node.lineno: node.test.end_lineno for node in nodes if isinstance(node, (ast.If, ast.While))}
        """The last line of each statement's condition, by the first."""
        self.steps: set[tuple[int, int, int]] = set()
        """Each with the number of a code object, and the offsets of two instructions that ran one after the other."""
        self._numbers = {id(code): number for number, code in enumerate(self.codes)}
        self._left = True

    def __enter__(self) -> None:
        self._known = len(self.steps)
        if self._left:  # to follow each call takes long
            self._follow()

    def __exit__(self, *_: object) -> None:
        if self._left:
            _stop()
            self._left = len(self.steps) == self._known or bool(self.open())

    if sys.version_info >= (3, 12):  # a trace misses a function's first call there

        def _follow(self) -> None:
            def went(code: CodeType, before: int, after: int) -> None:
                self.steps.add((self._numbers[id(code)], before, after))

            monitoring = sys.monitoring
            monitoring.use_tool_id(_TOOL, "unhang")
            monitoring.register_callback(_TOOL, monitoring.events.BRANCH, went)
            for code in self.codes:
                monitoring.set_local_events(_TOOL, code, monitoring.events.BRANCH)

    else:

        def _follow(self) -> None:
            sys.settrace(self._called)

        def _called(self, frame: FrameType, event: str, _: object) -> Any:
            number = self._numbers.get(id(frame.f_code))
            if number is None:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            last = -1

            def stepped(frame: FrameType, event: str, _: object) -> Any:
                nonlocal last
                if event == "opcode":
                    self.steps.add((number, last, frame.f_lasti))
                    last = frame.f_lasti
                return stepped

            return stepped

    def open(self) -> list[str]:
        """Return the text of each condition that went one way only, or never ran, and that is not held; with where."""
        codes = [(number, code) for number, code in enumerate(self.codes) if code.co_name not in self.held]
        found: dict[str, str] = {}
        for text, place in (one for number, code in codes for one in self._open(number, code)):
            found.setdefault(text, place)
        return [f"{text} ({found[text]})" for text in found if not any(re.search(it, text) for it in self.held)]

    def _open(self, number: int, code: CodeType) -> Iterator[tuple[str, str]]:
        """Yield each open condition of some code, and its line with the only one that it went on to."""
        ways: dict[int, set[int]] = {}
        for at, before, after in self.steps:
            if at == number:
                ways.setdefault(before, set()).add(after)
        offsets: list[int] = []
        names: list[str] = []
        starts = [(offset, row) for offset, row in dis.findlinestarts(code) if row]
        line, last = code.co_firstlineno, next(dis.get_instructions(code))
        for instruction in dis.get_instructions(code):
            offsets.append(instruction.offset)
            names.append(instruction.opname)
            if type(instruction.starts_line) is int:  # from Python 3.13 on it is a bool
                line = instruction.starts_line
            if instruction.opname == "EXTENDED_ARG":  # it and what it extends are one step
                continue
            went = {after for at in offsets for after in ways.get(at, ())}
            is_condition = re.search("JUMP.*_IF_", names[-1]) and "WITH_EXCEPT_START" not in names[-3:]
            if is_condition and len(went) < 2:
                at, text = self._text(instruction, line)
                if at not in self.asserted:
                    on = [row for offset, row in starts if went and offset <= min(went)]
                    # Python 3.11 gives a jump after a later operand the place of the first one
                    of = f" `{self._text(last, line)[1]}`" if sys.version_info >= (3, 11) else ""
                    yield text, f"line {at}{of} {f'goes on to line {on[-1]} alone' if on else 'never ran'}"
            offsets, last = [], instruction

    def _text(self, instruction: dis.Instruction, line: int) -> tuple[int, str]:
        """Return the line of a condition, and its text; on Python 3.10, the line's."""
        place: Any = getattr(instruction, "positions", None)
        line = (place and place.lineno) or line
        rows = self.lines[line - 1 : self.heads.get(line, (place and place.end_lineno) or line)]
        if place and place.lineno == place.end_lineno and place.end_col_offset is not None:
            return line, rows[0].encode()[place.col_offset : place.end_col_offset].decode()
        return line, " ".join(row.strip() for row in rows)


def _stop() -> None:
    if sys.version_info >= (3, 12):
        sys.monitoring.free_tool_id(_TOOL)
    else:
        sys.settrace(None)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of each function in some code, without that of modules and classes."""
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield code
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            yield from _functions(inner)
