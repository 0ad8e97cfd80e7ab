"""hybrid-aux-tracker-hang: how long the entries are that training_log asks for, and by what it has them divided.

Only the statement that logs the MoE losses runs. The tracker that it calls is no target: a stage without MoE layers
makes entries of ``num_layers + mtp_num_layers`` values, as routers do, and divides by the number of MoE layers. (In
0.16 it leaves out ``mtp_num_layers``, which is the defect of moe-aux-tracker-hang.)
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, plain
from unhang.compat.endstates.standin import Globals, StandIn
from unhang.shapes.branches import words
from unhang.shapes.shape import Function

MICRO_BATCHES = 4
LISTED = [0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0]
TRACKERS = {"track_moe_metrics", "get_moe_metrics_tracker"}
CALLERS = ("iteration", "writer", "wandb_writer", "mlflow_logger", "comet_logger", "total_loss_dict", "pg_collection")
LAYER_ARGUMENTS = ("num_layers", "num_moe_layers", "moe_layer_freq", "mtp_num_layers")


class Setting(NamedTuple):
    """One job: its model, and what it logs."""

    model: str = ""
    """The pattern of a hybrid model's layers; empty for another model, which has 8 layers."""
    mtp: str = ""
    """The pattern of each layer of multi-token prediction (MTP), in a hybrid model."""
    depths: int | None = None
    """How many MTP layers there are."""
    repeated: bool = False
    """Whether these are one layer, used again."""
    frequency: int | str | None = 1
    losses: tuple[str, ...] = ("aux_loss",)
    experts: int | None = 4

    @property
    def layers(self) -> int:
        return len(self.model.replace("|", "")) or (12 if self.repeated else 8)


class Call(NamedTuple):
    """The call of the tracker."""

    forces: bool
    """Whether a stage without MoE layers makes the entries."""
    layers: dict[str, Any]
    """What it is told of the layers."""
    others: dict[str, Any]


def counts(setting: Setting) -> dict[str, int]:
    """Return how many layers of each kind a whole pattern has."""
    whole = setting.model + setting.mtp * (setting.depths or 0)
    return {kind: whole.count(kind) for kind in "MG*-E"}


def run(source: Source, setting: Setting) -> tuple[list[Call], Any]:
    """Run the statement; return the calls of the tracker, and the text that it logs."""
    made: list[Call] = []

    def tracked(*positional: Any, **given: Any) -> str:
        names = ("loss_scale", "iteration", "writer", "wandb_writer", "total_loss_dict", "per_layer_logging")
        given |= dict(zip(names, positional))
        layers = {name: given.pop(name) for name in LAYER_ARGUMENTS if name in given}
        made.append(Call(given.pop("force_initialize", False), layers, given))
        return " losses |"

    allocation = StandIn(
        "hybrid_layer_allocation",
        Symbols=StandIn("Symbols", MOE="E", PIPE="|"),
        get_hybrid_layer_counts=lambda pattern: counts(setting),
        parse_hybrid_pattern=lambda pattern: StandIn(
            "parsed_pattern",
            main_pattern=setting.model,
            mtp_pattern=setting.mtp or None,
            mtp_num_depths=setting.depths or 0,
        ),
    )

    def imported(name: str, *context: Any) -> Any:
        return allocation if name.endswith("hybrid_layer_allocation") else builtins.__import__(name, *context)

    kinds = [loss for loss in setting.losses if loss != "z_loss"]
    args = StandIn(  # Megatron-Bridge has them in config.model, with another name for the experts
        "args",
        ("log_moe_overload_factor",),
        num_experts=setting.experts,
        num_moe_experts=setting.experts,
        num_layers=setting.layers,
        moe_layer_freq=LISTED[: setting.layers] if setting.frequency == "list" else setting.frequency,
        moe_router_load_balancing_type=kinds if len(kinds) > 1 else kinds[0],
        moe_z_loss_coeff=0.1 if "z_loss" in setting.losses else None,
        moe_per_layer_logging=True,
        mtp_num_layers=setting.depths,
        mtp_use_repeated_layer=setting.repeated,
        is_hybrid_model=bool(setting.model),
        hybrid_override_pattern=setting.model or None,
        hybrid_layer_pattern=setting.model + f"/{setting.mtp}" * (setting.depths or 0) or None,
    )
    stand_ins: dict[str, Any] = {
        "__builtins__": {**vars(builtins), "__import__": imported},
        **dict.fromkeys(CALLERS, "of the caller"),
        "args": args,
        "config": StandIn("config", model=args),
        "num_moe_experts": setting.experts,
        "_build_moe_metric_writer": lambda writer, *loggers: f"{writer}, and more",
        "num_microbatches": None,
        "get_num_microbatches": lambda: MICRO_BATCHES,
        "is_hybrid_model": lambda args: args.is_hybrid_model,
        "track_moe_metrics": tracked,
        "get_moe_metrics_tracker": lambda: StandIn("tracker", report=tracked),
    }
    namespace = Globals(stand_ins, source.bound)
    exec(_code(source), namespace)  # noqa: S102 - upstream's code, in the sandbox
    return made, namespace.get("moe_log_string")


