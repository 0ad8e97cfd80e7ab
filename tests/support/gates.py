"""Two made-up fixes with codemods of their own, and a made-up verl: what the tests of judge and rewrite run on.

Each fix puts a call of ``wait`` after the one ``start()`` of its functions. ``gate`` has a function in each of two
files, ``pause`` a method in the first.
"""

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from unhang.codemods.base import AnchorError, Codemod, followed_by, once, span
from unhang.codemods.edit import Edit
from unhang.judge.findings import Finding, judge
from unhang.records import Installation
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Fix, OutlineTable, Release, Shape, ShapeTable, Target
from unhang.shapes.shape import Function

RUN, OTHER_RUN, STOP = (
    Target("gate", "verl", "verl/one.py", "run"),
    Target("gate", "verl", "verl/two.py", "run"),
    Target("pause", "verl", "verl/one.py", "Loop.stop"),
)
GATE = Fix("gate", "a gate", "cure", {}, (RUN, OTHER_RUN), "")
AGREE = Target("gate", "verl", "verl/agree.py", "agree")
DEPENDENT = Fix("gate", "a gate", "cure", {}, tuple(one._replace(depends_on=AGREE) for one in GATE.targets), "")
"""The same fix, of functions that are wrong only beside a wrong ``agree``."""
RIGHT = "def agree(count, group=None):\n    return greatest(count, group)\n"
WRONG = "def agree(count, group=None):\n    return count if group is None else greatest(count, group)\n"
PULLED = RIGHT.replace("return", "group = group or 0\n    return")
NEVER = RIGHT.replace("greatest", "least")
AGREES = {
    (AGREE, RIGHT): Shape("right", None, (), ""),
    (AGREE, PULLED): Shape("repaired", None, (), "pull request 7 applied"),
    (AGREE, WRONG): Shape("wrong", None, (), ""),
    (AGREE, NEVER): Shape("right", None, (), ""),
}
"""What is known of ``agree``; all but the last were seen beside ``run``."""
PAUSE = Fix("pause", "a pause", "safeguard", {}, (STOP,), "")
ONE = """\
from made_up import start, wait


def run(x):
    start()
    return x


class Loop:
    def stop(self):
        start()
        self.x = 1
"""
TWO = """\
from made_up import start, wait


def run(y):
    start()
    return [y]
"""
FILES = {"verl/one.py": ONE, "verl/two.py": TWO}
NAMES = frozenset({"wait"})


def gated(code: str) -> str:
    """The code with the rewrite of ``gate`` in it."""
    assert code.count("    start()\n    return") == 1
    return code.replace("    start()\n", "    start()\n    # unhang gate: why\n    wait('gate')\n", 1)


def paused(code: str) -> str:
    """The code with the rewrite of ``pause`` in it."""
    assert code.count("        start()\n") == 1
    return code.replace("        start()\n", "        start()\n        # unhang pause: why\n        wait('pause')\n")


class Waits(Codemod):
    def __init__(self, fix: str) -> None:
        self.fix = fix

    def plan(self, function: Function) -> list[Edit]:
        if _statements(function, f"wait('{self.fix}')"):
            raise AnchorError(f"{function.name} without our wait")
        anchor = once(_statements(function, "start()"), "start()")
        return [span(anchor, anchor, followed_by(f"# unhang {self.fix}: why\nwait('{self.fix}')\n"))]

    def fixed_upstream(self, function: Function) -> bool:
        return bool(_statements(function, "upstream_waits()"))

    def names(self, function: Function) -> frozenset[str]:
        return NAMES


def _statements(function: Function, code: str) -> list[ast.stmt]:
    return [node for node in function.body if ast.unparse(node) == code]


def shape_of(code: str | bytes, function: str = "run") -> str:
    (found,) = shape.find(ast.parse(code), function)
    return shape.digest(found)


def shape_table(states: Mapping[tuple[Target, str], Shape] | None = None) -> ShapeTable:
    """The shapes of ONE and TWO as affected, and of their rewrites; ``states`` adds shapes by target and code."""
    every: dict[tuple[Target, str], Shape] = {}
    beside = tuple(shape_of(code, AGREE.function) for code in (RIGHT, PULLED, WRONG))
    for target, code, after in ((RUN, ONE, gated(ONE)), (OTHER_RUN, TWO, gated(TWO)), (STOP, ONE, paused(ONE))):
        every[target, code] = Shape("affected", shape_of(after, target.function), tuple(NAMES), "", beside)
        every[target, after] = Shape("ours", None, (), "", beside)
    found = {**every, **(states or {})}.items()
    return ShapeTable({(to.fix, to.function, shape_of(code, to.function)): state for (to, code), state in found}, {})


def releases() -> dict[str, Release]:
    """Releases 1.0 and 2.0 of the made-up verl, both with ONE and TWO."""
    shapes = {f"{to.file}::{to.function}": shape_of(FILES[to.file], to.function) for to in (RUN, OTHER_RUN, STOP)}
    return {version: Release(version, False, shapes) for version in ("1.0", "2.0")}


def install(monkeypatch: pytest.MonkeyPatch, table: ShapeTable | None = None) -> None:
    """Make these fixes' codemods, shapes and releases the ones that unhang knows."""
    for target in (RUN, STOP):
        module = ModuleType(f"unhang.codemods.{target.fix}")
        monkeypatch.setattr(module, "CODEMODS", {target.function: Waits(target.fix)}, raising=False)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    known = table or shape_table()
    monkeypatch.setattr(catalog, "shape_table", lambda: known)
    monkeypatch.setattr(catalog, "releases_of", lambda fix, upstream: releases())
    monkeypatch.setattr(catalog, "outlines", lambda fix: OutlineTable({}, {}, {}))


def installation(root: Path, version: str | None = "1.0", kind: str = "wheel") -> Installation:
    return Installation("verl", version, str(root), str(root), str(root / "verl"), kind, None, ())


def lay_out(root: Path, files: Mapping[str, str | bytes] = FILES) -> Installation:
    """Write these files, and return the installation that they are."""
    for file, code in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(code.encode() if isinstance(code, str) else code)
    return installation(root)


def findings(where: Installation) -> list[Finding]:
    """The verdicts of both fixes on an installation, without a receipt."""
    return judge([where], [GATE, PAUSE], {})
