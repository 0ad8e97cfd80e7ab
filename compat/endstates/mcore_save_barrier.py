"""mcore-save-barrier: in which barriers each rank waits while a model is saved, and how the master loads it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

OFF = "disable_safe_ddp_context_use_barrier"
LATER = "comes after the model is loaded; no rank waits there but in the last barrier, which every rank reaches"


class Setting(NamedTuple):
    """One job that saves twice."""

    ranks: int = 2
    remote: bool = True
    """Whether the loader enters safe_ddp_context, as it does for each module of remote code."""
    own: bool = False
    """Whether the bridge has get_hf_meta_model, so that nothing is loaded."""
    given: str = "args and processor"
    peft: bool = False
    model: str = "minimax"


class PatchMcoreBridge(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "args": "given",
        "processor": "given",
        "is_master": "every rank",
        "self": "own; and the first save, the second",
        "hasattr": "own",
        "peft_format": "peft",
        "args.model_type": "model",
    }
    held: ClassVar[dict[str, str]] = {
        "getattr": "a builtin",
        **dict.fromkeys(("origin_parameters", "save_missing_weights"), "only what mcore-bridge is given"),
        **dict.fromkeys(("config.fp8", "config.fp8_param", "config.fp8_recipe", "config.mtp_num_layers"), LATER),
        **dict.fromkeys(("hf_config", "llm_config", "key", "modules_to_not_convert", "args.target_modules"), LATER),
        **dict.fromkeys(("self.config.task_type", "self.hf_model", "self.is_multimodal"), LATER),
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        given = ("args and processor", "args", "processor")
        for chosen in itertools.product((1, 2, 4), (True, False), (False, True), given, (False, True), ("minimax", "")):
            yield Setting(*chosen)

    def concerned(self, configuration: Setting) -> bool:
        loads = configuration.given == "args and processor" and not configuration.own
        return loads and configuration.remote and configuration.ranks > 1

    def control(self, configuration: Setting) -> Setting | None:
        return configuration._replace(remote=False) if self.concerned(configuration) else None

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        ranks = [Rank(configuration, rank) for rank in range(configuration.ranks)]
        for rank in ranks:
            rank.saves_twice(source)
        return Outcome(frozenset(_faults(configuration, ranks)), repr([rank.did for rank in ranks]))


class Rank:
    """What one rank did."""

    def __init__(self, setting: Setting, rank: int) -> None:
        self.setting, self.rank = setting, rank
        self.did: list[str] = []
        self.waits: list[str] = []
        self.device = "cpu"
        self.off = False
        """Whether safe_ddp_context has no barriers now."""

    def note(self, what: str) -> None:
        self.did.append(f"{what} on {self.device}{' without barriers' if self.off else ''}")

    @contextmanager
    def on(self, device: str) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    @contextmanager
    def without_barriers(self) -> Iterator[None]:
        self.off = True  # upstream's flag: left by the inner one of two, too
        yield
        self.off = False

    def load(self, model_dir: str, model_type: str | None = None, return_dummy_model: bool = False) -> Any:
        self.did.append(f"load {model_dir} {model_type} {return_dummy_model} on {self.device}")
        if self.setting.remote and self.setting.ranks > 1 and not self.off:
            self.waits += ["safe_ddp_context"] * 2  # its exit, on the master of the job and of its node
        return self.model("loaded"), "another processor"

    def model(self, name: str) -> StandIn:
        meta = StandIn("model_meta", additional_saved_files=[f"{name}.txt"])
        return StandIn(name, _auto_class=None, model_meta=meta, model_info=f"{name} info")

    def barrier(self, group: object = None) -> None:
        self.note("barrier")
        self.waits.append("barrier")

    def saves_twice(self, source: Source) -> None:
        """Patch the bridge as this rank, and save two checkpoints."""
        setting = self.setting
        bridge_class: Any = type("GPTBridge", (StandIn,), {})
        bridge_class.save_weights = lambda bridge, models, folder, **_: self.note(f"save {folder} {sorted(_)}")
        switch = self.without_barriers
        config = StandIn("hf_config", ("quantization_config",), save_pretrained=lambda it: self.note(f"config {it}"))
        own = {"get_hf_meta_model": lambda: self.model("own")} if setting.own else {}
        bridge = bridge_class(
            "bridge",
            ("hf_model", "get_hf_meta_model"),
            **own,
            config=StandIn("config", hf_config=config, task_type="causal_lm", mtp_num_layers=None, fp8=None),
            is_multimodal=False,
            _adapter_name="default",
            _peft_target_modules=["linear"],
            _peft_modules_to_save=[],
        )
        factory = StandIn(
            "HfConfigFactory",
            get_text_config=lambda config: config,
            del_config_attr=lambda config, name: None,
            set_config_attr=lambda config, name, value: None,
        )
        names = {
            "__builtins__": importing(
                {
                    "mcore_bridge": SimpleNamespace(GPTBridge=bridge_class, __version__="1.0.2"),
                    "swift.utils": StandIn("swift.utils", **{OFF: switch}),
                }
            ),
            "HfConfigFactory": factory,
            "_patch_vllm_qwen4_exp_config": lambda: self.note("more defaults of vLLM's config classes"),
            "_patch_vllm_glm5_next_config": lambda: self.note("another map in vLLM's config classes"),
            "copy": copy,
            "deepcopy": deepcopy,
            "inspect": inspect,
            **({OFF: switch} if OFF in source.bound else {}),
            "dist": StandIn("dist", barrier=self.barrier),
            "get_model_processor": self.load,
            "is_master": lambda: self.rank == 0,
            "logger": StandIn("logger", info=lambda text: None, warning=lambda text: None),
            "require_version": lambda requirement, hint: None,
            "save_checkpoint": lambda model, processor, folder, model_dirs, additional_saved_files: self.note(
                f"files {folder} {model_dirs} {additional_saved_files}"
            ),
            "torch": StandIn("torch", device=self.on),
        }
        called(source, names)()
        args = StandIn("args", model_dir="dir", model_type=setting.model, target_modules=["all-linear"])
        processor = self.model("processor")
        peft = StandIn("peft", target_modules=[], save_pretrained=lambda folder: self.note(f"peft {folder}"))
        models = [StandIn("model", peft_config={"default": peft})]
        for folder in "first", "second":
            given = {name: value for name, value in (("args", args), ("processor", processor)) if name in setting.given}
            bridge.save_weights(models, folder, peft_format=setting.peft, **given)
            self.note("end")


def _faults(setting: Setting, ranks: list[Rank]) -> Iterator[str]:
    if any(rank.waits != ranks[0].waits for rank in ranks):
        yield "the master waits in barriers that no other rank enters"
    loads = [it for rank in ranks for it in rank.did if it.startswith("load ")]
    due = setting.given == "args and processor" and not setting.own
    if loads != [f"load dir {setting.model} True on meta"] * due:
        yield "not loaded once, by the master alone, without weights"
    if any(it.endswith("without barriers") for rank in ranks for it in rank.did):
        yield "the barriers of safe_ddp_context are off where ranks need them"
    if due and not setting.peft and "loaded.txt" not in "".join(ranks[0].did):
        yield "the files of another model are saved"


END_STATES = {
    "_patch_mcore_bridge": PatchMcoreBridge(),
}
