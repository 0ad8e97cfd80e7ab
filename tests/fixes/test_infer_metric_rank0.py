"""infer-metric-rank0: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, in_file, untouched
from support import hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank

FIX = "infer-metric-rank0"
CALC, ROUGE = "SwiftInfer._calc_metric", "compute_rouge_bleu"
CASES = [case for name in (CALC, ROUGE) for case in sources.cases(FIX, {"ms-swift": ["3.12.6"]}, function=name)]
_REDUCED = ".compute()['value']"
_EDITED = [(_REDUCED, ".compute(True)['value']", "not found"), (_REDUCED, f"{_REDUCED} + v{_REDUCED}", "found 2 times")]
REFUSED = [it for name in (CALC, ROUGE) for it in sources.edits(sources.case(FIX, "4.6.0", function=name), _EDITED)]

# -- for the sessions -------------------------------------------------------------------------------------------------

_ONE = "mean_metric.state / mean_metric.count if mean_metric.count else mean_metric.nan_value"
_CALC_BY_HAND = {
    _ONE: (
        *("mean_metric.compute()['value'] if preds else mean_metric.nan_value", f"(mean_metric.compute(), {_ONE})[1]"),
        *("mean_metric.state / mean_metric.count", "mean_metric.state / max(mean_metric.count, 1)"),
        *("mean_metric.state / mean_metric.count if mean_metric.count else None", "mean_metric.nan_value"),
        *(_ONE.replace("if mean_metric.count", f"if {it}") for it in ("mean_metric.state", "preds", "data_list")),
        *("mean_metric.state", "mean_metric.count", _ONE.replace("mean_metric", "MeanMetric()")),
        *(_ONE.replace(" / ", " // "), _ONE.replace("mean_metric.count if", "(mean_metric.count + 1) if")),
        *(f"(mean_metric.update(0), {_ONE})[1]", f"{{'value': {_ONE}}}", f"str({_ONE})"),
    ),
    "'acc'": ["'mean'"],
}
_EACH = "v.state / v.count if v.count else v.nan_value"
_ROUGE_BY_HAND = {
    f"({_EACH})": (
        *("(v.compute()['value'] if v.count else v.nan_value)", "(v.state / v.count)", "(v.state / max(v.count, 1))"),
        f"(v.compute()['value'] if k == 'bleu-4' else ({_EACH}))",
        *(f"({_EACH.replace('if v.count', f'if {it}')})" for it in ("v.state", "preds", "labels")),
        *("(v.state / len(preds) if preds else v.nan_value)", f"({_EACH})".replace("v.", "score_dict['rouge-1'].")),
    ),
    f"({_EACH}) * 100": ["v.state / v.count * 100 if v.count else v.nan_value"],
    "score_dict.items()}": ["score_dict.items() if v.count}"],
    f"round(({_EACH}) * 100, 6)": [f"({_EACH}) * 100"],
}
_BY_HAND = {CALC: each(_CALC_BY_HAND), ROUGE: each(_ROUGE_BY_HAND)}
MUTANTS = [Mutants("ms-swift", ("3.12.6", "4.6.0"), by_hand, function=name) for name, by_hand in _BY_HAND.items()]


def _on_every_rank(path: str, before: bytes, after: bytes) -> bytes:
    """Let every rank compute the metric."""
    return before.replace(b"if not is_master():", b"if False:")


def _calc_alone(path: str, before: bytes, after: bytes) -> bytes:
    return after if path.endswith("/infer.py") else before


_HANGS = r"hung: rank 0 waits in all_reduce at swift/[\w/]+\.py:\d+ in compute; rank 1 done"
_FAILS = "crashed: rank 1 raised FileNotFoundError"
_HALVES = {
    "half: _calc_metric alone": Other(_calc_alone, ("rouge-2",), _HANGS),
    "half: compute_rouge_bleu alone": Other(in_file("infer.py", untouched), ("acc-2",), _HANGS),
    "every rank computes the metric": Other(_on_every_rank, ("acc-2", "rouge-2"), _FAILS),
}
PROOFS = [
    Proofs("ms-swift", [Release(it, core=it == "4.6.0") for it in ("4.6.0", "4.0.0", "3.12.6", "3.8.0")], _HALVES)
]
FUZZ = Fuzz(CASES, 3, r"compute\(\)|\.state|\.count|nan_value|mean", examples=80)

_AT = (
    hung_jobs.C10D,
    "swift/metrics/utils.py::MeanMetric.compute",
    "swift/pipelines/infer/infer.py::SwiftInfer._calc_metric",
)
_ALONE, _STACK = rank(issued(WORLD, 5, "all_reduce", 2, at=_AT)), rank(at=_AT, recorded=False)
_DONE = rank(at=("unhang/prove/ranks/gloo.py::_rank",), recorded=False)
_SHUTS_DOWN = rank(at=("threading.py::_shutdown",), recorded=False)
_ENDS = (hung_jobs.C10D.replace("all_reduce", "destroy_process_group"),)
_ENDS_GROUPS = rank(issued(WORLD, 4, "all_reduce", 2, at=("swift/a.py::b",), done=True), at=_ENDS)
_SAYS_SO = rank(recorded=False)._replace(ended=True)
_FAILED = _SHUTS_DOWN._replace(messages=tuple(hung_jobs.failing("OSError: [Errno 28] No space left on device")))
_LATE = rank(at=("swift/infer_engine/transformers_engine.py::infer", "swift/pipelines/infer/infer.py::SwiftInfer.run"))
HANGS = [
    HungJob("dumps: the others have ended, were killed or are late", job([_ALONE, rank(), None, rank()])),
    HungJob("the others shut down", job([_ALONE, *[_SHUTS_DOWN] * 3])),
    HungJob("the others end their groups", job([_ALONE, *[_ENDS_GROUPS] * 3])),
    HungJob("the others say that they have done all", job([_ALONE, *[_SAYS_SO] * 3])),
    HungJob("one of them has failed", job([_ALONE, *[_SHUTS_DOWN] * 2, _FAILED]), "also"),
    HungJob("stacks", job([_STACK, _DONE, _DONE, _DONE])),
    HungJob("one generates yet", job([_ALONE, _LATE, _DONE, _DONE]), "also"),
]
