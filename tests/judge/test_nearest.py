"""The closest known shape of an unknown one: what is told, and that it never softens a verdict; forks, end to end."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import cli, wheels
from unhang.compat.sweep import outlines
from unhang.judge.nearest import Nearest, nearest
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import OutlineTable, Release, Shape, ShapeTable, Target
from unhang.shapes.outline import outline

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
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
PARALLEL_STATE = "megatron/core/parallel_state.py"
EXPERTS = "megatron/core/transformer/moe/experts.py"


def row_of(qualified: str, function: shape.Function, last: str) -> outlines.Row:
    return outlines.Row(qualified, shape.digest(function), last, tuple(outline(function)))


def function(code: str) -> shape.Function:
    (node,) = shape.find(shape.parse(code.encode()), "f")
    return node


def look(
    code: str, known: Mapping[str, tuple[str, Shape]], releases: Mapping[str, Release] | None = None
) -> Nearest | None:
    """What is nearest to some code, of made-up known shapes: their code -> their last place and their state."""
    rows = [row_of("f", function(text), last) for text, (last, _) in known.items()]
    data = json.loads(outlines.render(rows))
    table = OutlineTable(
        data["kinds"],
        data["blocks"],
        {("f", row["shape"]): (row["outline"], row.get("last", "")) for row in data["outlines"]},
    )
    shapes = {("made-up", "f", row.shape): state for row, (_, state) in zip(rows, known.values())}
    return nearest(TARGET, function(code), code.encode(), ShapeTable(shapes, {}), table, releases or {})


def affected(note: str = "") -> Shape:
    return Shape("affected", "0" * 16, (), note)


def differs(old: str, new: str) -> list[tuple[int, str, str, str]]:
    """How KNOWN, with one text in place of another, is said to differ from it."""
    assert KNOWN.count(old) == 1
    found = look(KNOWN.replace(old, new), {KNOWN: ("2026-01-01 abc", affected())})
    return list(found.differs) if found is not None else []


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
        ("a = 1\n", f"a = {'1' * 100}\n", [(2, "changed", "Assign", f"a = {'1' * 73}...")]),
    ],
)  # fmt: skip
def test_where_two_part(old: str, new: str, wanted: list[tuple[int, str, str, str]]) -> None:
    assert differs(old, new) == wanted


def test_what_says_nothing_about_meaning_is_no_difference() -> None:
    assert differs("a = 1\n", "# a comment\n\n    a = (1)\n") == []


def test_the_closest_of_several_is_told() -> None:
    far, near = KNOWN.replace("a = 1", "a = 5").replace("d = 4", "d = 5"), KNOWN.replace("h = a + 1", "h = a")
    code = KNOWN.replace("d = 4", "d = 6")
    for order in ([far, near, KNOWN], [KNOWN, near, far]):
        found = look(code, {text: ("2026-01-01 abc", affected()) for text in order})
        assert found is not None
        assert (found.shape, len(found.differs)) == (shape.digest(function(KNOWN)), 1)


def test_of_equally_close_ones_the_newest_is_told_and_what_upstream_never_had_last() -> None:
    told = {f"d = {number}": place for number, place in enumerate(("", "2025-12-31 fff", "2026-01-01 000", ""))}
    for order in (list(told), list(told)[::-1]):
        known = {KNOWN.replace("d = 4", text): (told[text], affected("a note")) for text in order}
        found = look(KNOWN, known)
        assert found is not None
        assert found.where == "last in 2026-01-01 000"
        assert found.shape == shape.digest(function(KNOWN.replace("d = 4", "d = 2")))


def test_where_less_is_equal_than_differs_none_is_close() -> None:
    code = "def f(y):\n    return 1\n"
    assert look(code, {KNOWN: ("2026-01-01 abc", affected())}) is None
    assert look(code, {}) is None


def test_only_shapes_of_the_same_fix_and_function_are_looked_at() -> None:
    rows = [row_of("f", function(KNOWN), "")]
    data = json.loads(outlines.render(rows))
    table = OutlineTable(data["kinds"], data["blocks"], {("f", rows[0].shape): (data["outlines"][0]["outline"], "")})
    code = KNOWN.replace("a = 1", "a = 2")
    for key, wanted in {("other", "f"): None, ("made-up", "g"): None, ("made-up", "f"): rows[0].shape}.items():
        shapes = ShapeTable({(*key, rows[0].shape): affected()}, {})
        found = nearest(TARGET, function(code), code.encode(), shapes, table, {})
        assert (found.shape if found is not None else None) == wanted


@pytest.mark.parametrize(
    ("versions", "last", "state", "where"),
    [
        (["1.0", "1.10", "1.9", "2.0.dev0"], "2026-01-01 abc", affected(), "verl 1.0 to 1.10"),
        (["1.0rc1"], "2026-01-01 abc", affected(), "verl 1.0rc1"),
        (["1.0.dev2", "1.0.dev1"], "", affected(), "verl 1.0.dev1 to 1.0.dev2"),
        ([], "2026-01-01 abc", affected("a note"), "last in 2026-01-01 abc"),
        ([], "", affected("pull request 1 applied"), "pull request 1 applied"),
        ([], "", Shape("ours", None, (), ""), "our own rewrite"),
    ],
)
def test_who_has_the_known_shape(versions: list[str], last: str, state: Shape, where: str) -> None:
    digest = shape.digest(function(KNOWN))
    releases = {version: Release(version, False, {"verl/moved.py::f": digest}) for version in versions}
    releases["0.1"] = Release("0.1", False, {"verl/x.py::f": None, "verl/x.py::g": digest})
    found = look(KNOWN.replace("a = 1", "a = 2"), {KNOWN: (last, state)}, releases)
    assert found is not None
    assert found.where == where


def test_the_sentence_counts_and_shows_the_first() -> None:
    found = look(KNOWN.replace("    a = 1\n", "").replace("d = 4", "d = 5"), {KNOWN: ("", Shape("ours", None, (), ""))})
    assert found is not None
    assert found.sentence() == (
        f"closest known shape: {shape.digest(function(KNOWN))} (ours; our own rewrite), 2 statements differ, first at "
        "line 2: a statement of kind Assign is missing near `if x:`"
    )


def test_every_known_shape_is_its_own_nearest_but_for_one_statement() -> None:
    """Real functions: a statement more is told as that, and the shape is the very one that it was put into."""
    seen = 0
    for target in (target for fix in catalog.fixes().values() for target in fix.targets):
        project = "megatron-core" if target.upstream == "megatron-lm" else target.upstream
        for version in {"verl": ["0.7.1", "0.9.1"], "ms-swift": ["4.6.0"]}.get(project, ["0.14.0", "0.17.1", "0.19.2"]):
            data = wheels.read(project, version, target.file)
            found = shape.find(shape.parse(data), target.function) if data is not None else []
            if not found:
                continue
            before = shape.digest(found[0])
            found[0].body[-1:-1] = ast.parse("made_up = 'by a fork'").body
            text = ast.unparse(ast.Module([found[0]], []))
            (changed,) = ast.parse(text).body
            assert isinstance(changed, ast.FunctionDef)
            near = nearest(
                target, changed, text.encode(), catalog.shape_table(), catalog.outlines(),
                catalog.releases()[target.upstream],
            )  # fmt: skip
            assert near is not None
            assert (near.shape, [item.how for item in near.differs]) == (before, ["added"])
            assert near.differs[0].text == "made_up = 'by a fork'"
            assert near.state == catalog.shape_table().shapes[target.fix, target.function, before].state
            assert (f"{target.upstream} " in near.where) is True
            seen += 1
    assert seen >= 9


# -- forks, end to end ------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The files of megatron-core 0.17.1 and verl 0.7.1 that count, as a fork would have them."""
    for project, version, files in (
        ("megatron-core", "0.17.1", [PARALLEL_STATE, EXPERTS, "megatron/core/__init__.py",
                                      "megatron/core/package_info.py"]),
        ("verl", "0.7.1", [ENGINE, "verl/__init__.py", "verl/protocol.py", "verl/version/version"]),
    ):  # fmt: skip
        for file in files:
            data = wheels.read(project, version, file)
            assert data is not None
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(data)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))


