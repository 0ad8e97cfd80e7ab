"""empty-expert-hang: run the real forward on stand-in tensors, and record what the grouped linears get and return."""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fixes.empty_expert_hang.mutants import MUTANTS as MUTANTS
from fixes.empty_expert_hang.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod

FIX = "empty-expert-hang"
RELEASES = (
    *("0.10.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.0", "0.17.1", "0.18.2", "0.19.2"),
    *("0.16.0rc0.dev100093", "0.16.0rc0.dev132550"),
)
CASES = sources.cases(FIX, {"megatron-core": RELEASES})
# A pull request as written has the same result as the untouched shape, which a separate test checks.
UNTOUCHED = [case for case in CASES if case.values[0].kind != "pull"]
EXPERTS, HIDDEN, ALIGNMENT = 3, 2, 16
OFF = (
    *("bias_activation_fusion", "use_te_activation_func", "use_fused_weighted_squared_relu", "gated_linear_unit"),
    *("add_bias_linear", "delay_offload_until_cuda_graph"),
)
FOCUS = r"tokens_per_expert|permuted_|output|has_no_tokens|num_rows|skip_routed|grouped|linear_fc"
FUZZ = Fuzz(CASES, 6, FOCUS, examples=110, every=3)


class Tensor:
    """A vector, or a matrix as a list of rows. ``origin`` is what it was computed from, as in an autograd graph."""

    dtype = "bfloat16"

    def __init__(self, rows: list[Any], width: int | None, origin: frozenset[str], device: str = "cuda") -> None:
        self.rows, self.width, self.origin, self.device = rows, width, origin, device

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows),) if self.width is None else (len(self.rows), self.width)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def to(self, *_: object, device: str | None = None, dtype: object = None, non_blocking: bool = False) -> Tensor:
        return Tensor(self.rows, self.width, self.origin, device or self.device)

    def tolist(self) -> list[Any]:
        SYNCHRONISED.append(self.device)
        return list(self.rows)

    def unsqueeze(self, dimension: int) -> Tensor:
        assert (dimension, self.width) == (-1, None)
        return Tensor([[value] for value in self.rows], 1, self.origin, self.device)

    def new_zeros(self, *size: Any) -> Tensor:
        count, width = [*(size[0] if isinstance(size[0], tuple) else size), None][:2]
        return Tensor([0.0 if width is None else [0.0] * width for _ in range(count)], width, frozenset(), self.device)

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self.rows[part], self.width, self.origin, self.device)

    def __mul__(self, other: Tensor) -> Tensor:
        """Multiply two matrices, one of which may have a single column."""
        if len(self.rows) != len(other.rows):
            raise Misfit("the two factors do not have the same rows")
        width = max(self.width or 0, other.width or 0)
        pairs = zip(self.rows, other.rows)
        rows = [[a[index % len(a)] * b[index % len(b)] for index in range(width)] for a, b in pairs]
        return Tensor(rows, width, self.origin | other.origin, self.device)

    def described(self) -> Any:
        return self.shape, self.rows, self.origin


class Misfit(Exception):
    """Tensors that do not fit together: a real forward fails there."""


SYNCHRONISED: list[str] = []
"""The device of each fetch of values, in order: the host waits for a GPU then."""
Tokens = list[int] | Tensor


class Setting(NamedTuple):
    """The layer's configuration and its input."""

    tokens: tuple[int, ...] = (0,) * EXPERTS
    spare: int = 0
    """Rows of the buffer that belong to no expert."""
    fp8: bool = False
    fp4: bool = False
    skip: bool = False
    """Whether the dispatcher or the router has already aligned the experts' rows."""
    on_input: bool = False
    recompute: bool = False
    grouped: bool = False
    fused: bool = False
    cuts_graph: bool = False
    """Whether the backend returns a fresh tensor for an empty input."""

    @property
    def quantized(self) -> bool:
        return self.fp8 or self.fp4


class Call(NamedTuple):
    """One call of a grouped linear."""

    name: str
    rows: list[Any]
    tokens: list[int]
    is_list: bool


class Outcome(NamedTuple):
    """What a forward did."""

    calls: list[Call]
    output: Any
    bias: Any
    synchronised: list[str]


