"""Conditions on settings: what they hold for, what decides them, and their words."""

from __future__ import annotations

import pytest

from unhang.job import condition
from unhang.job.settings import Setting, Value, parsed


def answer(text: str, **known: Value) -> tuple[bool | None, tuple[str, ...]]:
    return condition.answer(text, lambda name: Setting(known[name], "") if name in known else None)


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("tp > 1", {"tp": 2}, True),
        ("tp > 1", {"tp": None}, False),  # set to nothing is no size
        ("a == 1 and b", {"a": 1, "b": False}, False),
        ("a in ('x', 'y')", {"a": "X"}, True),
        ("a not in ('x', 'y')", {"a": "z"}, True),
        ("a != 'x'", {"a": None}, True),
        ("given(a)", {"a": 0}, True),
        ("given(a)", {"a": None}, False),
        ("a == 1", {"a": True}, False),
        ("not (a or b)", {"a": 0, "b": ""}, True),
        ("a.b and given(a.c.d)", {"a.b": True, "a.c.d": 0}, True),
        ("a == b", {"a": 2, "b": 2}, True),
        ("a < b", {"a": 2, "b": None}, False),
    ],
)
def test_a_condition_holds_by_the_values_of_its_settings(text: str, known: dict[str, Value], expected: bool) -> None:
    assert answer(text, **known)[0] is expected


def test_releases_are_compared_as_versions() -> None:
    def look(name: str) -> Setting | None:
        return Setting("0.12.0rc1", "") if name == "version megatron-core" else None

    assert condition.answer('version("megatron-core") >= "0.9"', look).holds
    assert condition.answer('version("megatron-core") >= "0.12"', look).holds  # a candidate has what its release has
    assert condition.answer('version("verl") < "0.8"', look) == (None, ("version verl",))
    assert not condition.answer('version("verl") < "0.8"', lambda _: Setting(None, "not installed")).holds


def test_what_decides_a_condition_is_named_and_what_would() -> None:
    assert answer("a and b and c", a=True, b=False) == (False, ("b",))
    assert answer("a and b and c", a=True) == (None, ("b", "c"))
    assert answer("a or b or c", a=False, b=True) == (True, ("b",))
    assert answer("a and 'a rank is idle'", a=True) == (None, ("a rank is idle",))
    assert answer("a == b", a=1) == (None, ("b",))
    assert answer("a == b", a=1, b=2) == (False, ("a", "b"))


@pytest.mark.parametrize(
    "text",
    ["a + 1", "f(x)", "a in b", "1", "a <", "1 < a < 3", "f().b", "open('x')", "given('a')", "usually(a)"],
)
def test_anything_else_is_no_condition(text: str) -> None:
    with pytest.raises(condition.BadConditionError, match=r"a|f|1|open"):
        condition.read(text)


def test_a_condition_has_words() -> None:
    text = (
        'strategy in ("fsdp", "fsdp2") and t.p > 1 and not sp and (a or "a rank is idle") and version("verl") < "0.8"'
    )
    assert condition.words(text) == (
        "strategy=fsdp or fsdp2, t.p over 1, without sp, a or a rank is idle, and verl before 0.8"
    )
    assert condition.names(text) == ("strategy", "t.p", "sp", "a")
    assert condition.facts(text) == ("a rank is idle",)
    assert condition.words("expert_tensor_parallel_size == tensor_model_parallel_size") == "ETP=TP"
    assert condition.words("a == 1 and b > 1 and ranks > 1") == "a=1, b over 1 and several ranks"
    assert (
        condition.words("a and not (b or c) or d and (e or f and g)")
        == "a and without (b or c), or d and (e or (f and g))"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1e-3", 1e-3), ("True", True), ("null", None), ("'a b'", "a b"), ("fsdp", "fsdp"), ("", None)],
)
def test_what_a_user_writes_is_a_value(text: str, value: Value) -> None:
    assert parsed(text) == value
