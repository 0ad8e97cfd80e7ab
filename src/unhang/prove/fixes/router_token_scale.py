"""megatron-core: the gradient of a real router's weight by its auxiliary losses alone, after the real finalizer.

The router is a module of its own in Megatron's data parallelism. Its tokens are split over the ranks of TP and CP, each
data-parallel rank has its own sequence, and the model's loss is zero. The finalizer divides by all tokens that are not
padded. The right gradient is that of the same loss in plain torch, of all tokens in one process.

Each function of the fix is judged beside right ones: of the others, those that it meets are replaced (``_mend``). The
count is judged by what it returns.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from contextlib import nullcontext
from functools import cache, partial, partialmethod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, routers

if TYPE_CHECKING:
    import ast
    from collections.abc import Collection, Iterator, Mapping, Sequence

AUX, SEQUENCE, GLOBAL, Z = "aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss"
EVEN, UNEVEN = (1, 3), (3,)
"""Which tokens of a sequence are padded: as many in both halves, or one in the second."""


class Loss(NamedTuple):
    """One loss of one micro-batch."""

    kind: str
    padded: tuple[int, ...] = ()
    sequences: int = 1
    prompt: int = 0
    """How many tokens at the start of a sequence have no target: the loss function does not count these."""

    def text(self) -> str:
        """Return which loss it is."""
        padded = f", padded at {', '.join(map(str, self.padded))}" if self.padded else ""
        prompt = f", a prompt of {self.prompt}" if self.prompt else ""
        return f"{self.kind}{padded}{f', {self.sequences} sequences' if self.sequences > 1 else ''}{prompt}"


_ONE, _TWO, _CP, _BOTH = Topology(), Topology(tp=2), Topology(cp=2), Topology(tp=2, cp=2)
_DP, _TP_DP = Topology(dp=2), Topology(tp=2, dp=2)
_GLOBAL = "_apply_global_aux_loss"


def _case(name: str, topology: Topology, loss: Loss, core: bool = True) -> Case:
    """Return a case that some releases pass: it depends on what they multiply by, and on whether they know padding."""
    return Case(name, topology, DIFFERS, loss.kind, {"losses": (loss,), "may_pass": True}, core)


def _control(name: str, topology: Topology, *losses: Loss, **options: Any) -> Case:
    return Case(name, topology, PASSED, options={"losses": losses, **options}, core=True)


CASES: tuple[Case, ...] = (
    _case("aux", _TWO, Loss(AUX)),
    _case("aux-cp", _CP, Loss(AUX)),
    _case("aux-tp-cp", _BOTH, Loss(AUX), core=False),
    _case("aux-tp-dp", _TP_DP, Loss(AUX), core=False),
    _case("aux-even", _TWO, Loss(AUX, EVEN)),
    _case("aux-uneven", _TWO, Loss(AUX, UNEVEN)),
    _case("aux-uneven-dp", _TP_DP, Loss(AUX, UNEVEN), core=False),
    _case("aux-prompt", _TWO, Loss(AUX, prompt=2)),
    _case("sequences", _TWO, Loss(SEQUENCE, sequences=2)),
    _case("sequences-alone", _ONE, Loss(SEQUENCE, sequences=2)),
    _case("sequences-even", _TWO, Loss(SEQUENCE, EVEN, 2)),
    _case("z", _TWO, Loss(Z)),
    _case("z-uneven", _TWO, Loss(Z, UNEVEN)),
    _case("global", _TP_DP, Loss(GLOBAL)),
    _case("global-even", _TP_DP, Loss(GLOBAL, EVEN)),
    _control("one", _ONE, Loss(AUX), Loss(SEQUENCE), Loss(Z)),
    _control("one-padded", _ONE, Loss(AUX, EVEN), Loss(AUX, UNEVEN), Loss(SEQUENCE, EVEN), Loss(Z, UNEVEN)),
    _control("global-dp", _DP, Loss(GLOBAL)),
    _control("global-dp-padded", _DP, Loss(GLOBAL, EVEN), Loss(GLOBAL, UNEVEN)),
    _control("per-batch", _TWO, Loss(AUX), Loss(SEQUENCE, sequences=2), Loss(Z), per_token=False),
)
_UNCOUNTED, _AS_SET = {"counts": False}, {"as_set": True, "may_pass": True}
CASES += (
    _case("aux-cp-uncounted", _CP, Loss(AUX), core=False)._replace(
        options={"losses": (Loss(AUX),), **_UNCOUNTED}, patched=DIFFERS
    ),
    Case("aux-prompt-as-set", _TWO, PASSED, options={"losses": (Loss(AUX, prompt=2),), **_AS_SET}, patched=DIFFERS),
)
_OLD, _ATTACH = "TopKRouter.apply_load_balancing_loss", "TopKRouter.attach_and_log_load_balancing_loss"
_Z, _SEQUENCES, _EVERYWHERE = (f"TopKRouter.{it}" for it in ("apply_z_loss", "_apply_seq_aux_loss", _GLOBAL))
_COUNT = "get_tokens_per_expert_and_token_count"
_ROUTER, _UTILS = "megatron.core.transformer.moe.router", "megatron.core.transformer.moe.moe_utils"
_MASKS = ((), EVEN, UNEVEN)
_LAYERS: dict[str, dict[str, Any]] = {
    "beside MTP": {"number": 2},
    "MTP": {"number": 2, "is_mtp": True},
    "beside repeated MTP": {"number": 2, "repeats": True},
    "repeated MTP": {"number": 2, "is_mtp": True, "repeats": True},
    "repeated MTP, no number": {"is_mtp": True, "repeats": True},
}


def _settings() -> Iterator[Case]:
    """Yield the settings of each function."""
    of_sequences = [Loss(SEQUENCE, it, size) for it in _MASKS for size in (1, 2, 3)]
    losses: dict[str, list[Loss]] = {
        _OLD: [Loss(AUX), Loss(SEQUENCE), Loss(SEQUENCE, sequences=2)],
        _ATTACH: [*(Loss(AUX, it) for it in _MASKS), Loss(SEQUENCE), Loss(GLOBAL)],
        _Z: [Loss(Z, it) for it in _MASKS],
        _SEQUENCES: [*of_sequences, Loss(AUX)],  # with another loss it has none of its own
        _EVERYWHERE: [*(Loss(GLOBAL, it) for it in _MASKS), Loss(AUX)],
        _COUNT: [*of_sequences, *(Loss(GLOBAL, it) for it in _MASKS)],
    }
    others: dict[str, list[dict[str, Any]]] = {
        _OLD: [{"dispatcher": "alltoall_seq"}, {"dispatcher": "allgather"}, {"coefficient": 0}],
        _ATTACH: [{"counted": False}],
        _Z: [{"coefficient": 0}, {"trains": False}, {"has_gradients": False}],
        _COUNT: [{"topk": 1}],
    }
    for of in losses:
        layers = [{"layers": name} for name in _LAYERS] if of in (_OLD, _ATTACH, _Z) else []
        for more in (*others.get(of, ()), *layers, {"coefficient": 2}, {"per_token": False}):
            for topology in (_ONE, _TWO, _BOTH):
                yield _setting(of, topology, losses[of][0], **more)
        for topology, loss in itertools.product((_ONE, _TWO, _CP, _BOTH, _DP, _TP_DP), losses[of]):
            yield _setting(of, topology, loss)


def _setting(of: str, topology: Topology, loss: Loss, **options: Any) -> Case:
    about = "".join(f", {name} {value}" for name, value in options.items())
    name = f"{of}: {loss.text()}, TP {topology.tp}, CP {topology.cp}, DP {topology.dp}{about}"
    has_one = topology.world == 1 and (loss.kind != SEQUENCE or loss.sequences == 1)
    is_right = has_one or options.get("per_token") is False or options.get("coefficient") == 0
    may = {} if is_right else {"may_pass": True}
    return Case(
        name, topology, PASSED if is_right else DIFFERS, options={"losses": (loss,), "of": [of], **may, **options}
    )


GRID = [*_settings()]
HELD = {"layer_number": "is about the log alone"}
_TOKENS, _WIDTH, _EXPERTS, _TOPK, _CLOSE = 4, 3, 4, 2, 1e-5


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options, losses = case.options, [Loss(*it) for it in case.options["losses"]]
    coefficient = options.get("coefficient", 1)
    kinds = [it.kind for it in losses if it.kind != Z]
    return {
        "calculate_per_token_loss": options.get("per_token", True),
        "moe_aux_loss_coeff": coefficient if kinds else 0,
        "moe_z_loss_coeff": coefficient if any(it.kind == Z for it in losses) else None,
        "moe_router_load_balancing_type": next((it for it in kinds if it == SEQUENCE), AUX),
        "micro_batch_size": max(it.sequences for it in losses),
        "tensor_model_parallel_size": case.topology.tp,
        "context_parallel_size": case.topology.cp,
        "a padding mask": any(it.padded for it in losses),
        "prompts that are half of all tokens or more": any(2 * it.prompt >= _TOKENS for it in losses),
        "version megatron-core": "0.18.2",
        "version verl": None if options.get("counts", True) else "0.8.0",
        "vanilla_mbridge": None if options.get("counts", True) else True,
    }


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, of at most two ranks of TP and CP each. Without any, some releases pass."""
    few = Topology(tp=min(topology.tp, 2), cp=min(topology.cp, 2))
    losses = (Loss(AUX), Loss(AUX, EVEN), Loss(SEQUENCE, sequences=2), Loss(Z))
    return Case("yours", few, DIFFERS, "_loss", {"losses": losses, "may_pass": few.world == 1})


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    supposed = "supposes per-token loss and auxiliary losses, with and without a padding mask"
    return f"{supposed}, and several sequences in a micro-batch"


