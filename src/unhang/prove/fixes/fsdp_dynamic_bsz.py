"""verl: the real actor and critic of the FSDP workers, on a tiny Llama under ``fully_shard``.

The ranks hold batches of different lengths. Model, sharding, collectives, losses and optimizer step are real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import FEW, HUNG, PASSED, Case, Outcome, Topology
from ..ranks import gloo, shims

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp", "transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_METHODS = ("log-prob", "policy-update", "values", "critic-update")
_CLIP, _FORWARD = "fsdp2_clip_grad_norm_", "all_gather"
_PAIR = Topology(dp=2)
_FOUR = Topology(dp=4)
_LONG, _SHORT = (90, 100, 90, 100), (40, 50, 40, 50)
_BOUND = 100  # tokens: four micro-batches of the long rows, two of the short ones
_STATIC = {"methods": _METHODS, "dynamic": False}
_EQUAL = {"methods": _METHODS, "long": (0, 1)}
_HYBRID = {"replicas": 2}


def _of(method: str, **options: Any) -> dict[str, Any]:
    # a branch of 0.7.1 has upstream's own fix of the actor, and not of the critic
    may_pass = {"may_pass": True} if method in _METHODS[:2] else {}
    return {"methods": (method,), **may_pass, **options}


CASES = (
    Case("log-prob", _PAIR, "ranks", HUNG, _FORWARD, _of("log-prob"), core=True),
    Case("policy-update", _PAIR, "ranks", HUNG, _CLIP, _of("policy-update"), core=True),
    Case("values", _PAIR, "ranks", HUNG, _FORWARD, _of("values"), core=True),
    Case("critic-update", _PAIR, "ranks", HUNG, _CLIP, _of("critic-update"), core=True),
    Case("static-batch", _PAIR, "ranks", PASSED, options=_STATIC, core=True),
    Case("equal-lengths", _PAIR, "ranks", PASSED, options=_EQUAL, core=True),
    Case("four-ranks", _FOUR, "ranks", HUNG, _CLIP, _of("critic-update", long=(0, 1))),
    Case("hybrid-policy-update", _FOUR, "ranks", HUNG, "rank", _of("policy-update", long=(0, 1), **_HYBRID), core=True),
    Case("hybrid-one-long-rank", _FOUR, "ranks", HUNG, "rank", _of("critic-update", **_HYBRID)),
    Case("hybrid-log-prob", _FOUR, "ranks", PASSED, options=_of("log-prob", long=(0, 1), **_HYBRID)),
)


def case_for(topology: Topology, upstream: str, shapes: Collection[str]) -> Case:
    """Return the case of a user's job: the critic's update on up to 8 ranks, of which the first is long.

    FSDP knows no other kind of parallelism: its ranks are data parallel, whatever the sizes are. The actor's methods
    differ from the critic's in nothing that matters here, and a branch has upstream's fix of these alone.
    """
    ranks = Topology(dp=min(topology.world, FEW))
    if ranks.dp == 1:
        return Case("yours", ranks, "ranks", PASSED, options=_of("critic-update"))
    return Case("yours", ranks, "ranks", HUNG, _CLIP, _of("critic-update"))


def prepare() -> None:
    """Import verl's actor and critic for a CPU."""
    shims.cuda_on_cpu()
    from verl.utils import fsdp_utils, seqlen_balancing

    for module in (*_modules(), fsdp_utils, seqlen_balancing):
        module.get_device_id = module.get_device_name = lambda: "cpu"


class Seen(NamedTuple):
    """What one rank did in one method."""

    forwards: int
    """How many forward passes it ran."""
    agreed: int
    """How many numbers it agreed on with other ranks: all-reduces of one integer."""
    apart: float
    """How far its result is from that of one micro-batch without dynamic batches, relative to the largest value."""


def run(case: Case, deadline_s: float) -> Outcome:
    """Run the methods of a case on every rank, and compare their results with those of one whole batch."""

    def body(rank: int) -> list[Seen]:
        return [_seen(case, rank, method) for method in case.options["methods"]]

    world = gloo.run(case.topology.world, body, deadline_s=deadline_s)
    return world.outcome(
        lambda ranks: "; ".join(_wrong(case, ranks)),
        lambda _: "the ranks run as many micro-batches each, and the results are those of a whole batch",
    )


def _wrong(case: Case, ranks: Sequence[Sequence[Seen]]) -> Iterator[str]:
    """Yield what is wrong with each method."""
    for method, seen in zip(case.options["methods"], zip(*ranks)):
        # bfloat16, under autocast: a batch of other rows is rounded otherwise
        apart = max(one.apart for one in seen)
        if len({one.forwards for one in seen}) > 1 and not case.is_control:
            yield f"{method}: the ranks run {[one.forwards for one in seen]} micro-batches"
        elif any(one.agreed > case.options.get("dynamic", True) for one in seen):
            yield f"{method}: the ranks agree on {[one.agreed for one in seen]} numbers"
        elif not apart < 0.05:
            yield f"{method}: a result is {apart:.1%} from that of a whole batch"


