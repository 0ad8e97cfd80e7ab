"""A condition on the settings of a job: read as Python's own syntax, and never run.

``tensor_model_parallel_size > 1 and not sequence_parallel``: names are the upstream's own, as much of the end of each
as tells it apart: ``strategy``, ``lora.merge``. A comparison with ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` (of a
value or another name) or ``in (...)``, a name alone (it is set, and neither false nor 0), ``given(name)`` (it is set at
all), ``and``, ``or``, ``not`` and parentheses. ``version("megatron-core") < "0.12"`` asks for the upstream's release,
to which its release candidates belong, and does not hold where there is none; ``ranks`` is the number of ranks. A text
alone, such as ``"some rank has nothing to log"``, is a fact that no setting tells. ``usually("...")`` is one that holds
unless somebody says otherwise, and ``rarely("...")`` one that does not: what almost every job does at some time, or
none. The words of a condition leave them out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from unhang.job.settings import Setting, Value

Look = Callable[[str], "Setting | None"]
"""Gives the setting of a name, ``version NAME`` for a release; None where it is not known."""

_COMPARED: Mapping[type, tuple[Callable[[Any, Any], bool], str]] = {
    ast.Eq: (operator.eq, "="),
    ast.NotEq: (operator.ne, " other than "),
    ast.Lt: (operator.lt, " below "),
    ast.LtE: (operator.le, " at most "),
    ast.Gt: (operator.gt, " over "),
    ast.GtE: (operator.ge, " at least "),
    ast.In: (lambda one, of: any(_same(one, each) for each in of), "="),
    ast.NotIn: (lambda one, of: not any(_same(one, each) for each in of), " other than "),
}


class Answer(NamedTuple):
    """Whether a condition holds, and what decides that."""

    holds: bool | None
    """None if what is known does not decide it."""
    names: tuple[str, ...]
    """The settings and facts that decide it; or, if it is open, those that would."""


class BadConditionError(ValueError):
    """A condition that is not written as it must be."""


def read(text: str) -> ast.expr:
    """Return a condition's syntax tree. Raises BadConditionError with what is wrong."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise BadConditionError(f"{text!r}: {error.msg}") from None
    _check(tree, text)
    return tree


def answer(text: str, look: Look) -> Answer:
    """Return whether a condition holds for what is known of a job. Raises BadConditionError."""
    return _answer(read(text), look)


def names(text: str) -> tuple[str, ...]:
    """Return the settings that a condition asks for, without releases and facts. Raises BadConditionError."""
    return tuple(dict.fromkeys(_names(read(text))))


def facts(text: str) -> tuple[str, ...]:
    """Return the facts in a condition, which no setting tells. Raises BadConditionError."""
    return tuple(_facts(read(text)))


def words(text: str) -> str:
    """Return a condition in words: ``tensor_model_parallel_size over 1 and without sequence_parallel``.

    Raises BadConditionError.
    """
    return _words(read(text))


def _is_call(tree: ast.expr, name: str) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == name


def _is_likely(tree: ast.expr) -> bool:
    return _is_call(tree, "usually") or _is_call(tree, "rarely")


def _check(tree: ast.expr, text: str) -> None:
    """Raise BadConditionError where a tree has anything but what a condition may have."""
    if isinstance(tree, ast.BoolOp):
        for part in tree.values:
            _check(part, text)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        _check(tree.operand, text)
    elif isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _COMPARED:
        is_of_names = _dotted(tree.left) and not isinstance(tree.ops[0], (ast.In, ast.NotIn))
        try:
            _ = (is_of_names and _dotted(tree.comparators[0])) or ast.literal_eval(tree.comparators[0])
        except ValueError:
            raise BadConditionError(f"{text!r} compares with {ast.unparse(tree.comparators[0])}") from None
        if not _dotted(tree.left) and not _is_call(tree.left, "version"):
            raise BadConditionError(f"{text!r} compares {ast.unparse(tree.left)}")
    elif not (
        _dotted(tree)
        or (isinstance(tree, ast.Constant) and isinstance(tree.value, str))
        or (_is_call(tree, "given") and len(tree.args) == 1 and _dotted(tree.args[0]))  # type: ignore[attr-defined]
        or (_is_likely(tree) and [type(getattr(it, "value", 0)) for it in tree.args] == [str])  # type: ignore[attr-defined]
    ):
        raise BadConditionError(f"{text!r} has {ast.unparse(tree)}")


def _dotted(tree: ast.expr) -> str:
    """Return the name that ``a`` or ``a.b`` is; empty if it is none."""
    if isinstance(tree, ast.Attribute):
        return f"{before}.{tree.attr}" if (before := _dotted(tree.value)) else ""
    return tree.id if isinstance(tree, ast.Name) else ""


def _names(tree: ast.AST) -> Iterator[str]:
    if isinstance(tree, ast.expr) and (name := _dotted(tree)):
        yield name
    elif not isinstance(tree, ast.Call) or _is_call(tree, "given"):
        for part in tree.args if isinstance(tree, ast.Call) else ast.iter_child_nodes(tree):
            yield from _names(part)


def _facts(tree: ast.expr) -> list[str]:
    if isinstance(tree, ast.BoolOp):
        return [fact for part in tree.values for fact in _facts(part)]
    if isinstance(tree, ast.UnaryOp):
        return _facts(tree.operand)
    if _is_likely(tree):
        return [_name(tree)]
    return [tree.value] if isinstance(tree, ast.Constant) and isinstance(tree.value, str) else []


