"""megatron-core: the gradient of a real router's weight by its auxiliary losses alone, after the real finalizer.

The router is a module of its own in Megatron's data parallelism. Its tokens are split over the ranks of TP and CP, each
data-parallel rank has its own sequence, and the model's loss is zero. The finalizer divides by all tokens that are not
padded. The right gradient is that of the same loss in plain torch, of all tokens in one process.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
from functools import partial
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


def _case(name: str, topology: Topology, *losses: Loss, ends: str = DIFFERS, **options: Any) -> Case:
    """Return a case. Some releases pass each: it depends on what they multiply by, and on whether they know padding."""
    at = "" if ends == PASSED else losses[0].kind
    return Case(name, topology, ends, at, {"losses": losses, "may_pass": ends != PASSED, **options}, core=True)


_HARMED: dict[str, Any] = {"core": False, "patched": DIFFERS}
CASES: tuple[Case, ...] = (
    _case("aux", _TWO, Loss(AUX)),
    _case("aux-cp", _CP, Loss(AUX)),
    _case("aux-even", _TWO, Loss(AUX, EVEN)),
    _case("aux-uneven", _TWO, Loss(AUX, UNEVEN)),
    _case("aux-prompt", _TWO, Loss(AUX, prompt=2)),
    _case("sequences", _TWO, Loss(SEQUENCE, sequences=2)),
    _case("sequences-alone", _ONE, Loss(SEQUENCE, sequences=2)),
    _case("sequences-even", _TWO, Loss(SEQUENCE, EVEN, 2)),
    _case("z", _TWO, Loss(Z)),
    _case("z-uneven", _TWO, Loss(Z, UNEVEN)),
    _case("global", _TP_DP, Loss(GLOBAL)),
    _case("global-even", _TP_DP, Loss(GLOBAL, EVEN)),
    _case("one", _ONE, Loss(AUX), Loss(SEQUENCE), Loss(Z), ends=PASSED),
    _case("one-padded", _ONE, Loss(AUX, EVEN), Loss(AUX, UNEVEN), Loss(SEQUENCE, EVEN), Loss(Z, UNEVEN), ends=PASSED),
    _case("global-dp", _DP, Loss(GLOBAL), ends=PASSED),
    _case("global-dp-padded", _DP, Loss(GLOBAL, EVEN), Loss(GLOBAL, UNEVEN), ends=PASSED),
    _case("per-batch", _TWO, Loss(AUX), Loss(SEQUENCE, sequences=2), Loss(Z), ends=PASSED, per_token=False),
    _case("aux-cp-uncounted", _CP, Loss(AUX), counts=False)._replace(**_HARMED),
    _case("aux-prompt-as-set", _TWO, Loss(AUX, prompt=2), ends=PASSED, as_set=True, may_pass=True)._replace(**_HARMED),
)
_GLOBAL, _COUNT = "_apply_global_aux_loss", "get_tokens_per_expert_and_token_count"
_ROUTER, _UTILS = "megatron.core.transformer.moe.router", "megatron.core.transformer.moe.moe_utils"
_OLD, _ATTACH = "TopKRouter.apply_load_balancing_loss", "TopKRouter.attach_and_log_load_balancing_loss"
_Z, _SEQUENCES, _EVERYWHERE = (f"TopKRouter.{it}" for it in ("apply_z_loss", "_apply_seq_aux_loss", _GLOBAL))
_TOKENS, _WIDTH, _EXPERTS, _TOPK, _CLOSE = 4, 3, routers.EXPERTS, 2, 1e-5
_LOGGED: list[Any] = []


def _settings() -> Iterator[Case]:
    """Yield the settings of each function: some losses on ranks of each kind, and the first in other ways."""
    aux, sequence, whole, z = ([Loss(kind, it) for it in ((), EVEN, UNEVEN)] for kind in (AUX, SEQUENCE, GLOBAL, Z))
    losses = {
        _OLD: [Loss(AUX), Loss(SEQUENCE), Loss(SEQUENCE, sequences=2)],
        _ATTACH: [*aux, Loss(SEQUENCE), Loss(GLOBAL)],
        _Z: z,
        _SEQUENCES: [*(it._replace(sequences=2) for it in sequence), Loss(SEQUENCE), Loss(SEQUENCE, sequences=3)],
        _EVERYWHERE: [*whole, Loss(AUX)],  # with another loss it has none of its own
        _COUNT: [*aux, *sequence],
    }
    others: Any = {_ATTACH: [{"counted": False}], _OLD: [{"dispatcher": it} for it in ("alltoall_seq", "allgather")]}
    for of, (first, *_) in losses.items():
        more = [{"coefficient": 2}, {"per_token": False}, *others.get(of, ())]
        plain: Any = itertools.product((_ONE, _TWO, _CP, _BOTH, _DP, _TP_DP), losses[of], [{}])
        for topology, loss, options in (*plain, *itertools.product((_ONE, _TWO, _BOTH), [first], more)):
            is_right = not options.get("per_token", True) or topology.world == loss.sequences == 1
            name = ", ".join(map(str, (of, topology.text(), *loss, *options.items())))
            yield _case(name, topology, loss, ends=PASSED if is_right else DIFFERS, of=[of], **options)


GRID = [*_settings()]
HELD = {"mtp_|layer_number": "only an MTP layer has them", r"_coeff|\.training|is_grad_enabled": "else none is scaled"}


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of a case's job sets."""
    options, losses = case.options, [Loss(*it) for it in case.options["losses"]]
    kinds = {it.kind for it in losses}
    return {
        "calculate_per_token_loss": options.get("per_token", True),
        "moe_aux_loss_coeff": len(kinds - {Z}),
        "moe_z_loss_coeff": 1 if Z in kinds else None,
        "moe_router_load_balancing_type": SEQUENCE if SEQUENCE in kinds else AUX,
        "micro_batch_size": max(it.sequences for it in losses),
        "tensor_model_parallel_size": case.topology.tp,
        "context_parallel_size": case.topology.cp,
        "a padding mask": any(it.padded for it in losses),
        "prompts that are half of all tokens or more": any(2 * it.prompt >= _TOKENS for it in losses),
        "version megatron-core": "0.18.2",
        "version verl": None if options.get("counts", True) else "0.8.0",
    }


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job, of at most two ranks of TP and CP each. Without any, some releases pass."""
    few = Topology(tp=min(topology.tp, 2), cp=min(topology.cp, 2))
    return _case("yours", few, Loss(AUX), Loss(AUX, EVEN), Loss(SEQUENCE, (), 2), Loss(Z), may_pass=few.world == 1)


def caveat(case: Case) -> str:
    """Return what the case supposes of the user's job."""
    return "supposes per-token loss, and auxiliary losses of several sequences, with and without a padding mask"


