"""verl: its real engine sends a small model with LoRA, under torch's real FSDP, three times while the adapters grow.

The weights that arrive are kept until all are there, and then compared with those that peft merges in one process. What
the engine imports of verl besides its FSDP utilities are stand-ins, such as the quantizer of QAT: it keeps the signs. A
CPU has no other device to move the model to: offloaded, FSDP2's weights get other storage, and the steps are followed.
"""

from __future__ import annotations

import ast
import itertools
import sys
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cases import DIFFERS, PASSED, Case, Topology
from ..ranks import verl_lora
from ..ranks.verl_lora import ENGINE, RANK, UTILS, module

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

WARM = ("torch", "torch.distributed.fsdp", "transformers", "peft", "tensordict", "accelerate")
_ONE, _TWO = Topology(), Topology(dp=2)
_WHERE = "the rollout's weights are"
CASES = (
    Case("two", _TWO, DIFFERS, _WHERE, core=True),
    Case("two-bfloat16", _TWO, DIFFERS, _WHERE, {"dtype": "bfloat16"}),
    Case("two-offload", _TWO, DIFFERS, _WHERE, {"offload": True}),
    Case("two-policy", _TWO, DIFFERS, _WHERE, {"policy": True}),
    Case("two-quantized", _TWO, DIFFERS, _WHERE, {"qat": "none"}, core=True),
    Case("one", _ONE, DIFFERS, _WHERE),
    Case("one-bfloat16", _ONE, DIFFERS, _WHERE, {"dtype": "bfloat16"}, core=True),
    Case("one-bfloat16-quantized", _ONE, DIFFERS, _WHERE, {"dtype": "bfloat16", "qat": "none"}),
    Case("fsdp1-two", _TWO, PASSED, options={"fsdp": 1}, core=True),
    Case("fsdp1-two-offload", _TWO, PASSED, options={"fsdp": 1, "offload": True}),
    Case("fsdp1-two-quantized", _TWO, PASSED, options={"fsdp": 1, "qat": "none"}),
    Case("fsdp1-one", _ONE, PASSED, options={"fsdp": 1}),
    Case("unmerged-two", _TWO, PASSED, options={"merge": False}),
    Case("no-lora-two", _TWO, PASSED, options={"lora": False}, core=True),
    Case("kept-reader", _ONE, DIFFERS, _WHERE, {"reads": 1, "keeps": True}, core=True, patched=DIFFERS),
)
_JOBS: dict[str, dict[str, Any]] = {"no LoRA": {"lora": False}, "not merged": {"merge": False}, "merged": {}}
_KINDS: dict[str, dict[str, Any]] = {
    "fsdp1": {"fsdp": 1},
    "fsdp2": {},
    "policy": {"policy": True},
    "part": {"whole": True},
}
_HOW = (
    ("float32", "", False, None),
    ("float32", "none", True, None),
    ("float32", "fp32", True, None),
    ("bfloat16", "", True, None),
    ("float32", "", True, 1),
    ("bfloat16", "none", False, 1),
    ("bfloat16", "{}", True, None),
)
"""The dtype, the configuration of QAT, whether the weights are offloaded, and how many are read."""


def _settings() -> Iterator[Case]:
    """Yield the settings. Upstream's own fix skips the quantizer, may alias on one rank, and changes FSDP1 too."""
    for (job, own), (kind, fsdp), ranks in itertools.product(_JOBS.items(), _KINDS.items(), (_ONE, _TWO)):
        for dtype, qat, offload, reads in _HOW if job == "merged" else _HOW[:3]:
            options = {**own, **fsdp, "dtype": dtype, "qat": qat, "reads": reads, "syncs": 2}
            options["offload"] = offload and kind != "policy"  # with its policy, verl moves nothing
            is_late = job == "merged" and kind != "fsdp1"
            more = (is_late and ranks == _ONE and dtype == "bfloat16") or (kind == "fsdp1" and offload)
            options["beyond"] = job == "merged" and bool(qat or more)
            name = f"{job}, {kind}, {ranks.world} ranks, {dtype}, qat {qat}, offload {offload}, {reads or 'all'} read"
            yield Case(name, ranks, DIFFERS if is_late else PASSED, options=options)
    yield Case("an error while it merges", _TWO, PASSED, options={"breaks": True})


