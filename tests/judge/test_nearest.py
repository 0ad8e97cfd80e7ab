"""The known shape closest to an unknown one: which it is, where the two differ, and what is said of it."""

import ast
from collections.abc import Mapping

import pytest

from support import wheels
from unhang.compat.sweep.outlines import Packed
from unhang.judge.nearest import Nearest, nearest
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Release, Shape, ShapeTable, Target
from unhang.shapes.outline import outline

READ = {
    "verl": ["0.7.1", "0.9.1"],
    "ms-swift": ["4.6.0"],
    "megatron-bridge": ["0.3.1", "0.6.2"],
    "mcore-bridge": ["1.4.2"],
    "trl": ["1.9.0"],
}
TARGET = Target("made-up", "verl", "verl/x.py", "f")
KNOWN = """\
def f(x):
    a = 1
    if x:
        b = 2
        c = 3
    else:
        d = 4
    for e in x:
        g(e)
    h = a + 1
    return h
"""


def function(code: str) -> shape.Function:
    (node,) = shape.find(shape.parse(code.encode()), "f")
    return node


def look(
    code: str,
    known: Mapping[str, tuple[str, Shape]],
    releases: Mapping[str, Release] | None = None,
    key: tuple[str, str] = ("made-up", "f"),
) -> Nearest | None:
    """Return what is nearest to some code, of made-up known shapes: code -> where it was last, and its state."""
    nodes = [(function(text), last) for text, (last, _) in known.items()]
    packed = Packed()
    named = {(key[1], shape.digest(node)): (packed.add(outline(node)), last) for node, last in nodes}
    shapes = {(*key, shape.digest(node)): state for (node, _), (_, state) in zip(nodes, known.values())}
    table = OutlineTable(packed.kinds, packed.blocks, named)
    return nearest(TARGET, function(code), code.encode(), ShapeTable(shapes, {}), table, releases or {})


AFFECTED = Shape("affected", "0" * 16, (), "a note")


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("a = 1\n", "a = 1\n    z = 0\n", [(3, "added", "Assign", "z = 0")]),
        ("a = 1\n", "a = 2\n", [(2, "changed", "Assign", "a = 2")]),
        ("    a = 1\n", "", [(2, "missing", "Assign", "if x:")]),
        ("    return h\n", "", [(10, "missing", "Return", "h = a + 1")]),
        ("if x:\n", "if x and y:\n", [(3, "changed", "If", "if x and y:")]),
        ("f(x)", "f(x, y)", [(1, "changed", "FunctionDef", "def f(x, y):")]),
        ("    else:\n        d = 4\n", "",
         [(6, "missing", "else", "for e in x:"), (6, "missing", "Assign", "for e in x:")]),
        ("        g(e)\n", "        with y:\n            g(e)\n", [(9, "added", "With", "with y:")]),
        ("        g(e)\n", "        g(e)\n    else:\n        # why\n        i()\n",
         [(10, "added", "else", "else:"), (12, "added", "Expr", "i()")]),
        ("    h = a + 1\n", "        h = a + 1\n", [(10, "moved", "Assign", "h = a + 1")]),
        ("        c = 3\n    else:\n", "    else:\n        c = 3\n",
         [(5, "added", "else", "else:"), (6, "moved", "Assign", "c = 3"), (7, "missing", "else", "d = 4")]),
        ("a = 1\n", 'a = "\x1b[31m\u4e2d"\n', [(2, "changed", "Assign", 'a = "?[31m\\u4e2d"')]),
        ("a = 1\n", "# a comment\n\n    a = (1)\n", []),
        ("a = 1\n", f"a = {'1' * 100}\n", [(2, "changed", "Assign", f"a = {'1' * 73}...")]),
    ],
)  # fmt: skip
def test_where_two_functions_differ(old: str, new: str, wanted: list[tuple[int, str, str, str]]) -> None:
    assert KNOWN.count(old) == 1
    found = look(KNOWN.replace(old, new), {KNOWN: ("2026-01-01 abc", AFFECTED)})
    assert [*(found.differs if found is not None else ())] == wanted


def test_the_closest_of_several_is_chosen() -> None:
    far, near = KNOWN.replace("a = 1", "a = 5").replace("d = 4", "d = 5"), KNOWN.replace("h = a + 1", "h = a")
    for order in ([far, near, KNOWN], [KNOWN, near, far]):
        found = look(KNOWN.replace("d = 4", "d = 6"), dict.fromkeys(order, ("2026-01-01 abc", AFFECTED)))
        assert found is not None
        assert (found.shape, len(found.differs)) == (shape.digest(function(KNOWN)), 1)


