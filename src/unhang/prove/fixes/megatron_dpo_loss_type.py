"""ms-swift: the loss of Megatron's real DPO trainer, and its gradient, beside the formula of each loss in plain torch.

``dpo_loss`` is ms-swift's own from 4.1 on. Before, it is trl's: a stand-in goes by its argument as trl does from 0.20
on; or, with the option ``trl``, by its trainer's attribute as older ones do. Models, which give each token's loss, and
what the modules import besides are stand-ins, too. ``get_logps`` and megatron-core's groups are real.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from contextlib import suppress
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import CRASHED, DIFFERS, PASSED, Case, Topology
from ..ranks import megatron, shims
from ..ranks.around import Around, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = ("torch",)
BESIDE = {"ms-swift": ("megatron-core",)}
_ONE, _TWO = Topology(), Topology(cp=2)
_WRONG = "the loss is"
_LATER = {"bco_pair": "has no attribute 'running'", "discopop": "has no attribute 'args'", "sft": "not subscriptable"}
"""The types for which Megatron's trainer lacks what they need, and what is said of that."""
CASES = (
    Case("hinge", _ONE, DIFFERS, _WRONG, {"loss": "hinge"}, core=True),
    Case("ipo", _ONE, DIFFERS, _WRONG, {"loss": "ipo"}, core=True),
    Case("ipo-cp2", _TWO, DIFFERS, _WRONG, {"loss": "ipo"}, core=True),
    Case("robust", _ONE, DIFFERS, _WRONG, {"loss": "robust", "smoothing": 0.1}),
    Case("apo-zero-rpo", _ONE, DIFFERS, _WRONG, {"loss": "apo_zero", "rpo": 0.5}),
    Case("no-such-loss", _ONE, DIFFERS, _WRONG, {"loss": "hing"}, core=True, patched=CRASHED),
    Case("sigmoid", _ONE, PASSED, options={"loss": "sigmoid"}, core=True),
    Case("sigmoid-cp2", _TWO, PASSED, options={"loss": "sigmoid", "rpo": 0.5}),
    Case("hinge-trl-0.19", _ONE, PASSED, options={"loss": "hinge", "trl": "old"}, core=True),
    *(Case(loss.replace("_", "-"), _ONE, DIFFERS, _WRONG, {"loss": loss}, patched=CRASHED) for loss in _LATER),
)
_LOSSES = ("sigmoid", "hinge", "ipo", "robust")
_MORE = ("exo_pair", "sppo_hard", "nca_pair", "apo_zero", "apo_down", "aot")


def _case(topology: Topology, loss: str, **options: Any) -> Case:
    is_right = loss == "sigmoid" or (options.get("trl") == "old" and loss != "ipo")
    name = ", ".join([f"CP {topology.cp}", loss, *(f"{key} {value}" for key, value in options.items())])
    return Case(name, topology, PASSED if is_right else DIFFERS, options={"loss": loss, **options})


