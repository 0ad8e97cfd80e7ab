"""What the values of parameters are in a rewritten file."""

import ast
import warnings

import pytest

from unhang.plugins import parameters

VALUES = [
    "/opt/a b/python", "it's", 'say "so"', "it's \"so\"", "a\\b", "\\n", "ends with \\", "\\d", "\\N{BULLET}", "{x}",
    "{", "}", "{{", "}}", "{0}", "100%", "%s", "%%", "%(a)s", "caf\u00e9", "\u65e5\u672c", "${V}", "$", '"""', "#",
    "\\{x}%s'",
]  # fmt: skip
TEXTS = [
    '"${V}"', "'${V}'", 'r"${V}"', "r'${V}'", '"""${V}"""', "'''\n${V}\n'''", '"a" "${V}" r"b"', '{"${V}": 1}',
    'b"${V}"', 'rb"${V}"', 'f"${V}"', 'f"{1} ${V} {2:>3}"', 'rf"{1}${V}"', 'f"{1}" "${V}"', 'f"""{1} ${V}"""',
    "f\"{'${V}'}\"", 'f"{{${V}}}"', '"{} ${V}".format(1)', '"${V}{a}".format_map({"a": 1})',
    '("{}" + "${V}").format(1)', '"{{${V}}}".format()', '"{}${V}{{".format(1)', '"%s ${V}" % 1',
    '"${V} %(a)s" % {"a": 1}', '("%s" if 1 else "${V}") % 1', 'b"%s ${V}" % b"a"', '"%%${V}" % ()', '"${V}%s" % 1',
    '("{}".upper() + "${V}").format(1)', '" ${V} {}".strip().format(1)', '" ${V} %s".strip() % 1',
    'f"{1} ${V} %s" % 1', 'f"{{}} ${V}".format(1)', '"%s ${V}"', '"{} ${V}"', 'print("${V}", end="")',
    '"{}".format("${V}")', '"%s" % "${V}"', 'f"{1!r:>{3}} ${V}"',
]  # fmt: skip
NO_TEXT = [
    'f"{1:${V}}"', 'f"{1:{2}${V}}"', '"{:${V}}".format(1)', '"{${V}}".format(a=1)', '"%(${V})s" % {}', '"%${V}d" % 1',
    '"1% ${V}" % ()', "${V}", 'format(1, "${V}")', '"\\x${V}"', "1${V}", 'f"{${V}}"', "a.${V}", "(${V})",
    '"{ ${V}".format()',
]  # fmt: skip


def result(text: str) -> str:
    """Return what an expression gives, as text."""
    printed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = eval(text, {"print": lambda *words, end: printed.extend(words)})
    found = found if found is not None else printed[0]
    if isinstance(found, dict):
        (found,) = found
    return found.decode() if isinstance(found, bytes) else str(found)


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_in_a_string_is_its_own_text_when_the_code_runs_or_it_is_refused(text: str) -> None:
    wanted, held = result(text.replace("${V}", "VALUE")), set()
    for value in VALUES:
        try:
            filled = parameters.filled(text, {"V": value})
        except parameters.Refused as error:
            assert repr(value) in str(error)
            assert "where V does" in str(error)
            continue
        assert result(filled) == wanted.replace("VALUE", value), filled
        held.add(value)
    assert VALUES[0] in held
    assert len(held) > (len(VALUES) - 2 if text in ('"${V}"', 'f"{1} ${V} {2:>3}"', '"{} ${V}".format(1)') else 4)


@pytest.mark.parametrize("text", NO_TEXT)
def test_a_value_that_is_no_text_is_refused_whatever_it_is(text: str) -> None:
    for value in ("a", "1", "/opt/python", "x"):
        with pytest.raises(parameters.Refused, match="cannot stand where V does: it stands "):
            parameters.filled(text, {"V": value})


def test_a_comment_has_the_value_as_it_is() -> None:
    assert parameters.filled("a = 1  # in ${V}\n", {"V": 'it\'s "\\d"'}) == 'a = 1  # in it\'s "\\d"\n'
    assert parameters.filled('def f():\n    """In ${V}, {}."""\n', {"V": "{x}"}) == 'def f():\n    """In {x}, {}."""\n'


def test_a_value_is_data_even_if_it_has_the_name_of_another_parameter() -> None:
    values = {"A": "${B} and ${A}", "B": "b\\"}
    found = ast.literal_eval(parameters.filled('["${A}", "${B}", "${C}"]', values))
    assert found == [values["A"], values["B"], "${C}"]


def test_the_name_of_a_parameter_in_a_file_is_no_value() -> None:
    values = {"PY": "/a", "OF": "/a/${PY}"}
    assert parameters.named("/a, ${PY}, /a/${PY}", values, ["PY", "OF"]) == "${PY}, $${PY}, ${OF}"
    assert parameters.named("${PY}", {}, ["PY"]) == "$${PY}"
    assert parameters.named("${PY}", {}) == "${PY}"
