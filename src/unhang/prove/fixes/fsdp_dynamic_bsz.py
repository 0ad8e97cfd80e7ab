"""verl: the real actor and critic of the FSDP workers, on a tiny model under torch's real ``fully_shard``.

The ranks hold rows of different lengths. What a rank returns, and its weights after an update, are compared with plain
torch in one process that has the rows of all; how many micro-batches it runs, with what the rank with the most tokens
needs. Data, sharding, collectives, losses and optimizer are real. ``rearrange_micro_batches``, on which the methods
depend, is run by itself. The configuration is a stand-in, and so are the names that only older releases import.
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
from typing import TYPE_CHECKING, Any, NamedTuple
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
_IMAGES = "multi_modal_inputs"
_HYBRID: dict[str, Any] = {"replicas": 2}


def _of(method: str, **options: Any) -> dict[str, Any]:
    # a branch of 0.7.1 has upstream's own fix of the actor, and not of the critic
    may_pass = {"may_pass": True} if _METHODS[method] == "Actor" else {}
    return {"methods": (method,), **may_pass, **options}


CASES = (
    Case("log-prob", _PAIR, HUNG, _FORWARD, _of(_LOG_PROB), core=True),
    Case("policy-update", _PAIR, HUNG, _CLIP, _of(_POLICY), core=True),
    Case("values", _PAIR, HUNG, _FORWARD, _of(_VALUES), core=True),
    Case("critic-update", _PAIR, HUNG, _CLIP, _of(_CRITIC), core=True),
    Case("static-batch", _PAIR, PASSED, options={"methods": (*_METHODS,), "dynamic": False}, core=True),
    Case("equal-lengths", _PAIR, PASSED, options={"methods": (*_METHODS,), "lengths": (_LONG,) * 2}, core=True),
    Case("four-ranks", _FOUR, HUNG, _CLIP, _of(_CRITIC, long=2)),
    Case("hybrid-policy-update", _FOUR, HUNG, "rank", _of(_POLICY, long=2, **_HYBRID), core=True),
    Case("hybrid-one-long-rank", _FOUR, HUNG, "rank", _of(_CRITIC, **_HYBRID)),
    Case("each-by-itself", _PAIR, PASSED, options={"methods": (*_METHODS,), "alone": True}, core=True),
)
# the critic, because a branch has upstream's fix of the actor; FSDP's ranks are data parallel, whatever the sizes are
YOURS = Case("yours", Topology(), HUNG, _CLIP, _of(_CRITIC))
RULED_OUT = ("world", "one rank has no other to wait for")


class _Config(SimpleNamespace):
    """A configuration, which is read by attribute or like a mapping. That of each release has other fields."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def _needed(rows: Sequence[int]) -> int:
    """Return how many micro-batches some rows need, which are given by their tokens."""
    return math.ceil(sum(rows) / _BOUND)


def _setting(name: str, lengths: Sequence[Sequence[int]], of: Sequence[str] = (*_METHODS,), **options: Any) -> Case:
    is_dynamic = options.setdefault("dynamic", True)
    is_control = not is_dynamic or len({_needed(rows) for rows in lengths}) == 1
    text = f"{name}, {'dynamic' if is_dynamic else 'static'}, {[sum(rows) for rows in lengths]}"
    options |= {"lengths": lengths, "of": [f"DataParallelPPO{_METHODS[method]}.{method}" for method in of]}
    return Case(text, Topology(dp=len(lengths)), PASSED if is_control else HUNG, options=options)


