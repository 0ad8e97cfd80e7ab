"""TODO: what is run for real, what stands for the rest and why, and what is compared."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Topology

WARM = ("torch",)
_WHERE = "in _copy_model_params_to_main_params"
_TWO = Topology(dp=2)
CASES = (
    Case("two", _TWO, DIFFERS, _WHERE, {"defect": True}, core=True),
    Case("two-without", _TWO, PASSED, options={"defect": False}, core=True),
    Case("one", Topology(), PASSED, options={"defect": True}),
)
YOURS = Case("yours", Topology(), DIFFERS, _WHERE, {"defect": True})
RULED_OUT = ("world", "TODO: why one process is right")
_OPTIONS = {
    # TODO: the values that matter, so that each condition goes both ways; more than one size, group and rank
    "defect": (False, True),
    "HybridDeviceOptimizer": (False, True),
    "model_param": (False, True),
    "self._is_distopt_quantized_param": (False, True),
    "self._is_grouped_quantized_tensor": (False, True),
    "self.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8": (False, True),
    "self.ddp_config.use_megatron_fsdp": (False, True),
    "self.optimizer": (False),
    "state_dict": (False),
}
GRID = [
    Case(str(options), _TWO, DIFFERS if options["defect"] else PASSED, options=options)
    for options in (dict(zip(_OPTIONS, values)) for values in itertools.product(*_OPTIONS.values()))
]
HELD: dict[str, str] = {}  # TODO: why a condition goes one way only, by a pattern of its text
_FUNCTIONS = [
    # TODO: what each is given, reads and calls
    (
        "megatron.core.optimizer.distrib_optimizer",
        "DistributedOptimizer._copy_model_params_to_main_params",
        ["self", "state_dict"],
        ["HybridDeviceOptimizer", "self.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8", "self.ddp_config.use_megatron_fsdp", "self.model_float16_groups", "self.model_fp32_groups", "self.shard_fp32_from_float16_groups", "self.shard_fp32_groups", "state_dict"],
        ["dequantize_fp8_tensor", "self._build_model_param_to_state_dict_param_map", "self._copy_model_params_to_shard_main_params", "self._get_model_param_range_map", "self._is_distopt_quantized_param", "self._is_grouped_quantized_tensor", "self.optimizer.reload_model_params", "self.optimizer.update_fp32_param_by_new_param"],
    ),
]


def settings(case: Case) -> dict[str, Any]:
    """Return what the user of such a job sets, by the names in ``strikes`` of the manifest."""
    return {"ranks": case.topology.world, "TODO: what else, as a user sets it": case.options["defect"]}


def has_feature(function: Any) -> bool:
    """Return whether a function, as a syntax tree, has what the fix is about."""
    return True  # TODO


def prepare() -> None:
    """Import the real modules."""
    for name, *_ in _FUNCTIONS:  # TODO: stand-ins for what they import and a CPU lacks, each with its reason
        importlib.import_module(name)


def on_rank(case: Case, rank: int) -> Any:
    """Call the real function as one rank of the job; return tensors and plain values, the same bits each time."""
    raise NotImplementedError("TODO: with the defect's cause if case.options['defect'], else without")


def wrong(case: Case, values: Sequence[Any]) -> str:
    """Return what is wrong with what the ranks returned; empty if nothing is."""
    wanted = [None for _ in values]  # TODO: what is right, computed in another way
    return f"{_WHERE}: {values}, not {wanted}" if [*values] != wanted else ""


def right(case: Case, values: Sequence[Any]) -> str:
    """Return what to say of it if nothing is wrong."""
    return "every rank is done"  # TODO