def segments(rows: list[Any], tokens: list[int]) -> list[list[Any]]:
    ends = list(itertools.accumulate(tokens))
    return [rows[end - count : end] for end, count in zip(ends, tokens)]


class Layer:
    """The attributes of the layer that TEGroupedMLP.forward uses."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.calls = setting, list[Call]()
        self.num_local_experts = EXPERTS
        self.activation_recompute = setting.recompute
        self.offload_expert_fc1 = self.offload_moe_act = False
        self._use_grouped_tensor, self._with_fused_impl = setting.grouped, setting.fused
        self.config = SimpleNamespace(
            fp8="hybrid" if setting.fp8 else None,
            fp4="nvfp4" if setting.fp4 else None,
            skip=setting.skip,
            moe_router_padding_for_quantization=setting.skip,
            moe_apply_probs_on_input=setting.on_input,
            moe_router_topk=1,
            moe_mlp_glu_interleave_size=None,
            **dict.fromkeys(OFF, False),
        )
        self.linear_fc1, self.linear_fc2 = partial(self._linear, "fc1"), partial(self._linear, "fc2")
        self.fp8_padding = self.quantization_padding
        self.fp8_unpadding = self.quantization_unpadding

    def _linear(self, name: str, given: Tensor, tokens: Tokens) -> tuple[Tensor, None]:
        counts = tokens.rows if isinstance(tokens, Tensor) else tokens
        self.calls.append(Call(name, [list(row) for row in given.rows], list(counts), isinstance(tokens, list)))
        rows = []
        for expert, segment in enumerate(segments(given.rows, counts)):
            rows += [[value * (expert + 2) + 1.0 for value in row] for row in segment]  # zero rows do not stay zero
        rows += [[0.0] * (given.width or 0)] * (len(given.rows) - len(rows))
        origin = frozenset() if self.setting.cuts_graph and not given.rows else given.origin | {name}
        return Tensor(rows, given.width, origin), None

    def activation_func(self, given: Tensor) -> Tensor:
        return given

    def bias_act_func(self, given: Tensor, bias: None, probs: Tensor) -> Tensor:
        return given * probs

    def _apply_bias(self, output: Tensor, bias: None, tokens: Tokens, probs: Tensor) -> Tensor:
        assert bias is None
        return output

    def _fused_forward(self, given: Tensor, tokens: Tensor, probs: Tensor, *buffers: None) -> Tensor:
        self.calls.append(Call("fused", given.rows, tokens.rows, False))
        return given

    def quantization_padding(self, given: Tensor, tokens: list[int]) -> tuple[Tensor, list[int]]:
        assert isinstance(tokens, list)
        padded = [-(-count // ALIGNMENT) * ALIGNMENT for count in tokens]
        zero = [0.0] * (given.width or 0)
        rows: list[Any] = []
        for segment, count in zip(segments(given.rows, tokens), padded):
            rows += segment + [zero] * (count - len(segment))
        return Tensor(rows, given.width, given.origin), padded

    def quantization_unpadding(self, given: Tensor, tokens: list[int]) -> Tensor:
        padded = [-(-count // ALIGNMENT) * ALIGNMENT for count in tokens]
        rows = [row for segment, count in zip(segments(given.rows, padded), tokens) for row in segment[:count]]
        return Tensor(rows, given.width, given.origin)


class Offload:
    """Activation offloading in the forms that releases use; it does nothing here."""

    def __init__(self, enabled: bool, tensor: Tensor, name: str) -> None:
        assert not enabled
        self.tensor = tensor

    def __enter__(self) -> Tensor:
        return self.tensor

    def __exit__(self, *_: object) -> None:
        pass

    def group_offload(self, tensor: Tensor, **_: object) -> Tensor:
        return tensor


class Checkpoint:
    """Recomputation, as the forward uses it."""

    def checkpoint(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    def discard_output_and_register_recompute(self, output: Tensor) -> None:
        assert isinstance(output, Tensor)


def cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    assert dim == 0
    assert len({(tensor.width, tensor.device) for tensor in tensors}) == 1
    rows = [row for tensor in tensors for row in tensor.rows]
    return Tensor(rows, tensors[0].width, frozenset().union(*(tensor.origin for tensor in tensors)))


NAMESPACE: dict[str, Any] = {
    "logging": logging,
    "__name__": "megatron.core.transformer.moe.experts",
    "torch": SimpleNamespace(
        Tensor=Tensor,
        int64="int64",
        cat=cat,
        full=lambda size, value, dtype, device: Tensor([value] * size[0], None, frozenset(), device),
        tensor=lambda values, dtype, device: Tensor(list(values), None, frozenset(), device),
        ones_like=lambda given: Tensor([[1.0]] * len(given.rows), 1, frozenset()),
    ),
    "F": SimpleNamespace(silu="silu", gelu="gelu"),
    "tensor_parallel": SimpleNamespace(CheckpointWithoutOutput=Checkpoint),
    "off_interface": Offload,
    "apply_module": lambda module: module,
    "get_fine_grained_offloading_context": lambda enabled: Offload(enabled, Tensor([], 0, frozenset()), ""),
    "quick_gelu": "quick_gelu",
    "squared_relu": "squared_relu",
    "ones": lambda count, width: Tensor([[1.0] * width for _ in range(count)], width, frozenset()),
    "skip_routed_expert_padding": lambda config: config.skip,
    "get_align_size_for_quantization": lambda config: ALIGNMENT if config.fp8 or config.fp4 else 0,
}


@functools.cache
def run(function: Any, setting: Setting) -> Outcome:
    """Run a forward."""
    layer, count = Layer(setting), sum(setting.tokens) + setting.spare
    hidden = Tensor([[float(index + 1)] * HIDDEN for index in range(count)], HIDDEN, frozenset({"hidden"}))
    probs = Tensor([0.5 + index for index in range(count)], None, frozenset({"probs"}))
    tokens = Tensor(list(setting.tokens), None, frozenset(), "cuda" if setting.grouped else "cpu")
    arguments = [hidden, tokens, probs][: 3 if is_weighted(function) else 2]
    SYNCHRONISED.clear()
    output, bias = sources.callable_of(function, NAMESPACE)(layer, *arguments)
    return Outcome(layer.calls, output.described(), bias, list(SYNCHRONISED))


def has(function: Any, name: str) -> bool:
    """Return whether a function's code uses a name."""
    return re.search(rf"\b{name}\b", sources.unparsed(function)) is not None