GRID = [*_settings()]
HELD = {r"\(not _skip_staging\)": "what the rewrite reads late has adapters, and upstream skips none of those"}
YOURS = Case("yours", Topology(), DIFFERS, _WHERE)
_TYPES, _METHOD = "verl.utils.torch_dtypes", "_merged_lora_per_tensor_param"
_SYNCS = 3
_CLOSE = 0.02
"""How far rounding to bfloat16 may take the weights of one layer."""


class Sync(NamedTuple):
    """One sync of a rank."""

    arrived: dict[str, Any]
    """The weights that the rollout gets, by name."""
    fault: str
    """What is wrong with the steps, or with what is left of the model; empty if nothing is."""


def caveat(case: Case) -> str:
    """Return what the case leaves open."""
    return (
        ""
        if case.is_control
        else "a job with LoRA, model.lora.merge=True and the strategy fsdp2, which may not be yours"
    )


def settings(case: Case) -> dict[str, Any] | None:
    """Return what the user of such a job sets; None for an error, which nobody sets."""
    options = case.options
    if "breaks" in options:
        return None
    strategy = "fsdp" if options.get("fsdp") == 1 else "fsdp2"
    return {
        **{"version verl": "0.8.0", "use_legacy_worker_impl": None},
        **{"strategy": strategy, "fsdp_config.strategy": strategy},
        "lora_rank": RANK if options.get("lora", True) else 0,
        "lora.merge": options.get("merge", True),
        _KEEPS: options.get("keeps", False),
    }


_KEEPS = "a sender of your own stops before the last weight, or saves or syncs before it"


def prepare() -> None:
    """Import the real engine for a CPU."""
    verl_lora.prepare(_TYPES)
    sys.modules["verl.utils.qat.quantizer"] = SimpleNamespace(QATQuantizer=_Quantizer)  # type: ignore[assignment]


def has_feature(function: ast.FunctionDef) -> bool:
    """Return whether the function can merge adapters, itself or by upstream's own method."""
    return any(name in ast.unparse(function) for name in ("merged_lora_context", _METHOD))


def wrong(case: Case, ranks: Sequence[Sequence[Sync]]) -> str:
    """Return what is wrong with the syncs; empty where nothing is."""
    for syncs in ranks:
        rights = _rights(_job(case))
        for sync, (due, _) in zip(syncs, rights):
            if [*sync.arrived] != [*due][: case.options.get("reads")]:
                return f"the rollout gets {', '.join(sync.arrived)}"
            if any(_off(it, due[name]) > _CLOSE for name, it in sync.arrived.items()):
                return _text(syncs, rights)
            if sync.fault:
                return sync.fault
    return ""


def right(case: Case, ranks: Sequence[Sequence[Sync]]) -> str:
    """Return what was seen."""
    return _text(ranks[0], _rights(_job(case)))


