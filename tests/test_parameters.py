"""What the values of parameters are in a rewritten file."""

import ast

from unhang import parameters


def test_a_value_is_data_even_if_it_has_the_name_of_another_parameter() -> None:
    values = {"A": "${B} and ${A}", "B": "b\\"}
    found = ast.literal_eval(parameters.filled('["${A}", "${B}", "${C}"]', values))
    assert found == [values["A"], values["B"], "${C}"]


def test_the_name_of_a_parameter_in_a_file_is_no_value() -> None:
    values = {"PY": "/a", "OF": "/a/${PY}"}
    assert parameters.named("/a, ${PY}, /a/${PY}", values, ["PY", "OF"]) == "${PY}, $${PY}, ${OF}"
    assert parameters.named("${PY}", {}, ["PY"]) == "$${PY}"
    assert parameters.named("${PY}", {}) == "${PY}"