def prepare() -> None:
    """Import megatron-core's routers for a CPU. The tracker is a stand-in, which keeps what each router logs."""
    import torch

    torch.compile = lambda function, **_: function  # it starts threads, which a fork does not have
    routers.on_cpu()
    namespace: dict[str, Any] = vars(importlib.import_module(_ROUTER))
    core: Any = importlib.import_module("megatron.core")
    reduce = core.tensor_parallel.reduce_from_tensor_model_parallel_region
    # a commit may use what its nearest release lacks
    namespace |= {"parallel_state": core.parallel_state, reduce.__name__: reduce, "Callable": Any} | namespace
    namespace["save_to_aux_losses_tracker"] = lambda name, value, *_, **__: _LOGGED.append(value.detach())
    namespace["get_moe_metrics_tracker"] = lambda: SimpleNamespace(record=namespace["save_to_aux_losses_tracker"])


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether a function has the count of tokens that it hands on; only those that hand one on may lack it."""
    return function.name not in ("_apply_seq_aux_loss", _GLOBAL) or "valid_token_count" in ast.unparse(function)


def wrong(case: Case, ranks: Sequence[Any]) -> str:
    """Return what is wrong on some rank; empty where nothing is."""
    return "; ".join(text for text, is_right in _compared(case, ranks) if not is_right)


def right(case: Case, ranks: Sequence[Any]) -> str:
    """Return what was seen."""
    return "; ".join(text for text, _ in _compared(case, ranks)) or "no such loss here"


def _compared(case: Case, ranks: Sequence[Any]) -> Iterator[tuple[str, bool]]:
    """Yield the norm of each gradient, beside the right one; what else is wrong; and whether it is right."""
    for losses, gradients, logged, waits in (zip(*steps) for steps in zip(*ranks)):
        (kind, *_), (due, to_log) = losses[0], _plain(case, losses[0])
        found = next((it for it in gradients if not (it - due).norm() < _CLOSE), due)
        yield f"{kind}: the gradient is {found.norm():.4f}, right is {due.norm():.4f}", found is due
        if not abs(sum(logged) - to_log) < _CLOSE:
            yield f"{kind}: {sum(logged):.4f} is logged in all, right is {to_log:.4f}", False
        if any(waits):
            yield f"{kind}: the host waits for a tensor", False


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return of each loss of the case that this release has what ``_step`` does."""
    megatron.initialize(case.topology)
    router, function = importlib.import_module(_ROUTER), case.options.get("function", "")
    kind = router.TopKRouter
    # right functions take the place of those that the judged one meets
    if function not in ("", _COUNT) and hasattr(router, _COUNT):
        vars(router)[_COUNT] = _counted
    if function in (_SEQUENCES, _EVERYWHERE, _COUNT):
        kind.attach_and_log_load_balancing_loss = _attached
    masks, judged = {"padding_mask", "with_padding_mask", "valid_token_count"}, function.rpartition(".")[2]
    every = (kind.forward, getattr(kind, judged, kind.forward))
    knows_padding = all(masks & {*inspect.signature(it).parameters} for it in every)
    losses = [Loss(*it) for it in case.options["losses"] if knows_padding or not Loss(*it).padded]
    return [_step(case, it) for it in losses if it.kind != GLOBAL or hasattr(kind, _GLOBAL)]


