"""Outlines: equal on every Python, as distinct as shapes, and free of upstream's code."""

import ast

import pytest

from support.checkout import COMPAT
from unhang.shapes import catalog, outline, shape


def function(code: str) -> shape.Function:
    node = ast.parse(code).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node


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
    assert ",".join(f"{entry.depth} {entry.kind}" for entry in outline.outline(function(code))) == wanted


def test_a_digest_leaves_out_nested_statements_and_the_depth() -> None:
    one, other = (outline.outline(function(f"def f(x):\n a = 1\n with x:\n  a = {n}\n  b = 2\n")) for n in (1, 3))
    assert [left.kind for left, right in zip(one, other) if left.digest != right.digest] == ["Assign"]
    assert (one[1].digest, one[1].depth, one[3].depth) == (one[3].digest, 1, 2)


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


# -- the data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fix", catalog.fixes())
def test_every_shape_in_a_file_on_record_has_an_outline_of_its_own(fix: str) -> None:
    """Of no other shape: what people edit is a release, a branch's tip, or our rewrite of one."""
    table, files = catalog.outlines(fix), catalog.shape_table().of_files(fix)
    seen: dict[tuple[str, str], str] = {}
    for (function_, digest), (name, _) in table.rows.items():
        assert seen.setdefault((function_, name), digest) == digest
        assert outline.unpacked(name, table.blocks, table.kinds)[0].kind in ("FunctionDef", "AsyncFunctionDef")
    assert {*table.rows} == {pair for row in files.values() for pair in row.items() if pair[1] is not None}


@pytest.mark.parametrize("fix", catalog.fixes())
def test_the_data_is_small_and_only_digests_kinds_and_places(fix: str) -> None:
    path, table = COMPAT / "data" / f"{fix}.json", catalog.outlines(fix)
    assert path.stat().st_size < 200_000
    assert max(len(line) for line in path.read_text().splitlines()) < 2_000
    assert all(hasattr(ast, kind) for kind in {*table.kinds.values()} - {"elif", "else", "finally"})
    for name, block in table.blocks.items():
        assert all(set(word) <= set("0123456789abcdef") and len(word) == 8 for word in [name, *block.split()])
