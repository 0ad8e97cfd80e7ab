"""The interpreter does what Python does."""

from __future__ import annotations

from typing import Any

import pytest

from independent.interpreter import BeyondError, Unknown, Walk

# Made-up code: each function is run by both.
CODE = b"""
from itertools import cycle
import logging as log

LIMIT = 3
count: int = 0
table = {"a": [1, 2], **{"b": [3]}}

class Counter:
    def __init__(self, start=0, *, step=1):
        self.value, self.step = start, step

    @property
    def twice(self):
        return 2 * self.value

    @staticmethod
    def least(*values):
        return min(values)

    def count(self, times):
        for _ in range(times):
            self.value += self.step
        return self

def loops():
    found = []
    for number in range(10):
        if number % 2:
            continue
        found.append(number)
    else:
        found += ["done"]
    for number in found:
        if number == 4:
            return found, [(a, b) for a in (1, 2) for b in (3, 4) if a + b != 5], dict(zip("ab", (1, 2)))

def scopes():
    global count
    count = count + LIMIT
    seen = []
    def outer(first, second=2, *rest, key, **others):
        total = first
        def inner():
            return total - second
        seen.append(inner())
        return (total, rest, key, others)
    return count, outer(1, 5, 6, key=7, more=8), seen, globals().get("count"), globals().get("nobody")

def classes():
    made = Counter(2, step=3).count(times=2)
    return made.value, made.twice, Counter.least(4, 2), isinstance(made, Counter), isinstance(made, (int, str))

def generators():
    def pairs(limit):
        for number in range(limit):
            yield number, -number
    return list(pairs(3)), sum(a for a, _ in pairs(4)), any(it == 2 for it in (1, 2)), sorted(table["a"], reverse=True)

def errors():
    found = []
    for wanted in ({}["x"] if False else "key", "attribute"):
        try:
            if wanted == "key":
                table["z"]
            else:
                raise ValueError(f"{wanted!r}")
        except (KeyError, AttributeError) as error:
            found.append("key")
        except ValueError:
            found.append("value")
        finally:
            found.append("last")
    return found

def expressions():
    text = "a-b"
    first, (second, third) = 1, [2, 3]
    chosen = text if first < second <= third and not None else None
    return chosen, text.split("-")[::-1], [*table["a"], 9][-1], (found := 4) + found, 7 // 2

def unbound():
    int(1)
    del int

def missing():
    return nowhere

def too_many():
    return Counter(1, 2)
"""


@pytest.mark.parametrize(
    "name", ["loops", "scopes", "classes", "generators", "errors", "expressions", "unbound", "missing", "too_many"]
)
def test_it_does_what_python_does(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(CODE, namespace)
    assert _outcome(Walk(CODE, {}).function(name)) == _outcome(namespace[name])


def _outcome(function: Any) -> object:
    try:
        return function()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("truth", [False, True])
def test_what_nobody_stands_in_for_is_unknown(truth: bool) -> None:
    code = (
        b"import far\ndef run():\n    x = far(1)[2].y\n    return x, not x, x > 1, x is None, len(x), [it for it in x]"
    )
    x, inverted, compared, none, length, items = Walk(code, {}, truth).function("run")()
    assert [bool(it) for it in (x, inverted, compared, none, length)] == [truth, not truth, truth, not truth, truth]
    assert len(items) == truth
    assert isinstance(x, Unknown)


@pytest.mark.parametrize("body", ["open('x')", "(1).__class__", "exec('1')", "while True: pass", "async def f(): pass"])
def test_what_is_beyond_it_is_told_and_cannot_be_caught(body: str) -> None:
    """Nothing of the interpreted code runs, so there is nothing that could harm."""
    code = f"def run():\n    try:\n        {body}\n    except Exception:\n        return 1"
    with pytest.raises(BeyondError):
        Walk(code.encode(), {}).function("run")()