def _seen(case: Case, rank: int, method: str) -> Seen:
    """Run one method on the whole batch at once, and then as the worker does."""
    import torch
    import torch.distributed as dist

    _, whole = _run(case, rank, method, False)  # first: where the other one hangs, some ranks get past it
    all_reduce, numbers = dist.all_reduce, []

    def recorded(tensor: Any, *arguments: Any, **named: Any) -> Any:
        if tensor.dtype == torch.int64 and tensor.numel() == 1:
            numbers.append(tensor)
        return all_reduce(tensor, *arguments, **named)

    dist.all_reduce = recorded
    try:
        forwards, result = _run(case, rank, method, case.options.get("dynamic", True))
    finally:
        dist.all_reduce = all_reduce
    return Seen(forwards, len(numbers), float((result - whole).abs().max() / whole.abs().max()))


def _run(case: Case, rank: int, method: str, dynamic: bool) -> tuple[int, Any]:
    """Return how many forward passes a method runs, and its result; of an update, the change of the weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

    sizes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_labels": 1}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, **layers, classifier_dropout=0.0)
    of_actor = method in _METHODS[:2]
    model = _sharded(case, (LlamaForCausalLM if of_actor else LlamaForTokenClassification)(config))
    forwards: list[None] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(None))
    before = _weights(model)
    worker = _worker(model, of_actor, dynamic)
    data = _batch(_LONG if rank in case.options.get("long", (0,)) else _SHORT, rank, dynamic)
    methods: dict[str, Callable[[], Any]] = {
        "log-prob": lambda: worker.compute_log_prob(data)["log_probs"],
        "values": lambda: worker.compute_values(data),
        "policy-update": lambda: worker.update_policy(data),
        "critic-update": lambda: worker.update_critic(data),
    }
    result = methods[method]()
    return len(forwards), _weights(model) - before if method.endswith("update") else result


def _sharded(case: Case, model: Any) -> Any:
    """Shard a model over all ranks; with replicas, within each of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    replicas = case.options.get("replicas", 1)
    shape = (case.topology.world,) if replicas == 1 else (replicas, case.topology.world // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "ranks")[-len(shape) :])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _worker(model: Any, of_actor: bool, dynamic: bool) -> Any:
    """Return verl's actor or critic with settings of its own class where it has one, else a mapping."""
    import torch
    from omegaconf import OmegaConf
    from verl.workers.config import FSDPActorConfig

    actor, critic = _modules()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # a mean over rows does not depend on how these are split
    settings = {
        "ppo_mini_batch_size": len(_LONG),
        "ppo_micro_batch_size_per_gpu": len(_LONG),
        "use_dynamic_bsz": dynamic,
        "ppo_max_token_len_per_gpu": _BOUND,
        "loss_agg_mode": "seq-mean-token-sum",
    }
    if of_actor:
        config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, use_torch_compile=False, **settings)
        return actor.DataParallelPPOActor(config, model, optimizer)
    others = {"model": {}, "ppo_epochs": 1, "cliprange_value": 100.0, "grad_clip": 1.0}
    return critic.DataParallelPPOCritic(OmegaConf.create({**settings, **others}), model, optimizer)


def _batch(lengths: Sequence[int], rank: int, dynamic: bool) -> Any:
    """Return a batch with rows of these lengths, half prompt and half response, padded as verl does."""
    import torch
    from verl import DataProto

    torch.manual_seed(1 + rank)
    side = _BOUND // 2
    place = torch.arange(2 * side)
    mask = torch.stack([(place >= side - length // 2) & (place < side + length // 2) for length in lengths]).long()
    ids = torch.randint(0, 32, mask.shape)
    responses = {"responses": ids[:, side:], "response_mask": mask[:, side:]}
    ones = torch.ones(len(lengths), side)
    values = {"old_log_probs": -3 * ones, "advantages": ones, "values": 0 * ones, "returns": ones}
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **responses, **values}
    meta = {"temperature": 1.0, "micro_batch_size": len(lengths), "use_dynamic_bsz": dynamic, "max_token_len": _BOUND}
    return DataProto.from_dict(tensors, meta_info=meta)


def _weights(model: Any) -> Any:
    """Return this rank's part of the weights, as one vector."""
    import torch

    return torch.cat([weight.to_local().detach().flatten().clone() for weight in model.parameters()])


def _modules() -> tuple[Any, Any]:
    from verl.workers.actor import dp_actor
    from verl.workers.critic import dp_critic

    return dp_actor, dp_critic
