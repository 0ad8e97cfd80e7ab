"""hybrid-aux-tracker-hang: its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import HungJob, sizes
from unhang.prove.fixes import hybrid_aux_tracker_hang as proof

FIX = "hybrid-aux-tracker-hang"
RELEASES = {"megatron-lm": ["0.17.1", "0.18.2", "0.19.2"], "megatron-bridge": ["0.3.1", "0.4.2", "0.5.1", "0.6.2"]}
CASES = sources.cases(FIX, RELEASES, {"megatron-lm": ["0.16.1"]})
# the file is long, and has had many shapes
CASES[8:] = [pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow]) for case in CASES[8:]]
FIXED = sources.cases(FIX, {}, state="fixed")
_UNLIKE = [
    ("num_layers=layers", "num_layers=args.num_layers"),
    ("args.num_layers + (args.mtp_num_layers or 0)", "args.num_layers"),
    ("num_moe_layers=num_moe_layers", "num_moe_layers=None"),
]
UNLIKE_UPSTREAM = sources.edits(next(case for case in FIXED if case.values[0].key.startswith("f5b225df")), _UNLIKE)
_SIZE, _COUNT = "num_layers=args.num_layers", "[1] * layers if "
_LAYERS = "layers = itemgetter(Symbols.MOE)(get_hybrid_layer_counts(args.hybrid_layer_pattern))"
REFUSED = sources.edits(
    CASES[0],
    [
        (_LAYERS, f"{_LAYERS}\n            layers += 1", "if a hybrid model"),
        ("else:\n            layers = args.num_layers", "else:\n            layers = 8", "if a hybrid model"),
        ("moe_layer_freq=args.moe_layer_freq", "moe_layer_freq=1", "track_moe_metrics or"),
    ],
    "^not found: {}",
)
_HYBRID = "is_hybrid_model(args)"
_COUNTED = f"moe_layer_freq={_COUNT}{_HYBRID} else args.moe_layer_freq"
_SIZES = (
    *("layers", "args.num_layers + (args.mtp_num_layers or 0)", "len(args.hybrid_layer_pattern or '')"),
    *("args.num_layers if args.num_layers == 8 else layers", "args.num_layers if args.num_layers > 8 else layers"),
    *(f"args.num_layers if args.mtp_num_layers{it} else layers" for it in ("", " is None")),
)
_ALSO = ("args.moe_layer_freq == 1", "not args.mtp_num_layers")
_LISTS = (
    *(f"{value} if {_HYBRID} else args.moe_layer_freq" for value in ("[1] * args.num_layers", "layers", "None")),
    *(f"[1] * layers if {it} else args.moe_layer_freq" for it in ("True", "layers", "args.num_experts")),
    *(f"[1] * layers if {_HYBRID} and {it} else args.moe_layer_freq" for it in _ALSO),
    f"[1] * layers if {_HYBRID} else 1",
)
BY_HAND: ByHand = {
    **{f"size {value}": (Sub(_SIZE, f"num_layers={value}"),) for value in _SIZES},
    **{f"list {value}": (Sub(_COUNTED, f"moe_layer_freq={value}"),) for value in _LISTS},
    "no MTP layers": Sub("mtp_num_layers=args.mtp_num_layers", "mtp_num_layers=None"),
    "not forced": Sub("force_initialize=True", "force_initialize=False"),
    "not printed": Sub("total_loss_dict=total_loss_dict,", ""),
    "not for W&B": Sub("wandb_writer=wandb_writer,", ""),
    "list by pattern": (Sub(_COUNTED, f"moe_layer_freq={_COUNT}args.hybrid_layer_pattern else args.moe_layer_freq"),),
    "size of the first step": (Sub(_SIZE, f"{_SIZE} if iteration == 1 else layers"),),
    "size as written": (
        Sub(_SIZE, f"num_layers=len(args.hybrid_layer_pattern.split('/')[0]) if {_HYBRID} else args.num_layers"),
    ),
}


def _of_bridge(read: str, is_hybrid: str, counted: str) -> ByHand:
    """Return the mutants of a number or a list, as Megatron-Bridge reads its settings; ``counted`` is our list."""

    def spelled(text: str) -> str:
        return re.sub(r"args\.(\w+)", lambda name: read.format(name[1]), text.replace(_HYBRID, is_hybrid))

    return {
        name: tuple(Sub(counted if sub.old == _COUNTED else spelled(sub.old), spelled(sub.new)) for sub in subs)
        for name, subs in BY_HAND.items()
        if not isinstance(subs, Sub)
    }


_PLAIN = _of_bridge(
    "config.model.{}",
    "config.model.is_hybrid_model",
    "moe_layer_freq=[1] * layers if config.model.is_hybrid_model else config.model.moe_layer_freq",
)
_BY_NAME = _of_bridge(
    "getattr(config.model, '{}', None)",
    "getattr(config.model, 'is_hybrid_model', False)",
    """moe_layer_freq=(
                [1] * layers
                if getattr(config.model, 'is_hybrid_model', False)
                else getattr(config.model, 'moe_layer_freq', None)
            )""",
)
MUTANTS = [
    Mutants("megatron-lm", ("0.17.1", "0.19.2"), BY_HAND),
    Mutants("megatron-bridge", ("0.3.1",), _PLAIN),
    Mutants("megatron-bridge", ("0.6.2",), _BY_NAME),
]
_SIZE_ALONE = without(r"\[1\] \* layers if .* else ", "")
_LIST_ALONE = without(r"num_layers=args\.num_layers", "num_layers=layers")
_HALVES = {
    "half: the size alone": Other(_SIZE_ALONE, ("pp3-experts-on-all-stages", "pp3"), "differs: "),
    "half: the list alone": Other(_LIST_ALONE, ("pp3", "tp2-pp2-dp2")),
}
_OF_BRIDGE = (
    without(r"\(\s*\[1\] \* layers\s+if .*\s+else (.*)\s+\)|\[1\] \* layers if .* else ", r"\1"),
    without(
        r"num_layers=(getattr\(config\.model, 'num_layers', None\)|config\.model\.num_layers)", "num_layers=layers"
    ),
)
_BRIDGE_HALVES = {
    name: half._replace(change=change) for (name, half), change in zip(_HALVES.items(), _OF_BRIDGE, strict=True)
}
# in 0.16 MTP layers need moe-aux-tracker-hang too
_OF_0_16 = tuple(case for case in proof.CASES if "mtp" not in case.options or "without" in case.options)
_NOT_0_16 = {"pp3-mtp-0.16": "the routers and the tracker of its core count MTP layers alike"}
_BRIDGES = [
    Release("0.6.2", (("megatron-core", "0.19.2"),), core=True, lacking=_NOT_0_16),
    Release("0.5.1", (("megatron-core", "0.17.1"),)),
    Release("0.3.1", (("megatron-core", "0.16.1"),)),
]
_LINES = [Release("0.17.1", core=True, lacking=_NOT_0_16), Release("0.18.2"), Release("0.19.2")]
PROOFS = [
    Proofs("megatron-lm", _LINES, _HALVES),
    Proofs("megatron-lm", [Release("core_v0.16.1", cases=_OF_0_16)], _HALVES),
    Proofs("megatron-bridge", _BRIDGES, _BRIDGE_HALVES),
]
FUZZ = Fuzz(CASES, 3, r"num_layers|moe_layer_freq|hybrid|layers", examples=40, every=4)

_PIPELINE = hung_jobs.group("7", "PIPELINE_MODEL_PARALLEL_GROUP")
_LOG = "megatron/training/training.py::training_log"
_OLD = ("moe_utils.py::reduce_aux_losses_tracker_across_ranks", "moe_utils.py::track_moe_metrics")
_NEW = ("moe_logging.py::MoEMetricsTracker._sync_metrics", "moe_logging.py::MoEMetricsTracker.report")
_OLD_AT, _NEW_AT = ([*(f"megatron/core/transformer/moe/{it}" for it in at), _LOG] for at in (_OLD, _NEW))
HANGS = [
    HungJob("before 0.18", sizes(_PIPELINE, "all_reduce", _OLD_AT, 13, 56, 56, 56)),
    HungJob("since 0.18", sizes(_PIPELINE, "all_reduce", _NEW_AT, 4, 9, 9, 9)),
]
