"""Imports run one way, from the upper rooms to the lower ones, and in no circle."""

from graphlib import CycleError, TopologicalSorter

from support import architecture, rooms


def test_every_module_is_in_a_room_that_has_a_level() -> None:
    assert {rooms.room(module) for module in rooms.modules()} - {"patches", "upstreams"} == {
        name for names in rooms.LEVELS for name in names
    }


def test_no_room_imports_one_that_is_not_below_it() -> None:
    wrong = [
        f"{found.file}:{found.line}: {found.importer} imports {found.imported}: {upper} is not above {lower}"
        for found in rooms.imports()
        if (upper := rooms.room(found.importer)) != (lower := rooms.room(found.imported))
        and rooms.level(upper) <= rooms.level(lower)
    ]
    assert not wrong, "\n".join(["imports that run up:", *wrong])


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for found in rooms.imports():
        graph.setdefault(found.importer, set()).add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"these modules import each other: {' -> '.join(error.args[1][::-1])}") from None


def test_argparse_stays_in_the_room_of_the_command_line() -> None:
    users = {module for module, path in rooms.modules().items() if b"argparse" in path.read_bytes()}
    assert {rooms.room(module) for module in users} == {"cli"}


def test_the_architecture_page_is_as_the_code_has_it() -> None:
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(), "run nox -s pages"


def test_the_graph_is_read_from_the_code() -> None:
    edges = {(found.importer, found.imported) for found in rooms.imports()}
    assert ("unhang.cli.check_command", "unhang.survey.verdicts") in edges
    assert ("unhang.judge.decide", "unhang.codemods.base") in edges, "also for the type checker, and through the links"
    assert ("unhang.prove.fixes.mtp_cp_deadlock", "unhang.prove.cases") in edges, "also relative ones"