def _counted(routing_map: Any, reduce_group: Any, topk: int = 1, with_padding_mask: bool = False) -> tuple[Any, ...]:
    """Count the tokens of each expert, and of all; those of a rank are the mean, as every rank weighs the same."""
    import torch.distributed as dist

    dist.all_reduce(experts := routing_map.sum(dim=0), group=reduce_group)
    total = experts.sum() / topk if with_padding_mask else routing_map.shape[0] * reduce_group.size()
    return experts, total / reduce_group.size(), total


def _attached(router: Any, activation: Any, coefficient: float, loss: Any, *_: Any, **named: Any) -> Any:
    """Log a loss, and attach it times the tokens of the group; or as it is, where it is a mean per batch."""
    tokens = activation.shape[0] if (count := named.get("valid_token_count")) is None else count
    _LOGGED.append(loss.detach() / coefficient)
    times = tokens * router.tp_cp_group.size() if router.calculate_per_token_loss else 1
    return importlib.import_module(_UTILS).MoEAuxLossAutoScaler.apply(activation, loss * times)


def _balanced(function: Any, *given: Any, activation: Any, load_balancing_loss_func: Any = None) -> Any:
    """Call a function that takes the loss, or what it is made of, whichever its nearest release gives it."""
    if "load_balancing_loss_func" in inspect.signature(function).parameters:
        loss = importlib.import_module(_UTILS).switch_load_balancing_loss_func
        return function(activation, load_balancing_loss_func or partial(loss, *given, _TOPK))
    parts = given or [load_balancing_loss_func.keywords[it] for it in ("probs", "tokens_per_expert")]
    return function(*parts, activation)


def _known(function: Any, but: Collection[str]) -> Any:
    """Return a function that takes any keyword, and leaves out those that the other does not know, or these."""
    names = inspect.signature(function).parameters.keys() - {*but}
    return lambda *given, **named: function(*given, **{name: it for name, it in named.items() if name in names})


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


def _step(case: Case, loss: Loss) -> tuple[Loss, Any, float, int]:
    """Run the real router and finalizer. Return the loss, the gradient, what is logged, and the waits of the host."""
    import torch
    from megatron.core import distributed, parallel_state
    from torch.testing._internal.logging_tensor import LoggingTensorMode, capture_logs

    options, topology, router = case.options, case.topology, _router(case, loss)
    wrapped = distributed.DistributedDataParallel(router.config, distributed.DistributedDataParallelConfig(), router)
    tokens, weight, valid = _drawn(loss, parallel_state.get_data_parallel_rank())
    router.weight.data.copy_(weight)
    places = torch.arange(_TOKENS)
    of_cp = places.chunk(topology.cp)[parallel_state.get_context_parallel_rank()]
    own = of_cp.chunk(topology.tp)[parallel_state.get_tensor_model_parallel_rank()]
    # before 0.13 the loss functions sum the tokens over CP, and not the finalizer
    is_summed = "with_context_parallel" not in inspect.getsource(distributed.finalize_model_grads)
    targets = (valid & (places >= loss.prompt)[:, None])[places if is_summed else of_cp]
    given = {"input": tokens[own], **({"padding_mask": ~valid[own]} if loss.padded else {})}
    with capture_logs() as seen, LoggingTensorMode():
        for end in (1, None):  # a micro-batch of fewer tokens leaves nothing behind, and its mask as it was
            _LOGGED.clear()
            for it in router.buffers():
                it.zero_()
            probs, _ = wrapped(**{name: it[:end, :end] for name, it in given.items()})
    (probs.sum() * 0).backward()
    counted = targets.sum().to(torch.int) * options.get("counts", True)
    distributed.finalize_model_grads([wrapped], counted if options.get("per_token", True) else None)
    gathers = options.get("dispatcher") == "alltoall_seq" and "alltoall_seq" in inspect.getsource(router.routing)
    logged = float(sum(_LOGGED)) / (topology.tp if gathers else 1)  # each rank of TP has gathered the tokens of all
    return loss, router.weight.main_grad.clone(), logged, sum("_local_scalar_dense" in it for it in seen)


