"""moe-aux-tracker-hang: how long the entries are that the stages of a pipeline reduce, and what is logged of them.

The entries of a stage with MoE layers come from its routers, as long as upstream's routers make them: they count the
layers of multi-token prediction (MTP) in every release whose ``track_moe_metrics`` knows these, and in no other one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, parameters
from unhang.compat.endstates.standin import StandIn
from unhang.compat.endstates.tensors import Tensor, torch
from unhang.shapes.branches import branches
from unhang.shapes.shape import Function

SCALE, STEP = 0.5, 7
NAMES = ("load_balancing_loss", "z_loss")
GROUPS = ("reduce_group", "avg_group")
TOTAL = {NAMES[0]: 1.0}
"""The losses so far; the second name is new."""
LISTED = [0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1]


class Setting(NamedTuple):
    """One job: which pipeline stages have MoE layers, and the arguments of the function."""

    stages: tuple[bool, ...] = (True, True)
    mtp: int | None = None
    force: bool = True
    names: int = 1
    """How many names are given to be tracked; with none, all entries are."""
    frequency: int | str | None = None
    """``list``, or ``list alone``: without the number of layers."""
    log: str = "writer"

    @property
    def layers(self) -> int:
        return 12 if len(self.stages) == 3 else 8


LOGS = ("writer", "nothing", "per layer", "wandb", "wandb per layer")
PIPELINES = ((True,), (True, True), (False, True), (True, False, True), (False, False, True), (False, False))


class Reached(Exception):
    """The stage waits for its peers with these entries: their names and values, in order."""


class Seen(NamedTuple):
    """What one stage did."""

    reduced: tuple[tuple[str, int], ...]
    """The name and the length of each entry, in the order of the all-reduces."""
    made: tuple[Any, ...]
    """The entries that the function made: the name, the device and type, and what else is in it."""
    logged: tuple[Any, ...]
    total: dict[str, float]
    left: bool
    """Whether a value is left in the tracker."""


def routed(setting: Setting, stage: int, mtp: int) -> dict[str, Any]:
    """Return the tracker of a stage after its forward passes: of those with MoE layers, one value for each layer."""
    if not setting.stages[stage]:
        return {}
    length, each = setting.layers + mtp, setting.layers // len(setting.stages)
    first, last = stage * each, length if stage == len(setting.stages) - 1 else (stage + 1) * each
    values = [float(layer + 1) if first <= layer < last else 0.0 for layer in range(length)]
    entries = (Tensor(values, device="of the router") * scale for scale in (1, 10))
    return {name: {"values": entry, **dict.fromkeys(GROUPS, "of the router")} for name, entry in zip(NAMES, entries)}


def run_stage(
    source: Source, setting: Setting, stage: int, mtp: int, sums: Mapping[str, list[float]] | None = None
) -> Seen:
    """Run the function on one stage, whose routers count ``mtp`` layers of multi-token prediction.

    Raises Reached at the all-reduces, unless their sums are given.
    """
    tracker, reduced, made = routed(setting, stage, mtp), list[Any](), list[Any]()
    logged: list[Any] = []
    own = set(tracker)

    def reduce(track_names: Any = None, pg_collection: Any = None) -> None:
        names = [*tracker] if track_names is None else [*track_names]
        for name in sorted(tracker.keys() - own):
            others = {key: value for key, value in tracker[name].items() if key != "values"}
            values = tracker[name]["values"]
            made.append((name, (values.device, values.dtype), others))
        if sums is None:
            raise Reached([(name, [*tracker[name]["values"].values_]) for name in names])
        for name in names:
            reduced.append((name, len(tracker[name]["values"])))
            tracker[name]["values"].values_ = [*sums[name]]

    def clear() -> None:
        for entry in tracker.values():
            entry["values"].zero_()

    def report(**given: Any) -> None:
        """Do with these arguments what upstream's tracker does from 0.18 on: it is no target, and read to be right."""
        if given["force_initialize"]:
            for name in set(given["track_names"] or ()) - tracker.keys():
                size = given["num_layers"] + (given["mtp_num_layers"] or 0)
                tracker[name] = {"values": Tensor(0.0, shape=(size,)), **dict.fromkeys(GROUPS)}
        reduce(given["track_names"], given["pg_collection"])
        for name in given["track_names"] or tracker:
            average = tracker[name]["values"].sum() * given["loss_scale"] / _layers(setting, mtp)
            given["total_loss_dict"][name] = given["total_loss_dict"].get(name, 0.0) + average
            if given["writer"]:
                given["writer"].add_scalar(name, average, given["iteration"])
        clear()

    total = dict(TOTAL)

    def add_scalar(tag: str, scalar_value: Any, global_step: int) -> None:
        logged.append((tag, float(scalar_value), global_step))

    def log(data: Mapping[str, Any], step: int) -> None:
        logged.append(("wandb", {name: float(value) for name, value in data.items()}, step))

    writer, wandb = StandIn("writer", add_scalar=add_scalar), StandIn("wandb_writer", log=log)
    frequency = setting.frequency
    given = {
        "loss_scale": SCALE,
        "iteration": STEP,
        "writer": None if setting.log == "nothing" else writer,
        "wandb_writer": wandb if "wandb" in setting.log else None,
        "total_loss_dict": total,
        "per_layer_logging": "per layer" in setting.log,
        "force_initialize": setting.force,
        "track_names": list(NAMES[: setting.names]) or None,
        "num_layers": None if frequency == "list alone" else setting.layers,
        "moe_layer_freq": LISTED[: setting.layers] if isinstance(frequency, str) else frequency,
        "mtp_num_layers": setting.mtp,
        "pg_collection": None,
    }
    stand_ins = {
        "torch": torch(),
        "parallel_state": StandIn("parallel_state", get_moe_layer_wise_logging_tracker=lambda: tracker),
        "get_moe_layer_wise_logging_tracker": lambda: tracker,
        "get_moe_metrics_tracker": lambda: StandIn("tracker", report=report),
        "reduce_aux_losses_tracker_across_ranks": reduce,
        "clear_aux_losses_tracker": clear,
    }
    known = parameters(source.function)
    called(source, stand_ins)(**{name: value for name, value in given.items() if name in known})
    left = any(value for entry in tracker.values() for value in entry["values"].values_)
    totals = {name: float(value) for name, value in total.items()}
    return Seen(tuple(reduced), tuple(made), tuple(logged), totals, left)


