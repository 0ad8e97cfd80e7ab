"""merged-lora-stale-sync: which weights the rollout has after a sync, what the model has then, and what was done when.

Of FSDP it knows that the state dict of FSDP2 shares storage with the weights, that FSDP1's is a copy, and that the
whole tensor of a single rank's shard is the shard. Adapters are merged into storage, and what is sent is looked at when
all is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn, strict
from unhang.shapes.branches import branches, words
from unhang.shapes.shape import Function

ALL, SOME = "all", "some"
"""How much is read of what is sent."""
_DEVICE, _SENT = "cuda:0", "bfloat16"
_METHOD = "_merged_lora_per_tensor_param"
"""What upstream's own fix calls."""
_DTYPES = ("float32", "bfloat16")
_CONFIGURATION = {"r": 8}
_LAYERS = {"a.q": (True, True), "a.norm": (True, False), "b.k": (False, True), "b.table": (False, False)}
"""The weights of the model: whether FSDP shards them, and whether they have an adapter."""


class Setting(NamedTuple):
    """One job that sends its weights."""

    fsdp: int = 2
    ranks: int = 2
    peft: bool = True
    merge: bool = True
    synced: bool = True
    """Whether the rollout has the base weights already."""
    dtype: str = "float32"
    offload: bool = False
    policy: bool = False
    """Whether FSDP2 itself keeps the weights on the CPU."""
    qat: str = ""
    """The dtype for which weights are quantized; empty where they are not."""
    reads: str = ALL

    @property
    def is_merged(self) -> bool:
        """Whether the rollout must get the adapters as a part of the weights."""
        return self.peft and self.merge


class Weight(StandIn):
    """A tensor, of which only its storage is followed: a list with what is in there."""

    def __init__(self, job: Job, storage: list[str], dtype: str, device: str) -> None:
        super().__init__("param", job=job, storage=storage, dtype=dtype, device=device)

    @property
    def is_cuda(self) -> bool:
        return bool(self.device == _DEVICE)

    def to(self, wanted: str, non_blocking: bool = False) -> Weight:
        dtype, device = (wanted, self.device) if wanted in _DTYPES else (self.dtype, wanted)
        same = (dtype, device) == (self.dtype, self.device)
        return self if same else type(self)(self.job, [*self.storage], dtype, device)

    def cpu(self) -> Weight:
        return self.to("cpu")

    def detach(self) -> Weight:
        return type(self)(self.job, self.storage, self.dtype, self.device)

    def clone(self) -> Weight:
        self.job.copies += 1
        return type(self)(self.job, [*self.storage], self.dtype, self.device)


class Sharded(Weight):
    """A DTensor: each rank has a part."""

    def full_tensor(self) -> Weight:
        self.job.gathers += 1
        self.job.did.append(f"gathers on {self.device}")
        is_one = self.job.setting.ranks == 1
        return Weight(self.job, self.storage if is_one else [*self.storage], self.dtype, self.device)