def is_weighted(function: Any) -> bool:
    """Return whether the forward takes the probabilities; 0.10 to 0.12.0 do not."""
    return "permuted_probs" in {argument.arg for argument in function.args.args}


def settings(function: Any) -> Iterator[Setting]:
    """Yield every configuration that this shape of the forward looks at."""
    flags = {
        "fp8": has(function, "fp8"),
        "fp4": has(function, "fp4"),
        "skip": has(function, "skip_routed_expert_padding") or has(function, "moe_router_padding_for_quantization"),
        # for some days the forward tested this without the probabilities: a job with it fails, with or without tokens
        "on_input": has(function, "moe_apply_probs_on_input")
        and (is_weighted(function) or not has(function, "permuted_probs")),
        "recompute": has(function, "activation_recompute"),
        "grouped": has(function, "_use_grouped_tensor"),
        "fused": has(function, "_with_fused_impl"),
    }
    for values in itertools.product(*((False, True) if there else (False,) for there in flags.values())):
        chosen: dict[str, Any] = dict(zip(flags, values))
        setting = Setting(**chosen)
        if not (setting.fp8 and setting.fp4):
            yield setting


def is_ours(setting: Setting) -> bool:
    """Return whether the rewrite must add rows in this configuration, given no row."""
    return not setting.grouped and not setting.fused


@functools.cache
def faults(function: Any) -> frozenset[str]:
    """Return what is wrong with a forward without any row; nothing if it keeps the fix's promise."""
    return frozenset().union(*(faults_in(function, setting) for setting in filter(is_ours, settings(function))))


