"""The table of the error codes has each code that the tool raises, one of a verdict, and no other."""

import ast
import re
from collections.abc import Iterator

from support import rooms
from unhang.cli.error_codes import codes
from unhang.judge.decide import STALE


def raised(source: str) -> Iterator[str]:
    """Yield the codes that a module gives to errors, itself or through a function that takes the code first."""
    tree = ast.parse(source)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    makers = {"UnhangError", *(it.name for it in functions if ast.unparse(it.args).startswith("code: str"))}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in makers:
            code = call.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield code.value
            else:  # what another error has, or the maker was given
                assert "code" in (getattr(code, "attr", ""), getattr(code, "id", "")), ast.unparse(call)
    yield from re.findall(r"error\[([a-z-]+)\]", source)


def test_the_table_has_the_codes_of_the_tool_and_no_other() -> None:
    found = {code for path in rooms.modules().values() for code in raised(path.read_text(encoding="utf-8"))}
    assert {"download-failed", "index-failed", "edited", "locked"} <= found
    assert list(codes()) == sorted({*found, STALE})


def test_each_code_has_a_cause_and_a_cure_in_sentences() -> None:
    for code, texts in codes().items():
        assert [bool(re.fullmatch(r"[A-Z`].*\.", text)) for text in texts] == [True, True], code
