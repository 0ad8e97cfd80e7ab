"""Small edits of each function: its rewrite is still anchored, and gives what it gives without the edit."""

from __future__ import annotations

import ast
import re
from copy import deepcopy
from functools import cache
from textwrap import indent

import pytest

from proofs import suite
from support import fixes, played, sources
from support.sources import Case, Source
from unhang.judge.rows import Source as Whole
from unhang.rewrite.one_file import Step, rewrite
from unhang.shapes import shape
from unhang.shapes.shape import Function

# What an edit gives is compared with what is known of the function in a wheel, one of each target.
TARGETS = {
    param.values[0].target: param
    for fuzz in fixes.of_each("FUZZ").values()
    for param in reversed(fuzz.cases)
    if param.values[0].kind == "wheel"
}
CASES = [
    pytest.param(param.values[0], id=f"{target.fix}-{target.function.rpartition('.')[2]}")
    for target, param in TARGETS.items()
]
PRINT = ast.parse("print('here')").body


@cache
def function_of(case: Case) -> Function:
    return sources.bare(case.load().function)


def blocks(function: Function) -> list[list[ast.stmt]]:
    """Return the blocks of a function, without those of its nested functions, and without an ``elif`` alone."""
    found, nested = [function.body], [*function.body]
    while nested:
        node = nested.pop()
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if block and not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                is_elif = field == "orelse" and isinstance(node, ast.If) and isinstance(block[0], ast.If)
                found += [] if is_elif else [block]
                nested += block
    return found


def printing(function: Function) -> Function:
    """Print before every statement."""
    changed = deepcopy(function)
    for block in blocks(changed):
        block[:] = [one for node in block for one in (*deepcopy(PRINT), node)]
    return changed


def renamed(function: Function, *names: str) -> Function:
    changed = deepcopy(function)
    for node in ast.walk(changed):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = f"{node.id}_of_mine"
    return changed


def annotated(function: Function) -> Function:
    """Annotate every assignment to one local name, what is returned, and decorate the function."""
    changed = deepcopy(function)
    shared = {name for node in ast.walk(changed) if isinstance(node, ast.Global) for name in node.names}
    for block in blocks(changed):
        for place, node in enumerate(block):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
                if node.targets[0].id not in shared:
                    block[place] = ast.AnnAssign(node.targets[0], ast.Name("object"), node.value, 1)
    same = ast.parse("lambda function: function", mode="eval").body  # a scene runs it, so a method stays one
    changed.decorator_list, changed.returns = [same, *changed.decorator_list], ast.Name("object")
    return changed


def elsewhere(function: Function) -> Function:
    """Name another device wherever one is named."""
    changed = deepcopy(function)
    for node in ast.walk(changed):
        if isinstance(node, ast.keyword) and node.arg == "device":
            node.value = ast.parse("cur_platform.device()", mode="eval").body
        elif isinstance(node, ast.Call) and ast.unparse(node).endswith((".cpu()", ".cuda()")):
            assert isinstance(node.func, ast.Attribute)
            node.func.attr, node.args = "to", [ast.Name("device")]
    return changed


def locals_of(function: Function) -> list[str]:
    """Return the names that only assignments of the function itself give."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    shared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    return sorted({node.id for node in names if isinstance(node.ctx, ast.Store)} - arguments - shared)


def file_of(case: Case, function: Function) -> str:
    """Return the release's file, with the function in the place of its own, and decorated as that is."""
    source = case.load()
    function.decorator_list += source.function.decorator_list
    before, body, after = sources.around(source)
    margin = " " * (len(body[0]) - len(body[0].lstrip()))
    lines = "".join(f"{margin}{line}\n" for line in ast.unparse(function).splitlines())
    return b"".join(before).decode() + lines + b"".join(after).decode()


def alone(case: Case, function: Function) -> str:
    """Return a file that binds what the release's does, and defines nothing but the function."""
    owner, _, _ = case.target.function.rpartition(".")
    code = ast.unparse(function)
    return names_of(case) + (f"class {owner}:\n{indent(code, '    ')}" if owner else code)


@cache
def names_of(case: Case) -> str:
    names = shape.bound_names(shape.parse(case.load().data)) - {case.target.function.partition(".")[0]}
    return "".join(f"{name} = 0\n" for name in sorted(names))


def rewritten(case: Case, file: str) -> str:
    """Return a file as the rewrite makes it, which is unchanged by a second pass."""
    return rewrite(file.encode(), [Step(case.target, None)]).data.decode()


@cache
def plain_of(case: Case) -> Function:
    return changed_by(case, function_of(case))


def changed_by(case: Case, function: Function) -> Function:
    """Return what the rewrite makes of a function."""
    return sources.bare(Source(case.target, rewritten(case, alone(case, function)).encode()).function)


def result(case: Case, function: Function) -> str:
    return ast.unparse(changed_by(case, function))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_prints_annotations_a_decorator_and_another_device_leave_the_anchors(case: Case) -> None:
    function = function_of(case)
    plain = ast.unparse(plain_of(case))
    assert result(case, printing(function)).replace(f"{ast.unparse(PRINT[0])}\n", "") != plain
    is_annotated = ": object" in ast.unparse(annotated(function))
    assert (result(case, annotated(function)).count("object") > plain.count("object")) == is_annotated
    moved = result(case, elsewhere(function))
    is_on_one = ast.unparse(elsewhere(function)) != ast.unparse(function)
    assert ("cur_platform" in moved or ".to(device)" in moved) == is_on_one


@pytest.mark.parametrize("case", CASES)
def test_a_renamed_local_is_renamed_in_the_rewrite_too(case: Case) -> None:
    assert_renamed(case, locals_of(function_of(case)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_so_is_each_alone_that_the_rewrite_names(case: Case) -> None:
    function = function_of(case)
    before = set(ast.unparse(function).splitlines())
    changed = " ".join(line for line in ast.unparse(plain_of(case)).splitlines() if line not in before)
    for name in locals_of(function):
        if re.search(rf"\b{name}\b", changed):
            assert_renamed(case, [name])


def assert_renamed(case: Case, names: list[str]) -> None:
    assert result(case, renamed(function_of(case), *names)) == ast.unparse(renamed(plain_of(case), *names)), names


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("case", suite.in_turn(CASES, lambda case: case.target.fix))
def test_the_rewrite_of_an_edited_function_does_what_that_of_the_release_does(case: Case) -> None:
    """With prints and annotations everywhere, the scene shows what is on record."""
    changed = file_of(case, printing(annotated(function_of(case))))
    found = played.row(case.load(), Whole(rewritten(case, changed), case.target.function), changed)
    assert found == played.row_of(case.load())
