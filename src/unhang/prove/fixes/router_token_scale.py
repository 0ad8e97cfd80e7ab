"""megatron-core: the gradient of a real router's weight by its auxiliary losses alone, after the real finalizer.

The router is a module of its own in Megatron's data parallelism. Its tokens are split over the ranks of TP and CP, each
data-parallel rank has its own sequence, and the model's loss is zero. The finalizer divides by all tokens that are not
padded. The right gradient is that of the same loss in plain torch, of all tokens in one process.

Each function of the fix is judged beside right ones: of the others, those that it meets are replaced (``_mend``).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
from functools import cache, partial, partialmethod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, routers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

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


_ONE, _TWO, _CP, _BOTH = Topology(), Topology(tp=2), Topology(cp=2), Topology(tp=2, cp=2)
_DP, _TP_DP = Topology(dp=2), Topology(tp=2, dp=2)
_GLOBAL = "_apply_global_aux_loss"


def _case(name: str, topology: Topology, loss: Loss, core: bool = True, **options: Any) -> Case:
    """Return a case that some releases pass: it depends on what they multiply by, and on whether they know padding."""
    return Case(name, topology, DIFFERS, loss.kind, {"losses": (loss,), "may_pass": True, **options}, core)


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
    _case("aux-cp-uncounted", _CP, Loss(AUX), core=False, counts=False)._replace(patched=DIFFERS),
    _control("aux-prompt-as-set", _TWO, Loss(AUX, prompt=2), as_set=True, may_pass=True)._replace(
        core=False, patched=DIFFERS
    ),
)
_OLD, _ATTACH = "TopKRouter.apply_load_balancing_loss", "TopKRouter.attach_and_log_load_balancing_loss"
_Z, _SEQUENCES, _EVERYWHERE = (f"TopKRouter.{it}" for it in ("apply_z_loss", "_apply_seq_aux_loss", _GLOBAL))
_COUNT = "get_tokens_per_expert_and_token_count"
_ROUTER, _UTILS = "megatron.core.transformer.moe.router", "megatron.core.transformer.moe.moe_utils"
_MASKS = ((), EVEN, UNEVEN)


def _settings() -> Iterator[Case]:
    """Yield the settings of each function."""
    of_aux, dispatchers = [Loss(AUX, it) for it in _MASKS], [{"dispatcher": it} for it in ("alltoall_seq", "allgather")]
    every: list[tuple[str, list[Loss], list[dict[str, Any]]]] = [
        (_OLD, [Loss(AUX), Loss(SEQUENCE), Loss(SEQUENCE, sequences=2)], dispatchers),
        (_ATTACH, [*of_aux, Loss(SEQUENCE), Loss(GLOBAL)], [{"counted": False}]),
        (_Z, [Loss(Z, it) for it in _MASKS], []),
        (_SEQUENCES, [Loss(SEQUENCE, it, size) for it in _MASKS for size in (1, 2, 3)], []),
        (_EVERYWHERE, [Loss(GLOBAL, it) for it in _MASKS], []),
        (_COUNT, [*of_aux, *(Loss(SEQUENCE, it) for it in _MASKS)], []),
    ]
    for of, losses, others in every:
        for topology, loss in itertools.product((_ONE, _TWO, _CP, _BOTH, _DP, _TP_DP), losses):
            yield _setting(of, topology, loss)
        others += [{"coefficient": 2}, {"per_token": False}]
        for topology, more in itertools.product((_ONE, _TWO, _BOTH), others):
            yield _setting(of, topology, losses[0], **more)


def _setting(of: str, topology: Topology, loss: Loss, **options: Any) -> Case:
    has_one = topology.world == 1 and (loss.kind != SEQUENCE or loss.sequences == 1)
    is_right = has_one or options.get("per_token") is False
    text = ", ".join(map(str, (of, topology.text(), *loss, *options.items())))
    options |= {"losses": (loss,), "of": [of], **({} if is_right else {"may_pass": True})}
    return Case(text, topology, PASSED if is_right else DIFFERS, options=options)


GRID = [*_settings()]
HELD = {
    "mtp_|layer_number": "how often a layer runs, by which its losses are divided, per token or not",
    r"_coeff|\.training|is_grad_enabled": "without such a loss, or without a gradient, nothing is scaled",
}
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
    return "supposes per-token loss, and auxiliary losses of several sequences, with and without a padding mask"


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
    hands_on = f"TopKRouter.{function.name}" in (_SEQUENCES, _EVERYWHERE)
    return not hands_on or "valid_token_count" in ast.unparse(function)


class Step(NamedTuple):
    """What one loss leaves on a rank: the gradient of the router's weight."""

    of: str
    found: list[float]
    right: list[float]
    waits: int
    """How often the host waited for a tensor."""
    logged: float = 0.0
    due: float = 0.0
    """What all ranks log together."""