def faults_in(function: Any, setting: Setting) -> set[str]:
    """Return what is wrong with a forward in one configuration, without any row."""
    found = set()
    try:
        outcome = run(function, setting._replace(cuts_graph=True))
    except Misfit as error:
        return {f"raises: {error}"}
    wanted = ALIGNMENT if setting.quantized else 1
    if [call.name for call in outcome.calls] != ["fc1", "fc2"]:
        found.add("fc1 and fc2 are not called once each")
    fc1, fc2 = outcome.calls
    if not (fc1.rows and fc2.rows):
        found.add("a grouped linear gets an empty input")
    if any(call.tokens != [wanted] * EXPERTS for call in outcome.calls):
        found.add(f"tokens_per_expert is not [{'k' if setting.quantized else 1}] * n")
    if any(len(call.rows) != sum(call.tokens) for call in outcome.calls):
        found.add("the rows are not those that tokens_per_expert counts")
    if any(not call.is_list for call in outcome.calls):
        found.add("tokens_per_expert is not a list")
    if fc1.rows != [[0.0] * HIDDEN] * len(fc1.rows):
        found.add("the rows are not zero")
    weighted = is_weighted(function)
    if weighted and not setting.on_input and fc2.rows != [[0.0] * HIDDEN] * len(fc2.rows):
        found.add("the probabilities are not zero")
    output_shape, _, origin = outcome.output
    if output_shape != (0, HIDDEN):
        found.add("the output has rows")
    if not origin >= {"hidden", "fc1", "fc2"} or (weighted and "probs" not in origin):
        found.add("the graph is cut")
    return found


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", UNTOUCHED)
def test_nothing_changes_where_the_fix_plays_no_part(case: sources.Case) -> None:
    """The same input of fc1 and fc2, the same output, and no further wait for the GPU."""
    source = case.load()
    others = [setting for setting in settings(source.function) if not is_ours(setting)]
    assert bool(others) == (has(source.function, "_with_fused_impl") or has(source.function, "_use_grouped_tensor"))
    for setting in settings(source.function):
        # rows that were aligned beforehand come in aligned numbers
        some = [(16, 0, 32), *([] if setting.skip and setting.quantized else [(2, 0, 1), (0, 0, 1)])]
        given = [setting._replace(tokens=tokens) for tokens in some]
        over_allocated = setting._replace(spare=4)
        for each in (*given, over_allocated, *([setting] if setting in others else [])):
            outcome = run(source.rewritten.function, each)
            assert outcome == run(source.function, each)
            assert sum(outcome.calls[0].tokens) >= sum(each.tokens)
            assert each in given or not any(any(call.tokens) for call in outcome.calls)
            assert each != setting or all(call.rows == [] for call in outcome.calls)


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    def test_without_a_row_the_linears_run_on_zero_rows(self, case: sources.Case) -> None:
        function = case.load().rewritten.function
        assert faults(function) == set()
        for setting in filter(is_ours, settings(function)):
            assert run(function, setting).synchronised == ["cpu"], "tokens_per_expert is fetched from a device again"

    def test_the_same_harness_shows_the_defect(self, case: sources.Case) -> None:
        source = case.load()
        if source.known.note:
            # the pull request tests sum(tokens_per_expert): right without a row, wrong in a buffer with spare rows
            given = Setting(spare=4)
            assert run(source.function, Setting()).output[0] == (0, HIDDEN)
            assert run(source.function, given) != run(source.rewritten.function, given)
        else:
            assert {"a grouped linear gets an empty input", "the graph is cut"} <= faults(source.function)


def test_a_backend_that_keeps_the_graph_is_right_either_way() -> None:
    """The control: the untouched forward is right too, and the rewrite keeps its whole graph."""
    source = sources.first(CASES)
    for function in source.function, source.rewritten.function:
        rows, _, origin = run(function, Setting()).output
        assert rows == (0, HIDDEN)
        assert origin >= {"hidden", "fc1", "fc2"}


# -- half of the rewrite ----------------------------------------------------------------------------------------------

