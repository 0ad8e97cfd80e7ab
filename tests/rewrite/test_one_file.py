"""One file rewritten in memory: which checks stop a rewrite, and that every other byte stays as it is."""

import codecs
import sys

import pytest

from support import gates
from support.gates import ONE, RUN, STOP, TWO
from unhang.codemods import splice
from unhang.codemods.base import span
from unhang.codemods.edit import Edit
from unhang.errors import UnhangError
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes.shape import Function

RESULT = gates.shape_of(gates.gated(ONE))
NO_ANCHOR = "the rewrite's anchor is missing or not unique"
LISTED, TO_FIND_OUT = Step(RUN, RESULT), Step(RUN, None)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)


def refused(code: str | bytes, step: Step = LISTED) -> str:
    """The message of the RewriteError, which must name the step's target."""
    with pytest.raises(RewriteError) as caught:
        rewrite(code.encode() if isinstance(code, str) else code, [step])
    assert caught.value.target == step.target
    return str(caught.value)


@pytest.mark.parametrize("step", [LISTED, TO_FIND_OUT, Step(RUN, RESULT, gates.shape_of(ONE)), Step(RUN, RESULT, "0")])
def test_a_function_is_rewritten_and_nothing_else(step: Step) -> None:
    done = rewrite(ONE.encode(), [step])
    assert done.data.decode() == gates.gated(ONE)
    assert done.shapes == ((gates.shape_of(ONE), RESULT),)


def test_each_step_works_on_the_result_of_the_one_before() -> None:
    assert rewrite(b"anything\xff", []) == (b"anything\xff", ())
    stop = Step(STOP, gates.shape_of(gates.paused(ONE), "Loop.stop"))
    for steps in ([LISTED, stop], [stop, LISTED]):
        done = rewrite(ONE.encode(), steps)
        assert done.data.decode() == gates.paused(gates.gated(ONE))
        assert done.shapes == tuple((gates.shape_of(ONE, step.target.function), step.result) for step in steps)


@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize(
    ("head", "encoding", "letter"),
    [
        ("", "utf-8", "\xe9"),
        ("", "utf-8-sig", "\xe9"),
        ("# coding: latin-1\n", "latin-1", "\xe9"),
        ("# coding: gbk\n", "gbk", "\u4e2d"),
    ],
)
def test_encoding_bom_and_line_ends_stay(head: str, encoding: str, letter: str, end: str) -> None:
    code = f"{head}name = '{letter}'  # {letter}\n{ONE}"
    data = code.replace("\n", end).encode(encoding)
    done = rewrite(data, [LISTED])
    assert done.data == code.replace(ONE, gates.gated(ONE)).replace("\n", end).encode(encoding)
    assert done.data.startswith(codecs.BOM_UTF8) is (encoding == "utf-8-sig")


def test_tabs_form_feeds_and_a_missing_last_newline_stay() -> None:
    code = f"{TWO}\f\nx = 1".replace("    ", "\t")
    step = Step(gates.OTHER_RUN, gates.shape_of(gates.gated(TWO)))
    assert rewrite(code.encode(), [step]).data.decode() == f"{gates.gated(TWO)}\f\nx = 1".replace("    ", "\t")
    last = "from m import wait\ndef run(x):\n    start()"
    assert rewrite(last.encode(), [TO_FIND_OUT]).data.decode() == (f"{last}\n    # unhang gate: why\n    wait('gate')")


# -- what stops a rewrite ---------------------------------------------------------------------------------------------


def test_a_result_of_another_shape_than_the_one_on_record() -> None:
    other = ONE.replace("return x", "return -x")
    result = gates.shape_of(gates.gated(other))
    assert refused(other) == f"the result has shape {result}, but {RESULT} is on record"
    assert rewrite(other.encode(), [TO_FIND_OUT]).shapes == ((gates.shape_of(other), result),)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (ONE.replace("    start()\n    return", "    return"), f"{NO_ANCHOR} (not found: start()"),
        (ONE.replace("    start()\n    return", "    start()\n    start()\n    return"), f"{NO_ANCHOR} (found 2 times"),
        ("# coding: utf-7\n# +AGE-\n" + ONE, "decoding and encoding the file as utf-7 does not give the same bytes"),
        (gates.gated(ONE), f"{NO_ANCHOR} (not found: run without our wait)"),
        (ONE.replace("def run", "def ran"), "run is defined 0 times"),
        (ONE + ONE, "run is defined 2 times"),
        (ONE.replace("start, wait", "start"), "the file does not define or import wait"),
        (ONE + "x = (", "the file does not parse: "),
        (ONE + "\0", "the file does not parse: "),
        (ONE.encode() + b"# \xff\n", "the file is not text in its own encoding: "),
        ("# coding: none-such\n" + ONE, "the file is not text in its own encoding: "),
        ("def run(): start(); stop()\n" + "from m import wait\n", "the rewrite cannot be carried out: "),
    ],
)
def test_a_file_that_cannot_be_rewritten(code: str | bytes, message: str) -> None:
    assert refused(code).startswith(message)


class Planned(gates.Waits):
    """Replaces the first statement by other code, again and again."""

    def __init__(self, code: str) -> None:
        super().__init__("gate")
        self.code = code

    def plan(self, function: Function) -> list[Edit]:
        first = function.body[0]
        return [span(first, first, lambda nodes: list(splice.suite(self.code)))]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("break\n", "the result does not compile: 'break' outside loop"),
        ("other()\n", "a second pass would change the result again"),
    ],
)
def test_a_codemod_that_goes_wrong(code: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["unhang.codemods.gate"].CODEMODS, "run", Planned(code))
    for step in TO_FIND_OUT, Step(RUN, gates.shape_of(ONE.replace("start()", "other()", 1))):
        assert refused(ONE, step).startswith(message)


def test_libcst_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("unhang.codemods.splice")
    monkeypatch.setitem(sys.modules, "unhang.codemods.splice", None)
    with pytest.raises(UnhangError) as caught:
        rewrite(ONE.encode(), [LISTED])
    assert caught.value.code == "no-libcst"
    assert "reinstall unhang" in (caught.value.hint or "")