def prepare() -> None:
    """Import megatron-core's routers for a CPU. The tracker is a stand-in, which keeps what each router logs."""
    import torch

    torch.compile = lambda function, **_: function  # it starts threads, which a fork does not have
    routers.on_cpu()
    namespace: dict[str, Any] = vars(importlib.import_module(_ROUTER))
    reduce = "reduce_from_tensor_model_parallel_region"
    for name, of in (("parallel_state", "core"), (reduce, "core.tensor_parallel")):
        # a commit may use what its nearest release lacks
        namespace.setdefault(name, getattr(importlib.import_module(f"megatron.{of}"), name))
    namespace.setdefault("Callable", Any)
    namespace["save_to_aux_losses_tracker"] = _log
    namespace["get_moe_metrics_tracker"] = lambda: SimpleNamespace(record=_log)


_LOGGED: list[Any] = []


def _log(name: str, value: Any, *_: Any, **__: Any) -> None:
    _LOGGED.append(value.detach())


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether a function has the count of tokens that it hands on; only those that hand one on may lack it."""
    import ast

    hands_on = f"TopKRouter.{function.name}" in (_SEQUENCES, _EVERYWHERE)
    return not hands_on or "valid_token_count" in ast.unparse(function)


class Step(NamedTuple):
    """What one loss leaves on a rank: the gradient of the router's weight; or what is counted."""

    of: str
    found: list[float]
    right: list[float]
    waits: int
    """How often the host waited for a tensor."""
    logged: float = 0.0
    due: float = 0.0
    """What all ranks log together."""

    def is_right(self) -> bool:
        """Return whether it is what it should be."""
        return all(abs(one - other) < _CLOSE for one, other in zip(self.found, self.right))

    def text(self) -> str:
        """Return the norms of both."""
        found, right = (sum(one * one for one in values) ** 0.5 for values in (self.found, self.right))
        return f"{self.of} is {found:.4f}, right is {right:.4f}"