def _text(syncs: Sequence[Sync], rights: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    off = [max(_off(it, due[name]) for name, it in sync.arrived.items()) for sync, (due, _) in zip(syncs, rights)]
    adapters = [
        max((_off(base[name], it) for name, it in due.items() if name in base), default=0.0) for due, base in rights
    ]
    texts = [", ".join(f"{it:.3f}" for it in column) for column in (off, adapters)]
    return f"{_WHERE} off by {texts[0]}; the adapters change them by {texts[1]}"


def _off(one: Any, other: Any) -> float:
    return float((one.float() - other.float()).norm())


class _Broken(RuntimeError):
    """What a merge raises that has no memory left, say."""


def on_rank(case: Case, rank: int) -> list[Sync]:
    """Sync several times; after each, the adapters grow. Return nothing if the merge raises, as it is told to."""
    job, syncs = _job(case), list[Sync]()
    if job.lora and not job.merges and case.options.get("fsdp") == 1 and case.topology.world > 1:
        return syncs  # FSDP1 collects adapters on CUDA alone: ranks of a CPU die
    dtypes, engine = _dtypes(case), verl_lora.fsdp_engine(case, _job(case))
    kept: list[Any] = []
    for number in range(case.options.get("syncs", _SYNCS)):
        before, steps, sent = verl_lora.parts(engine.module), _followed(case), []
        engine.module.train(bool(number))  # a job that resumes, or only validates, has not trained yet
        try:
            params, config = _sent(engine, bool(number), job.merges and bool(number))
            for pair in itertools.islice(params, case.options.get("reads")):
                steps.append("reads")
                sent.append(pair)
        except _Broken:
            return syncs
        if case.options.get("keeps"):
            kept.append(params)
        else:
            params.close()
        faults = {
            "the model does not have its own weights after a sync": all(
                map(lambda one, other: bool((one == other).all()), before, verl_lora.parts(engine.module))
            ),
            "another configuration of the adapters": config in ("none", _configuration(case, engine.module)),
            "another type than without LoRA": all(
                it.dtype == dtypes.get(name, it.dtype) or (str(it.dtype) == "torch.bfloat16" and "buffer" not in name)
                for name, it in sent
            ),
            f"the steps of a sync are {', '.join(dict.fromkeys(steps))}": _is_in_order(case, steps),
        }
        fault = next((fault for fault, is_right in faults.items() if not is_right), "")
        syncs.append(Sync({name: it.detach().clone() for name, it in sent}, fault))
        verl_lora.grow(engine.module)
    return syncs


def _sent(engine: Any, synced: bool, layered: bool = False) -> tuple[Generator[tuple[str, Any], None, None], Any]:
    """Return what the engine sends, and the configuration of the adapters; the oldest functions return none."""
    returned = engine.get_per_tensor_param(layered_summon=layered, base_sync_done=synced)
    params, config = returned if isinstance(returned, tuple) else (returned, "none")
    pairs = (pair for pair in (params.items() if isinstance(params, dict) else params))
    return pairs, config.to_dict() if hasattr(config, "to_dict") else config


def _dtypes(case: Case) -> dict[str, Any]:
    """Return the types of what arrives, by name: as without adapters. Empty if nothing is merged."""
    if not _job(case).merges or _quantizes(case):
        return {}
    without = case._replace(options={**case.options, "lora": False})
    return {name: it.dtype for name, it in _sent(verl_lora.fsdp_engine(without, _job(without)), False)[0]}


def _configuration(case: Case, model: Any) -> dict[str, Any] | None:
    """Return the configuration that the rollout gets with adapters."""
    model = getattr(model, "_fsdp_wrapped_module", model)
    return None if _job(case).merges or not hasattr(model, "peft_config") else model.peft_config["default"].to_dict()


def _is_in_order(case: Case, steps: Sequence[str]) -> bool:
    """Return whether the model is moved around its merging, each once. In it FSDP2's weights are read, else after."""
    done, read = [step for step in steps if step != "reads"], [*steps, "reads"].index("reads")
    wanted = [*["loads"] * ("loads" in steps), *["merges", "puts back"] * ("merges" in steps)]
    wanted += ["offloads"] * (case.options.get("offload", False) and "loads" in steps)
    is_late = "merges" in steps and case.options.get("fsdp") != 1
    if is_late:
        return done == wanted and read < steps.index("puts back")
    return done == wanted and ("offloads" not in steps or read > steps.index("offloads"))


def _followed(case: Case) -> list[str]:
    """Return a list to which the steps of a sync will be added."""
    steps: list[str] = []
    engine, utils, torch = map(module, (ENGINE, UTILS, "torch"))

    def moving(step: str, real: Any) -> Any:
        def moved(model: Any) -> None:
            steps.append(step)
            real(model)
            if case.options.get("offload") and case.options.get("fsdp") != 1:  # what FSDP1 gives is a copy
                model._apply(torch.clone)

        return moved

    def copied(tensor: Any) -> Any:
        steps.extend(["copies to the CPU"] * (sys._getframe(1).f_globals is vars(engine)))
        return torch._C.TensorBase.cpu(tensor)

    @contextmanager
    def merged(*given: Any, **others: Any) -> Iterator[None]:
        try:
            with utils.merged_lora_context(*given, **others):
                steps.append("merges")
                if case.options.get("breaks"):
                    raise _Broken
                yield
        finally:
            steps.append("puts back")

    torch.Tensor.cpu = copied
    engine.merged_lora_context = merged
    engine.load_fsdp_model_to_gpu = moving("loads", utils.load_fsdp_model_to_gpu)
    engine.offload_fsdp_model_to_cpu = moving("offloads", utils.offload_fsdp_model_to_cpu)
    return steps


class Job(NamedTuple):
    """What decides which weights a rollout must get."""

    lora: bool
    merges: bool
    dtype: str
    has_whole: bool
    """Whether FSDP leaves some weights in one piece."""
    qat: bool
    syncs: int

    @property
    def has_buffers(self) -> bool:
        """Whether a layer has buffers. FSDP leaves those in one piece too."""
        return self.has_whole


def _job(case: Case) -> Job:
    options = case.options
    merges = bool(options.get("merge", True) and options.get("feature", True))
    of_model = options.get("lora", True), merges, options.get("dtype", "float32"), options.get("whole", False)
    return Job(*of_model, _quantizes(case), options.get("syncs", _SYNCS))


def _quantizes(case: Case) -> bool:
    """Return whether the weights are quantized, which older functions do not know."""
    known = module(ENGINE).FSDPEngine.get_per_tensor_param.__code__.co_names
    return bool(case.options.get("qat")) and "_qat_enabled" in known


@cache
def _rights(job: Job) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the weights of one process that the rollout must get in each sync, and those of the base model."""
    model, found = verl_lora.small_model(job), []
    for number in range(job.syncs):
        base = {name.replace(".base_layer", ""): it for name, it in _weights(job, model, False, False).items()}
        found.append((_weights(job, model, job.merges, bool(number)), base))
        verl_lora.grow(model)
    return found


def _weights(job: Job, model: Any, merges: bool, synced: bool) -> dict[str, Any]:
    """Return the weights of one process, merged by peft or not, as the rollout must get them; or the adapters alone."""
    from peft import get_peft_model_state_dict

    model = deepcopy(model)
    has_adapters, config = hasattr(model, "peft_config"), None
    if has_adapters and synced and not merges:
        found = get_peft_model_state_dict(model)
    else:
        if has_adapters:
            config = None if merges else model.peft_config["default"]
            model = model.merge_and_unload() if merges else model.unload()
        found = model.state_dict()
    return {_named(name, config): it.float().sign() if job.qat else it.float() for name, it in found.items()}


def _named(name: str, config: Any) -> str:
    """Return the name under which a weight arrives; under adapters, with that of their wrapper."""
    layer, _, own = name.rpartition(".")
    wrapped = config is not None and layer.rpartition(".")[2] in config.target_modules
    return f"{layer}{'.base_layer' * wrapped}.{own}".replace("block", "stem")


class _Quantizer:
    """Gives the signs of the weights of a layer when the next one begins."""

    def __init__(self, mode: str, group_size: int, ignore_patterns: list[str], device: Any, param_dtype: Any) -> None:
        self.dtype = param_dtype

    def quantize_with_fusion(self, params: Iterable[tuple[str, Any]], target_device: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and signs."""
        for _, pairs in itertools.groupby(params, lambda pair: pair[0].rpartition(".")[0]):
            for name, weight in list(pairs):
                yield name, weight.sign().to(target_device, self.dtype)