GRID = [
    *(
        _case(topology, loss, padded=padded, rpo=rpo)
        for topology, loss, padded, rpo in itertools.product((_ONE, _TWO), _LOSSES, (False, True), (0.0, 0.5))
    ),
    *(_case(_ONE, loss, smoothing=0.1) for loss in (*_LOSSES, *_MORE)),
    *(_case(_ONE, loss, free=True) for loss in _LOSSES),
    *(_case(_ONE, loss, empty=True) for loss in _LOSSES[:3]),
    # trl of that time has no loss for upstream's own fix to name
    *(_case(_ONE, loss, trl="old", beyond=True) for loss in _LOSSES),
]
YOURS = Case("yours", _ONE, DIFFERS, _WRONG, {"loss": "ipo"})
_PAIRS, _LENGTH, _BETA = 3, 16, 0.1
_TRAINERS = "swift.megatron.trainers"
_MODULE, _MIXIN, _OWN = f"{_TRAINERS}.dpo_trainer", f"{_TRAINERS}.rlhf_mixin", "swift.rlhf_trainers.dpo_trainer"
_NEAR = 1e-5


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return "a job with loss_type ipo, which may not be yours" if case.name == "yours" else ""


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets."""
    is_old = case.options.get("trl") == "old"
    facts = {"dpo_loss takes the type of the loss": not is_old, "trl before 0.20 with ms-swift before 4.1": is_old}
    return {"rlhf_type": "dpo", "tensor_model_parallel_size": 1, "loss_type": case.options["loss"], **facts}


def prepare() -> None:
    """Import the real trainer and ``dpo_loss`` among stand-ins; without CUDA, and without Megatron's training loop."""
    shims.cuda_on_cpu()
    importlib.import_module("megatron.core.parallel_state")
    importlib.import_module("megatron.core.utils")
    for package in ("swift", "trl", "accelerate", "peft", "transformers"):
        for name in [it for it in sys.modules if it.partition(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path.insert(0, Around(package, (_MODULE, _MIXIN, _OWN), _stand_in))
    for name in ("training", "training.checkpointing", "training.utils", "core.inference.communication_utils"):
        sys.modules[f"megatron.{name}"] = Filled(f"megatron.{name}", lambda _: lambda *_: None)
    base: Any = importlib.import_module(f"{_TRAINERS}.base")
    base.BaseMegatronTrainer = type("Base", (), {"_all_reduce_metric": lambda self, metric: metric})
    importlib.import_module(f"{_TRAINERS}.trainer").MegatronTrainer = base.BaseMegatronTrainer  # type: ignore[attr-defined]
    importlib.import_module("swift.utils").get_current_device = lambda: shims.DEVICE  # type: ignore[attr-defined]
    trl: Any = importlib.import_module("trl")
    constants = SimpleNamespace(ALPHA_DIVERGENCE_COEF_KEY="alpha_divergence_coef")
    importlib.import_module("trl.trainer").FDivergenceConstants = constants  # type: ignore[attr-defined]
    trl.DPOTrainer = type("DPOTrainer", (), {"__init__": lambda self: None, "dpo_loss": _dpo_loss})
    with suppress(ModuleNotFoundError):  # older releases have it elsewhere, without a dpo_loss of its own
        trl.DPOTrainer = importlib.import_module(_OWN).DPOTrainer
    for name in ("swift.rlhf_trainers", "swift.trainers"):
        importlib.import_module(name).DPOTrainer = trl.DPOTrainer  # type: ignore[attr-defined]
    importlib.import_module(_MODULE)


def _stand_in(name: str) -> ModuleType:
    return Filled(name, lambda inner: type(inner, (), {}))


def _dpo_loss(
    self: Any, chosen: Any, rejected: Any, ref_chosen: Any, ref_rejected: Any, loss_type: str = "sigmoid", _: Any = None
) -> tuple[Any, Any, Any]:
    """Compute the loss as trl does."""
    if loss_type in _LATER:
        raise AttributeError(_LATER[loss_type])
    free = self.reference_free
    losses = _losses(loss_type, chosen, rejected, ref_chosen, ref_rejected, self.label_smoothing, free)
    return losses, self.beta * (chosen - ref_chosen).detach(), self.beta * (rejected - ref_rejected).detach()


def _dpo_loss_of_old(self: Any, chosen: Any, rejected: Any, ref_chosen: Any, ref_rejected: Any) -> tuple[Any, Any, Any]:
    return _dpo_loss(self, chosen, rejected, ref_chosen, ref_rejected, self.loss_type)


def _losses(
    loss_type: str, chosen: Any, rejected: Any, ref_chosen: Any, ref_rejected: Any, smoothing: float, free: bool
) -> Any:
    """Return the loss of each pair by its published formula. Raises ValueError for a type that is none."""
    import torch

    log, sigmoid = torch.nn.functional.logsigmoid, torch.sigmoid
    better, worse = (_BETA * (it - ref * (not free)) for it, ref in ((chosen, ref_chosen), (rejected, ref_rejected)))
    margin, up, down = better - worse, _BETA * (chosen - ref_chosen), _BETA * (rejected - ref_rejected)
    few = smoothing or 1e-3
    delta = _BETA * (torch.sort(chosen - rejected).values - torch.sort(ref_chosen - ref_rejected).values)
    formulas = {
        "sigmoid": lambda: -(1 - smoothing) * log(margin) - smoothing * log(-margin),
        "hinge": lambda: torch.relu(1 - margin),
        "ipo": lambda: (margin / _BETA - 1 / (2 * _BETA)) ** 2,
        "robust": lambda: (-(1 - smoothing) * log(margin) + smoothing * log(-margin)) / (1 - 2 * smoothing),
        "exo_pair": lambda: (
            sigmoid(margin) * (log(margin) - torch.tensor(1 - few).log())
            + sigmoid(-margin) * (log(-margin) - torch.tensor(few).log())
        ),
        "sppo_hard": lambda: ((up - 0.5) / _BETA) ** 2 + ((down + 0.5) / _BETA) ** 2,
        "nca_pair": lambda: -log(up) - 0.5 * log(-up) - 0.5 * log(-down),
        "apo_zero": lambda: 1 - sigmoid(better) + sigmoid(worse),
        "apo_down": lambda: sigmoid(better) + 1 - sigmoid(margin),
        "aot": lambda: -(1 - smoothing) * log(delta) - smoothing * log(-delta),
    }
    if loss_type not in formulas:
        raise ValueError(f"Unknown loss type: {loss_type}")
    return formulas[loss_type]()


class Seen(NamedTuple):
    """What a micro-batch gives on a rank."""

    loss: float
    gradient: Any
    """That of each token's loss."""
    logged: dict[str, float]


def wrong(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what is wrong with loss, gradient or log of a micro-batch; empty where nothing is."""
    for each, of_ranks in zip(_batches(case), zip(*ranks)):
        due = _due(each)
        for rank, seen in enumerate(of_ranks):
            if due is None:
                return _told(each, seen)
            same = abs(seen.loss - due.loss) < _NEAR * max(1, abs(due.loss))
            of_rank = _layout(each, rank, due.gradient)
            if not same or not bool((seen.gradient - of_rank).abs().max() <= _NEAR * due.gradient.abs().max()):
                return _told(each, seen)
            for name, value in due.logged.items():
                if abs(seen.logged[name] - value) > _NEAR * max(1, abs(value)):
                    return f"{name} is {seen.logged[name]:.4f}, due {value:.4f}"
    return ""


def right(case: Case, ranks: Sequence[list[Seen]]) -> str:
    """Return what was seen in the first micro-batch, beside what is due."""
    return _told(case, ranks[0][0])


def _told(case: Case, seen: Seen) -> str:
    """Return what was seen on rank 0, beside what is due."""
    due = _due(case)
    if due is None:
        return f"{_WRONG} {seen.loss:.4f}, and should be refused"
    norms = float(seen.gradient.norm()), float(_layout(case, 0, due.gradient).norm())
    return f"{_WRONG} {seen.loss:.4f}, due {due.loss:.4f}; its gradient has norm {norms[0]:.4f}, due {norms[1]:.4f}"


def _batches(case: Case) -> list[Case]:
    """Return two micro-batches of the case, the second of which has the answers in another order."""
    return [case, case._replace(options={**case.options, "moved": 1})]


def on_rank(case: Case, rank: int) -> list[Seen]:
    """Compute the loss of each micro-batch, and its gradient."""
    shims.gloo_as_nccl()
    megatron.initialize(case.topology)
    options, module = case.options, importlib.import_module(_MODULE)
    kind = module.MegatronDPOTrainer
    args = SimpleNamespace(
        **{"loss_type": options["loss"], "beta": _BETA, "label_smoothing": options.get("smoothing", 0.0)},
        **{"reference_free": options.get("free", False), "f_divergence_type": "reverse_kl"},
        **{"rpo_alpha": options.get("rpo", 0.0), "padding_free": not _is_padded(case)},
        **{"context_parallel_size": case.topology.cp, "micro_batch_size": _PAIRS},
    )
    for name in {_MODULE, _MIXIN} & {*sys.modules}:  # the oldest releases have no mixin
        sys.modules[name].get_args = lambda: args  # type: ignore[attr-defined]
    trainer = object.__new__(kind)
    trainer.args, trainer.dummy_dpo_trainer = args, module.DummyDPOTrainer(args)
    if options.get("trl") == "old":
        trainer.dummy_dpo_trainer.dpo_loss = partial(_dpo_loss_of_old, trainer.dummy_dpo_trainer)
    return [_seen(each, rank, trainer) for each in _batches(case)]


def _seen(case: Case, rank: int, trainer: Any) -> Seen:
    """Compute the loss of a micro-batch, and its gradient."""
    import torch

    policy, reference, labels, lengths = _job(case)
    output = _layout(case, rank, policy).requires_grad_()
    reference, labels = _layout(case, rank, reference), _layout(case, rank, labels)
    ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    packed = SimpleNamespace(cu_seqlens_q=ends, num_samples=_PAIRS, seq_lens=lengths)
    given = {"labels": labels, "packed_seq_params": None if _is_padded(case) else packed}
    if "ref_logps" in inspect.signature(trainer.loss_func).parameters:
        given["ref_logps"], both = trainer.get_logps(reference, labels, packed), output
    else:
        both = torch.cat([reference, output])
    loss, logged = trainer.loss_func(both, **given)
    loss.backward()
    return Seen(loss.item() * case.topology.cp, output.grad, {name: float(it) for name, it in logged.items()})


def _is_padded(case: Case) -> bool:
    """Return whether the answers are rows of one length, which the oldest functions do not take."""
    known = importlib.import_module(_MODULE).MegatronDPOTrainer.loss_func.__code__.co_names
    return bool(case.options.get("padded")) and "padding_free" in known


def _layout(case: Case, rank: int, rows: Any) -> Any:
    """Return what a rank has of the tokens: of each row, or of all rows one after the other without their padding."""
    import torch

    cp = case.topology.cp
    if _is_padded(case):
        return rows[:, rank % cp :: cp].clone()
    return torch.cat([row[:size][rank % cp :: cp] for row, size in zip(rows, _job(case)[3].tolist())])[None]


def _job(case: Case) -> tuple[Any, ...]:
    """Return each token's loss by the policy and by the reference, the labels, and how long each answer is."""
    import torch

    torch.manual_seed(0)
    rows = 2 * _PAIRS
    policy, reference = torch.rand(rows, _LENGTH), torch.rand(rows, _LENGTH)
    moved = case.options.get("moved", 0)
    begins, lengths = torch.tensor([[2, 9, 4, 5, 7, 1], [8, 16, 12, 16, 8, 12]]).roll(moved, 1)
    places = torch.arange(_LENGTH)
    is_answer = (places >= begins[:, None]) & (places < lengths[:, None])
    if case.options.get("empty"):
        is_answer[1] = False
    return policy, reference, torch.where(is_answer, 1, -100), lengths


def _due(case: Case) -> Seen | None:
    """Return what the whole micro-batch gives, by each loss's formula; None if that is to be refused."""
    import torch

    policy, reference, labels, _ = _job(case)
    policy = policy.double().requires_grad_()
    options, mask = case.options, labels != -100
    sums, ref = (-(it * mask).sum(1) for it in (policy, reference.double()))
    counts = mask.sum(1).clamp(min=1) if options["loss"] == "ipo" else torch.ones(2 * _PAIRS)
    scores: Any = [half for it in (sums, ref) for half in (it / counts).split(_PAIRS)]
    kinds = {"smoothing": options.get("smoothing", 0.0), "free": options.get("free", False)}
    try:
        losses = _losses(options["loss"], *scores, **kinds)
    except ValueError:
        return None
    nll = (policy * mask)[:_PAIRS].sum() / mask[:_PAIRS].sum()
    loss = losses.mean() + options.get("rpo", 0.0) * nll
    loss.backward()
    chosen, rejected = (float(_BETA * (one - other).detach().mean()) for one, other in zip(scores[:2], scores[2:]))
    logged = {"loss": loss.item(), "rewards/chosen": chosen, "rewards/rejected": rejected}
    for name, half in zip(("logps/chosen", "logps/rejected"), sums.split(_PAIRS)):
        logged[name] = float(half.detach().mean())
    return Seen(loss.item(), policy.grad, logged)
