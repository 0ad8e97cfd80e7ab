"""A file after its edits, beside what the diff makes of it: order and nesting count, neighbouring imports do not."""

import pytest

from unhang.draft import whole
from unhang.draft.patch import Change, Patched

TWO = "import os\nfrom a import b, c\nX = 1\nY = X\n"


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ("from a import c\n# why\nfrom a import b\nimport os\nX = 1\n\nY = X\n", None),
        (f'"""Doc."""\n{TWO}', None),
        (TWO.replace("X = 1\nY = X\n", "Y = X\nX = 1\n"), ["Y"]),
        (TWO.replace("Y = X", "if X:\n    Y = X"), ["Y"]),
        (TWO.replace("b, c", "b"), ["c"]),
    ],
)
def test_the_names_of_what_differs(result: str, names: list[str] | None) -> None:
    assert whole.code_otherwise(TWO, result) == names


def test_docstrings_have_the_name_of_what_has_them() -> None:
    assert whole.texts_otherwise(TWO, f'"""Doc."""\n{TWO}') == ["the module"]
    assert whole.texts_otherwise("class C:\n    'a'\n", "class C:\n    'b'\n") == ["C"]
    assert whole.texts_otherwise(TWO, TWO) == []


def test_a_file_without_one_hunk() -> None:
    changes = (Change("@@ 1 @@", range(1, 2), range(1, 3)), Change("@@ 2 @@", range(3, 4), range(4, 4)))
    patched = Patched("a.py", "1\n2\n3\n", "one\nuno\n2\n", changes)
    assert whole.without(patched, ()) == patched.after
    assert whole.without(patched, ("a.py, hunk @@ 1 @@",)) == "1\n2\n"
