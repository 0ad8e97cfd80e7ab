"""What the values of parameters are in a rewritten file."""

import ast

from unhang import parameters


def test_a_value_is_data_even_if_it_has_the_name_of_another_parameter() -> None:
    values = {"A": "${B} and ${A}", "B": "b\\"}
    found = ast.literal_eval(parameters.filled('["${A}", "${B}", "${C}"]', values))
    assert found == [values["A"], values["B"], "${C}"]
