"""How many rows reach the two grouped GEMMs of a rank's experts, and how many come out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from independent.interpreter import BeyondError, Instance, Model, Names, Walk
from independent.tensors import CPU, Tensor, torch

EXPERTS, WIDTH = 2, 4
ALIGNED = {"": 1, "fp8": 16, "fp4": 32}
"""What each expert's rows must be a multiple of."""
CHECKED = {"hidden", "probs", "fc1", "fc2"}
"""What the result of a rank without tokens must depend on, for its gradients to exist."""


class Setting(NamedTuple):
    """``padded``: the router pads each expert's rows. ``grouped``: the newest path, which keeps counts on the GPU."""

    tokens: str
    precision: str
    bias: bool
    padded: bool
    recompute: bool
    fused: bool
    on_input: bool
    grouped: bool = False

    @property
    def counts(self) -> list[int]:
        one = ALIGNED[self.precision] if self.padded else 1
        return {"none": [0, 0], "over-allocated": [0, 0], "some": [one, 0], "more": [one, 2 * one]}[self.tokens]

    @property
    def rows(self) -> int:
        return 4 if self.tokens == "over-allocated" else sum(self.counts)


class Run(NamedTuple):
    """``gemms``: name, rows, counts, dtype and parts of each one's input."""

    gemms: list[tuple[Any, ...]]
    output: tuple[int, ...]
    parts: frozenset[str]
    error: str


WAYS = [(False, False, False), (True, False, True), (False, True, False)]
SETTINGS = [
    Setting(tokens, precision, bias, padded, *way)
    for tokens, precision, bias, padded, way in product(
        ("none", "some", "more", "over-allocated"), ALIGNED, (False, True), (False, True), WAYS
    )
    if tokens != "over-allocated" or not (precision or bias)
]


def state(data: bytes, function: str) -> str:
    """Say whether a GEMM runs without rows, or a buffer that is larger than its tokens loses rows."""
    gemms, empty, lost = 0, False, False
    for setting in _settings(data, function):
        if setting.tokens in ("none", "over-allocated"):
            run = _run(data, function, setting)
            if run.error and not (setting.precision or setting.on_input or setting.grouped):
                return f"unclear: {setting}: {run.error}"
            gemms += len(run.gemms)
            empty |= not run.error and any(gemm[1] == 0 for gemm in run.gemms)
            lost |= not run.error and run.output[0] != setting.rows
    return "affected" if empty or lost else "fixed" if gemms else "not-affected"


def wrong(before: bytes, after: bytes, function: str) -> Iterator[str]:
    """Yield what is wrong with a rewrite."""
    for setting in _settings(before, function):
        was, now = _run(before, function, setting), _run(after, function, setting)
        if was.error:
            continue
        if setting.tokens == "over-allocated":
            if [gemm[1] for gemm in now.gemms] != [setting.rows] * 2 or now.output != (setting.rows, WIDTH):
                yield f"{setting}: {now}"
        elif setting.tokens != "none" or setting.grouped:
            if now != was:
                yield f"{setting}: {now}, and {was} before"
        else:
            yield from (f"{setting}: {line}" for line in _wrong(setting, now))


def _wrong(setting: Setting, run: Run) -> Iterator[str]:
    """Yield what is wrong with a rank without tokens."""
    if run.error:
        yield run.error
        return
    if [gemm[0] for gemm in run.gemms] != ["fc1", "fc2"]:
        yield f"the GEMMs {[gemm[0] for gemm in run.gemms]}"
    for name, rows, counts, dtype, parts in run.gemms:
        if len(counts) != EXPERTS or min(counts) < 1 or sum(counts) != rows:
            yield f"{name} with {rows} rows, and {counts} for the experts"
        if dtype != "bfloat16":
            yield f"{name} in {dtype}"
        if name == "fc1" and not {"hidden", "zeros"} <= parts <= {"hidden", "zeros", "probs", "ones"}:
            yield f"{name} on {sorted(parts)}"
    if run.output != (0, WIDTH):
        yield f"an output of {run.output}"
    if not run.parts >= CHECKED or ("ones" in run.parts and not setting.on_input):
        yield f"an output of {sorted(run.parts)}"


def _settings(data: bytes, function: str) -> list[Setting]:
    """Return the settings that exist where this function does."""
    walk = Walk(data, {})
    cls = walk.definitions[function.split(".")[0]]
    read = {node.attr for node in ast.walk(cls) if isinstance(node, ast.Attribute)}
    known = [item for item in SETTINGS if item.precision != "fp4" or "fp4" in read]
    grouped = [item._replace(grouped=True) for item in known if not item.precision and not item.bias]
    return known + (grouped if "_use_grouped_tensor" in read else [])


