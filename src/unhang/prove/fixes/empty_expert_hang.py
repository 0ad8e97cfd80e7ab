"""megatron-core: the real ``MoELayer``, its router, dispatcher and ``TEGroupedMLP``, on real expert-parallel ranks.

Transformer Engine does not run on a CPU. The stand-ins (in ``ranks.moe_layer``) are the grouped linears, the padding of
rows for fp8, and what recomputation takes from it or compiles in C++. On empty input, a linear either keeps the
autograd graph or returns a new empty tensor, as do the backends that the fix guards against. Under fp8 it refuses rows
that are not aligned, as an fp8 GEMM does, but computes in float32. So this shows the effect of such a backend, and that
the rewrite cures it. It does not show which backend is one, nor fp8 numbers, kernels, streams, the fused path, or the
flex dispatchers.

Each case has several steps: tokens for all ranks, tokens only for the first one, and tokens for all again. The cases
named ``calls`` have one rank instead, which gives its experts, in bfloat16, rows that a dispatcher seldom makes. Where
there are rows, the output and the gradients must be those of the untouched forward.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, megatron, moe_layer, shims
from ..ranks.moe_layer import DISTRIBUTIONS as DISTRIBUTIONS
from ..ranks.operations import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BACKWARD = "in the dispatcher's backward pass"
_EP2 = Topology(dp=2, ep=2)
_NO_ROW = "no row: no gradient"
_CALLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "no row": (0, (0, 0, 0, 0)),
    "one row": (1, (0, 1, 0, 0)),
    "an empty expert": (6, (2, 0, 3, 1)),
    "a buffer with no row in use": (5, (0, 0, 0, 0)),
    "a buffer with some rows in use": (5, (2, 0, 1, 0)),
}
"""Rows given to the experts, and how many of these are each expert's."""
_FULL, _EMPTY, _UNEVEN = "full", "empty", "uneven"
_STEPS, _WITH_TOKENS = (_FULL, _EMPTY, _FULL), (_FULL, _UNEVEN, _FULL)


_STAND_IN = "the proof's grouped linears are stand-ins: a CPU cannot show whether yours cuts the graph on zero rows"
_REPORTED = "the author of pull request 4851 reports that the Transformer Engine of that time passes without the fix"


def _cases() -> Iterator[Case]:
    for dispatcher in ("alltoall", "allgather"):
        for recompute in (False, True):
            name = dispatcher + ("-recompute" if recompute else "")
            base = Case(name, _EP2, "ranks", PASSED, options={"dispatcher": dispatcher, "recompute": recompute})
            core = dispatcher == "alltoall" and not recompute
            yield _variant(base, "cuts", HUNG, each=True)._replace(core=core)
            yield _variant(base, "keeps", PASSED)._replace(core=core)
            yield _variant(base, "same", PASSED, cuts=True, compare=True)._replace(core=core)
    padded = Case("fp8", _EP2, "ranks", PASSED, options={"dispatcher": "alltoall", "fp8": True})
    yield _variant(padded, "cuts", HUNG)
    yield _variant(padded, "same", PASSED, cuts=True, compare=True)
    skipped = padded._replace(name="fp8-aligned", options={**padded.options, "aligned": True})
    yield _variant(skipped, "cuts", HUNG)
    yield _variant(skipped, "same", PASSED, cuts=True, compare=True)
    on_input = Case("on-input", _EP2, "ranks", PASSED, options={"dispatcher": "alltoall", "on_input": True})
    yield _variant(on_input, "cuts", HUNG)
    yield _variant(on_input, "keeps", PASSED)
    wrapped = Case("ddp", Topology(dp=4, ep=2), "ranks", PASSED, options={"dispatcher": "alltoall", "ddp": True})
    yield _variant(wrapped, "cuts", HUNG)._replace(untouched=CRASHED, at="finish_grad_sync")
    yield _variant(wrapped, "keeps", PASSED)
    alone = {"dispatcher": "alltoall", "cuts": True, "each": True, "calls": True}
    calls = Case("calls", Topology(), "ranks", DIFFERS, _NO_ROW, alone, core=True)
    yield calls
    for name, size in ("fp8", 16), ("fp4", 32):
        options = {**alone, name: True, "aligned": True, "size": size}
        yield calls._replace(name=f"calls-{name}-aligned", options=options, core=name == "fp8")


def _variant(base: Case, name: str, untouched: str, **options: Any) -> Case:
    chosen = {"cuts": untouched == HUNG, **base.options, **options}
    at = _BACKWARD if untouched == HUNG else ""
    return base._replace(name=f"{base.name}-{name}", untouched=untouched, at=at, options=chosen)