def _settings() -> Iterator[Case]:
    """Yield the settings of all methods, those of some, and those of the function that they depend on."""
    pair, three, actor = (_LONG, _SHORT), (_SHORT, _OTHER, _LONG), (_LOG_PROB, _POLICY)
    for is_dynamic in (True, False):
        for lengths in (pair, three, (_OTHER, _SHORT), (_LONG, _LONG[::-1]), (_LONG,)):
            yield _setting("rows", lengths, dynamic=is_dynamic)
        yield _setting("Ulysses", pair, dynamic=is_dynamic, sp=2)
        # older releases scale these by another number
        yield _setting(
            "images", pair, dynamic=is_dynamic, others=[_IMAGES], may_refuse=True, config={"grad_clip": 1e-3}
        )
    for epochs, minis, lengths in ((1, 2, pair), (2, 1, three), (2, 2, pair)):
        yield _setting(f"{epochs} x {minis}", lengths, (_POLICY, _CRITIC), epochs=epochs, minis=minis)
    yield _setting("a long replica", (_LONG, _LONG, _SHORT, _SHORT), **_HYBRID)
    yield _setting("a long rank", (_LONG, _SHORT, _SHORT, _SHORT), **_HYBRID)
    yield _setting("no mask", pair, (_VALUES,), lacks=["response_mask"], may_refuse=True)
    yield _setting("squares", pair, (_LOG_PROB,), config={"calculate_sum_pi_squared": True})
    yield _setting("entropy", pair, actor, config={"entropy_coeff": 0.5}, may_refuse=True)
    yield _setting("prefix", pair, actor, config={"use_prefix_grouper": True}, others=["uid"])
    yield _setting("no prefix", pair, actor, config={"use_prefix_grouper": True}, lacks=["prompts"])
    yield _setting("bare", pair, (_POLICY,), lacks=["rollout_is_weights", "rollout_log_probs", "use_rollout_log_probs"])
    yield _setting("turns", pair, (_POLICY,), turns=True)
    yield _setting("scaled", pair, (_POLICY,), scaled=True, may_refuse=True)
    for name, config in {
        "logged entropy": {"calculate_entropy": True},
        "clip": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
        "gpg": {"policy_loss": _Config(loss_mode="gpg")},
        "kl": {"use_kl_loss": True},
        "importance": {"tis_imp_ratio_cap": 2.0},
        "of the rollout": {"use_rollout_log_probs": True},
    }.items():
        yield _setting(name, pair, (_POLICY,), config=config)
    kinds: list[dict[str, Any]] = [{}, {"nested": True}, {"least": 3}, {"divisor": 2}, {"balance": False}]
    kinds += [{"together": 2}, {"together": 2, "balance": False}]
    for has_group, starts, same, more in itertools.product((False, True), (True, False), (True, False), kinds):
        job = {"group": has_group, "starts": starts, "same": same, **more}
        ends = DIFFERS if starts and same and not has_group else PASSED
        yield Case(f"{_HELPER}: {job}", _PAIR, ends, options={**job, "of": [_HELPER]})


GRID = [*_settings()]
HELD = {
    r"\b(v|entropy) is not None|^k == ": "there always are some, and nothing else",
    r"^loss_mode != ": "these modes of a loss need other data",
    r" if partition else ": "there is no empty one",
    r"max_group_token_len >|num_micro_batches >|^if within_limit": "no row is too long",
}


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for the function that the methods depend on, run by itself."""
    options, replicas = case.options, case.options.get("replicas", 1)
    if options.get("of") == [_HELPER]:
        return None
    alone: dict[str, Any] = {"strategy": "fsdp", "fsdp_size": 1}  # fsdp-size-one-no-sync says why
    return {
        **{"strategy": "fsdp2", "fsdp_size": case.topology.world // replicas if replicas > 1 else -1},
        **(alone if options.get("alone") else {}),
        **{"use_dynamic_bsz": options.get("dynamic", True), "use_legacy_worker_impl": "auto"},
        "rollout.log_prob_use_dynamic_bsz": options.get("dynamic", True),  # by default it is as the actor's
        "ranks": case.topology.world,
        "ranks need different numbers of micro-batches": len({_needed(rows) for rows in _lengths(case)}) > 1,
    }


def has_feature(function: Any) -> bool:
    """Return whether a method cuts a batch by its tokens; of what cuts it, whether it matters if there is a group."""
    if function.name == _HELPER:
        compared = [node.left for node in ast.walk(function) if isinstance(node, ast.Compare)]
        return any(isinstance(left, ast.Name) and left.id == "dp_group" for left in compared)
    return any(isinstance(node, ast.Name) and node.id in (_HELPER, _PREPARE) for node in ast.walk(function))


def prepare() -> None:
    """Import verl's actor and critic for a CPU, and give them the names that older ones import.

    ``pkg_resources``, by which verl 0.4 looks for its version, is a stand-in where setuptools has none any more.
    """
    shims.cuda_on_cpu()
    if importlib.util.find_spec("pkg_resources") is None:
        sys.modules["pkg_resources"] = MagicMock()
    cuts, utils = (importlib.import_module(f"verl.utils.{name}") for name in ("seqlen_balancing", "fsdp_utils"))
    workers = [_module(kind) for kind in ("Actor", "Critic")] if importlib.util.find_spec("verl.workers.actor") else []
    for module in (*workers, cuts, utils):
        module.get_device_id = module.get_device_name = lambda: shims.DEVICE
    vars(cuts)["TensorDict"] = importlib.import_module("tensordict").TensorDict
    if not workers:  # newer releases have neither
        return
    actor, critic = workers
    losses = importlib.import_module("verl.trainer.ppo.core_algos")
    for module in workers:
        module.rearrange_micro_batches, module.get_reverse_idx = cuts.rearrange_micro_batches, cuts.get_reverse_idx
        module.itertools, module.get_torch_device = (
            itertools,
            lambda: SimpleNamespace(current_device=lambda: shims.DEVICE),
        )
        vars(module)["Tuple"] = tuple
    actor.compute_policy_loss = losses.compute_policy_loss
    actor.get_policy_loss_fn = lambda mode: _loss(losses.get_policy_loss_fn(mode))
    critic.core_algos = SimpleNamespace(compute_value_loss=_loss(losses.compute_value_loss))
    forward = actor.DataParallelPPOActor._forward_micro_batch
    actor.DataParallelPPOActor._forward_micro_batch = lambda *given, **named: _Outputs(
        forward(*given, **{**named, "calculate_entropy": True})
    )


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


class Seen(NamedTuple):
    """What one rank did in one method."""

    forwards: int
    """How many forward passes it ran."""
    agreed: int
    """How many numbers it agreed on with other ranks: all-reduces of one integer."""
    results: dict[str, Any]
    """What the method returned, by name; of an update, this rank's part of the weights."""