def result(site: Path, fix: str) -> dict[str, object]:
    found = cli.unhang("check", "--target", site, "--fix", fix, "--output-format", "json").json["results"]
    (told,) = (item for item in found if item["shape"] is not None)
    assert isinstance(told, dict)
    return told


def core_version(site: Path, version: str) -> None:
    release, _, local = version.partition("+")
    major, minor, patch = release.split(".")
    text = f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = '{'+' + local if local else ''}'\n"
    rest = "VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)\n"
    rest += "__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])\n"
    (site / "megatron/core/package_info.py").write_text(text + rest)


@pytest.mark.parametrize("version", ["0.17.1+corp.3", "99.0.0"])
def test_a_fork_with_upstreams_shapes_is_patched_under_any_version(version: str, site: Path) -> None:
    core_version(site, version)
    (site / "verl/version/version").write_text(version)
    edit(site / PARALLEL_STATE, "import torch\n", "import torch\n\nCORP = 3\n")  # no release has this very file
    before = cli.unhang("check", "--target", site, "--output-format", "json")
    assert {item["version"] for item in before.json["results"]} == {version}
    needed = [
        (item["fix"], item["code"], item["nearest"]) for item in before.json["results"] if item["verdict"] == "needed"
    ]
    assert needed == [(name, None, None) for name in ("empty-expert-hang", "expert-dp-warmup", "mtp-cp-deadlock")]
    assert cli.unhang("apply", "--target", site, "--skip", "sft-packed-seq-broadcast").code == 0
    for fix, *_ in needed:
        assert result(site, fix)["verdict"] == "applied"