CASES = tuple(_cases())
# the sizes of a user's job only change how likely an empty rank is
YOURS = next(case for case in CASES if case.name == "alltoall-cuts")
RULED_OUT = ("ep", "with EP 1 every rank has all experts and waits for no other rank's tokens")


def about(installed: Mapping[str, str]) -> str:
    """Return the remark for the versions of the installed ``DISTRIBUTIONS``."""
    version = next((installed[name] for name in DISTRIBUTIONS if name in installed), None)
    if version is None:
        return f"no Transformer Engine is installed (a vendor's replacement would not be found); {_STAND_IN}"
    remark = f"Transformer Engine {version} is installed; {_REPORTED}; {_STAND_IN}"
    if version.split(".")[:2] in (["2", "0"], ["2", "1"]):
        remark += "; it also fails when only the last expert is empty, which the fix does not cure"
    return remark


_TOKENS = 32  # of each rank


class Step(NamedTuple):
    """What one rank did in one step."""

    tokens: int
    """Tokens that its experts got."""
    shape: tuple[int, ...]
    reaches_input: bool
    """Whether the input has a gradient."""
    gradients: dict[str, float | None]
    """The largest absolute gradient of each weight of its experts, by name; None where it has none."""
    differs: tuple[str, ...]
    """Gradients, by name, and the output, where they are not bit-identical to the untouched forward's."""


def prepare() -> None:
    """Import megatron-core for a CPU, or for a GPU."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)  # on a GPU, equal sums need it
    shims.cuda_on_cpu()
    moe_layer.stand_in()


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the steps or the calls on every rank, and check the gradients."""
    if case.options.get("fp4") and not moe_layer.has_fp4():
        raise ValueError("the experts of this release know no fp4")

    def body(rank: int) -> Any:
        shims.gloo_as_nccl()
        megatron.initialize(case.topology)
        return _calls(case) if case.options.get("calls") else _steps(case, rank)

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    if world.status != PASSED:
        frames = [frame for rank in world.ranks for frame in rank.stack]
        is_backward = any("tensor_parallel/mappings.py" in frame and frame.endswith(" in backward") for frame in frames)
        return Outcome(world.status, f"{_BACKWARD}: " * is_backward + world.text())
    if case.options.get("calls"):
        fault = world.ranks[0].value
        return (
            Outcome(DIFFERS, fault)
            if fault
            else Outcome(PASSED, "zero gradients without a row, and with some what the untouched forward gives")
        )
    values: list[list[Step]] = [rank.value for rank in world.ranks]
    wrong = _wrong(case, values)
    return Outcome(DIFFERS, wrong) if wrong else Outcome(PASSED, _summary(case, values))


def _steps(case: Case, rank: int) -> list[Step]:
    """Run the steps as one rank."""
    import torch

    layer = moe_layer.make(case.options, case.topology.ep)
    tokens: list[int] = []
    layer.experts.register_forward_pre_hook(lambda _, args: tokens.append(int(args[1].sum())))
    forwards = [layer.experts.forward]
    if case.options.get("compare"):
        forwards.append(types.MethodType(moe_layer.untouched_forward(), layer.experts))
    model = moe_layer.wrapped(layer) if case.options.get("ddp") else None
    steps = []
    for number, kind in enumerate(_kinds(case, rank)):
        _set_router(layer, kind)
        results = []
        for forward in forwards:
            layer.experts.forward = forward
            torch.manual_seed(100 * number + rank)
            tokens_here = torch.rand(_TOKENS, 1, moe_layer.HIDDEN, requires_grad=True, device=shims.DEVICE)
            results.append(moe_layer.once(layer, tokens_here, model))
        given = results[0]
        gradients = {name.removeprefix("experts."): size for name, size in moe_layer.largest(given).items()}
        names = given.keys() if len(results) > 1 else ()
        differs = tuple(name for name in names if not moe_layer.equal(given[name], results[1][name]))
        reaches = given["input"] is not None
        steps.append(Step(tokens[-1], tuple(given["output"].shape), reaches, gradients, differs))
    return steps


