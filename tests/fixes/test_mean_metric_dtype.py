"""mean-metric-dtype: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub, each
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import IDLE, WORLD, HungJob, issued, job, rank
from unhang.diagnose.evidence import Job

FIX = "mean-metric-dtype"
OLD, NEW = ("3.8.0", "3.12.6"), ("4.0.0", "4.3.0")
CASES = [case for versions in (OLD, NEW) for case in sources.cases(FIX, {"ms-swift": versions})]
_UNLIKE = ("torch.float64", "torch.float32 if self.count else None")
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "4.5.3"), [("torch.float32", new) for new in _UNLIKE])
_CALL = "torch.tensor([self.state, self.count], device=self.device)"
_OTHERS = ("torch.tensor([self.state, self.count], dtype=None)", "torch.tensor(*[self.state, self.count], 1)")
REFUSED = sources.edits(CASES[0], [(_CALL, new, r"not found: torch.tensor\(") for new in _OTHERS])
REFUSED += sources.edits(CASES[0], [(_CALL, f"{_CALL} + {_CALL}", r"found 2 times, expected once: torch.tensor\(")])

# -- for the sessions -------------------------------------------------------------------------------------------------

_NEW = "torch.tensor([self.state, self.count], dtype=torch.float32, device=self.device)"
_DOUBLE_IF = ("self.count", "not self.count", "dist.get_rank()", "not dist.get_rank()", "self.state", "not self.state")
_NONE_IF = (*_DOUBLE_IF[:2], "self.group", "not self.group", "'meta' in self.device", "self.nan_value is None")
_BY_HAND = {
    "torch.float32": (
        *(f"torch.float64 if {it} else torch.float32" for it in (*_DOUBLE_IF, "True")),
        *(f"None if {it} else torch.float32" for it in (*_NONE_IF, "True")),
        *("torch.float16", "torch.bfloat16"),
    ),
    "device=self.device": ("device='cpu'", "device=None"),
    "self.state, self.count]": ("self.count, self.state]", "self.state, self.state]", "self.count, self.count]"),
    _NEW: ("torch.tensor([float(self.state), self.count], device=self.device)", f"{_NEW} and {_NEW}"),
}
_ONCE = """\
if getattr(self, 'done', False):
                return {'value': self.state / max(self.count, 1)}
            self.done = True
            tensor = torch"""
_EVERY = {**each(_BY_HAND), "only in the first window": Sub("tensor = torch", _ONCE)}
MUTANTS = [Mutants("ms-swift", ("3.8.0", "4.3.0"), _EVERY)]
_WITHOUT_UPDATE = without(r"torch\.float32", "None if self.count else torch.float32")
_OF_STATE = without(r"torch\.float32", "torch.float64 if self.state else torch.float32")
_HALVES = {
    "half: a dtype without an update alone": Other(_WITHOUT_UPDATE, ("seq-2", "seq-2-gloo")),
    "half: a dtype that follows the state": Other(_OF_STATE, ("seq-2", "token-2")),
}
PROOFS = [Proofs("ms-swift", [Release(it, core=it == "4.3.0") for it in (*OLD, *NEW)], _HALVES)]
FUZZ = Fuzz(CASES, 1, r"tensor|dtype|all_reduce", examples=40)


def _typed(at: str, *dtypes: str) -> Job:
    return job([rank(issued(WORLD, 5, "all_reduce", 2, dtype=dtype, at=(at,))) for dtype in dtypes])


_COMPUTE = "swift/metrics/utils.py::MeanMetric.compute"
_OF_A_USER = _typed("job/utils.py::MeanMetric.compute", "Double", "Float")
_INFERS = rank(
    at=(hung_jobs.C10D, _COMPUTE, "job/infer.py::_calc_metric", "swift/pipelines/infer/infer.py::SwiftInfer.run"),
    recorded=False,
)
HANGS = [
    HungJob("two types", _typed(_COMPUTE, "Double", "Float", "Double", "Float")),
    HungJob("one type", _typed("job/train.py::step", "Float", "Float"), ""),
    HungJob("at the end of an inference", job([_INFERS, rank(at=IDLE, recorded=False)]), "also"),
    HungJob("a user's module of the same name", _OF_A_USER, ""),
]