def wrong(case: Case, ranks: Sequence[Sequence[Any]]) -> str:
    """Return what is wrong with what the ranks did; empty where nothing is."""
    if case.options.get("function") == _HELPER:
        return _wrongly_cut(case, [cut for (cut,) in ranks])
    return "; ".join(_wrong(case, ranks))


def right(case: Case, ranks: Sequence[Sequence[Any]]) -> str:
    """Return what was seen."""
    if case.options.get("alone"):
        return "the ranks wait for nobody, and the results of each are those of one process with its rows"
    return "the ranks run as many micro-batches each, and the results are those of one process with all rows"


def _wrong(case: Case, ranks: Sequence[Sequence[Seen | None]]) -> Iterator[str]:
    """Yield what is wrong with each method."""
    options, (epochs, minis) = case.options, _times(case)
    size, whole = len(_LONG) // minis, epochs * len(_LONG) // _ROWS
    most = [max(_needed(rows[at : at + size]) for rows in _lengths(case)) for at in range(0, len(_LONG), size)]
    is_dynamic = options.get("dynamic", True) and options.get("feature", True)
    for method, answers in zip(_methods(case), zip(*ranks)):
        seen = [answer for answer in answers if answer]
        if len(seen) < len(answers):
            yield from [f"{method}: not all ranks refuse the batch"] if seen else []
            continue
        due = {epochs * sum(most): epochs * minis} if is_dynamic else {whole: 0}
        if _IMAGES in options.get("others", ()):
            due.setdefault(whole, 0)  # older releases do not cut images by their tokens
        forwards, agreed = [one.forwards for one in seen], max(one.agreed for one in seen)
        if not options.get("alone") and (len({*forwards}) > 1 or agreed > due.get(forwards[0], -1)):
            yield f"{method}: the ranks run {forwards} micro-batches, and agree on {agreed} numbers"
        for rank, one in enumerate(seen):
            answer = _due(case, rank, method)
            apart = [name for name, it in one.results.items() if not _is_close(name, it, answer[name])]
            if apart or not one.results:
                yield f"{method}: rank {rank} has other {' and '.join(apart)} than one process with all rows"


def _is_close(name: str, found: Any, due: Any) -> bool:
    if name == "entropys":  # some releases leave these in the order of the micro-batches
        found, due = found.sort(0)[0], due.sort(0)[0]
    return bool(found.shape == due.shape and (found - due).norm() < 1e-9)