def _calls(case: Case) -> str:
    """Return what is wrong with the first wrong call of the experts; empty where there is none."""
    import torch

    size = int(case.options.get("size", 1))
    for name, (rows, tokens) in _CALLS.items():
        # neither a forward that pads for fp8 nor Transformer Engine takes such a buffer
        if (size > 1 or case.options.get("te")) and rows > sum(tokens):
            continue
        given = _call(case, rows * size, [count * size for count in tokens])
        if rows:
            wanted = _call(case, rows * size, [count * size for count in tokens], moe_layer.untouched_forward())
            differs = [part for part in given if not moe_layer.equal(given[part], wanted[part])]
            if differs:
                return f"{name}: differs from the untouched forward: {', '.join(differs)}"
            continue
        output = given.pop("output")
        missing = [part for part, value in given.items() if value is None]
        if missing:
            return f"{name}: no gradient of {', '.join(missing)}"
        if (output.shape, output.dtype) != ((0, moe_layer.HIDDEN), torch.bfloat16) or any(
            map(torch.any, given.values())
        ):
            return f"{name}: {output.dtype} {tuple(output.shape)}, gradients {given}"
    return ""


def _call(case: Case, rows: int, tokens: list[int], forward: Any = None) -> dict[str, Any]:
    """Return the output of new experts on some rows, and the gradients of their weights and of the rows."""
    import torch

    layer = moe_layer.make(case.options, case.topology.ep)
    experts = layer.experts.to(torch.bfloat16)
    forward = forward or type(experts).forward
    torch.manual_seed(rows)
    hidden = torch.rand(rows, moe_layer.HIDDEN, dtype=torch.bfloat16, requires_grad=True, device=shims.DEVICE)
    given = {"tokens_per_expert": torch.tensor(tokens), "permuted_probs": torch.rand(rows, device=shims.DEVICE)}
    known = inspect.signature(forward).parameters
    with moe_layer.precision(case.options, layer):
        output, _ = forward(experts, hidden, **{name: value for name, value in given.items() if name in known})
    if output.requires_grad:
        output.square().sum().backward()
    gradients = {name: weight.grad for name, weight in experts.named_parameters()}
    return {"output": output.detach(), "input": hidden.grad, **gradients}


def _kinds(case: Case, rank: int) -> Sequence[str]:
    """Return the steps of a rank. Of replicas of the experts, only the first expert-parallel group lacks tokens."""
    if case.options.get("compare") or rank >= case.topology.ep:
        return _WITH_TOKENS
    return _STEPS


def _set_router(layer: Any, kind: str) -> None:
    """Make the router choose any expert, the experts of rank 0, or one expert of each rank."""
    local = moe_layer.EXPERTS // _EP2.ep
    chosen = {_FULL: None, _EMPTY: range(local)}.get(kind, range(0, moe_layer.EXPERTS, local))
    moe_layer.route(layer, chosen)


def _wrong(case: Case, values: list[list[Step]]) -> str:
    """Return what is wrong with the steps of all ranks; empty where each has the right gradients."""
    for rank, steps in enumerate(values):
        for number, (kind, step) in enumerate(zip(_kinds(case, rank), steps), 1):
            has_none = _lacks_tokens(case, rank, kind)
            assert (step.tokens == 0) == has_none, f"rank {rank} has {step.tokens} tokens in step {number}, {kind}"
            where = f"rank {rank}, step {number} ({kind})"
            if step.shape != (_TOKENS, 1, moe_layer.HIDDEN) or not step.reaches_input:
                return f"{where}: output {step.shape}, {'a' if step.reaches_input else 'no'} gradient of the input"
            missing = [name for name, largest in step.gradients.items() if largest is None]
            if missing or not step.gradients:
                return f"{where}: no gradient of {', '.join(missing) or 'any expert'}"
            if step.differs:
                return f"{where}: differs from the untouched forward: {', '.join(step.differs)}"
            if has_none != (not any(step.gradients.values())) and not case.options.get("ddp"):
                return f"{where}: {step.tokens} tokens, gradients {step.gradients}"
            if step.gradients != values[rank % case.topology.ep][number - 1].gradients:
                return f"{where}: gradients differ from its replica on rank {rank % case.topology.ep}"
    return ""


def _lacks_tokens(case: Case, rank: int, kind: str) -> bool:
    return kind == _EMPTY and kind in _kinds(case, rank) and rank % case.topology.ep > 0


def _summary(case: Case, values: list[list[Step]]) -> str:
    steps = f"{len(values[0])} steps"
    if case.options.get("compare"):
        return f"{steps} with tokens: output and all gradients bit-identical to the untouched forward"
    empty = ranges(rank for rank in range(len(values)) if _lacks_tokens(case, rank, _EMPTY))
    added = "" if case.options.get("ddp") else ", and all are zero there"  # replicas add their gradients
    return f"{steps}: rank {empty} has no token in one; every gradient of fc1 and fc2 exists{added}"
