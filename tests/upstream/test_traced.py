"""Which lines count as rewritten, on made-up functions, and their names."""

from __future__ import annotations

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


def rewritten(tmp_path: Path, new: str) -> dict[str, list[str]]:
    """Return the text of each rewritten line of the file, and the text of every line that counts as that one."""
    before, after = (
        environments.write(tmp_path / side, {"a/layer.py": text}) for side, text in (("b", BODY), ("a", new))
    )
    found = traced.lines(before, after, [("fix", "a/layer.py", "Layer.forward"), ("fix", "a/elsewhere.py", "f")])
    rows = new.splitlines()
    assert all(name.startswith("a/layer.py:") for name in found["fix"])
    lines = {int(name.rpartition(":")[2]): numbers for name, numbers in found["fix"].items()}
    return {rows[line - 1].strip(): [rows[number - 1].strip() for number in numbers] for line, numbers in lines.items()}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("first(x)", "first(x)\n        # a comment\n\n        1\n        global x", []),
        ("What it does", "What it did", []),
        ("if x:", "if x and rank:", ["if x and rank:"]),
        ("if x:", "if (\n            x\n            and rank\n        ):", ["if ("]),
        ("            second(x)\n", "            if rank:\n                second(x)\n", ["if rank:", "second(x)"]),
        ("first(x)", "first(\n            x, rank\n        )", ["first("]),
        ("first(x)", "raise ValueError\n        first(x)\n        other(x)", ["raise ValueError", "other(x)"]),
        (
            "first(x)",
            "try:\n            del x\n        except (\n            ValueError\n        ):\n            pass",
            ["try:", "del x", "except (", "pass"],
        ),
        ("first(x)", "def inner(y):\n            return y", ["def inner(y):", "return y"]),
        (
            "first(x)",
            "for y in x:\n            pass\n        else:\n            stop()",
            ["for y in x:", "pass", "stop()"],
        ),
        ("class Layer:", "other = 1\nclass Layer:", []),
        ("        return x\n", "        return x\n    def other(self):\n        return 1\n", []),
    ],
)
def test_the_statements_whose_text_is_new_are_rewritten(
    tmp_path: Path, old: str, new: str, expected: list[str]
) -> None:
    assert [*rewritten(tmp_path, BODY.replace(old, new, 1))] == expected


def test_a_statement_over_several_lines_is_one_and_a_head_ends_before_its_body(tmp_path: Path) -> None:
    found = rewritten(tmp_path, BODY.replace("if x:", "if (\n            x\n            and rank\n        ):"))
    assert found == {"if (": ["if (", "x", "and rank"]}


def test_the_names_of_lines_in_words_and_by_file(tmp_path: Path) -> None:
    names = ["a.py:3", "a.py:4", "a.py:5", "a.py:9", "b.py:1"]
    assert traced.places(names) == "a.py lines 3-5, 9; b.py line 1"
    found = traced.by_file(tmp_path, {"fix": {"a.py:3": [3, 4], "b.py:1": [1]}, "other": {"a.py:9": [9]}})
    assert found == {
        str(tmp_path / "a.py"): {3: "a.py:3", 4: "a.py:3", 9: "a.py:9"},
        str(tmp_path / "b.py"): {1: "b.py:1"},
    }