def on_rank(case: Case, rank: int) -> list[Any]:
    """Return what a rank sees of each method, None of one that refuses such data; of the other function, its parts."""
    if case.options.get("function") == _HELPER:
        return [_cut(case, rank)]
    return [_seen(case, rank, method) for method in _methods(case)]


def _methods(case: Case) -> Sequence[str]:
    own: str = case.options.get("function", "")
    return case.options.get("methods") or (own.rpartition(".")[2],)


def _lengths(case: Case) -> Sequence[Sequence[int]]:
    """Return the tokens of each rank's rows."""
    long: int = case.options.get("long", 1)
    return case.options.get("lengths") or (_LONG,) * long + (_SHORT,) * (case.topology.world - long)


def _times(case: Case) -> tuple[int, int]:
    """Return the number of epochs and of mini-batches."""
    return case.options.get("epochs", 1), case.options.get("minis", 1)


def _seen(case: Case, rank: int, method: str) -> Seen | None:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    kind, config = _METHODS[method], _config(case)
    model = _sharded(case, _model(kind))
    forwards: list[None] = []
    model.register_forward_pre_hook(lambda *_: forwards.append(None))
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    worker = getattr(_module(kind), f"DataParallelPPO{kind}")(config, model, optimizer)
    worker.gradient_accumulation = 1  # some releases do not set it for images
    if case.options.get("scaled"):
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        worker.scaler = ShardedGradScaler(device=shims.DEVICE, init_scale=8.0)
    reduce, numbers = dist.all_reduce, []

    def recorded(tensor: Any, *given: Any, **named: Any) -> Any:
        numbers.extend([tensor] if tensor.dtype == torch.int64 and tensor.numel() == 1 else [])
        return reduce(tensor, *given, **named)

    def of_norm(tensor: Any, group: Any, **named: str) -> Any:
        """Reduce as DTensor does, in a way that the meeting of the ranks knows of."""
        mesh, dimension = group
        reduce(whole := tensor.clone(), getattr(dist.ReduceOp, named["reduceOp"].upper()), mesh.get_group(dimension))
        return whole

    asked = {"calculate_entropy": True} if method == _LOG_PROB and config.entropy_coeff else {}
    with patch.object(dist, "all_reduce", recorded), patch.object(functional, "all_reduce", of_norm):
        try:
            found = getattr(worker, method)(_batch(case, rank), **asked)
        except (AssertionError, KeyError, TypeError, UnboundLocalError):
            if case.options.get("may_refuse"):
                return None
            raise
    if method in (_POLICY, _CRITIC):
        found = {name: weight.to_local().detach().clone() for name, weight in model.named_parameters()}
    elif not isinstance(found, dict):
        names = ("log_probs", "entropys") if method == _LOG_PROB else ("values",)
        found = dict(zip(names, found if isinstance(found, tuple) else (found,)))
    return Seen(len(forwards), len(numbers), {name: it for name, it in found.items() if it is not None})


_VOCABULARY, _ANSWER, _ROWS, _RATE, _COEFFICIENT = 12, 4, 2, 0.1, 0.3