def _router(case: Case, loss: Loss) -> Any:
    """Return a router, with DP that of an MTP layer. The judged function may know other arguments than it is given."""
    from megatron.core import parallel_state

    options, topology, is_aux = case.options, case.topology, loss.kind != Z
    coefficient = options.get("coefficient", 1)
    (router,) = routers.make(
        [False, True], None, hidden_size=_WIDTH, moe_router_load_balancing_type=loss.kind if is_aux else "none",
        moe_aux_loss_coeff=coefficient if is_aux else 0.0, moe_z_loss_coeff=None if is_aux else coefficient,
        calculate_per_token_loss=options.get("per_token", True), sequence_parallel=topology.tp > 1,
        tensor_model_parallel_size=topology.tp, context_parallel_size=topology.cp, kv_channels=2,
    )  # fmt: skip
    router.is_mtp_layer = router.config.mtp_use_repeated_layer = is_mtp = topology.dp > 1
    router.config.mtp_num_layers = router.mtp_layer_number = 1 if is_mtp else None
    router.config.moe_token_dispatcher_type = options.get("dispatcher", "alltoall")
    for name, of in (("tp", "tensor_model"), ("cp", "context"), ("tp_cp", "tensor_and_context")):
        vars(router).setdefault(f"{name}_group", getattr(parallel_state, f"get_{of}_parallel_group")())
    judged = options.get("function", "").rpartition(".")[2]
    if real := getattr(router, judged, None):
        adapted = _known(real, () if options.get("counted", True) else ["valid_token_count"])
        setattr(router, judged, partial(_balanced, real) if options["function"] == _OLD else adapted)
    return router


def _plain(case: Case, loss: Loss) -> tuple[Any, float]:
    """Return the gradient of the mean loss of all tokens, in plain torch, in one process; and what is to be logged."""
    import torch

    options, topology, per_token = case.options, case.topology, case.options.get("per_token", True)
    drawn = [_drawn(loss, rank) for rank in range(topology.dp)]
    weight, valid = drawn[0][1].requires_grad_(), drawn[0][2]
    logits = torch.stack([tokens @ weight.t() for tokens, *_ in drawn])
    if loss.kind == Z:  # each rank logs the mean of its own tokens
        squares, parts = logits.logsumexp(-1).square() * valid, topology.tp * topology.cp
        means = (it.sum((1, 2)) / of.sum().clamp(min=1) for it, of in zip(squares.chunk(parts, 1), valid.chunk(parts)))
        logged, total = sum(means).sum(), squares.sum() / valid.sum() / topology.dp
    else:
        every = [logits[:, valid].flatten(0, 1)] if loss.kind == GLOBAL else logits[:, valid]
        logged = sum(map(_balance, every))
        # without padding megatron-core counts the tokens of one data-parallel rank; that is another matter
        total = logged / (1 if loss.kind == GLOBAL and loss.padded and per_token else topology.dp)
    # the finalizer divides by the tokens that have a target, and the router counts all; without it, CP is divided by
    prompt = loss.prompt * (not options.get("as_set"))
    total = total * _TOKENS / (_TOKENS - prompt) if per_token else total / topology.cp
    (total * options.get("coefficient", 1)).backward()
    return weight.grad, float(logged)


def _balance(logits: Any) -> Any:
    """Return the balancing loss of tokens: by expert, the share of tokens times the mean score."""
    import torch

    scores = logits.softmax(-1)
    share = torch.zeros_like(scores).scatter(1, scores.topk(_TOPK, dim=-1).indices, 1.0).mean(0) / _TOPK
    return _EXPERTS * (share * scores.mean(0)).sum()