class TrainingLog(EndState):
    """The end state of training_log."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("args.num_experts", "config.model.num_moe_experts", "num_moe_experts"), "experts"),
        **dict.fromkeys(("args.moe_router_load_balancing_type", "moe_router_load_balancing_type"), "losses"),
        **dict.fromkeys(("args.moe_z_loss_coeff", "config.model.moe_z_loss_coeff"), "losses"),
        "config.model.moe_router_load_balancing_type": "losses",
        **dict.fromkeys(("args.is_hybrid_model", "is_hybrid_model", "config.model.is_hybrid_model"), "model"),
        "config.model": "model",  # getattr(config.model, "is_hybrid_model", False)
        **dict.fromkeys(("parsed_pattern.main_pattern", "parsed_hybrid_pattern.main_pattern"), "model"),
        **dict.fromkeys(("parsed_pattern.mtp_pattern", "mtp_moe_layers_per_depth"), "mtp"),
        **dict.fromkeys(("args.mtp_num_layers", "parsed_pattern.mtp_num_depths"), "depths"),
        "args.mtp_use_repeated_layer": "repeated",
        **dict.fromkeys(("args.moe_layer_freq", "i", "moe_layer_pattern"), "frequency"),
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("args", "isinstance", "int", "list"), "name no setting"),
        "getattr": "of args.log_moe_overload_factor, which adds a text and is never set; of what config.model has",
        **dict.fromkeys(("num_microbatches", "get_num_microbatches"), "the number is the same for all models"),
    }
    without: ClassVar[dict[str, Any]] = {"model": "EEE", "mtp": "", "depths": None, "frequency": 1}

    def part(self, function: Function) -> ast.stmt:
        found = [node for node in function.body if TRACKERS & words(node)]
        return found[0] if len(found) == 1 else function

    def configurations(self, function: Function) -> Iterator[Setting]:
        yield Setting(experts=None)
        models = ("", "M*EM*-", "ME|M*|EE", "EEE")
        for model, depths, repeated, frequency, losses in itertools.product(
            models, (None, 0, 1, 2), (False, True), (1, None, 3, "list"), LOSSES
        ):
            for mtp in ("*E", "*-") if model and depths else ("",):
                yield Setting(model, mtp, depths, repeated, frequency, losses)

    def has_feature(self, source: Source) -> bool:
        return _reads(source, "hybrid_override_pattern") or _reads(source, "hybrid_layer_pattern")

    def concerned(self, configuration: Setting) -> bool:
        return bool(configuration.model)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        seen = run(source, configuration)
        without = run(source, configuration._replace(model="", mtp=""))
        return Outcome(frozenset(self._faults(source, configuration, seen[0], without[0])), repr(seen))

    def _faults(self, source: Source, setting: Setting, calls: list[Call], without: list[Call]) -> Iterator[str]:
        if len(calls) != (setting.experts is not None):
            yield "the losses are not logged once, if there are experts"
        if _reads(source, "force_initialize") and not all(call.forces for call in calls):
            yield "a stage without MoE layers makes no entries"
        for call, other in zip(calls, without):
            if (call.forces, call.others) != (other.forces, other.others):
                yield "more than the layers depends on the model"
            if call.forces:
                mtp = call.layers.get("mtp_num_layers") or 0
                counted = (setting.depths or 0) if _reads(source, "mtp_num_layers") else 0  # as by routers of its time
                if call.layers["num_layers"] + mtp != setting.layers + counted:
                    yield "entries are not as long as those of the routers"
                if _divisor(call.layers) != self._layers(source, setting, call.layers):
                    yield "the losses are not divided by the number of MoE layers"

    def _layers(self, source: Source, setting: Setting, given: dict[str, Any]) -> int:
        """Return the number of MoE layers.

        Where only ``mtp_num_layers`` is given, upstream counts each MTP layer, and those of a whole pattern twice.
        """
        mtp = given.get("mtp_num_layers") or 0
        depths = setting.depths or 0
        if "num_moe_layers" in given:
            depths = min(depths, 1) if setting.repeated else depths
            if setting.model:
                return setting.model.count("E") + setting.mtp.count("E") * depths
            each = _listed(setting.frequency, setting.layers)
            return sum(each) + each[-1] * depths
        if not (setting.model and self.has_feature(source)):
            return sum(_listed(setting.frequency, setting.layers)) + mtp
        whole = _reads(source, "hybrid_layer_pattern")
        return (counts(setting)["E"] if whole else setting.model.count("E")) + mtp


LOSSES = (("aux_loss",), ("seq_aux_loss",), ("aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss"))


def _listed(frequency: int | str | None, layers: int) -> list[int]:
    """Return a 1 for each layer with experts."""
    if frequency == "list":
        return LISTED[:layers]
    return [int(layer % int(frequency or 1) == 0) for layer in range(layers)]


def _divisor(given: dict[str, Any]) -> int:
    """Return the number by which the tracker divides."""
    if "num_moe_layers" in given:
        return int(given["num_moe_layers"])
    frequency = given["moe_layer_freq"]
    each = frequency if isinstance(frequency, list) else _listed(frequency, given["num_layers"])
    return sum(each) + (given.get("mtp_num_layers") or 0)


def _reads(source: Source, name: str) -> bool:
    return name in _mentioned(source)


@cache
def _mentioned(source: Source) -> frozenset[str]:
    return frozenset(words(END_STATES["training_log"].part(source.function)))


@cache
def _code(source: Source) -> CodeType:
    """Compile the statement alone."""
    part = END_STATES["training_log"].part(source.function)
    return compile(ast.Module([plain(part)], []), "<upstream>", "exec", dont_inherit=True)


END_STATES = {"training_log": TrainingLog()}