class Job:
    """One rank: its model, and what it did."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.device = "cpu" if setting.offload or setting.policy else _DEVICE
        self.storages = {name: [f"{name}, base"] for name in _LAYERS}
        self.is_merged = False
        self.copies = self.gathers = 0
        self.did: list[str] = []
        self.faults: set[str] = set()
        inner = (
            {"peft_config": {"default": StandIn("config", to_dict=lambda: dict(_CONFIGURATION))}}
            if setting.peft
            else {}
        )
        model = StandIn("model", ("peft_config", "_fsdp_wrapped_module"), **inner)
        wrapped = StandIn("module", ("peft_config",), _fsdp_wrapped_module=model, state_dict=self.state_dict)
        vars(model)["state_dict"] = strict("state_dict", self.state_dict)
        self.model, self.module = model, wrapped if setting.fsdp == 1 else model

    def state_dict(self) -> dict[str, Weight]:
        self.did.append("state_dict")
        found = {}
        for name, (is_sharded, has_adapter) in _LAYERS.items():
            key = f"model.{name}.base_layer" if self.setting.peft and has_adapter else f"model.{name}"
            storage, dtype = self.storages[name], self.setting.dtype
            if self.setting.fsdp == 1:
                storage, is_sharded = [*storage], is_sharded and self.setting.ranks > 1
            found[key] = (Sharded if is_sharded else Weight)(self, storage, dtype, self.device)
            if self.setting.peft and has_adapter:
                found[f"model.{name}.lora_A"] = Sharded(self, [f"{name}, adapter"], dtype, self.device)
        return found

    def adapters(self, module: Any, layered_summon: bool, base_sync_done: bool) -> dict[str, Weight]:
        """Do what ``collect_lora_params`` does: copies of the adapters, or of the weights below them."""
        assert module is self.module
        self.did.append(f"collect, layered={layered_summon}")
        if base_sync_done:
            names = [f"model.{name}.lora_A" for name, (_, has_adapter) in _LAYERS.items() if has_adapter]
            return {name: Weight(self, [f"{name}, adapter"], self.setting.dtype, "cpu") for name in names}
        return {f"model.{name}": Weight(self, [*it], self.setting.dtype, "cpu") for name, it in self.storages.items()}

    def move(self, module: Any, device: str) -> None:
        """Move the weights, which gives them new storage."""
        assert module is self.module
        self.did.append(f"to {device}")
        if self.is_merged:
            self.faults.add("the weights are moved while they are merged")
        if device != self.device:
            self.device, self.storages = device, {name: [*it] for name, it in self.storages.items()}

    @contextmanager
    def merged(self, actor: Any, backup_adapters: bool = False) -> Iterator[None]:
        """Merge the adapters; then put the base weights back, or subtract, which rounds."""
        assert actor is self.module
        if self.is_merged:
            self.faults.add("adapters are merged twice")
        if self.device == "cpu" and not self.setting.policy:
            self.faults.add("adapters are merged when the weights have left the device")
        self.is_merged = True
        self._fill("merged")
        self.did.append(f"merges on {self.device}")
        try:
            yield
        finally:
            self._fill("base" if backup_adapters else "base, rounded")
            self.is_merged = False
            self.did.append("puts back")

    def _fill(self, what: str) -> None:
        for name, (_, has_adapter) in _LAYERS.items():
            if has_adapter:
                self.storages[name][0] = f"{name}, {what}"


def _normalized(params: dict[str, Weight]) -> dict[str, Weight]:
    return {name.replace(".base_layer", ""): it for name, it in params.items() if "lora_" not in name}


class _Quantizer(StandIn):
    """Holds the weights of one layer at a time."""

    def __init__(self, mode: str, group_size: int, ignore_patterns: list[str], device: str, param_dtype: str) -> None:
        how = f"{mode} by {group_size} but {ignore_patterns} on {device} for {param_dtype}"
        super().__init__("quantizer", how=how)

    def quantize_with_fusion(self, params: Iterable[tuple[str, Weight]], target_device: str) -> Iterator[Any]:
        for _, group in itertools.groupby(params, lambda pair: pair[0].split(".")[-2]):
            for name, it in [(name, it.to("cpu") if it.is_cuda else it) for name, it in group]:
                yield name, Weight(it.job, [f"{it.storage[0]}, {self.how}"], "uint8", target_device)


def _names(job: Job, rank: int) -> dict[str, Any]:
    """Return the globals of the function, and the modules that it imports itself."""

    def converted(params: dict[str, Weight], model: Any) -> dict[str, Weight]:
        assert model is job.model
        return {name.replace("model.", "language."): it for name, it in params.items()}

    precision = StandIn("PrecisionType", to_dtype=lambda name: {"bf16": "bfloat16", "fp32": "float32"}[name])
    return {
        "__builtins__": importing(
            {
                "verl.utils.qat.quantizer": SimpleNamespace(QATQuantizer=_Quantizer),
                "verl.utils.torch_dtypes": StandIn("torch_dtypes", PrecisionType=precision),
            }
        ),
        "torch": StandIn(
            "torch",
            **{dtype: dtype for dtype in _DTYPES},
            device=lambda name: name,
            distributed=StandIn("torch.distributed", get_rank=lambda group=None: rank),
        ),
        "DTensor": Sharded,
        "logger": StandIn("logger"),
        "log_gpu_memory_usage": strict("log_gpu_memory_usage", lambda head, logger=None: job.did.append(head)),
        "get_device_id": lambda: _DEVICE,
        "fsdp_version": strict("fsdp_version", lambda module: job.setting.fsdp),
        "load_fsdp_model_to_gpu": strict("load_fsdp_model_to_gpu", lambda module: job.move(module, _DEVICE)),
        "offload_fsdp_model_to_cpu": strict("offload_fsdp_model_to_cpu", lambda module: job.move(module, "cpu")),
        "collect_lora_params": strict("collect_lora_params", job.adapters),
        "replace_lora_wrapper": strict("replace_lora_wrapper", lambda name, config: f"{name}.base_layer"),
        "merged_lora_context": strict("merged_lora_context", job.merged),
        "normalize_peft_param_name": strict("normalize_peft_param_name", _normalized),
        "convert_weight_keys": strict("convert_weight_keys", converted),
        "unfuse_moe_params": strict("unfuse_moe_params", lambda params, model_type: params),
    }


def run_rank(source: Source, setting: Setting, rank: int) -> tuple[Job, list[tuple[str, Weight]], Any]:
    """Sync once as one rank. Return it, what was read, and the configuration of the adapters."""
    job = Job(setting)
    names = _names(job, rank)
    kinds = {"bfloat16": lambda key, default: default, "float32": lambda key, default: "fp32"}
    mixed = {dtype: StandIn("mixed_precision", get=get) for dtype, get in kinds.items()}
    engine: StandIn = StandIn(
        "self",
        module=job.module,
        model_config=StandIn("model_config", lora={"merge": setting.merge}, hf_config=StandIn("hf", model_type="qwen")),
        engine_config=StandIn("engine_config", mixed_precision=mixed.get(setting.qat)),
        _is_offload_param=setting.offload,
        _uses_fsdp2_cpu_offload_policy=setting.policy,
        _qat_enabled=bool(setting.qat),
        _qat_config=StandIn("qat_config", mode="w4a16", group_size=16, ignore_patterns=("lm_head",)),
        **{_METHOD: lambda: called(source._replace(name=f"FSDPEngine.{_METHOD}"), names)(engine)},
    )
    returned = called(source, names)(engine, layered_summon=bool(rank), base_sync_done=setting.synced)
    params, config = returned if isinstance(returned, tuple) else (returned, _configuration(setting))
    job.did.append("returns")
    return job, list(_read(job, iter(params.items() if isinstance(params, dict) else params))), config


def _read(job: Job, params: Iterator[tuple[str, Weight]]) -> Iterator[tuple[str, Weight]]:
    """Yield what is sent. The reader keeps it, and may end early."""
    for number, pair in enumerate(params, 1):
        if max(job.gathers, job.copies) > number and not job.setting.qat:
            job.faults.add("more than one weight is copied before it is read")
        yield pair
        if job.setting.reads == SOME:
            break
    if hasattr(params, "close"):
        params.close()
    job.did.append("is read")


class GetPerTensorParam(EndState):
    """The end state of FSDPEngine.get_per_tensor_param."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("DTensor", "param"), "both kinds"),
        **dict.fromkeys(("_is_peft", "peft_model"), "peft"),
        **dict.fromkeys(("_skip_staging", "fsdp_version", "self.module"), "fsdp"),
        **dict.fromkeys(("merge_lora", "peft_config"), "merge"),
        "base_sync_done": "synced",
        "mixed_precision_config": "qat",
        "self._is_offload_param": "offload",
        "self._qat_enabled": "qat",
        "self._uses_fsdp2_cpu_offload_policy": "policy",
    }
    held: ClassVar[dict[str, str]] = {"hasattr": "a builtin", "isinstance": "a builtin"}

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on = (False, True)
        known = branches(function)
        modes = [(False, True), (True, False), *([(True, True)] if _merges(function) else [])]
        qats = ("", "none", "bfloat16", "float32") if "self._qat_enabled" in known else ("",)
        has_policy = "self._uses_fsdp2_cpu_offload_policy" in known
        for mode, fsdp, ranks, synced in itertools.product(modes, (1, 2), (1, 2), off_on):
            policies = off_on if has_policy and fsdp == 2 else (False,)
            for dtype, offload, policy, qat, reads in itertools.product(_DTYPES, off_on, policies, qats, (ALL, SOME)):
                if not (offload and policy):  # with a policy, verl does not move the weights
                    yield Setting(fsdp, ranks, *mode, synced, dtype, offload, policy, qat, reads)

    def has_feature(self, source: Source) -> bool:
        return _merges(source.function)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.is_merged and (configuration.fsdp == 2 or bool(configuration.qat))

    def control(self, configuration: Setting) -> Setting | None:
        # upstream's own fix skips the quantizer, and a single rank's weights share storage if they need no conversion
        is_alone = configuration.ranks == 1 and configuration.dtype == _SENT
        if not self.concerned(configuration) or configuration.qat or is_alone:
            return None
        return configuration._replace(fsdp=1, policy=False)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        ranks = [run_rank(source, configuration, rank) for rank in (0, 1)]
        faults = {fault for rank in ranks for fault in _faults(configuration, *rank)}
        if ranks[0][0].gathers != ranks[1][0].gathers:
            faults.add("a rank gathers less")
        seen = [
            (job.did, [(name, it.storage[0], it.dtype, it.device) for name, it in sent], repr(config))
            for job, sent, config in ranks
        ]
        return Outcome(frozenset(faults), repr(seen))