def wrong(case: Case, ranks: Sequence[Sequence[Step]]) -> str:
    """Return what is wrong on some rank; empty where nothing is."""
    found: list[str] = []
    for steps in zip(*ranks):
        first, logged = steps[0], sum(step.logged for step in steps)
        apart = [it for it in steps if not all(abs(one - due) < _CLOSE for one, due in zip(it.found, it.right))]
        found += map(_text, apart[:1])
        if not abs(logged - first.due) < _CLOSE:
            found.append(f"{first.of}; {logged:.4f} is logged in all, right is {first.due:.4f}")
        if any(step.waits for step in steps):
            found.append(f"{first.of}: the host waits for a tensor")
    return "; ".join(found)


def right(case: Case, ranks: Sequence[Sequence[Step]]) -> str:
    """Return what was seen."""
    return "; ".join(map(_text, ranks[0])) or "no such loss here"


def _text(step: Step) -> str:
    found, right = (sum(one * one for one in values) ** 0.5 for values in (step.found, step.right))
    return f"{step.of} is {found:.4f}, right is {right:.4f}"


def on_rank(case: Case, rank: int) -> list[Step]:
    """Return what each loss of the case leaves that this release has."""
    megatron.initialize(case.topology)
    kind = importlib.import_module(_ROUTER).TopKRouter
    _mend(function := case.options.get("function", ""))
    masks = {"padding_mask", "with_padding_mask", "valid_token_count"}
    judged = getattr(kind, function.rpartition(".")[2], kind.forward)
    knows_padding = all(masks & {*inspect.signature(it).parameters} for it in (kind.forward, judged))
    return [
        _step(case, loss)
        for loss in (Loss(*given) for given in case.options["losses"])
        if (knows_padding or not loss.padded) and (loss.kind != GLOBAL or hasattr(kind, _GLOBAL))
    ]


@cache
def _mend(function: str) -> None:
    """Put right functions in the place of those that the judged one meets."""
    router = importlib.import_module(_ROUTER)
    if function not in ("", _COUNT) and hasattr(router, _COUNT):
        vars(router)[_COUNT] = _counted
    if function in (_SEQUENCES, _EVERYWHERE, _COUNT):
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


