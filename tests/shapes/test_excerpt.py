"""A function's own lines, found by indentation: they give the nodes that the whole file gives, or nothing."""

import ast
import re

import pytest

from support import wheels
from unhang.codemods import splice
from unhang.shapes import catalog, excerpt, shape

PLAIN = """\
import os

class Other:
    def run(self):
        return 0

class Owner:
    @first
    @second(1)
    def run(
        self,
    ) -> None:
        x = 1
# a comment at the margin
        return x

def run():
    return 2

class Late:
    async def run(self):
        return 3
"""
# By indentation alone, these seem to end too early, to be two, or to have no line of their own.
MISLEADING = {
    "a string at the margin": 'def run():\n    """a\nb\n"""\n    return "c"\n',
    "a definition in a string": 'TEXT = """\ndef run(): pass\n"""\ndef run():\n    return 1\n',
    "on the line of another statement": "if x: pass\nelse:\n    a = 1; run = 2\n",
    "decorators of several lines": "@some(\n  1,\n)\ndef run():\n    return 1\n",
}


@pytest.mark.parametrize("qualified", ["run", "Owner.run", "Other.run", "Late.run"])
def test_the_nodes_are_those_of_the_whole_file_if_the_shape_is(qualified: str) -> None:
    text = (
        PLAIN
        if "." in qualified
        else PLAIN.replace("    def run", "    def go").replace("async def run", "async def go")
    )
    (whole,) = shape.find(shape.parse(text.encode()), qualified)
    found = excerpt.find(splice.lines(text), qualified, shape.digest(whole))
    assert found is not None
    assert ast.dump(found, include_attributes=True) == ast.dump(whole, include_attributes=True)
    changed = re.sub("(x =|return) [0-9]", "return 9", text)
    assert excerpt.find(splice.lines(changed), qualified, shape.digest(whole)) is None


@pytest.mark.parametrize("why", MISLEADING)
def test_a_function_that_indentation_does_not_find_is_not_returned(why: str) -> None:
    found = shape.find(shape.parse(MISLEADING[why].encode()), "run")
    expected = shape.digest(found[0]) if found else ""
    assert excerpt.find(splice.lines(MISLEADING[why]), "run", expected) is None


@pytest.mark.parametrize(
    ("project", "version"), [("megatron-core", "0.17.1"), ("verl", "0.7.1"), ("ms-swift", "4.6.0")]
)
def test_every_function_of_a_release_is_found_by_its_own_lines(project: str, version: str) -> None:
    """If not, every rewrite would parse the whole file, and nobody would notice."""
    seen = 0
    for target in {target for fix in catalog.fixes().values() for target in fix.targets}:
        data = wheels.read(project, version, target.file)
        if data is None or not (functions := shape.find(shape.parse(data), target.function)):
            continue
        (whole,) = functions
        found = excerpt.find(splice.lines(data.decode()), target.function, shape.digest(whole))
        assert found is not None, target
        assert ast.dump(found, include_attributes=True) == ast.dump(whole, include_attributes=True)
        seen += 1
    assert seen > 0
