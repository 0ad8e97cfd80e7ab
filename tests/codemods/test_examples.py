"""Each codemod does what the example in its docstring shows, and refuses the result."""

from __future__ import annotations

import pytest

from support import examples
from support.examples import Example
from unhang.codemods.base import AnchorError, Codemod

CODEMODS = examples.codemods()


def name(change: type[Codemod]) -> str:
    """Return the module and the class, so that `-k` finds the codemods of one fix."""
    return f"{change.__module__.removeprefix('unhang.codemods.')}-{change.__name__}"


CASES = [
    pytest.param(change(), example, id=f"{name(change)}-{number}")
    for change in CODEMODS
    for number, example in enumerate(examples.examples(change), 1)
]


@pytest.mark.parametrize("change", CODEMODS, ids=name)
def test_the_docstring_has_an_example(change: type[Codemod]) -> None:
    assert examples.examples(change)
    assert (change.__doc__ or "").count("Before::") == len(examples.examples(change)), "one of them has another form"


@pytest.mark.parametrize(("change", "example"), CASES)
def test_the_example_is_what_the_codemod_does(change: Codemod, example: Example) -> None:
    done = examples.rewritten(change, example.before)
    assert examples.shows(example, done), done
    assert all(name in done for name in change.names(examples.function_of(example.before)))
    with pytest.raises(AnchorError):
        change.plan(examples.function_of(done))
