"""verl: the real actor and critic of the FSDP workers, on a tiny model under torch's real ``fully_shard``.

The ranks hold rows of different lengths. What a rank returns, and its weights after an update, are compared with plain
torch in one process that has the rows of all; how many micro-batches it runs, with what the rank with the most tokens
needs. Data, sharding, collectives, losses and optimizer are real. ``rearrange_micro_batches``, on which the methods
depend, is run by itself, with what they give it. The configuration is a stand-in, and so are the names that only older
releases import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import math
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

from ..cases import DIFFERS, HUNG, PASSED, Case, Topology
from ..ranks import shims

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp", "transformers", "ray", "datasets", "peft", "accelerate", "tensordict")
_CLIP, _FORWARD = "fsdp2_clip_grad_norm_", "all_gather"
_PAIR, _FOUR = Topology(dp=2), Topology(dp=4)
_BOUND = 20  # tokens: four micro-batches of the long rows, two of the short ones
_LONG, _SHORT, _OTHER = (18, 20, 18, 20), (8, 10, 8, 10), (12, 14, 10, 8)
_LOG_PROB, _POLICY, _VALUES, _CRITIC = "compute_log_prob", "update_policy", "compute_values", "update_critic"
_METHODS = {_LOG_PROB: "Actor", _POLICY: "Actor", _VALUES: "Critic", _CRITIC: "Critic"}
_HELPER, _PREPARE = "rearrange_micro_batches", "prepare_dynamic_batch"
_HYBRID: dict[str, Any] = {"replicas": 2}  # on two ranks, each is by itself
# a branch of 0.7.1 has upstream's own fix of the actor, and not of the critic
_OF_POLICY, _OF_CRITIC = {"methods": (_POLICY,), "may_pass": True}, {"methods": (_CRITIC,)}
CASES = (
    Case("log-prob", _PAIR, HUNG, _FORWARD, {"methods": (_LOG_PROB,), "may_pass": True}, core=True),
    Case("policy-update", _PAIR, HUNG, _CLIP, _OF_POLICY, core=True),
    Case("values", _PAIR, HUNG, _FORWARD, {"methods": (_VALUES,)}, core=True),
    Case("critic-update", _PAIR, HUNG, _CLIP, _OF_CRITIC, core=True),
    Case("static-batch", _PAIR, PASSED, options={"methods": (*_METHODS,), "dynamic": False}, core=True),
    Case("equal-lengths", _PAIR, PASSED, options={"methods": (*_METHODS,), "lengths": (_LONG,) * 2}, core=True),
    Case("four-ranks", _FOUR, HUNG, _CLIP, {**_OF_CRITIC, "long": 2}),
    Case("hybrid-policy-update", _FOUR, HUNG, "rank", {**_OF_POLICY, "long": 2, **_HYBRID}, core=True),
    Case("hybrid-one-long-rank", _FOUR, HUNG, "rank", {**_OF_CRITIC, **_HYBRID}),
    Case("each-by-itself", _PAIR, PASSED, options={"methods": (*_METHODS,), **_HYBRID}, core=True),
)
# the critic, because a branch has upstream's fix of the actor; FSDP's ranks are data parallel, whatever the sizes are
YOURS = Case("yours", Topology(), HUNG, _CLIP, _OF_CRITIC)
RULED_OUT = ("world", "one rank has no other to wait for")


class _Config(dict[str, Any]):
    """A configuration, which is read by attribute or like a mapping. What it lacks is None, and so is off."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def _needed(rows: Sequence[int]) -> int:
    """Return how many micro-batches some rows need, which are given by their tokens."""
    return math.ceil(sum(rows) / _BOUND)


def _setting(name: str, lengths: Sequence[Sequence[int]], of: Sequence[str] = (*_METHODS,), **options: Any) -> Case:
    is_control = "dynamic" in options or len({_needed(rows) for rows in lengths}) == 1
    options |= {"lengths": lengths, "of": [f"DataParallelPPO{_METHODS[method]}.{method}" for method in of]}
    text = f"{name}, {[sum(rows) for rows in lengths]}"
    return Case(text, Topology(dp=len(lengths)), PASSED if is_control else HUNG, options=options)