def _config(case: Case) -> _Config:
    """Return the settings of a method. What a release does not know, it does not read."""
    (epochs, minis), sp = _times(case), case.options.get("sp", 1)
    config: dict[str, Any] = {
        **{"ppo_epochs": epochs, "ppo_mini_batch_size": len(_LONG) // minis, "ppo_micro_batch_size_per_gpu": _ROWS},
        **{"use_dynamic_bsz": case.options.get("dynamic", True), "ppo_max_token_len_per_gpu": _BOUND // sp},
        **{"ulysses_sequence_parallel_size": sp, "loss_agg_mode": "token-mean", "grad_clip": 1e9},
        **{"model": _Config(), "fsdp_config": _Config(), "policy_loss": _Config(loss_mode="vanilla")},
        **{"entropy_from_logits_with_chunking": False, "entropy_checkpointing": False, "use_torch_compile": False},
        **{"entropy_coeff": 0, "calculate_entropy": False, "global_batch_info": {}, "tis_imp_ratio_cap": 0.0},
        **{"use_kl_loss": False, "kl_loss_type": "mse", "kl_loss_coef": _COEFFICIENT, "use_rollout_log_probs": False},
        **{"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None, "cliprange_value": 100.0},
        **case.options.get("config", {}),
    }
    return _Config(**{name: it for name, it in config.items() if name not in case.options.get("lacks", ())})


class _Output(NamedTuple):
    logits: Any


def _model(kind: str) -> Any:
    """Return a model of two layers, the same on every rank; autocast, which rounds, has no part in it."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Module()
    model.inner = torch.nn.Embedding(_VOCABULARY, _VOCABULARY if kind == "Actor" else 1)
    model.outer = torch.nn.Embedding(_VOCABULARY, 1)
    model.forward = lambda input_ids, **_: _Output(model.inner(input_ids) * model.outer(input_ids))
    return model.double()


def _sharded(case: Case, model: Any) -> Any:
    """Shard a model over all ranks; with replicas, within each of them; or let each rank be by itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    replicas = case.options.get("replicas", 1)
    shape = (case.topology.world,) if replicas == 1 else (replicas, case.topology.world // replicas)
    mesh = init_device_mesh(shims.DEVICE, shape, mesh_dim_names=("replicas", "ranks")[-len(shape) :])
    if case.options.get("alone"):
        mesh = init_device_mesh(shims.DEVICE, (case.topology.world, 1), mesh_dim_names=("replicas", "ranks"))["ranks"]
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
    returns, log_probs = torch.rand_like(ones), _plain(_model("Actor"), "Actor", ids)["log_probs"].detach()
    tensors = {
        **{"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)},
        **{"prompts": ids[:, :-_ANSWER], "responses": ids[:, -_ANSWER:], "response_mask": ones.long()},
        **{"loss_mask": torch.ones_like(ids), "ref_log_prob": 0.5 * log_probs, "returns": returns},
        **dict.fromkeys(("old_log_probs", "rollout_log_probs"), log_probs),
        **dict.fromkeys(("advantages", "rollout_is_weights", "values"), ones),
    }
    return {name: it for name, it in tensors.items() if name not in case.options.get("lacks", ())}


def _batch(case: Case, rank: int) -> Any:
    """Return the batch of a rank, as verl has it."""
    import numpy as np
    import torch
    from verl import DataProto

    image = np.empty(len(_LONG), dtype=object)
    image[:] = [{"pixels": torch.ones(1, 2)} for _ in _LONG]
    others = {_IMAGES: image, "uid": np.array(["a", "a", "b", "b"], dtype=object)}
    meta = {"temperature": 1.0, "micro_batch_size": _ROWS, "use_dynamic_bsz": case.options.get("dynamic", True)}
    meta |= {"max_token_len": _BOUND // case.options.get("sp", 1), "multi_turn": case.options.get("turns", False)}
    chosen = {name: others[name] for name in case.options.get("others", ())}
    return DataProto.from_dict(_rows(case, rank), non_tensors=chosen, meta_info=meta)


def _plain(model: Any, kind: str, ids: Any) -> dict[str, Any]:
    """Return what a model says of the answers, in plain torch."""
    logits = (model.inner.weight[ids] * model.outer.weight[ids])[:, -_ANSWER - 1 : -1]
    if kind == "Critic":
        return {"values": logits.squeeze(-1)}
    every = logits.log_softmax(-1)
    log_probs = every.gather(-1, ids[:, -_ANSWER:, None]).squeeze(-1)
    entropy, squares = -(every.exp() * every).sum(-1), every.exp().square().sum(-1)
    return {"log_probs": log_probs, "entropys": entropy, "sum_pi_squared": squares}


def _due(case: Case, rank: int, method: str) -> dict[str, Any]:
    """Return what a rank is to see of a method, from one process that has the rows of all ranks."""
    import torch

    kind, config = _METHODS[method], _config(case)
    model = _model(kind)
    if method in (_LOG_PROB, _VALUES):
        return _plain(model, kind, _rows(case, rank)["input_ids"])
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    is_alone = case.options.get("alone", False)
    every = [_rows(case, it) for it in range(case.topology.world) if it == rank or not is_alone]
    for start in [*range(0, len(_LONG), config.ppo_mini_batch_size)] * config.ppo_epochs:
        part = slice(start, start + config.ppo_mini_batch_size)
        losses = []
        for rows in every:
            found = _plain(model, kind, rows["input_ids"][part])
            if kind == "Critic":
                losses.append((found["values"] - rows["returns"][part]).square().mean() / 2)
                continue
            log_probs = found["log_probs"]
            is_plain = config.policy_loss.loss_mode == "gpg"
            gain = log_probs if is_plain else (log_probs - rows["old_log_probs"][part]).exp()
            apart = (log_probs - rows["ref_log_prob"][part]).square() / 2
            penalty = config.use_kl_loss * _COEFFICIENT * apart - config.entropy_coeff * found["entropys"]
            losses.append((penalty - gain).mean())
        optimizer.zero_grad()
        (sum(losses) / len(every)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
    shards = 1 if is_alone else case.topology.world // case.options.get("replicas", 1)
    size = math.ceil(_VOCABULARY / shards)
    part = slice(rank % shards * size, (rank % shards + 1) * size)
    return {name: weight[part] for name, weight in model.named_parameters()}


class Cut(NamedTuple):
    """How a rank cuts its rows."""

    places: list[list[int]]
    """Of each part, the places of its rows."""
    found: list[list[int]]
    """The rows in each part."""
    agreed: int
    """How many numbers it agreed on with other ranks."""
    asked: dict[str, Any]
    """What it was asked of what it knows."""


# of each rank's rows: also in pairs of rows, the ranks need different numbers of parts
_TOKENS = ((10,) * 8, (4,) * 8)
_ASKS = {
    **{"same": "same_micro_num_in_dp", "least": "min_num_micro_batch", "divisor": "num_batches_divided_by"},
    **{"balance": "use_dynamic_bsz_balance", "together": "force_group_size"},
}


def _cut(case: Case, rank: int) -> Cut:
    """Cut the rows of a rank."""
    import torch
    import torch.distributed as dist
    from tensordict import TensorDict

    options = case.options
    function = importlib.import_module("verl.utils.seqlen_balancing").rearrange_micro_batches
    known = inspect.signature(function).parameters
    asked = {it: options[it] for it, name in _ASKS.items() if it in options and name in known}
    ids = mask = (torch.arange(_BOUND) < torch.tensor(_TOKENS[rank])[:, None]).long()
    if options.get("nested") and "is_nested" in function.__code__.co_names:
        ids = torch.nested.as_nested_tensor([torch.ones(it) for it in _TOKENS[rank]], layout=torch.jagged)
    batch = TensorDict({"input_ids": ids, "attention_mask": mask, "place": torch.arange(len(mask))}, [len(mask)])
    make, group = torch.tensor, dist.group.WORLD if options["group"] else None
    with (
        patch.object(dist, "is_initialized", lambda: options["starts"]),
        patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduce,
        patch.object(torch, "tensor", lambda data, device=None, **named: make(data, **named)),  # older ones name a GPU
    ):
        parts, places = function(batch, _BOUND, dp_group=group, **{_ASKS[it]: how for it, how in asked.items()})
    return Cut([[*part] for part in places], [part["place"].tolist() for part in parts], reduce.call_count, asked)


def _wrongly_cut(case: Case, cuts: Sequence[Cut]) -> str:
    """Return what is wrong with how the ranks cut their rows."""
    asked, numbers = cuts[0].asked, [len(cut.places) for cut in cuts]
    if not case.options["same"] and "same" not in asked:  # it knows no such option
        return ""
    agrees = case.options["starts"] and asked.get("same", True)
    least, divisor = asked.get("least", 1), asked.get("divisor", 1)
    due = [max(_needed(rows), least) for rows in _TOKENS]
    due = [-(-number // divisor) * divisor for number in ([max(due)] * 2 if agrees else due)]
    if numbers != due:
        return f"the ranks cut into {numbers} micro-batches, due {due}"
    if not agrees and any(cut.agreed for cut in cuts):
        return "a number is agreed on that need not be the same"
    if any(cut.found != cut.places or sorted(itertools.chain(*cut.places)) != [*range(8)] for cut in cuts):
        return "a row is lost, or in two micro-batches"
    pairs = [[place // 2 for place in part] for cut in cuts for part in cut.places]
    is_apart = asked.get("together") == 2 and any(len(pair) != 2 * len({*pair}) for pair in pairs)
    return "two rows that belong together are apart" if is_apart else ""