def _merges(function: Function) -> bool:
    """Return whether the function can merge adapters, itself or by upstream's own method."""
    return bool(words(function) & {"merged_lora_context", _METHOD})


def _wanted(setting: Setting) -> list[tuple[str, str]]:
    """Return the names and the values that the rollout must get."""
    if setting.peft and not setting.merge and setting.synced:
        names = [f"{name}.lora_A" for name, (_, has_adapter) in _LAYERS.items() if has_adapter]
        return [(f"language.{name}", f"model.{name}, adapter") for name in names]
    wrapper = ".base_layer" if setting.peft and not setting.merge else ""
    return [
        (f"language.{name}{wrapper}", f"{name}, {'merged' if setting.is_merged and has_adapter else 'base'}")
        for name, (_, has_adapter) in _LAYERS.items()
    ]


def _configuration(setting: Setting) -> dict[str, int] | None:
    """Return the adapters' configuration that the rollout must get; the oldest functions return none at all."""
    return dict(_CONFIGURATION) if setting.peft and not setting.merge else None


def _faults(setting: Setting, job: Job, sent: list[tuple[str, Weight]], config: Any) -> Iterator[str]:
    yield from job.faults
    if any(job.did.count(step) > 1 for step in ("to cpu", f"merges on {_DEVICE}", "merges on cpu")):
        yield "the weights are moved or merged more than once"
    wanted = _wanted(setting)
    if [name for name, _ in sent] != [name for name, _ in wanted][: 1 if setting.reads == SOME else None]:
        yield "other weights are sent"
    for (name, weight), (_, value) in zip(sent, wanted):
        is_whole = not setting.peft or setting.merge
        is_sharded = is_whole and _LAYERS[name.partition(".")[2]][0] and (setting.fsdp == 2 or setting.ranks > 1)
        (found,), how = weight.storage, ""
        if setting.qat:
            dtype = "float32" if setting.qat == "float32" else "bfloat16"
            how = f", w4a16 by 16 but ['lm_head'] on {_DEVICE} for {dtype}"
        else:
            if weight.dtype not in {setting.dtype, *([_SENT] if is_sharded else [])}:
                yield "a weight is sent in another dtype"
            device = "cpu" if setting.policy and not is_sharded else _DEVICE
            if weight.device != device and (is_sharded or setting.is_merged):
                yield "a weight is sent from another device"
        if not found.endswith(how):
            yield "the rollout gets weights that are not quantized"
        elif found.removesuffix(how) != value:
            is_stale = found.removesuffix(how).replace("base", "merged") == value
            yield "the rollout gets base weights" if is_stale else "the rollout gets other weights"
    if job.is_merged or any(storage != [f"{name}, base"] for name, storage in job.storages.items()):
        yield "the model does not have its weights back"
    if job.device != ("cpu" if setting.offload or setting.policy else _DEVICE):
        yield "the model is left on another device"
    if (config.to_dict() if isinstance(config, StandIn) else config) != _configuration(setting):
        yield "another configuration of the adapters"


END_STATES = {"FSDPEngine.get_per_tensor_param": GetPerTensorParam()}