def wrong(case: Case, ranks: Sequence[Sequence[Step]]) -> str:
    """Return what is wrong on some rank; empty where nothing is."""
    found = []
    for steps in zip(*ranks):
        first, logged = steps[0], sum(step.logged for step in steps)
        found += [step.text() for step in steps if not step.is_right()][:1]
        if not abs(logged - first.due) < _CLOSE:
            found.append(f"{first.of}; {logged:.4f} is logged in all, right is {first.due:.4f}")
        if any(step.waits for step in steps):
            found.append(f"{first.of}: the host waits for a tensor")
    return "; ".join(found)


def right(case: Case, ranks: Sequence[Sequence[Step]]) -> str:
    """Return what was seen."""
    return "; ".join(one.text() for one in ranks[0]) or "no such loss here"


def on_rank(case: Case, rank: int) -> list[Step]:
    """Return what each loss of the case leaves that this release has; or what the count counts."""
    megatron.initialize(case.topology)
    kind = importlib.import_module(_ROUTER).TopKRouter
    function = case.options.get("function", "")
    if function == _COUNT:
        return [_counts(case)]
    _mend(function)
    masks = {"padding_mask", "with_padding_mask", "valid_token_count"}
    every = [kind.forward, *([getattr(kind, function.rpartition(".")[2])] if function else [])]
    knows_padding = all(masks & {*inspect.signature(it).parameters} for it in every)
    return [
        _step(case, loss)
        for loss in (Loss(*given) for given in case.options["losses"])
        if (knows_padding or not loss.padded) and (loss.kind != GLOBAL or hasattr(kind, _GLOBAL))
    ]