_PROBS = "permuted_probs = torch.cat([permuted_probs, permuted_probs.new_zeros(num_rows)])"
_ROWS = "torch.cat([permuted_local_hidden_states, zero_rows])"
_TOLIST = "tokens_per_expert = tokens_per_expert.tolist()"
_RETURN = "return (output, output_bias)"
_ALIGNED = "skip_routed_expert_padding(self.config) and (self.config.fp8 or self.config.fp4)"
MUTATIONS = [
    ("if has_no_tokens:\n        output = output[:0]", "pass", "the output has rows"),
    ("= permuted_local_hidden_states.new_zeros(", "= ones(", "the rows are not zero"),
    (_PROBS, "pass", "raises: the two factors do not have the same rows"),
    (_ROWS, "zero_rows", "the graph is cut"),
]
ROWS_MUTATIONS = [
    (version, f"num_rows = {rows}", f"num_rows = 0 * {rows}", "a grouped linear gets an empty input")
    for version, rows in (("0.15.3", "self.num_local_experts"), ("0.19.2", "rows_per_expert"))
]
ALIGNMENT_MUTATIONS = [
    ("= get_align_size_for_quantization(self.config)", "= 1", "tokens_per_expert is not [k] * n"),
    # without fp8 and fp4 upstream's helper returns 0, which would add no rows
    (_ALIGNED, "skip_routed_expert_padding(self.config)", "a grouped linear gets an empty input"),
]


@pytest.mark.parametrize(
    ("version", "old", "new", "fault"),
    [(version, *each) for version in ("0.15.3", "0.19.2") for each in MUTATIONS]
    + [(version, *each) for version in ("0.18.2", "0.19.2") for each in ALIGNMENT_MUTATIONS]
    + ROWS_MUTATIONS,
)
def test_part_of_the_rewrite_is_not_enough(version: str, old: str, new: str, fault: str) -> None:
    source = sources.wheel(FIX, version)
    function = sources.mutated(source.rewritten.function, old, new)
    assert fault in faults(function)
    assert new != "= 1" or faults(function) == {fault}
    assert is_no_rewrite(source, function)


def test_the_sum_of_the_tokens_is_the_wrong_question() -> None:
    source = sources.first(CASES)
    old = "permuted_local_hidden_states.shape[0] == 0"
    function = sources.mutated(source.rewritten.function, old, "sum(tokens_per_expert) == 0")
    assert faults(function) == set()
    assert run(function, Setting(spare=4)) != run(source.function, Setting(spare=4))


@pytest.mark.parametrize(
    ("version", "old", "new", "anchor"),
    [
        ("0.15.3", "tokens_per_expert.tolist()", "[*tokens_per_expert]", "not found: tokens_per_expert = tokens"),
        ("0.19.2", "list[int] = tokens_per_expert.tolist()", "tuple = tokens_per_expert.tolist()", "not found: tokens"),
        ("0.15.3", _TOLIST, f"{_TOLIST}\n    {_TOLIST}", "found 2 times"),
        ("0.15.3", _RETURN, "return (output, None)", "not found: return output, output_bias, as the last statement"),
        ("0.15.3", _TOLIST, f"{_TOLIST}\n    has_no_tokens = False", "not found: .* followed by"),
    ],
)
def test_an_anchor_must_occur_once(version: str, old: str, new: str, anchor: str) -> None:
    source = sources.wheel(FIX, version)
    with pytest.raises(AnchorError, match=anchor):
        codemod(source.target).plan(sources.mutated(source.function, old, new))


# -- the pull request -------------------------------------------------------------------------------------------------


def test_rows_and_slice_of_the_pull_request_are_replaced() -> None:
    source = sources.wheel(FIX, "0.19.2")
    text, end = source.data.decode(), "        return output, output_bias\n"
    rows = "        is_dummy_forward = made_up()\n        if is_dummy_forward:\n            made_up()\n"
    (tolist,) = (line for line in text.splitlines(keepends=True) if "list[int] = tokens_per_expert.tolist()" in line)
    before, after = text.split(tolist)
    after = after.replace(end, f"        # a comment\n        if is_dummy_forward:\n            made_up()\n{end}", 1)
    changed = f"{before}{tolist}        # a comment\n{rows}{after}".encode()
    done = sources.rewritten(source.target, changed, source.known.result)  # it checks that this is the result
    assert b"# a comment" not in done


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    for part in ("is_dummy_forward = sum(tokens_per_expert) == 0", "if is_dummy_forward:\n        output = output[:0]"):
        assert part in sources.unparsed(source.function), "only half of the pull request is in this shape"
    assert source.known.note.startswith("pull request 4851 applied as written: wrong with over-allocated buffers")
    assert [(item.state, item.note) for item in sources.same_result(source)] == [("affected", "")]
