"""Outlines: equal on every Python, as distinct as shapes, and free of upstream's code."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

import unhang
from shapes.test_shape import NASTY, interpreter
from support import wheels
from support.checkout import COMPAT
from unhang.shapes import catalog, outline, shape

DATA = COMPAT / "data" / "outlines.json"
TARGETS = [target for fix in catalog.fixes().values() for target in fix.targets]
SCRIPT = """
import ast, json, sys
from unhang.shapes import outline
tree = ast.parse(sys.stdin.read())
functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
print(json.dumps([sys.version_info[1], [outline.placed_outline(function) for function in functions]]))
"""


def function(code: str) -> shape.Function:
    node = ast.parse(code).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


def kinds(code: str) -> list[str]:
    return [f"{entry.depth} {entry.kind}" for entry in outline.outline(function(code))]


def test_what_an_outline_lists() -> None:
    code = '''
def f(x):
    """Not this."""
    def g():
        """Nor this."""
    if x:
        a = 1
    elif y:
        pass
    else:
        b = 2
    for i in x:
        try:
            pass
        except OSError:
            return
        finally:
            g()
    match x:
        case 1 if y:
            pass
'''
    wanted = (
        "0 FunctionDef,1 FunctionDef,1 If,2 Assign,1 elif,2 Pass,1 else,2 Assign,1 For,2 Try,3 Pass,3 ExceptHandler,"
        "4 Return,2 finally,3 Expr,1 Match,2 match_case,3 Pass"
    )
    assert ",".join(kinds(code)) == wanted


def test_a_digest_leaves_out_nested_statements() -> None:
    one = outline.outline(function("def f(x):\n    with x:\n        a = 1\n        b = 2\n"))
    other = outline.outline(function("def f(x):\n    with x:\n        a = 3\n        b = 2\n"))
    differ = [left.kind for left, right in zip(one, other) if left.digest != right.digest]
    assert differ == ["Assign"]


def test_a_statement_has_the_same_digest_at_every_depth() -> None:
    first, _, second = outline.outline(function("def f():\n    a = 1\n    if x:\n        a = 1\n"))[1:]
    assert (first.digest, first.depth, second.depth) == (second.digest, 1, 2)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("if x: a()\n    b()", "if x:\n        a()\n        b()"),
        ("if x: a()\n    else: b()", "if x:\n        a()\n        b()"),
        ("if x:\n        if y: a()\n        else: b()", "if x:\n        if y: a()\n    else: b()"),
        ("if x: a()\n    elif y: b()", "if x: a()\n    if y: b()"),
        ("try: a()\n    finally: b()", "try: a()\n    except: b()"),
        ("for x in y: a()\n    else: b()", "for x in y: a()\n    b()"),
        ("return a", "return b"),
    ],
)
def test_two_shapes_have_two_outlines(left: str, right: str) -> None:
    one, other = (function(f"def f(x):\n    {code}\n") for code in (left, right))
    assert shape.digest(one) != shape.digest(other)
    assert outline.outline(one) != outline.outline(other)


def test_parents() -> None:
    code = "def f():\n    if x:\n        a()\n    else:\n        b()\n    c()\n"
    assert outline.parents(outline.outline(function(code))) == [-1, 0, 1, 0, 3, 0]


def test_an_arm_has_a_line() -> None:
    code = "def f(x):\n    match x:\n        case 1: pass\n\n    try:\n        a()\n    finally:\n\n        b()\n"
    lines = [(placed.entry.kind, placed.line) for placed in outline.placed_outline(function(code))]
    assert lines[2:] == [("match_case", 3), ("Pass", 3), ("Try", 5), ("Expr", 6), ("finally", 9), ("Expr", 9)]


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_an_outline_is_equal_on_every_python(minor: int, tmp_path: Path) -> None:
    python = interpreter(minor)
    assert unhang.__file__ is not None
    os.symlink(Path(unhang.__file__).parent, tmp_path / "unhang")
    code = NASTY
    for target in TARGETS:
        project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
        version = {"verl": "0.7.1", "ms-swift": "4.6.0"}.get(project, "0.17.1")
        data = wheels.read(project, version, target.file)
        found = shape.find(shape.parse(data), target.function) if data is not None else []
        # the source, not ast.unparse: newer Pythons write code that older ones do not parse
        rows = (data or b"").decode().splitlines(keepends=True)
        code += "".join("\n" + textwrap.dedent("".join(rows[node.lineno - 1 : node.end_lineno])) for node in found)
    done = subprocess.run(
        [python, "-W", "ignore", "-c", SCRIPT],
        input=code.encode(),
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    version_, found_there = json.loads(done.stdout)
    nodes = [node for node in ast.parse(code).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert version_ == minor
    assert found_there == json.loads(json.dumps([outline.placed_outline(node) for node in nodes]))
    assert sum(map(len, found_there)) > 500


# -- the data ---------------------------------------------------------------------------------------------------------


def test_every_shape_on_record_has_an_outline_of_its_own() -> None:
    known, table = catalog.shape_table(), catalog.outlines()
    seen: dict[tuple[str, str], str] = {}
    for (function_, digest), (name, _) in table.rows.items():
        assert seen.setdefault((function_, name), digest) == digest
        assert outline.unpacked(name, table.blocks, table.kinds)[0].kind == "FunctionDef"
    on_record = {key[1:] for key, row in known.shapes.items() if row.state != "superseded"}
    assert set(table.rows) == on_record


def test_the_data_has_the_outlines_of_real_functions() -> None:
    table, seen = catalog.outlines(), 0
    for target, version in ((target, "0.17.1") for target in TARGETS if target.upstream.startswith("megatron")):
        data = wheels.read("megatron-core", version, target.file)
        for node in shape.find(shape.parse(data), target.function) if data is not None else []:
            name, _ = table.rows[target.function, shape.digest(node)]
            assert outline.unpacked(name, table.blocks, table.kinds) == outline.outline(node)
            seen += 1
    assert seen >= 3


def test_the_data_is_small_and_only_digests_kinds_and_places() -> None:
    data = json.loads(DATA.read_text())
    assert DATA.stat().st_size < 250_000
    assert max(len(line) for line in DATA.read_text().splitlines()) < 2_000
    kinds_ = set(data["kinds"].values())
    assert all(hasattr(ast, kind) for kind in kinds_ - {"elif", "else", "finally"})
    for name, block in data["blocks"].items():
        assert all(set(word) <= set("0123456789abcdef") and len(word) == 8 for word in [name, *block.split()])