def _answer(tree: ast.expr, look: Look) -> Answer:
    if isinstance(tree, ast.BoolOp):
        decides = isinstance(tree.op, ast.Or)  # what one part alone decides the whole by
        parts = [_answer(part, look) for part in tree.values]
        for wanted in (decides, None, not decides):
            if found := [part for part in parts if part.holds is wanted]:
                found = found[:1] if wanted is decides else found
                return Answer(wanted, tuple(dict.fromkeys(name for part in found for name in part.names)))
    if isinstance(tree, ast.UnaryOp):
        holds, deciding = _answer(tree.operand, look)
        return Answer(None if holds is None else not holds, deciding)
    if isinstance(tree, ast.Constant):
        fact = look(str(tree.value))
        return Answer(None if fact is None else bool(fact.value), (str(tree.value),))
    if _is_likely(tree):
        told = look(_name(tree))
        return Answer(bool(told.value), (_name(tree),)) if told else Answer(_is_call(tree, "usually"), ())
    name = _name(tree.left if isinstance(tree, ast.Compare) else tree)
    other = _dotted(tree.comparators[0]) if isinstance(tree, ast.Compare) else ""
    settings = {each: look(each) for each in (name, other) if each}
    if unknown := tuple(each for each, setting in settings.items() if setting is None):
        return Answer(None, unknown)
    return Answer(_holds(tree, *(it.value for it in settings.values() if it)), (*settings,))


def _name(tree: ast.expr) -> str:
    """Return what is looked up for a name, ``given(name)`` or ``version("upstream")``."""
    if name := _dotted(tree):
        return name
    (argument,) = tree.args  # type: ignore[attr-defined]  # it is a call
    return _dotted(argument) or f"{'version ' * _is_call(tree, 'version')}{argument.value}"


def _holds(tree: ast.expr, value: Value, other: Value = None) -> bool:
    """Return whether a part holds for the value of its name, and for that of the name that it is compared with."""
    if not isinstance(tree, ast.Compare):
        return value is not None if isinstance(tree, ast.Call) else bool(value)
    (right,), compare = tree.comparators, _COMPARED[type(tree.ops[0])][0]
    wanted = other if _dotted(right) else ast.literal_eval(right)
    if isinstance(tree.left, ast.Call):
        from packaging.version import Version

        # what is not installed has no release
        return value is not None and compare(Version(Version(str(value)).base_version), Version(str(wanted)))
    if compare in (operator.eq, operator.ne):
        return _same(value, wanted) is (compare is operator.eq)
    if isinstance(tree.ops[0], (ast.In, ast.NotIn)):
        return compare(value, wanted)
    return isinstance(value, (int, float)) and isinstance(wanted, (int, float)) and compare(value, wanted)


def _same(one: Value, other: Value) -> bool:
    """Return whether two values are the same to a user, who writes words in any case, and ``1`` for ``1.0``."""
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _words(tree: ast.expr, depth: int = 0) -> str:
    if isinstance(tree, ast.BoolOp):
        word, told = "or" if isinstance(tree.op, ast.Or) else "and", _told(tree)
        if len(told) < 2:
            return _words(told[0], depth)
        parts = [_words(part, depth + 1) for part in told]
        if depth > 1:
            return f"({f' {word} '.join(parts)})"
        comma = "," if depth == 0 and any(map(_has_several, told)) else ""
        return f"{', '.join(parts[:-1])}{comma} {word} {parts[-1]}"
    if isinstance(tree, ast.UnaryOp):
        return f"without {_words(tree.operand, 2)}"
    if isinstance(tree, ast.Constant):
        return str(tree.value)
    if not isinstance(tree, ast.Compare):
        return _short(_name(tree))
    name, sign, right = _name(tree.left), _COMPARED[type(tree.ops[0])][1], tree.comparators[0]
    if isinstance(tree.left, ast.Call):
        name, sign = name.removeprefix("version "), {" at least ": " from ", " below ": " before "}.get(sign, sign)
    wanted = _short(_dotted(right)) or ast.literal_eval(right)
    if (name, sign, wanted) == ("ranks", " over ", 1):
        return "several ranks"
    values = [*wanted] if isinstance(wanted, (tuple, list)) else [wanted]
    return f"{_short(name)}{sign}{' or '.join(map(str, values))}"


_SHORT = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "context_parallel_size": "CP",
    "expert_model_parallel_size": "EP",
    "expert_tensor_parallel_size": "ETP",
}
"""What those who set these call them."""


def _short(name: str) -> str:
    return _SHORT.get(name, name)


def _has_several(tree: ast.expr) -> bool:
    """Return whether there is an "and" or "or" in the words of a part, which a comma must keep from those around it."""
    if isinstance(tree, ast.BoolOp):
        return len(_told(tree)) > 1
    return isinstance(tree, ast.Compare) and isinstance(tree.comparators[0], (ast.Tuple, ast.List))


def _told(tree: ast.BoolOp) -> list[ast.expr]:
    """Return the parts that the words of a condition tell: none that need what is rare."""
    return [part for part in tree.values if not _is_likely(part) and not _is_rare(part)]


def _is_rare(tree: ast.expr) -> bool:
    return (
        isinstance(tree, ast.BoolOp)
        and isinstance(tree.op, ast.And)
        and any(_is_call(part, "rarely") for part in tree.values)
    )