@cache
def _mend(function: str) -> None:
    """Put right functions in the place of those that the judged one meets."""
    router = importlib.import_module(_ROUTER)
    if function and hasattr(router, _COUNT):
        vars(router)[_COUNT] = _counted
    if function in (_SEQUENCES, _EVERYWHERE):
        name = _ATTACH.rpartition(".")[2]
        setattr(router.TopKRouter, name, partialmethod(_attached, getattr(router.TopKRouter, name)))


def _balanced(
    function: Any, scores: Any = None, counts: Any = None, activation: Any = None, load_balancing_loss_func: Any = None
) -> Any:
    """Call a function that takes the loss, or what it is made of, whichever its nearest release gives it."""
    if "load_balancing_loss_func" in inspect.signature(function).parameters:
        loss = importlib.import_module(_UTILS).switch_load_balancing_loss_func
        return function(activation, load_balancing_loss_func or partial(loss, scores, counts, _TOPK))
    given = load_balancing_loss_func.keywords if load_balancing_loss_func else {}
    return function(given.get("probs", scores), given.get("tokens_per_expert", counts), activation)


def _known(function: Any, but: Collection[str] = ()) -> Any:
    """Return a function that takes any keyword, and leaves out those that the other does not know, or these."""
    names = inspect.signature(function).parameters.keys() - {*but}
    return lambda *given, **named: function(*given, **{name: it for name, it in named.items() if name in names})


def _counted(routing_map: Any, reduce_group: Any, topk: int = 1, with_padding_mask: bool = False) -> tuple[Any, ...]:
    """Count the tokens of each expert, and of all; those of a rank are the mean, as every rank weighs the same."""
    import torch.distributed as dist

    dist.all_reduce(experts := routing_map.sum(dim=0), group=reduce_group)
    if not with_padding_mask:
        return experts, routing_map.shape[0], routing_map.shape[0] * reduce_group.size()
    return experts, experts.sum() / topk / reduce_group.size(), experts.sum() / topk


def _attached(
    router: Any, real: Any, activation: Any, coefficient: float, loss: Any, *given: Any, valid_token_count: Any = None,
    **named: Any,
) -> Any:  # fmt: skip
    """Let the real function log and attach a loss as if it were a mean per batch, and attach the rest of it."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    tokens = activation.shape[0] if valid_token_count is None else valid_token_count
    per_token, router.calculate_per_token_loss = router.calculate_per_token_loss, False
    activation = _known(real)(router, activation, coefficient, loss, *given, **named)
    router.calculate_per_token_loss = per_token
    if per_token:
        activation = MoEAuxLossAutoScaler.apply(activation, loss * (tokens * router.tp_cp_group.size() - 1))
    return activation


def _waits() -> Any:
    """Return a context that counts how often the host waits for a tensor."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **kwargs or {})

    return Mode()


def _drawn(loss: Loss, rank: int) -> tuple[Any, Any, Any]:
    """Return the tokens of a data-parallel rank, the router's weight, and which tokens are not padded."""
    import torch

    torch.manual_seed(3)
    tokens, weight = torch.randn(_TOKENS, 2, _WIDTH), torch.randn(_EXPERTS, _WIDTH)
    for _ in range(rank):
        tokens = torch.randn(_TOKENS, 2, _WIDTH)
    valid = torch.tensor([place not in loss.padded for place in range(_TOKENS)])
    # the same sequence twice: its mean does not change
    return tokens[:, :1].repeat(1, loss.sequences, 1), weight, valid[:, None].repeat(1, loss.sequences)


