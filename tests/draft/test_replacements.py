"""From one function to another by replaced statements: cases by hand, and a thousand random edits."""

from __future__ import annotations

import ast
import random
import textwrap

import pytest

from unhang.codemods import base, splice
from unhang.codemods.base import AnchorError
from unhang.draft.replacements import HeaderError, Replacement, Source, replacements, used_globals
from unhang.shapes import shape


def source(text: str) -> Source:
    rows = text.split("\n")
    return Source(shape.parse_lines(text, 1), rows)


def rewritten(before: str, found: list[Replacement]) -> str:
    function = source(before).function
    edits = [getattr(base, edit)(function, old, new) for old, new, edit in found]
    return "".join(splice.apply(splice.lines(before), edits, "    "))


def digest(text: str) -> str:
    return shape.digest(source(text).function)


BASE = '''\
def f(self, a):
    """A docstring."""
    x = a
    if self.on:
        # why
        run(x)
        log(x)
    elif self.off:
        stop(x)
    else:
        run(x)
    try:
        text = """one
  two"""
    except ValueError:
        log(a)
    run(x)
    return x
'''


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    return x\n", "    return x + 1\n", [("return x\n", "return x + 1\n")]),
        ("        stop(x)\n", "        halt(x)\n", [("stop(x)\n", "halt(x)\n")]),
        ("    x = a\n", "    x = a\n    y = b\n", [("if self.on:\n    ...\n", "y = b\n")]),
        ("    x = a\n", "    y = b\n    x = a\n", [("x = a\n", "y = b\n")]),
        # run(x) begins like two others
        ("        run(x)\n        log", "        run(x)\n        y = b\n        log", [("log(x)\n", "y = b\n")]),
        ("        log(x)\n", "", [("run(x)\nlog(x)\n", "run(x)\n")]),
        # run(x) alone is there three times
        ("    run(x)\n    return", "    run(a)\n    return", [("run(x)\nreturn x\n", "run(a)\nreturn x\n")]),
        ("  two", "  three", [('text = """one\n  two"""\n', 'text = """one\n  three"""\n')]),
    ],
)
def test_a_change_is_told_by_the_fewest_statements_that_occur_once(
    old: str, new: str, expected: list[tuple[str, str]]
) -> None:
    assert BASE.count(old) == 1
    after = BASE.replace(old, new)
    found = replacements(source(BASE), source(after))
    assert [(item.old, item.new) for item in found] == expected
    assert digest(rewritten(BASE, found)) == digest(after)


def test_a_whole_statement_changes_where_its_arms_or_its_test_do() -> None:
    for old, new in (
        ("elif self.off", "elif 0"),
        ("except ValueError", "except OSError"),
        ("if self.on", "if 1"),
    ):
        after = BASE.replace(old, new)
        (found,) = replacements(source(BASE), source(after))
        assert digest(rewritten(BASE, [found])) == digest(after)
        assert found.old.count("\n") > 3


def test_comments_and_docstrings_alone_are_no_change() -> None:
    assert (
        replacements(source(BASE), source(BASE.replace("# why", "# because").replace("A docstring", "Another"))) == []
    )


@pytest.mark.parametrize("after", [BASE.replace("(self, a)", "(self, a, b)"), "@cache\n" + BASE])
def test_a_signature_is_no_statement(after: str) -> None:
    with pytest.raises(HeaderError):
        replacements(source(BASE), source(after))


def test_a_block_that_occurs_twice_is_told_from_the_other_by_what_is_around_it() -> None:
    before = "def f(a):\n    if a:\n        go()\n    else:\n        go()\n"
    (found,) = replacements(source(before), source(before.replace("go", "run", 1)))
    assert (found.old, found.new) == ("if a:\n    go()\nelse:\n    go()\n", "if a:\n    run()\nelse:\n    go()\n")
    twice = before + before.partition("\n")[2]
    with pytest.raises(AnchorError):
        replacements(source(twice), source(twice.replace("go", "run", 1)))


def test_the_globals_are_those_that_only_the_module_can_bind() -> None:
    after = BASE.replace(
        "    return x", "    y = [mpu.rank(i) for i in range(x)]\n    return torch.sum(y, key=lambda k: k)"
    )
    found = replacements(source(BASE), source(after))
    assert used_globals(shape.parse_lines(after, 1), found) == ["mpu", "torch"]


def _indented(dice: random.Random, depth: int) -> list[str]:
    return [f"    {line}" for line in _function(dice, depth + 1)]


def _function(dice: random.Random, depth: int = 0) -> list[str]:
    lines = []
    for _ in range(dice.randrange(1, 5)):
        kind = dice.randrange(5) if depth < 3 else 0
        if kind == 1:
            lines += [f"if a{dice.randrange(3)}:", *_indented(dice, depth)]
            for _ in range(dice.randrange(2)):
                lines += [f"elif b{dice.randrange(3)}:", *_indented(dice, depth)]
            if dice.random() < 0.5:
                lines += ["else:", *_indented(dice, depth)]
        elif kind == 2:
            lines += ["try:", *_indented(dice, depth), f"except E{dice.randrange(2)}:", *_indented(dice, depth)]
        elif kind == 3:
            lines += [f"for x in y{dice.randrange(2)}:", *_indented(dice, depth)]
        else:
            lines.append(f"call{dice.randrange(5)}()")
    return lines


@pytest.mark.slow
def test_random_edits_come_out_as_the_function_was_meant() -> None:
    told = 0
    for seed in range(1000):
        dice = random.Random(seed)
        lines = _function(dice)
        changed = list(lines)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(changed) or 1)
            row = changed[at] if changed else ""
            indent = row[: len(row) - len(row.lstrip())]
            changed[at : at + dice.randrange(2)] = [f"{indent}own{dice.randrange(3)}()"] * dice.randrange(3)
        before, after = ("def f():\n" + textwrap.indent("\n".join(text), "    ") + "\n" for text in (lines, changed))
        try:
            ast.parse(after)
            found = replacements(source(before), source(after))
        except (SyntaxError, AnchorError):  # half an `if`; or a block that occurs twice
            continue
        told += 1
        assert digest(rewritten(before, found)) == digest(after), seed
        if digest(before) != digest(after):
            with pytest.raises(AnchorError):
                rewritten(rewritten(before, found), found)
    assert told > 400
