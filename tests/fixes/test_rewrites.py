"""What the rewrite of every fix must be, in each of the ``CASES`` of its test module."""

import ast
import codecs
import difflib
import io
import itertools
import re
import tokenize
from collections.abc import Sequence

import pytest

from support import fixes
from support.sources import WIDTHS, Case, Source, around, dump, parsed, rewritten
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.shapes import shape

CASES = [
    pytest.param(*case.values, id=f"{fix}-{case.id}", marks=case.marks)
    for fix, cases in fixes.of_each("CASES").items()
    for case in cases
]


@pytest.mark.parametrize("case", CASES)
def test_the_rewrite_has_the_shape_on_record(case: Case) -> None:
    source = case.load()
    new, change = source.rewritten, codemod(source.target)
    assert source.known.state == "affected"
    compile(new.data, source.target.file, "exec", dont_inherit=True)
    assert new.digest == source.known.result
    used = _names(new.function) - _names(source.function)
    assert used & shape.bound_names(parsed(source.data)) <= change.names(source.function)
    with pytest.raises(AnchorError):  # it refuses its own output
        change.plan(new.function)


@pytest.mark.parametrize("case", CASES)
def test_the_rewrite_changes_only_the_body_of_the_function(case: Case) -> None:
    source = case.load()
    new = source.rewritten
    (before, body, after), (new_before, new_body, new_after) = around(source), around(new)
    assert (new_before, new_after) == (before, after)
    assert body != new_body
    assert _dump_without(new) == _dump_without(source)
    for part in ("name", "args", "decorator_list", "returns"):
        assert dump(getattr(new.function, part)) == dump(getattr(source.function, part))
    assert ast.get_docstring(new.function) == ast.get_docstring(source.function)


@pytest.mark.parametrize("case", CASES)
def test_the_added_lines_are_marked_and_fit_the_file(case: Case) -> None:
    source = case.load()
    (before, body, after), (_, new_body, _) = around(source), around(source.rewritten)
    rows = list(difflib.unified_diff(_text(body), _text(new_body), n=0, lineterm=""))[2:]  # without its head
    added = [line[1:] for line in rows if line.startswith("+")]
    assert [line for line in added if len(line) > WIDTHS[source.target.upstream]] == []
    assert [line for line in added if line != line.rstrip()] == []
    mark = f"# unhang {source.target.fix}"
    comments = [line for line in added if re.fullmatch(rf"\s*{mark}: \S.*", line)]
    assert comments
    assert "unhang" not in "\n".join(line for line in added if line not in comments)
    assert mark.encode() not in b"".join([*before, *after])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rewrite_keeps_line_ends_and_byte_order_mark(case: Case) -> None:
    source = case.load()
    new, result = source.rewritten, source.known.result
    assert b"\r" not in source.data
    assert not source.data.startswith(codecs.BOM_UTF8)
    for mark, end, last in itertools.product((b"", codecs.BOM_UTF8), (b"\n", b"\r\n"), (b"", b"\n")):
        given, wanted = (mark + each.data.removesuffix(last).replace(b"\n", end) for each in (source, new))
        assert rewritten(source.target, given, result) == wanted


@pytest.mark.parametrize("case", CASES)
def test_the_rewrite_of_a_function_at_the_end_of_its_file(case: Case) -> None:
    source = case.load()
    cut, new_cut = (
        b"".join(each.data.splitlines(keepends=True)[: each.function.end_lineno]).rstrip(b"\n")
        for each in (source, source.rewritten)
    )
    assert rewritten(source.target, cut, source.known.result) == new_cut


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_rewrite_of_a_file_indented_with_tabs(case: Case) -> None:
    source = case.load()
    tabs = Source(source.target, _tabs(source.data))
    done = Source(source.target, rewritten(tabs.target, tabs.data, source.known.result))
    assert done.data.expandtabs(4) == _tabs(source.rewritten.data).expandtabs(4)
    (before, _, after), (new_before, body, new_after) = around(tabs), around(done)
    assert (new_before, new_after) == (before, after)
    assert next(line for line in body if b"# unhang" in line).startswith(b"\t")


def _names(function: shape.Function) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def _text(lines: Sequence[bytes]) -> list[str]:
    return [line.decode().rstrip("\r\n") for line in lines]


def _dump_without(source: Source) -> str:
    """Return a dump of the whole file's AST, without the body of the function."""
    function = source.function
    body, function.body = function.body, []
    text = ast.dump(parsed(source.data))
    function.body = body
    return text


def _tabs(data: bytes) -> bytes:
    """Indent a file with tabs; the lines inside strings stay the same."""
    within: set[int] = set()
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type not in (tokenize.NEWLINE, tokenize.NL):
            within.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = data.splitlines(keepends=True)
    return b"".join(line if number in within else _tabbed(line) for number, line in enumerate(lines, 1))


def _tabbed(line: bytes) -> bytes:
    return re.sub(rb"^(?:    )+", lambda found: b"\t" * (len(found.group()) // 4), line)