def _own(topology: Topology) -> tuple[slice, slice]:
    """Return which tokens of a sequence the ranks of TP have that are of one rank of CP, and which this rank has."""
    from megatron.core import parallel_state

    of_cp = _TOKENS // topology.cp
    of_tp, first = of_cp // topology.tp, parallel_state.get_context_parallel_rank() * of_cp
    begin = first + parallel_state.get_tensor_model_parallel_rank() * of_tp
    return slice(first, first + of_cp), slice(begin, begin + of_tp)


def _counts(case: Case) -> Step:
    """Count what the tokens of this rank choose, over the ranks that a loss is reduced over."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state

    loss, topk, topology = Loss(*case.options["losses"][0]), case.options.get("topk", _TOPK), case.topology
    chosen = []
    for rank in range(topology.dp):
        tokens, weight, valid = _drawn(loss, rank)
        choices = (tokens @ weight.t()).topk(topk).indices
        chosen.append(torch.zeros(*tokens.shape[:2], _EXPERTS).scatter(2, choices, 1.0).bool() & valid[..., None])
    mine = chosen[parallel_state.get_data_parallel_rank()]
    every = torch.cat(chosen) if loss.kind == GLOBAL else mine
    group = dist.group.WORLD if loss.kind == GLOBAL else parallel_state.get_tensor_and_context_parallel_group()
    own = mine[_own(topology)[1]].reshape(-1, loss.sequences * _EXPERTS)
    function = getattr(importlib.import_module(_UTILS), _COUNT)
    with _waits() as waits:
        experts, local, total = function(own, group, topk=topk * loss.sequences, with_padding_mask=bool(loss.padded))
    due = float(every.any(-1).sum()) / loss.sequences
    found = [*experts.tolist(), float(local) * group.size(), float(total)]
    return Step(f"{loss.text()}: the count", found, [*every.sum(0).flatten().tolist(), due, due], waits.count)


def _step(case: Case, loss: Loss) -> Step:
    """Run a step of the real router and the real finalizer."""
    import torch
    from megatron.core import distributed, parallel_state
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads

    options, topology = case.options, case.topology
    per_token, coefficient = options.get("per_token", True), options.get("coefficient", 1)
    router = _router(topology, loss, per_token, coefficient)
    uses = _adapt(router, options)
    wrapped = distributed.DistributedDataParallel(
        router.config, distributed.DistributedDataParallelConfig(use_distributed_optimizer=False), router
    )
    tokens, weight, valid = _drawn(loss, parallel_state.get_data_parallel_rank())
    with torch.no_grad():
        router.weight.copy_(weight)
    of_cp, own = _own(topology)
    # before 0.13 the loss functions sum the tokens over CP, and not the finalizer
    is_summed = "with_context_parallel" not in inspect.getsource(finalize_model_grads)
    targets = valid.clone()
    targets[: loss.prompt] = False
    counted = (targets if is_summed else targets[of_cp]).sum().to(torch.int)
    _LOGGED.clear()
    with _waits() as waits, nullcontext() if options.get("has_gradients", True) else torch.no_grad():
        probs, _ = wrapped(tokens[own], **({"padding_mask": ~valid[own]} if loss.padded else {}))
    if probs.requires_grad:
        (probs.sum() * 0).backward()
    finalize_model_grads([wrapped], counted * options.get("counts", True) if per_token else None)
    gradient, due = _plain(case, loss, uses)
    if (gathers := "alltoall_seq") == options.get("dispatcher") and gathers in inspect.getsource(router.routing):
        due *= topology.tp  # each rank of TP has gathered the tokens of all
    found = router.weight.main_grad.flatten().tolist()
    return Step(f"{loss.text()}: the gradient", found, gradient, waits.count, float(sum(_LOGGED)), due)


def _router(topology: Topology, loss: Loss, per_token: bool, coefficient: float) -> Any:
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=_WIDTH,
        num_attention_heads=2,
        kv_channels=2,
        num_moe_experts=_EXPERTS,
        moe_router_topk=_TOPK,
        moe_router_load_balancing_type="none" if loss.kind == Z else loss.kind,
        moe_aux_loss_coeff=0.0 if loss.kind == Z else coefficient,
        moe_z_loss_coeff=(coefficient or None) if loss.kind == Z else None,
        calculate_per_token_loss=per_token,
        tensor_model_parallel_size=topology.tp,
        context_parallel_size=topology.cp,
        sequence_parallel=topology.tp > 1,
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    accepted = inspect.signature(TopKRouter).parameters
    names = [name for name in ("model_comm_pgs", "pg_collection") if name in accepted]
    router = TopKRouter(config, **{name: getattr(moe_utils, f"get_default_{name}")() for name in names})
    router.set_layer_number(1)
    return router.train()


def _adapt(router: Any, options: Mapping[str, Any]) -> frozenset[str]:
    """Set what a setting wants of a router, and return the names that the judged function uses.

    It may know fewer arguments than its nearest release gives it, and its caller may give no count.
    """
    from megatron.core import parallel_state

    layers, config = _LAYERS.get(options.get("layers", ""), {}), router.config
    router.is_mtp_layer, router.mtp_layer_number = layers.get("is_mtp", False), None
    config.mtp_num_layers, config.mtp_use_repeated_layer = layers.get("number"), layers.get("repeats", False)
    config.moe_token_dispatcher_type = options.get("dispatcher", "alltoall")
    router.train(options.get("trains", True))
    groups = {"tp_group": "tensor_model", "cp_group": "context", "tp_cp_group": "tensor_and_context"}
    for name, of in groups.items():  # a commit may have them before its nearest release does
        vars(router).setdefault(name, getattr(parallel_state, f"get_{of}_parallel_group")())
    name = options.get("function", "").rpartition(".")[2]
    if not name:
        return frozenset()
    real = getattr(router, name)
    adapted = _known(real, set() if options.get("counted", True) else {"valid_token_count"})
    setattr(router, name, partial(_balanced, real) if options["function"] == _OLD else adapted)
    return frozenset(real.__code__.co_names)


def _plain(case: Case, loss: Loss, uses: frozenset[str]) -> tuple[list[float], float]:
    """Return the gradient of the mean loss of all tokens, in plain torch and in one process; and what is to be logged.

    Of a layer that runs several times each run has its part: for the z loss, of what is logged alone.
    """
    import torch

    options, topology = case.options, case.topology
    layers, per_token = _LAYERS.get(options.get("layers", ""), {}), options.get("per_token", True)
    drawn = [_drawn(loss, rank) for rank in range(topology.dp)]
    weight = drawn[0][1].requires_grad_()
    rows = [(tokens[valid] @ weight.t(), valid.sum()) for tokens, _, valid in drawn]
    count = sum(count for _, count in rows)
    if loss.kind == GLOBAL:
        logged = _balance(torch.cat([logits for logits, _ in rows]))
        # without padding megatron-core counts the tokens of one data-parallel rank; that is another matter
        total = logged / (1 if loss.padded and per_token else topology.dp)
    elif loss.kind == Z:
        parts = [
            ((tokens @ weight.t()).logsumexp(-1).square()[valid], valid)
            for it in drawn
            for tokens, valid in zip(*(it[at].chunk(topology.tp * topology.cp) for at in (0, 2)))
        ]
        means = [part.sum() / valid.sum().clamp(min=1) for part, valid in parts]
        logged = sum(means)
        total = sum(part.sum() for part, _ in parts) / count if per_token else logged / len(means)
    else:
        logged = sum(_balance(logits) for logits, _ in rows)
        total = sum(_balance(logits) * of for logits, of in rows) / count
    repeats = layers.get("number", 1) if layers.get("is_mtp") and layers.get("repeats") else 1
    repeats = repeats if "is_mtp_layer" in uses else 1
    # the finalizer divides by the tokens that have a target, and the router counts all; without it, CP is divided by
    prompt = 0 if options.get("as_set") else loss.prompt
    total = total * _TOKENS / (_TOKENS - prompt) if per_token else total / topology.cp
    runs = options.get("trains", True) and options.get("has_gradients", True)
    coefficient = options.get("coefficient", 1) * runs
    (total * coefficient / (1 if loss.kind == Z else repeats)).backward()
    gradient: list[float] = weight.grad.flatten().tolist()
    return gradient, float(logged) / repeats * bool(coefficient)


def _balance(logits: Any) -> Any:
    """Return the balancing loss of tokens: by expert, the share of tokens times the mean score."""
    import torch

    scores = logits.softmax(-1)
    share = torch.zeros_like(scores).scatter(1, scores.topk(_TOPK, dim=-1).indices, 1.0).mean(0) / _TOPK
    return _EXPERTS * (share * scores.mean(0)).sum()