class TrackMoeMetrics(EndState):
    """The end state of track_moe_metrics."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("force_initialize", "track_names"), "force and names"),
        **dict.fromkeys(("key", "tracker"), "stages"),
        **dict.fromkeys(("moe_layer_freq", "i"), "frequency"),
        "mtp_num_layers": "mtp",
        **dict.fromkeys(("writer", "wandb_writer", "per_layer_logging"), "log"),
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("isinstance", "int", "list"), "name no setting"),
        **dict.fromkeys(("name", "total_loss_dict"), "it has the first name already, and not the second one"),
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        known = parameters(function)
        choices: dict[str, tuple[Any, ...]] = {
            "stages": PIPELINES if "force_initialize" in known else PIPELINES[:2],
            "mtp": (None, 0, 1, 2) if "mtp_num_layers" in known else (None,),
            "force": (False, True) if "force_initialize" in known else (False,),
            "names": (0, 1, 2) if "track_names" in known else (0,),
            "frequency": (None, 1, 3, "list", "list alone") if "moe_layer_freq" in known else (None,),
            "log": LOGS if "writer" in branches(function) else LOGS[:2],
        }
        for values in itertools.product(*choices.values()):
            setting = Setting(**dict(zip(choices, values)))
            made = setting.force and setting.names
            if (all(setting.stages) or made) and not (made and setting.frequency == "list alone"):
                yield setting  # of the others, upstream's callers have none: they raise, or stages reduce nothing

    def has_feature(self, source: Source) -> bool:
        return "mtp_num_layers" in parameters(source.function)

    def concerned(self, configuration: Setting) -> bool:
        made = bool(configuration.mtp) and not all(configuration.stages)
        return made or _raises_upstream(configuration)

    def control(self, configuration: Setting) -> Setting | None:
        if _raises_upstream(configuration) or not self.concerned(configuration):
            return None
        return configuration._replace(mtp=None)

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        stages, waiting = range(len(configuration.stages)), []
        mtp = (configuration.mtp or 0) if self.has_feature(source) else 0
        for stage in stages:
            try:
                run_stage(source, configuration, stage, mtp)
            except Reached as reached:
                waiting.append(reached.args[0])
        lengths = {tuple((name, len(values)) for name, values in entries) for entries in waiting}
        if len(lengths) > 1 or len(waiting) < len(stages):
            return Outcome(frozenset({"the stages do not reduce the same entries, of one length each"}), repr(waiting))
        parts = [dict(entries) for entries in waiting]
        sums = {name: [sum(values) for values in zip(*(part[name] for part in parts))] for name in parts[0]}
        seen = [run_stage(source, configuration, stage, mtp, sums) for stage in stages]
        count = _layers(configuration, mtp) if "num_layers" in parameters(source.function) else configuration.layers
        averages = {name: sum(values) * SCALE / count for name, values in sums.items()}
        return Outcome(frozenset(_faults(configuration, seen, averages)), repr(seen))


def _faults(setting: Setting, seen: list[Seen], averages: Mapping[str, float]) -> Iterator[str]:
    names = NAMES[: setting.names] or (NAMES if all(setting.stages) else ())
    for has_moe, what in zip(setting.stages, seen):
        if [name for name, _ in what.reduced] != list(names):
            yield "not each tracked entry is reduced, once"
        if [name for name, _, _ in what.made] != ([] if has_moe else sorted(names)):
            yield "not each missing entry is made, and no other one"
        if any(kind != ("cuda", "float32") or any(map(others.get, GROUPS)) for _, kind, others in what.made):
            yield "an entry is made with a group, of another type, or not on the device"
        if what.left:
            yield "a value is left in the tracker"
        for name in names:
            silent = setting.log == "nothing"
            if not silent and (name, averages[name], STEP) not in what.logged:
                yield "a stage does not log the average"
            before = TOTAL.get(name)
            if what.total.get(name) not in ((before or 0.0) + averages[name], *([before] if silent else ())):
                yield "the average is not added to the total"


def _raises_upstream(setting: Setting) -> bool:
    """Return whether upstream's own fix raises up to 0.17, though no entry is made and none needs the number."""
    return setting.mtp is not None and setting.frequency == "list alone"


def _layers(setting: Setting, mtp: int) -> int:
    """Return the number of MoE layers, by which upstream divides."""
    if isinstance(setting.frequency, str):
        return sum(LISTED[: setting.layers]) + mtp
    return -(-setting.layers // (setting.frequency or 1)) + mtp


END_STATES = {"track_moe_metrics": TrackMoeMetrics()}