class _Offload(Model):
    """The offloading interface: as a call a context manager that passes the tensor on."""

    def __init__(self, tensor: Any = None) -> None:
        self._tensor = tensor

    def __call__(self, _: bool, tensor: Any, __: str) -> _Offload:
        return _Offload(tensor)

    def entered(self) -> Any:
        return self._tensor

    def group_commit(self, tensor: Any, *_: object, **__: object) -> Any:
        return tensor

    group_offload = group_commit


def _run(data: bytes, function: str, setting: Setting) -> Run:
    aligned = ALIGNED[setting.precision]
    gemms: list[tuple[Any, ...]] = []

    def gemm(name: str, width: int) -> Any:
        def run(rows: Any, counts: Any) -> tuple[Tensor, Any]:
            if not isinstance(rows, Tensor):
                raise BeyondError(f"{name} of {rows!r}")
            given = counts.tolist() if isinstance(counts, Tensor) else [*counts]
            gemms.append((name, rows.shape[0], given, rows.dtype, rows.parts))
            if any(count % aligned for count in given):
                raise RuntimeError(f"{name}: {given} in {setting.precision}")
            if sum(given) > rows.shape[0]:
                raise RuntimeError(f"{name}: {given} of {rows.shape[0]} rows")
            made = rows.like([rows.shape[0], width], Tensor((), rows.dtype, name))
            return made, [Tensor((width,), rows.dtype, "bias")] * EXPERTS if setting.bias else None

        return run

    def pad(rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        if sum(counts) != rows.shape[0]:
            raise RuntimeError(f"padding {rows.shape[0]} rows as {counts}")
        padded = [-(-count // aligned) * aligned for count in counts]
        return rows.like([sum(padded), *rows.shape[1:]], Tensor((), rows.dtype, "zeros")), padded

    def unpad(rows: Tensor, counts: Sequence[int]) -> Tensor:
        if rows.shape[0] != sum(-(-count // aligned) * aligned for count in counts):
            raise RuntimeError(f"unpadding {rows.shape[0]} rows to {counts}")
        return rows.like([sum(counts), *rows.shape[1:]])

    def activation(rows: Tensor, *_: object) -> Tensor:
        return rows.like(rows.shape)

    def fused(rows: Tensor, _: Any, *others: Any) -> Tensor:
        half = rows.like([rows.shape[0], rows.shape[1] // 2])
        return half.like(half.shape, half * others[0]) if others and isinstance(others[0], Tensor) else half

    config = Names(
        {
            "fp8": "hybrid" if setting.precision == "fp8" else None,
            "fp4": "e2m1" if setting.precision == "fp4" else None,
            "moe_router_padding_for_fp8": setting.padded,
            "moe_router_padding_for_quantization": setting.padded,
            "moe_apply_probs_on_input": setting.on_input,
            "moe_router_topk": 1,
            "gated_linear_unit": True,
            "glu_linear_offset": 0.0,
            "activation_func": activation,
            "activation_func_clamp_value": None,
            "bias_activation_fusion": setting.fused,
        }
    )
    checkpoint = Names({"checkpoint": lambda run, *args: run(*args)})
    names = {
        "torch": torch(Names({})),
        "F": Names({"silu": activation}),
        "tensor_parallel": Names({"CheckpointWithoutOutput": lambda **_: checkpoint}),
        "apply_module": lambda module: module,
        "off_interface": _Offload(),
        "skip_routed_expert_padding": lambda config: setting.padded,
        "get_align_size_for_quantization": lambda config: aligned if setting.precision else 16,
        **dict.fromkeys(("bias_swiglu_impl", "weighted_bias_swiglu_impl"), fused),
    }
    walk = Walk(data, names)
    own = {
        "config": config,
        "num_local_experts": EXPERTS,
        "linear_fc1": gemm("fc1", 2 * WIDTH),
        "linear_fc2": gemm("fc2", WIDTH),
        "activation_func": activation,
        "activation_recompute": setting.recompute,
        "offload_expert_fc1": False,
        "offload_moe_act": False,
        "_with_fused_impl": False,
        "_use_grouped_tensor": setting.grouped,
        **dict.fromkeys(("fp8_padding", "quantization_padding"), pad),
        **dict.fromkeys(("fp8_unpadding", "quantization_unpadding"), unpad),
    }
    forward = walk.function(function)
    given = [
        Tensor((setting.rows, WIDTH), "bfloat16", "hidden"),
        Tensor((EXPERTS,), "int64", setting.counts, device=CPU),
    ]
    if "permuted_probs" in forward.parameters:
        given.append(Tensor((setting.rows,), "float32", "probs"))
    output, error = Tensor((-1,)), ""
    try:
        output, _ = forward(Instance(walk.global_value(function.split(".")[0]), own, closed=True), *given)
    except BeyondError:
        raise
    except Exception as problem:
        error = repr(problem)
    parts = output.parts | ({"probs"} if len(given) == 2 else set())
    return Run(gemms, output.shape, parts, error)