@pytest.mark.parametrize("version", ["0.17.1+corp.3", "99.0.0"])
def test_in_a_fork_a_name_that_is_not_bound_is_drifted(version: str, site: Path) -> None:
    (site / "verl/version/version").write_text(version)
    edit(site / ENGINE, "from megatron.core import parallel_state as mpu", "import megatron.core.parallel_state")
    told = result(site, "mtp-cp-deadlock")
    assert (told["verdict"], told["code"], told["nearest"]) == ("drifted", "name-not-bound", None)
    assert "mpu" in str(told["detail"])


@pytest.mark.parametrize(
    ("version", "verdict", "code"),
    [("0.17.1+corp.3", "drifted", "unknown-shape"), ("99.0.0", "unlisted", "newer-than-matrix")],
)
def test_an_unknown_shape_of_a_fork_is_told_with_the_closest(version: str, verdict: str, code: str, site: Path) -> None:
    core_version(site, version)
    edit(
        site / PARALLEL_STATE, "    _set_global_memory_buffer()\n\n", "    _set_global_memory_buffer()\n    corp()\n\n"
    )
    told = result(site, "expert-dp-warmup")
    assert (told["verdict"], told["code"]) == (verdict, code)
    near = told["nearest"]
    assert isinstance(near, dict)
    assert list(near) == ["shape", "state", "where", "differs"]
    line = (site / PARALLEL_STATE).read_text().splitlines().index("    corp()") + 1
    assert near["differs"] == [{"line": line, "how": "added", "kind": "Expr", "text": "corp()"}]
    assert near["state"] == "affected"
    assert "0.17.1" in near["where"]
    assert f"1 statement differs, at line {line}: `corp()` was added" in str(told["detail"])
    assert "unhang explain expert-dp-warmup" in str(told["hint"])


def test_a_difference_far_from_the_rewrite_does_not_soften_the_verdict(site: Path) -> None:
    edit(site / ENGINE, "        output = {}\n", "        output = dict()\n")
    told = result(site, "mtp-cp-deadlock")
    assert told["verdict"] == "drifted"
    assert "`output = dict()` was changed" in str(told["detail"])
    assert cli.unhang("apply", "--target", site, "--fix", "mtp-cp-deadlock").code == 1


def test_an_edit_of_our_rewrite_is_told_against_our_rewrite(site: Path) -> None:
    assert cli.unhang("apply", "--target", site, "--fix", "mtp-cp-deadlock").code == 0
    edit(site / ENGINE, "if self.is_mp_src_rank_with_outputs():\n", "if self.is_mp_src_rank_with_outputs() and corp:\n")
    told = result(site, "mtp-cp-deadlock")
    near = told["nearest"]
    assert isinstance(near, dict)
    assert (told["verdict"], near["state"], near["where"]) == ("drifted", "ours", "our own rewrite")
    assert [item["how"] for item in near["differs"]] == ["changed"]


def test_nothing_of_this_is_imported_or_read_where_all_shapes_are_known(site: Path) -> None:
    code = (
        "import sys; seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(str(args[0])) if event == 'open' else 0)\n"
        f"from unhang.cli.main import main; main(['check', '--target', {str(site)!r}, '--upstream', 'verl'])\n"
        "print(*sys.modules); print(*seen)"
    )
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
        modules, files = done.stdout.splitlines()[-2:]
        found.append(
            (
                {"unhang.judge.nearest", "unhang.shapes.outline", "difflib"} & set(modules.split()),
                "outlines.json" in files,
            )
        )
        edit(site / ENGINE, "        output = {}\n", "        output = dict()\n") if len(found) == 1 else None
    assert found == [(set(), False), ({"unhang.judge.nearest", "unhang.shapes.outline", "difflib"}, True)]