def test_of_equally_close_shapes_the_newest_is_chosen_and_what_upstream_never_had_comes_last() -> None:
    places = list(enumerate(("", "2025-12-31 fff", "2026-01-01 000", "")))
    for order in (places, places[::-1]):
        found = look(KNOWN, {KNOWN.replace("d = 4", f"d = {number}"): (place, AFFECTED) for number, place in order})
        assert found is not None
        assert found.where == "last in 2026-01-01 000"
        assert found.shape == shape.digest(function(KNOWN.replace("d = 4", "d = 2")))


def test_of_equally_close_shapes_one_to_which_statements_were_only_added_comes_first() -> None:
    edited = KNOWN.replace("    h = a + 1\n", "    fork = 1\n    h = a + 1\n")
    newer = KNOWN.replace("    h = a + 1\n", "    upstream = 1\n    h = a + 1\n")
    found = look(edited, {KNOWN: ("2025-01-01 abc", AFFECTED), newer: ("2026-01-01 def", AFFECTED)})
    assert found is not None
    assert (found.shape, [item.how for item in found.differs]) == (shape.digest(function(KNOWN)), ["added"])


def test_no_shape_is_close_if_more_differs_than_is_equal_or_it_is_of_another_fix_or_function() -> None:
    known = {KNOWN: ("2026-01-01 abc", AFFECTED)}
    assert look("def f(y):\n    return 1\n", known) is None
    assert look(KNOWN.replace("a = 1", "a = 2"), {}) is None
    for key, there in {("other", "f"): False, ("made-up", "g"): False, ("made-up", "f"): True}.items():
        assert (look(KNOWN.replace("a = 1", "a = 2"), known, key=key) is not None) is there


OURS = Shape("ours", None, (), "")


@pytest.mark.parametrize(
    ("versions", "last", "state", "where"),
    [
        (["1.0", "1.10", "1.9", "2.0.dev0"], "2026-01-01 abc", AFFECTED, "verl 1.0 to 1.10"),
        (["1.0rc1"], "2026-01-01 abc", AFFECTED, "verl 1.0rc1"),
        (["1.0.dev2", "1.0.dev1"], "", AFFECTED, "verl 1.0.dev1 to 1.0.dev2"),
        ([], "2026-01-01 abc", AFFECTED, "last in 2026-01-01 abc"),
        ([], "", AFFECTED, "a note"),
        ([], "", OURS, "our own rewrite"),
    ],
)
def test_where_the_known_shape_is_found(versions: list[str], last: str, state: Shape, where: str) -> None:
    digest = shape.digest(function(KNOWN))
    releases = {version: Release(version, False, {"verl/moved.py::f": digest}) for version in versions}
    releases["0.1"] = Release("0.1", False, {"verl/x.py::f": None, "verl/x.py::g": digest})
    found = look(KNOWN.replace("a = 1", "a = 2"), {KNOWN: (last, state)}, releases)
    assert found is not None
    assert found.where == where


def test_the_sentence_has_the_count_and_the_first_difference() -> None:
    found = look(KNOWN.replace("    a = 1\n", "").replace("d = 4", "d = 5"), {KNOWN: ("", OURS)})
    assert found is not None
    assert found.sentence() == (
        f"closest known shape: {shape.digest(function(KNOWN))} (ours; our own rewrite), 2 statements differ, first at "
        "line 2: a statement of kind Assign is missing near `if x:`"
    )


def test_a_real_function_with_one_more_statement_is_nearest_to_itself() -> None:
    """The one difference is the added statement, and the nearest shape is that of the function it was added to."""
    seen = 0
    for target in (target for fix in catalog.fixes().values() for target in fix.targets):
        project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
        for version in READ.get(project, ["0.14.0", "0.17.1", "0.19.2"]):
            data = wheels.read(project, version, target.file)
            found = shape.find(shape.parse(data), target.function) if data is not None else []
            if not found:
                continue
            before = shape.digest(found[0])
            found[0].body[-1:-1] = ast.parse("made_up = 'by a fork'").body
            text = ast.unparse(found[0])
            (changed,) = ast.parse(text).body
            assert isinstance(changed, (ast.FunctionDef, ast.AsyncFunctionDef))
            table, releases = catalog.shape_table(), catalog.releases()[target.upstream]
            near = nearest(target, changed, text.encode(), table, catalog.outlines(target.fix), releases)
            assert near is not None
            assert near.shape == before
            assert [(item.how, item.text) for item in near.differs] == [("added", "made_up = 'by a fork'")]
            assert near.state == table.shapes[target.fix, target.function, before].state
            assert f"{target.upstream} " in near.where
            seen += 1
    assert seen >= 9
