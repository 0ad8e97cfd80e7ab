"""Which lines count as rewritten, on made-up functions, and their names."""

from pathlib import Path

import pytest

from support import environments
from upstream import traced

BODY = '''
class Layer:
    def forward(self, x):
        """What it does."""
        first(x)
        if x:
            second(x)
        return x
'''


CASES = [
    ("", "", ""),
    ("first(x)", "first(x)\n        # a comment\n\n        1\n        global x", ""),
    ("What it does", "What it did", ""),
    ("class Layer:", "other = 1\nclass Layer:", ""),
    ("        return x\n", "        return x\n    def other(self):\n        return 1\n", ""),
    ("if x:", "if x and rank:", "if x and rank:"),
    ("if x:", "if (\n            x\n            and rank\n        ):", "if (+x+and rank"),
    ("            second(x)\n", "            if rank:\n                second(x)\n", "if rank:; second(x)"),
    ("first(x)", "first(\n            x, rank\n        )", "first(+x, rank+)"),
    ("first(x)", "raise ValueError\n        first(x)\n        other(x)", "raise ValueError; other(x)"),
    (
        "first(x)",
        "try:\n            x\n        except (\n            E\n        ):\n            y",
        "try:; x; except (+E; y",
    ),
    ("first(x)", "def inner(y):\n            return y", "def inner(y):; return y"),
    ("first(x)", "for y in x:\n            pass\n        else:\n            stop()", "for y in x:; pass; stop()"),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_the_statements_whose_text_is_new_are_rewritten(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """Each with all of its lines; a head ends before its body."""
    text = BODY.replace(old, new, 1)
    before, after = (environments.write(tmp_path / it, {"a/b.py": code}) for it, code in (("b", BODY), ("a", text)))
    found = traced.lines(before, after, [("fix", "a/b.py", "Layer.forward"), ("fix", "a/elsewhere.py", "f")])["fix"]
    assert [*found] == [f"a/b.py:{numbers[0]}" for numbers in found.values()]
    rows = [row.strip() for row in text.splitlines()]
    assert "; ".join("+".join(rows[number - 1] for number in numbers) for numbers in found.values()) == expected


def test_the_names_of_lines_in_words_and_by_file(tmp_path: Path) -> None:
    assert traced.places(["a.py:3", "a.py:4", "a.py:5", "a.py:9", "b.py:1"]) == "a.py lines 3-5, 9; b.py line 1"
    found = traced.by_file(tmp_path, {"fix": {"a.py:3": [3, 4], "b.py:1": [1]}, "other": {"a.py:9": [9]}})
    in_a, in_b = {3: "a.py:3", 4: "a.py:3", 9: "a.py:9"}, {1: "b.py:1"}
    assert found == {str(tmp_path / "a.py"): in_a, str(tmp_path / "b.py"): in_b}