def _step(case: Case, loss: Loss) -> Step:
    """Run a step of the real router and the real finalizer."""
    import torch
    from megatron.core import distributed, parallel_state
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads

    options, topology = case.options, case.topology
    per_token, router = options.get("per_token", True), _router(case, loss)
    wrapped = distributed.DistributedDataParallel(
        router.config, distributed.DistributedDataParallelConfig(use_distributed_optimizer=False), router
    )
    tokens, weight, valid = _drawn(loss, parallel_state.get_data_parallel_rank())
    with torch.no_grad():
        router.weight.copy_(weight)
    of_cp, of_tp = _TOKENS // topology.cp, _TOKENS // topology.cp // topology.tp
    first = parallel_state.get_context_parallel_rank() * of_cp
    own = slice(begin := first + parallel_state.get_tensor_model_parallel_rank() * of_tp, begin + of_tp)
    # before 0.13 the loss functions sum the tokens over CP, and not the finalizer
    is_summed = "with_context_parallel" not in inspect.getsource(finalize_model_grads)
    targets = valid.clone()
    targets[: loss.prompt] = False
    counted = (targets if is_summed else targets[first : first + of_cp]).sum().to(torch.int)
    _LOGGED.clear()
    with _waits() as waits:
        probs, _ = wrapped(tokens[own], **({"padding_mask": ~valid[own]} if loss.padded else {}))
    (probs.sum() * 0).backward()
    finalize_model_grads([wrapped], counted * options.get("counts", True) if per_token else None)
    gradient, due = _plain(case, loss)
    if (gathers := "alltoall_seq") == options.get("dispatcher") and gathers in inspect.getsource(router.routing):
        due *= topology.tp  # each rank of TP has gathered the tokens of all
    found = router.weight.main_grad.flatten().tolist()
    return Step(f"{loss.kind}: the gradient", found, gradient, waits.count, float(sum(_LOGGED)), due)


def _router(case: Case, loss: Loss) -> Any:
    """Return a router. The judged function may know fewer arguments than it is given, or more than its release."""
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

    options, topology, balances = case.options, case.topology, loss.kind != Z
    coefficient = options.get("coefficient", 1)
    config = TransformerConfig(
        num_layers=1, hidden_size=_WIDTH, num_attention_heads=2, kv_channels=2, num_moe_experts=_EXPERTS,
        moe_router_topk=_TOPK, moe_router_load_balancing_type=loss.kind if balances else "none",
        moe_aux_loss_coeff=coefficient if balances else 0.0, moe_z_loss_coeff=None if balances else coefficient,
        calculate_per_token_loss=options.get("per_token", True), tensor_model_parallel_size=topology.tp,
        context_parallel_size=topology.cp, sequence_parallel=topology.tp > 1, add_bias_linear=False,
        use_cpu_initialization=True,
    )  # fmt: skip
    accepted = inspect.signature(TopKRouter).parameters
    names = [name for name in ("model_comm_pgs", "pg_collection") if name in accepted]
    router = TopKRouter(config, **{name: getattr(moe_utils, f"get_default_{name}")() for name in names})
    router.set_layer_number(1)
    router.is_mtp_layer, router.mtp_layer_number = False, None
    config.mtp_num_layers, config.mtp_use_repeated_layer = None, False
    config.moe_token_dispatcher_type = options.get("dispatcher", "alltoall")
    groups = {"tp_group": "tensor_model", "cp_group": "context", "tp_cp_group": "tensor_and_context"}
    for name, of in groups.items():
        vars(router).setdefault(name, getattr(parallel_state, f"get_{of}_parallel_group")())
    judged = options.get("function", "").rpartition(".")[2]
    if real := getattr(router, judged, None):
        adapted = _known(real, set() if options.get("counted", True) else {"valid_token_count"})
        setattr(router, judged, partial(_balanced, real) if options["function"] == _OLD else adapted)
    return router.train()


def _plain(case: Case, loss: Loss) -> tuple[list[float], float]:
    """Return the gradient of the mean loss of all tokens, in plain torch, in one process; and what is to be logged."""
    import torch

    options, topology = case.options, case.topology
    per_token = options.get("per_token", True)
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
    # the finalizer divides by the tokens that have a target, and the router counts all; without it, CP is divided by
    prompt = 0 if options.get("as_set") else loss.prompt
    total = total * _TOKENS / (_TOKENS - prompt) if per_token else total / topology.cp
    (total * options.get("coefficient", 1)).backward()
    return weight.grad.flatten().tolist(), float(logged)


def _balance(logits: Any) -> Any:
    """Return the balancing loss of tokens: by expert, the share of tokens times the mean score."""
    import torch

    scores = logits.softmax(-1)
    share = torch.zeros_like(scores).scatter(1, scores.topk(_TOPK, dim=-1).indices, 1.0).mean(0) / _TOPK
    return _EXPERTS * (share * scores.mean(0)).sum()
