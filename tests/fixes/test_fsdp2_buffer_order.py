"""fsdp2-buffer-order: run the real function on ranks whose buffers come in other orders, and match their broadcasts."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

FIX = "fsdp2-buffer-order"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
FIXED = sources.cases(FIX, {"verl": ["0.8.0"]}, state="fixed")
ORDERS = [("a.sliding", "b", "a.full"), ("a.full", "a.sliding", "b")]


class Buffer:
    """A tensor with a size and a value, which cannot be compared with another one."""

    def __init__(self, name: str) -> None:
        self.size, self.value = len(name), f"of {name}"

    def __lt__(self, other: object) -> bool:
        raise RuntimeError("tensors have no order")

    @property
    def data(self) -> Buffer:
        return self

    @data.setter
    def data(self, other: Buffer) -> None:
        assert other is self

    def to(self, device: str) -> Buffer:
        return self


class Model:
    """A model whose buffers come in one order on this rank."""

    def __init__(self, names: Sequence[str]) -> None:
        self.named = {name: Buffer(name) for name in names}

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        return iter(self.named.items())

    def buffers(self) -> Iterator[Buffer]:
        return iter(self.named.values())

    def to(self, *_: object, **__: object) -> Model:
        return self

    def to_empty(self, device: str) -> Model:
        for buffer in self.named.values():
            buffer.value = "nothing"
        return self


def broadcast(function: Any, rank: int, names: Sequence[str], offload: object = None) -> tuple[Model, list[Buffer]]:
    """Run the function as one rank, and return its model and what it broadcasts from rank 0, in order."""
    sent: list[Buffer] = []
    checkpoint = SimpleNamespace(StateDictOptions=lambda **_: None, set_model_state_dict=lambda *_, **__: None)

    def from_rank_0(buf: Buffer, src: int) -> None:
        assert src == 0
        sent.append(buf)

    namespace = {
        "__builtins__": {**vars(builtins), "__import__": lambda *_: checkpoint},
        "dist": SimpleNamespace(get_rank=lambda: rank, broadcast=from_rank_0),
        "torch": SimpleNamespace(__version__="2.7.0", cuda=SimpleNamespace(current_device=lambda: "cuda")),
        "version": SimpleNamespace(parse=str),
        "get_device_id": lambda: "cuda",
    }
    model = Model(names)
    sources.callable_of(function, namespace)(model, {}, None, offload)
    return model, sent


def faults(function: Any, orders: Sequence[Sequence[str]], offload: object = None) -> set[str]:
    """Return what is wrong when a rank for each of these orders runs the function."""
    models, sent = zip(*(broadcast(function, rank, names, offload) for rank, names in enumerate(orders)))
    found = {"sizes differ" for step in zip(*sent) if len({buffer.size for buffer in step}) > 1}
    for step in zip(*sent):
        for buffer in step[1:]:
            buffer.value = step[0].value
    if len({*map(len, sent)}) > 1:
        found.add("counts differ")
    if any(buffer.value != f"of {name}" for model in models for name, buffer in model.named.items()):
        found.add("values differ")
    return found


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIXED + CASES)
def test_upstreams_own_fix_is_found_in_every_shape_that_has_it(case: sources.Case) -> None:
    source = case.load()
    change = codemod(source.target)
    assert change.fixed_upstream(source.function) is (source.known.state == "fixed")
    if source.known.state == "fixed":
        assert faults(source.function, ORDERS) == set()
        with pytest.raises(AnchorError, match=r"^not found: for name, buf in "):
            change.plan(source.function)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("key=lambda x: x[0]", "key=lambda x: x[1].numel()"),
        ("dist.broadcast(buf, src=0)", "dist.broadcast(buf, src=1)"),
        ("in bufs:", "in model.named_buffers():"),
    ],
)
def test_another_order_is_not_taken_for_upstreams_own_fix(old: str, new: str) -> None:
    source = sources.wheel(FIX, "0.8.0")
    assert not codemod(source.target).fixed_upstream(sources.mutated(source.function, old, new))


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_upstreams_own_fix(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "fixed"
    assert "6405" in source.known.note
    assert codemod(source.target).fixed_upstream(source.function)
    assert faults(source.function, ORDERS) == set()


@pytest.mark.parametrize("names", [(), ("a",), ("a", "bc")])
def test_one_order_on_all_ranks_stays_right(names: tuple[str, ...]) -> None:
    source = sources.first(CASES)
    for function in source.function, source.rewritten.function:
        assert faults(function, [names] * 3) == set()
        assert len(broadcast(function, 1, names)[1]) == len(names)


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    @pytest.mark.parametrize("offload", [None, "policy"])
    def test_each_buffer_meets_itself_on_every_rank(self, case: sources.Case, offload: object) -> None:
        source = case.load()
        alike = [("a.one", "a.two"), ("a.two", "a.one"), ("a.one", "a.two")]
        assert faults(source.function, ORDERS, offload) == {"sizes differ", "values differ"}
        assert faults(source.function, alike, offload) == {"values differ"}
        assert faults(source.rewritten.function, ORDERS, offload) == set()
        assert faults(source.rewritten.function, alike, offload) == set()


_BY_NAME = "sorted(model.named_buffers(), key=lambda item: item[0])"


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        ("sorted(model.named_buffers(), key=lambda item: item[1].size)", "values differ"),
        (f"{_BY_NAME} if dist.get_rank() == 0 else model.named_buffers()", "values differ"),
        (f"{_BY_NAME}[::1 - 2 * dist.get_rank()]", "sizes differ"),
        (f"{_BY_NAME}[dist.get_rank():]", "counts differ"),
        (f"{_BY_NAME}[:1]", "values differ"),
    ],
)
def test_another_order_is_wrong_and_not_taken_for_ours(new: str, fault: str) -> None:
    source = sources.first(CASES)
    function = sources.mutated(source.rewritten.function, _BY_NAME, new)
    orders = [("a.one", "a.two", "b"), ("a.two", "a.one", "b")]
    assert fault in faults(function, orders)
    assert is_no_rewrite(source, function)


def test_a_loop_that_differs_or_stands_twice_is_no_anchor() -> None:
    source = sources.first(CASES)
    # 3.10 writes `for (name, buf) in`
    loop = ast.unparse(ast.parse("for name, buf in model.named_buffers():\n dist.broadcast(buf, src=0)"))
    change, loop = codemod(source.target), loop.replace("\n", "\n    ")
    for new in loop.replace("src=0", "src=1"), loop.replace("named_buffers", "named_parameters"):
        with pytest.raises(AnchorError, match="not found"):
            change.plan(sources.mutated(source.function, loop, new))
    with pytest.raises(AnchorError, match="found 2 times"):
        change.plan(sources.mutated(source.function, loop, f"{loop}\n    {loop}"))


_ITEM = "lambda item: item[0]"


def _by_hand() -> dict[str, tuple[Sub, ...]]:
    def order(new: str) -> tuple[Sub, ...]:
        return (Sub(_BY_NAME, new),)

    return {
        "as registered": order("list(model.named_buffers())"),
        "reversed": order("list(model.named_buffers())[::-1]"),
        "by size": order("sorted(model.named_buffers(), key=lambda item: item[1].numel())"),
        "by size and name's length": order(
            "sorted(model.named_buffers(), key=lambda item: (item[1].numel(), len(item[0])))"
        ),
        "by the last part of the name": order(
            "sorted(model.named_buffers(), key=lambda item: item[0].rpartition('.')[0])"
        ),
        "by the name's hash": order("sorted(model.named_buffers(), key=lambda item: len(item[0]) % 2)"),
        "by identity": order("sorted(model.named_buffers(), key=lambda item: id(item[1]))"),
        "by tensor": order("sorted(model.named_buffers(), key=lambda item: item[1])"),
        "a set": order("{name: buf for name, buf in model.named_buffers()}.items()"),
        "on the master alone": order(f"{_BY_NAME} if dist.get_rank() == 0 else model.named_buffers()"),
        "on the others alone": order(f"{_BY_NAME} if dist.get_rank() else model.named_buffers()"),
        "turned around on odd ranks": order(f"{_BY_NAME}[:: 1 - 2 * (dist.get_rank() % 2)]"),
        "without the first": order(f"{_BY_NAME}[1:]"),
        "without the last": order(f"{_BY_NAME}[:-1]"),
        "the first alone": order(f"{_BY_NAME}[:1]"),
        "twice": order(f"{_BY_NAME} * 2"),
        "of one size once": order(f"{{buf.numel(): (name, buf) for name, buf in {_BY_NAME}}}.values()"),
        "parameters": order("sorted(full_state.items())"),
        "not by the master": order(f"{_BY_NAME} if dist.get_rank() else []"),
        "from the last": (Sub(_BY_NAME, f"reversed({_BY_NAME})"),),
        "from rank 1": (Sub("src=0", "src=1"),),
        "from each rank": (Sub("src=0", "src=dist.get_rank()"),),
        "a copy": (Sub("dist.broadcast(buf, src=0)", "dist.broadcast(type(buf)(name, buf.numel()), src=0)"),),
        "no broadcast": (Sub("dist.broadcast(buf, src=0)", "pass"),),
        "with offload alone": order(f"{_BY_NAME} if cpu_offload else model.named_buffers()"),
        "without offload alone": order(f"model.named_buffers() if cpu_offload else {_BY_NAME}"),
    }


EQUIVALENT = {
    r"by hand: from the last|order: sorted.* -> \(\.\.\.\)\[::-1\]": "any order will do that is one order on all ranks",
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.7.1"), _by_hand(), EQUIVALENT)]
PROOFS = [
    Proofs(
        "verl",
        [Release("0.7.1", core=True), Release("0.5.0"), Release("0.4.1"), Release("0.4.0")],
        {
            "half: sorted on rank 0 alone": Other(
                without(r"item\[0\]\)", "item[0]) if dist.get_rank() == 0 else model.named_buffers()"),
                ("same-size-2", "other-size-2"),
                "of another buffer|crashed: rank 1 died",
            ),
            "sorted by size": Other(
                without(r"item\[0\]\)", "item[1].numel())"), ("same-size-2",), "differs: rank 1 holds values of another"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 2, r"named_buffers|broadcast|sorted", examples=60)
