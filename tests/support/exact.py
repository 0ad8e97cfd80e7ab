"""A made-up fix from a diff alone: what it does to a made-up verl, target by target."""

from collections.abc import Mapping
from types import ModuleType

import pytest

from unhang.codemods.exact import ADDED, HEADER, IMPORT, REPLACED, Exact, Swap
from unhang.judge import decide
from unhang.shapes import binding, catalog, shape
from unhang.shapes.catalog import Fix, OutlineTable, Shape, ShapeTable, Target

FILE = "verl/one.py"
PLAIN = """\
import os
from typing import Any, List

# how
# far
LIMIT = 3
if os.name:
    KEEP = 1


class Loop:
    size: int = 1
    '''How many.'''

    @property
    def first(self, x):
        return x


def run(x):
    # why
    return x
"""
PATCHED = """\
import os
# unhang exact: unproved
from typing import List
from collections.abc import Any
# unhang exact: added after Any
import sys

# how
# unhang exact: unproved
# near
LIMIT = 4
if os.name:
    KEEP = 1


class Loop:
    size: int = 1
    '''How many.'''
    # unhang exact: added after size
    shape: tuple = ()
    '''How long.'''

    # unhang exact: unproved
    @cached
    async def first(self, x, *, y=1):
        return x

    # unhang exact: added after first
    def last(self):
        return '''
  as it is'''


# unhang exact: added before run
# to begin
def start():
    pass


def run(x):
    # why
    # unhang exact: unproved
    return x + 1
"""
"""As upstream's file would be, but for the order of the imports."""


def target(name: str, how: str = "", beside: str = "") -> Target:
    return Target("exact", "verl", FILE, name, binding=True, beside=(how, beside) if how else None)


def shape_of(code: str, one: Target) -> str:
    found = binding.of(shape.parse(code.encode()), one)
    assert found is not None
    return found


EDITS: Mapping[Target, Exact] = {
    target("LIMIT"): Exact(Swap(REPLACED, "# far\nLIMIT = 3\n", "# near\nLIMIT = 4\n")),
    target("Any"): Exact(Swap(IMPORT, "from typing import Any\n", "from collections.abc import Any\n")),
    target("sys", "after", "Any"): Exact(Swap(ADDED, "", "import sys\n")),
    target("Loop.shape", "after", "size"): Exact(Swap(ADDED, "", "shape: tuple = ()\n'''How long.'''\n")),
    target("Loop.first"): Exact(
        Swap(HEADER, "@property\ndef first(self, x):\n", "@cached\nasync def first(self, x, *, y=1):\n")
    ),
    target("Loop.last", "after", "first"): Exact(Swap(ADDED, "", "\ndef last(self):\n    return '''\n  as it is'''\n")),
    target("start", "before", "run"): Exact(Swap(ADDED, "", "# to begin\ndef start():\n    pass\n\n\n")),
    target("run"): Exact(Swap(REPLACED, "return x\n", "return x + 1\n"), uses=["LIMIT"]),
}
FIX = Fix("exact", "a diff", "unproved", {}, tuple(EDITS), "", (), True)
SHAPES = {one: tuple(shape_of(code, one) for code in (PLAIN, PATCHED)) for one in EDITS}
"""The shape of each target before and after."""


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it a fix that unhang knows, with these shapes on record."""
    module = ModuleType("unhang.codemods.exact_")
    edits = {one.function: change for one, change in EDITS.items()}
    monkeypatch.setattr(decide, "codemods", lambda _: module)
    monkeypatch.setattr(module, "CODEMODS", edits, raising=False)
    shapes = {}
    for one, (before, after) in SHAPES.items():
        shapes["exact", one.function, before] = Shape("affected", after, (), "")
        shapes["exact", one.function, after] = Shape("ours", None, (), "")
    table = ShapeTable(shapes, {})
    monkeypatch.setattr(catalog, "shape_table", lambda: table)
    monkeypatch.setattr(catalog, "releases_of", lambda fix, upstream: {})
    monkeypatch.setattr(catalog, "outlines", lambda fix: OutlineTable({}, {}, {}))
