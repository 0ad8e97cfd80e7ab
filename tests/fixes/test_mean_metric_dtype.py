"""mean-metric-dtype: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import IDLE, WORLD, HungJob, issued, job, rank
from unhang.diagnose.evidence import Job

FIX = "mean-metric-dtype"
OLD, NEW = ("3.8.0", "3.12.6"), ("4.0.0", "4.3.0")
CASES = [case for versions in (OLD, NEW) for case in sources.cases(FIX, {"ms-swift": versions})]
FIXED = sources.cases(FIX, {"ms-swift": ["4.5.3", "4.6.0"]}, state="fixed")
BETWEEN = "shape-09036cdcc337017d"  # in no release
_OLDER = sources.cases(FIX, {"ms-swift": ["3.7.3"]}, state="not-affected")


UNLIKE_UPSTREAM = sources.edits(
    FIXED[0],
    [
        ("dtype=torch.float32", f"dtype={it}")
        for it in ("torch.float64", "None", "torch.float32 if self.count else None")
    ],
)


_CALL = "torch.tensor([self.state, self.count], device=self.device)"


REFUSED = sources.edits(
    CASES[0],
    [
        (_CALL, "torch.tensor([self.state, 1], device=self.device)", r"not found: torch.tensor\("),
        (_CALL, "torch.tensor([self.state, self.count], dtype=None)", r"not found: torch.tensor\("),
        (_CALL, "torch.tensor([self.state, self.count], **self.how)", r"not found: torch.tensor\("),
        (_CALL, "torch.tensor(*[self.state, self.count], 1)", r"not found: torch.tensor\("),
        (_CALL, f"{_CALL} + {_CALL}", r"found 2 times, expected once: torch.tensor\("),
    ],
)


# -- for the sessions -------------------------------------------------------------------------------------------------

_NEW = "torch.tensor([self.state, self.count], dtype=torch.float32, device=self.device)"


_tensor, _dtype = partial(Sub, _NEW), partial(Sub, "torch.float32")
_BY_HAND = {
    "float64": _dtype("torch.float64"),
    "no dtype": _dtype("None"),
    "float64 with an update": _dtype("torch.float64 if self.count else torch.float32"),
    "float64 without an update": _dtype("torch.float32 if self.count else torch.float64"),
    "inferred with an update": _dtype("None if self.count else torch.float32"),
    "inferred without an update": _dtype("torch.float32 if self.count else None"),
    "float64 on rank 0": _dtype("torch.float32 if dist.get_rank() else torch.float64"),
    "float64 on rank 1": _dtype("torch.float64 if dist.get_rank() else torch.float32"),
    "float64 where the state is zero": _dtype("torch.float32 if self.state else torch.float64"),
    "float64 where the state is not zero": _dtype("torch.float64 if self.state else torch.float32"),
    "inferred without a group": _dtype("torch.float32 if self.group is not None else None"),
    "inferred with a group": _dtype("None if self.group is not None else torch.float32"),
    "inferred on a GPU": _dtype("None if 'cuda' in self.device else torch.float32"),
    "inferred without a default": _dtype("torch.float32 if self.nan_value is not None else None"),
    "another device": Sub("device=self.device", "device='cpu'"),
    "no device": Sub(", device=self.device", ""),
    "the count first": Sub("self.state, self.count]", "self.count, self.state]"),
    "the state twice": Sub("self.state, self.count]", "self.state, self.state]"),
    "the count twice": Sub("self.state, self.count]", "self.count, self.count]"),
    "the mean in place of the state": Sub("[self.state,", "[self.state / max(self.count, 1),"),
    "without the count": Sub("self.state, self.count]", "self.state, 0]"),
    "without the state": Sub("[self.state,", "[0.0,"),
    "a Python float alone": _tensor("torch.tensor([float(self.state), self.count], device=self.device)"),
    "made twice": Sub(f"tensor = {_NEW}", f"tensor = {_NEW} and {_NEW}"),
    "zero where there was no update": _tensor(f"{_NEW} if self.count else torch.tensor([0, 0], device=self.device)"),
}


MUTANTS = [Mutants("ms-swift", ("3.8.0", "4.3.0"), _BY_HAND)]
PROOFS = [
    Proofs(
        "ms-swift",
        [Release(version, core=version == "4.3.0") for version in (*OLD, *NEW)],
        {
            "half: a dtype without an update alone": Other(
                without(r"torch\.float32", "None if self.count else torch.float32"), ("seq-2", "seq-2-gloo")
            ),
            "half: a dtype that follows the state": Other(
                without(r"torch\.float32", "torch.float64 if self.state else torch.float32"), ("seq-2", "token-2")
            ),
        },
    )
]
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
