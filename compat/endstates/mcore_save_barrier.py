"""mcore-save-barrier: TODO: what each rank does, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function

_RANKS = 2


class PatchMcoreBridgeSetting(NamedTuple):
    """One job."""

    # TODO: the values that matter of each condition; sizes, names, groups and ranks in more than one value
    args: bool = False
    args_target_modules: bool = False
    config_fp8: bool = False
    config_fp8_param: bool = False
    config_fp8_recipe: bool = False
    config_mtp_num_layers: bool = False
    hf_config: bool = False
    is_master: bool = False
    modules_to_not_convert: bool = False
    peft_format: bool = False
    processor: bool = False
    self: bool = False
    config_task_type: bool = False
    hf_model: bool = False
    is_multimodal: bool = False


class PatchMcoreBridge(EndState):
    """The end state of the function."""

    varied: ClassVar[dict[str, str]] = {
        "args": "args",
        "args.target_modules": "args_target_modules",
        "config.fp8": "config_fp8",
        "config.fp8_param": "config_fp8_param",
        "config.fp8_recipe": "config_fp8_recipe",
        "config.mtp_num_layers": "config_mtp_num_layers",
        "hf_config": "hf_config",
        "is_master": "is_master",
        "modules_to_not_convert": "modules_to_not_convert",
        "peft_format": "peft_format",
        "processor": "processor",
        "self": "self",
        "self.config.task_type": "config_task_type",
        "self.hf_model": "hf_model",
        "self.is_multimodal": "is_multimodal",
    }
    held: ClassVar[dict[str, str]] = {"getattr": "a builtin", "hasattr": "a builtin"}

    def configurations(self, function: Function) -> Iterator[PatchMcoreBridgeSetting]:
        yield PatchMcoreBridgeSetting()
        for field in PatchMcoreBridgeSetting._fields:  # TODO: those that play together, together
            yield PatchMcoreBridgeSetting(**{field: True})

    def concerned(self, configuration: PatchMcoreBridgeSetting) -> bool:
        raise NotImplementedError("TODO: whether the fix plays a part here")

    def control(self, configuration: PatchMcoreBridgeSetting) -> PatchMcoreBridgeSetting | None:
        raise NotImplementedError("TODO: the same setting without the defect; None where the fix plays no part")

    def observe(self, source: Source, configuration: PatchMcoreBridgeSetting) -> Outcome:
        ranks = [self.did(source, configuration, rank) for rank in range(_RANKS)]
        # TODO: compare what they wait in. Upstream's own fix has no fault, the untouched function has some.
        faults = {"the ranks do not do the same"} if any(rank != ranks[0] for rank in ranks) else set()
        return Outcome(frozenset(faults), repr(ranks))

    def did(self, source: Source, setting: PatchMcoreBridgeSetting, rank: int) -> list[Any]:
        """Run the function as one rank. Return what it did, and then what it returned."""
        did: list[Any] = []
        # TODO: a value for each None, and what each function returns; what stays is noted. What is missing is a gap.
        names = {
            "copy": lambda hf_config: did.append(("copy", hf_config)),
            "custom_object_save": lambda given_1, output_dir, config=None: did.append(("custom_object_save", given_1, output_dir, config)),
            "disable_safe_ddp_context_use_barrier": lambda: did.append(("disable_safe_ddp_context_use_barrier",)),
            "dist": StandIn("dist", **{
                "barrier": lambda group=None, async_op=False, device_ids=None: did.append(("barrier", group)),
            }),
            "get_model_processor": lambda given_1, model_type=None, return_dummy_model=None: did.append(("get_model_processor", given_1, model_type, return_dummy_model)),
            "get_modules_to_not_convert": lambda given_1: did.append(("get_modules_to_not_convert", given_1)),
            "get_multimodal_target_regex": lambda given_1, freeze_llm=None, freeze_vit=None, freeze_aligner=None, include_embedding=None, exclude_router=None: did.append(("get_multimodal_target_regex", given_1, freeze_llm, freeze_vit, freeze_aligner, include_embedding, exclude_router)),
            "is_master": lambda: setting.is_master,
            "logger": StandIn("logger", **{
                "error": lambda given_1: did.append(("error", given_1)),
                "info": lambda given_1: did.append(("info", given_1)),
            }),
            "require_version": lambda given_1, given_2: did.append(("require_version", given_1, given_2)),
            "save_checkpoint": lambda given_1, processor, output_dir, model_dirs=None, additional_saved_files=None: did.append(("save_checkpoint", given_1, processor, output_dir, model_dirs, additional_saved_files)),
            "torch": StandIn("torch", **{
                "device": lambda given_1: did.append(("device", given_1)),
            }),
        }
        value = called(source, names)(
            **{
            }
        )
        return [*did, value]


END_STATES = {
    "_patch_mcore_bridge": PatchMcoreBridge(),
}
