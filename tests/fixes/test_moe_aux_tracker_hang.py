"""moe-aux-tracker-hang: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import IDLE, HungJob, issued, job, rank, sizes
from unhang.diagnose.evidence import Job

FIX = "moe-aux-tracker-hang"
CASES = sources.cases(FIX, {"megatron-core": ["0.13.1", "0.15.3", "0.16.1"]})
_UNLIKE = {
    "0.17.1": [
        ("tracker_num_layers += mtp_num_layers", "tracker_num_layers += 1"),
        ("torch.zeros(tracker_num_layers", "torch.zeros(num_layers"),
    ],
    "0.19.2": [
        ("mtp_num_layers=mtp_num_layers", "mtp_num_layers=None"),
        ("return get_moe_metrics_tracker()", "return other_tracker()"),
    ],
}
UNLIKE_UPSTREAM = [edit for version, of in _UNLIKE.items() for edit in sources.edits(sources.case(FIX, version), of)]
_ENTRY = "tracker[key]['values'] = torch.zeros(num_layers, device='cuda')"
_PADDED = _ENTRY.replace("torch.zeros", "torch.cat([torch.zeros") + ", torch.zeros(mtp_num_layers or 0)])"
_ROW = "\n" + 20 * " "
_EDITED = [
    (_ENTRY, _ENTRY.replace("num_layers", "num_layers + 1"), r"not found: torch.zeros\(num_layers"),
    (_ENTRY, f"num_layers += mtp_num_layers or 0{_ROW}{_ENTRY}", "that does not rebind num_layers"),
    (_ENTRY, f"mtp_num_layers = None{_ROW}{_ENTRY}", "that does not rebind mtp_num_layers"),
    (_ENTRY, f"{_ENTRY}{_ROW}{_ENTRY}", "found 2 times"),
    # MTP's layers are in it already
    (_ENTRY, _PADDED, r"not found: torch.zeros\(num_layers, ...\), without mtp_num_layers"),
    ("mtp_num_layers: Optional[int]", "mtp_layers: Optional[int]", "not found: the argument mtp_num_layers"),
]
REFUSED = sources.edits(CASES[0], _EDITED)


# -- for the sessions -------------------------------------------------------------------------------------------------

_SIZE = "num_layers + (mtp_num_layers or 0)"
_VALUES = 'tracker[key]["values"] = torch.zeros('
_SIZES = (
    *("num_layers + 1", "num_layers + bool(mtp_num_layers)", "num_layers + mtp_num_layers"),
    *("num_layers * (mtp_num_layers or 1)", "(num_layers := num_layers + (mtp_num_layers or 0))"),
    *(f"{_SIZE} + len(tracker) - 1", f"{_SIZE} * (moe_layer_freq or 1)"),
    "(sum(moe_layer_freq) if isinstance(moe_layer_freq, list) else num_layers) + (mtp_num_layers or 0)",
)
_ONLY_IF = (
    *("num_layers == 8", "num_layers > 8", "moe_layer_freq is None", "isinstance(moe_layer_freq, list)"),
    *("writer", "wandb_writer", "per_layer_logging", "key == track_names[0]", "key != track_names[0]"),
)
BY_HAND = {
    **{size: Sub(_SIZE, size) for size in _SIZES},
    **{it: Sub(_SIZE, f"num_layers + ((mtp_num_layers or 0) if {it} else 0)") for it in _ONLY_IF},
    "of integers": Sub('device="cuda"', 'device="cuda", dtype=torch.int64'),
    "below another name": Sub('["values"]', '["value"]'),
    "of one entry for all names": Sub(_VALUES, f"{_VALUES.replace('key', 'track_names[0]')}"),
}
MUTANTS = [Mutants("megatron-core", ("0.13.1", "0.16.1"), BY_HAND)]
_LINES = [Release(line, core=line == "0.16.1") for line in ("0.13.1", "0.14.0", "0.15.3", "0.16.1")]
_ONE_LAYER = without(r"\(mtp_num_layers or 0\)", "1")
_NOT_ON_FIRST = without(r"\(mtp_num_layers or 0\)", "(mtp_num_layers or 0) * (key == 'z_loss')")
_HALVES = {
    "half: one MTP layer, however many there are": Other(_ONE_LAYER, ("pp3-no-mtp", "pp3-two-mtp-layers")),
    "half: no MTP layer on the first of two names": Other(_NOT_ON_FIRST, ("pp3", "tp2-pp2-dp2")),
}
PROOFS = [Proofs("megatron-core", [*_LINES, Release("0.16.0rc0.dev100085")], _HALVES)]
FUZZ = Fuzz(CASES, 3, r"num_layers|zeros|tracker|track_names|force_initialize", examples=60)

_PIPELINE = hung_jobs.group("7", "PIPELINE_MODEL_PARALLEL_GROUP")
_AT = (
    "megatron/core/transformer/moe/moe_utils.py::reduce_aux_losses_tracker_across_ranks",
    "megatron/core/transformer/moe/moe_utils.py::track_moe_metrics",
)
_PIPELINES = [hung_jobs.group(str(at), "PIPELINE_MODEL_PARALLEL_GROUP", at, at + 2) for at in (0, 1)]


def _stages(*lengths: int) -> Job:
    """Return a job of two pipelines, whose ranks issue an all-reduce of these sizes."""
    return job([rank(issued(_PIPELINES[at % 2], 1, "all_reduce", size, at=_AT)) for at, size in enumerate(lengths)])


HANGS = [
    HungJob("two pipelines", _stages(61, 61, 62, 62)),
    HungJob("the stages of two pipelines differ the other way", _stages(61, 62, 62, 61)),
    HungJob("one MTP layer", sizes(_PIPELINE, "all_reduce", _AT, 61, 62, 62, 62)),
    HungJob("not the first one", sizes(_PIPELINE, "all_reduce", _AT, 8, 10, 10, 10, number=4), ""),
    HungJob("late", job([*[rank(issued(_PIPELINE, 1, "all_reduce", 62, at=_AT))] * 3, rank(at=IDLE)]), ""),
    HungJob("all ranks agree", sizes(_PIPELINE, "all_reduce", _AT, 62, 62, 62, 62), ""),
]