_TWO, _THREE, _UPDATES = (_LONG, _SHORT), (_SHORT, _OTHER, _LONG), (_POLICY, _CRITIC)
# they leave a first gradient as it is: there, the policy is still its own reference
_MORE = {
    **{"policy_loss": _Config(loss_mode="gpg"), "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "tis_imp_ratio_cap": 2},
    **{"use_kl_loss": True, "kl_loss_type": "mse", "kl_loss_coef": 0.3, "use_rollout_log_probs": True},
    **{"calculate_entropy": True, "calculate_sum_pi_squared": True},
}
GRID = [
    *(_setting("rows", it) for it in (_TWO, _THREE, (_OTHER, _SHORT), (_LONG, _LONG[::-1]), (_LONG,))),
    _setting("static", _TWO, dynamic=False),
    _setting("Ulysses", _TWO, sp=2),
    # older releases scale the loss of these by another number
    _setting("images", _TWO, images=True, config={"grad_clip": 1e-3}),
    _setting("static images", _TWO, images=True, config={"grad_clip": 1e-3}, dynamic=False),
    _setting("a long rank", (_LONG, _SHORT, _SHORT, _SHORT), **_HYBRID),
    _setting("all that a loss may have", _TWO, (_LOG_PROB, _POLICY), config=_MORE),
    _setting("two mini-batches, entropy", _TWO, _UPDATES, minis=2, config={"entropy_coeff": 1e-12}),
    _setting("two epochs, FSDP1", _TWO, epochs=2, fsdp1=True),
    Case(f"{_HELPER}, no group", _PAIR, DIFFERS, options={"of": [_HELPER]}),
    Case(f"{_HELPER}, all ranks", _PAIR, PASSED, options={"of": [_HELPER], "group": True}),
]
HELD = {
    r"\b(v|entropy) is not None|^k == |^if hasattr|^hasattr": "there always is one, and nothing else",
    r"scaler|^loss_mode != ": "nobody asks for more precision, or another loss",
    "use_prefix_grouper|.(uid|prompts|response_mask). in |^k in ": "these say which data a micro-batch has besides",
    "is_initialized|same_micro|sync_micro|min_num|divided_by|balance|force_group|is_nested": "no method asks for it",
    " if partition else |max_group|num_micro_batches >|within_limit": "no row is too long, and no part is empty",
}


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for the function that the methods depend on, run by itself."""
    dynamic = "use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz"  # by default, the second is as the first
    known = {
        "fsdp_size": _size(case),
        "strategy": "fsdp" if _size(case) == 1 or "fsdp1" in case.options else "fsdp2",  # fsdp-size-one-no-sync
        **dict.fromkeys(dynamic, case.options.get("dynamic", True)),
        "use_legacy_worker_impl": "auto",
        "ranks": case.topology.world,
        "ranks need different numbers of micro-batches": len({_needed(rows) for rows in _lengths(case)}) > 1,
    }
    return None if case.options.get("of") == [_HELPER] else known


def has_feature(function: Any) -> bool:
    """Return whether a method cuts a batch by its tokens; of what cuts it, whether it matters if there is a group."""
    if function.name == _HELPER:
        return any(isinstance(it, ast.Compare) and ast.unparse(it.left) == "dp_group" for it in ast.walk(function))
    return any(isinstance(node, ast.Name) and node.id in (_HELPER, _PREPARE) for node in ast.walk(function))


def prepare() -> None:
    """Import verl's actor and critic for a CPU, with the names that older ones import, and without a memory logger."""
    shims.cuda_on_cpu()
    if importlib.util.find_spec("pkg_resources") is None:  # verl 0.4 imports it, and a newer setuptools has none
        sys.modules["pkg_resources"] = MagicMock()
    cuts, utils = (importlib.import_module(f"verl.utils.{name}") for name in ("seqlen_balancing", "fsdp_utils"))
    workers = [_module(kind) for kind in ("Actor", "Critic")] if importlib.util.find_spec("verl.workers.actor") else []
    for module in (*workers, cuts, utils):
        module.get_device_id = module.get_device_name = lambda: shims.DEVICE
    vars(cuts)["TensorDict"] = importlib.import_module("tensordict").TensorDict
    if not workers:  # newer releases have neither
        return
    for module in workers:
        module.rearrange_micro_batches, module.get_reverse_idx = cuts.rearrange_micro_batches, cuts.get_reverse_idx
        module.get_torch_device = lambda: SimpleNamespace(current_device=lambda: shims.DEVICE)
        vars(module).update(itertools=itertools, Tuple=tuple, GPUMemoryLogger=lambda **_: lambda method: method)
    actor, critic = workers
    losses = importlib.import_module("verl.trainer.ppo.core_algos")
    actor.compute_policy_loss = losses.compute_policy_loss
    actor.get_policy_loss_fn = lambda mode: _loss(losses.get_policy_loss_fn(mode))
    critic.core_algos = SimpleNamespace(compute_value_loss=_loss(losses.compute_value_loss))
    kind = actor.DataParallelPPOActor
    forward = kind._forward_micro_batch
    kind._forward_micro_batch = lambda *given, **more: _Outputs(forward(*given, **{**more, "calculate_entropy": True}))


def _module(kind: str) -> Any:
    return importlib.import_module(f"verl.workers.{kind.lower()}.dp_{kind.lower()}")


class _Outputs(dict[str, Any]):
    """What the actor's forward pass returns: by name or, as older ones do, entropy and log probability."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self["entropys"], self["log_probs"]))


def _loss(function: Any) -> Any:
    """Return a loss that knows older names, and returns as many values as its caller expects: older actors, four."""

    def loss(*given: Any, rollout_log_probs: Any = None, **named: Any) -> Any:
        named |= {"response_mask": named.pop("eos_mask")} if "eos_mask" in named else {}
        value, more = function(*given, **named)
        names = sys._getframe(1).f_code.co_varnames
        return (value, *[value.detach()] * 3) if "pg_clipfrac_lower" in names else (value, more)

    return loss


def wrong(case: Case, ranks: Sequence[Any]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    if case.options.get("function") == _HELPER:
        (numbers, lost), due = zip(*ranks), max(map(_needed, _lengths(case)))
        found = f"the ranks cut into {numbers} micro-batches, due {due}" if {*numbers} != {due} else ""
        return found or "a row is lost, or in two micro-batches" * any(lost)
    return "; ".join(it for method in ranks[0] for it in _wrong(case, method, [seen[method] for seen in ranks]))


def right(case: Case, ranks: Sequence[Any]) -> str:
    """Return what was seen."""
    return "no rank waits for one that does not come, and the results are those of one process"


def _wrong(case: Case, method: str, seen: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with one method, of which each rank tells what ``_seen`` returns."""
    if None in seen:
        yield from [f"{method}: it fails on some ranks alone"] if any(seen) else []
        return
    options, parts = case.options, _steps(case)
    cut = sum(max(_needed(rows[part]) for rows in _lengths(case)) for part in parts), len(parts)
    uncut = options.get("epochs", 1) * len(_LONG) // _ROWS, 0
    may = [cut if options.get("dynamic", True) and options.get("feature", True) else uncut]
    may += [uncut] if "images" in options else []  # older releases do not cut these by their tokens
    forwards, agreed = [one[0] for one in seen], max(one[1] for one in seen)
    is_one_of_them = any({*forwards} == {number} and agreed <= most for number, most in may)
    if not is_one_of_them and (case.topology.world == 1 or _size(case) > 1):
        yield f"{method}: the ranks run {forwards} micro-batches, and agree on {agreed} numbers"
    for rank, (_, _, results) in enumerate(seen):
        due = _due(case, rank, method)
        if not all(it.shape == due[name].shape and (it - due[name]).norm() < 1e-9 for name, it in results):
            yield f"{method}: rank {rank} has other results than one process"


def on_rank(case: Case, rank: int) -> Any:
    """Return what a rank sees of each method, or of the one that a setting judges; of what cuts, what ``_cut`` says."""
    own = case.options.get("function", "").rpartition(".")[2]
    methods = case.options.get("methods") or [own]
    return _cut(case, rank) if own == _HELPER else {it: _seen(case, rank, it) for it in methods}


def _lengths(case: Case) -> Sequence[Sequence[int]]:
    """Return the tokens of each rank's rows."""
    long: int = case.options.get("long", 1)
    return case.options.get("lengths") or (_LONG,) * long + (_SHORT,) * (case.topology.world - long)


def _size(case: Case) -> int:
    """Return over how many ranks the model is sharded. Of several ranks, each may have it all, and be by itself."""
    return case.topology.world // int(case.options.get("replicas", 1))


def _steps(case: Case) -> list[slice]:
    """Return which of its rows a rank has in each mini-batch, of all epochs."""
    size = len(_LONG) // int(case.options.get("minis", 1))
    return [slice(at, at + size) for at in range(0, len(_LONG), size)] * int(case.options.get("epochs", 1))


def _cut(case: Case, rank: int) -> tuple[int, bool]:
    """Cut the rows of a rank. Return into how many parts, and whether a row is not in one of them alone."""
    import torch.distributed as dist

    batch = _batch(case, rank).batch
    function = importlib.import_module("verl.utils.seqlen_balancing").rearrange_micro_batches
    with shims.on_cpu():  # older ones name a GPU
        parts, places = function(batch, _BOUND, dp_group=dist.group.WORLD if case.options.get("group") else None)
    ids = [part["input_ids"].tolist() for part in parts]
    is_lost = ids != [batch["input_ids"][place].tolist() for place in places]
    return len(parts), is_lost or sorted(itertools.chain(*places)) != [*range(len(_LONG))]


def _seen(case: Case, rank: int, method: str) -> tuple[int, int, list[tuple[Any, Any]]] | None:
    """Return how many forward passes a method ran, on how many integers it agreed with other ranks, and its results.

    Those of an update are this rank's part of each weight. With two epochs, the others are called twice: with entropy,
    then without an optimizer, as of a reference. Some older ones fail on images, for which it returns None.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    kind = _METHODS[method]
    model = _sharded(case, _model(kind))
    forwards: list[None] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(None))
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    worker = getattr(_module(kind), f"DataParallelPPO{kind}")(_config(case), model, optimizer)
    worker.gradient_accumulation = 1  # some releases do not set it for images
    reduce, numbers, found = dist.all_reduce, [], []
    call, calls = getattr(worker, method), 1 if method in _UPDATES else case.options.get("epochs", 1)
    entropy = {"calculate_entropy": True} if "calculate_entropy" in inspect.signature(call).parameters else {}

    def recorded(tensor: Any, *given: Any, **named: Any) -> Any:
        numbers.extend([tensor] if tensor.dtype == torch.int64 and tensor.numel() == 1 else [])
        return reduce(tensor, *given, **named)

    def of_norm(tensor: Any, group: Any, **named: str) -> Any:
        """Reduce as DTensor does, in a way that the meeting of the ranks knows of."""
        (mesh, dimension), op = group, getattr(dist.ReduceOp, named["reduceOp"].upper())
        reduce(whole := tensor.clone(), op, mesh.get_group(dimension))
        return whole

    with patch.object(dist, "all_reduce", recorded), patch.object(functional, "all_reduce", of_norm):
        try:
            for more in [entropy, {}][-calls:]:
                found.append(call(_batch(case, rank), **more))
                worker.actor_optimizer = None
        except UnboundLocalError:
            if "images" in case.options:
                return None
            raise
    if method in _UPDATES:
        parts = (getattr(weight, "_local_tensor", weight) for weight in model.parameters())
        results = [*enumerate(part.detach().clone() for part in parts)]
    else:  # older ones return no names, and some the entropy too, in another order
        named = [it if isinstance(it, dict) else {"log_probs": it[0] if isinstance(it, tuple) else it} for it in found]
        results = [(name, it[name]) for it in named for name in ("log_probs", *it)]
    return len(forwards), len(numbers), results


_VOCABULARY, _ANSWER, _ROWS, _RATE = 12, 4, 2, 0.1


def _config(case: Case) -> _Config:
    """Return the settings of a method. What a release does not know, it does not read."""
    options, (part, *_), sp = case.options, _steps(case), case.options.get("sp", 1)
    known = {
        **{"ppo_mini_batch_size": part.stop, "ppo_micro_batch_size_per_gpu": _ROWS, "loss_agg_mode": "token-mean"},
        **{"ppo_epochs": options.get("epochs", 1), "use_dynamic_bsz": options.get("dynamic", True)},
        **{"ppo_max_token_len_per_gpu": _BOUND // sp, "ulysses_sequence_parallel_size": sp, "grad_clip": 1e9},
        **{"clip_ratio": 0.2, "cliprange_value": 100.0, "model": _Config(), "fsdp_config": _Config()},
        **{"policy_loss": _Config(loss_mode="vanilla"), "entropy_coeff": 0, "tis_imp_ratio_cap": 0},
    }
    return _Config({**known, "global_batch_info": {}, **options.get("config", {})})


def _model(kind: str) -> Any:
    """Return a model of two layers, the same on every rank; autocast, which rounds, has no part in it."""
    import torch
    from transformers.modeling_outputs import CausalLMOutput

    torch.manual_seed(0)
    model = torch.nn.Module()
    model.inner = torch.nn.Embedding(_VOCABULARY, _VOCABULARY if kind == "Actor" else 1)
    model.outer = torch.nn.Embedding(_VOCABULARY, 1)
    model.forward = lambda input_ids, **_: CausalLMOutput(logits=model.inner(input_ids) * model.outer(input_ids))
    return model.double()


def _sharded(case: Case, model: Any) -> Any:
    """Shard a model over all ranks; with replicas, within each of them; or let each rank be by itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if "fsdp1" in case.options:
        whole = FullyShardedDataParallel(model, device_id=model.inner.weight.device)
        whole.clip_grad_norm_ = lambda max_norm: next(whole.parameters()).grad.norm()  # its own takes no doubles
        return whole
    size, world = _size(case), case.topology.world
    shape = (world,) if size == world else (world // size, size)
    mesh = init_device_mesh(shims.DEVICE, shape, mesh_dim_names=("replicas", "ranks")[-len(shape) :])
    mesh = mesh["ranks"] if size == 1 else mesh
    fully_shard(model.inner, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _rows(case: Case, rank: int) -> dict[str, Any]:
    """Return the tensors of a rank's rows: a prompt that is padded on the left, and an answer."""
    import torch

    torch.manual_seed(1 + rank)
    lengths = torch.tensor(_lengths(case)[rank])
    ids = torch.randint(0, _VOCABULARY, (len(lengths), _BOUND))
    mask = (torch.arange(_BOUND) >= _BOUND - lengths[:, None]).long()
    ones = torch.ones(len(lengths), _ANSWER, dtype=torch.double)
    returns, before = torch.rand_like(ones), _plain(_model("Actor"), ids)["log_probs"].detach()
    return {
        **{"input_ids": ids, "attention_mask": mask, "position_ids": mask, "loss_mask": mask},
        **{"responses": ids[:, -_ANSWER:], "response_mask": ones.long(), "advantages": ones, "values": ones},
        **{"returns": returns, "old_log_probs": before, "ref_log_prob": before},
        **({"rollout_log_probs": before, "rollout_is_weights": ones} if _config(case).use_rollout_log_probs else {}),
    }


def _batch(case: Case, rank: int) -> Any:
    """Return the batch of a rank, as verl has it."""
    import numpy as np
    import torch
    from verl import DataProto

    config, images = _config(case), np.array([{"pixels": torch.ones(1, 2)} for _ in _LONG], dtype=object)
    meta = {"temperature": 1.0, "micro_batch_size": _ROWS, "max_token_len": config.ppo_max_token_len_per_gpu}
    meta |= {"use_dynamic_bsz": config.use_dynamic_bsz, "multi_turn": bool(config.use_rollout_log_probs)}
    chosen = {"multi_modal_inputs": images} if "images" in case.options else {}
    return DataProto.from_dict(_rows(case, rank), non_tensors=chosen, meta_info=meta)


def _plain(model: Any, ids: Any) -> dict[str, Any]:
    """Return what a model says of the answers, in plain torch: their values, or their log probabilities and more."""
    logits = (model.inner.weight[ids] * model.outer.weight[ids])[:, -_ANSWER - 1 : -1]
    logs = logits.log_softmax(-1)
    chosen = logits if logits.shape[-1] == 1 else logs.gather(-1, ids[:, -_ANSWER:, None])
    more = {"entropys": -(logs.exp() * logs).sum(-1), "sum_pi_squared": logs.exp().square().sum(-1)}
    return {"log_probs": chosen.squeeze(-1), **more}


def _due(case: Case, rank: int, method: str) -> dict[Any, Any]:
    """Return what a rank is to see of a method, by name or number, from one process that has the rows of all ranks."""
    import torch

    model, size = _model(_METHODS[method]), _size(case)
    every = [_rows(case, it) for it in range(case.topology.world) if size > 1 or it == rank]
    if method not in _UPDATES:
        return _plain(model, _rows(case, rank)["input_ids"])
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    for part in _steps(case):
        names = "input_ids", "old_log_probs", "returns"
        ids, before, returns = (torch.cat([rows[name][part] for rows in every]) for name in names)
        found = _plain(model, ids)["log_probs"]
        loss = (found - returns).square() / 2 if method == _CRITIC else -(found - before).exp()
        optimizer.zero_grad()
        loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _config(case).grad_clip)
        optimizer.step()
    whole = [*model.parameters()]
    whole = [torch.cat([weight.flatten() for weight in whole])] if "fsdp1" in case.options else whole
    return dict(enumerate(weight.chunk(size)[rank % size] for weight in whole))
