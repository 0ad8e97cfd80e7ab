"""mcore-save-barrier: its anchor, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank

FIX = "mcore-save-barrier"
CASES = sources.cases(FIX, {"ms-swift": ["4.1.0", "4.1.2"]})
_LOADS = "return_dummy_model=True"
REFUSED = sources.edits(
    sources.case(FIX, "4.1.2"),
    [
        (_LOADS, "load_model=True", "not found"),
        ("= GPTBridge.save_weights", f"= get_model_processor({_LOADS})", "found 2 times"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_OFF = "disable_safe_ddp_context_use_barrier"
_WITH = f"with torch.device('meta'), {_OFF}():"
_LOAD = f"=args.model_type, {_LOADS}"
_ROW = "\n" + 16 * " "
BY_HAND = {
    "not entered": (Sub(_WITH, f"with torch.device('meta'):{_ROW}    {_OFF}()"),),
    "left before": (Sub(_WITH, f"with {_OFF}():{_ROW}    pass{_ROW}with torch.device('meta'):"),),
    "never left": (Sub(_WITH, f"off = self.off = {_OFF}(){_ROW}off.__enter__(){_ROW}with torch.device('meta'):"),),
    "entered after": (Sub(f"{_LOAD})[0]", f"{_LOAD})[0]{_ROW}with {_OFF}():{_ROW}    pass"), Sub(f", {_OFF}()", "")),
    "on another device": (Sub("'meta'", "'cpu'"),),
    "on no device": (Sub("torch.device('meta'), ", ""),),
    "with weights": (Sub(f", {_LOADS}", ""),),
    "of another type": (Sub("model_type=args.model_type", "model_type=None"),),
    "from another folder": (Sub("args.model_dir", "output_dir"),),
    "its processor": (Sub(")[0]", ")[1]"),),
    "both": (Sub(")[0]", ")"),),
    "loaded twice": (Sub(f"{_LOAD})[0]", f"{_LOAD})[0]{_ROW}    get_model_processor(args.model_dir)"),),
    "loaded again without": (Sub(f"{_LOAD})[0]", f"{_LOAD})[0]{_ROW}get_model_processor(args.model_dir)"),),
    "kept elsewhere": (Sub("self.hf_model", "self.model"),),
    "of another module": (Sub("swift.utils", "swift.model"),),
    "another context": (Sub(f"swift.utils import {_OFF}", f"contextlib import nullcontext as {_OFF}"),),
    "a barrier more": (Sub(f"{_LOAD})[0]", f"{_LOAD})[0]{_ROW}    dist.barrier()"),),
    "a barrier less": (Sub("        dist.barrier()", "        if not is_master():\n            dist.barrier()"),),
}
MUTANTS = [Mutants("ms-swift", ("4.1.0", "4.1.2"), BY_HAND)]
_HANGS = "hung: rank 0 waits in barrier .* in safe_ddp_context"
_UNENTERED = Other(without(rf", {_OFF}\(\)", ""), ("two",), _HANGS)
_LEFT_BEFORE = Other(without(rf"with (.*), ({_OFF}\(\)):", rf"with \2:{_ROW}    pass{_ROW}with \1:"), ("two",), _HANGS)
_HALVES = {"half: imported, and not entered": _UNENTERED, "half: left before the model is loaded": _LEFT_BEFORE}
PROOFS = [Proofs("ms-swift", [Release("4.1.2", core=True), Release("4.1.0")], _HALVES)]
FUZZ = Fuzz(CASES, 1, "disable_safe_ddp_context_use_barrier|get_model_processor|torch.device", examples=40)
_C10D = "torch/distributed/distributed_c10d.py::barrier"
_CONTEXT = "swift/utils/torch_utils.py::safe_ddp_context"
_AT = (_C10D, _CONTEXT, "contextlib.py::__exit__", "swift/megatron/init.py::_patch_mcore_bridge.save_weights")
_TRAINS = rank(issued(WORLD, 6, "all_reduce", 2, at=("megatron/core/optimizer/clip_grads.py::get_grad_norm_fp32",)))
_WAITS = rank(issued(WORLD, 6, "barrier", 1, at=_AT))
_GATHERS = rank(issued(WORLD, 6, "all_gather", 8, at=("mcore_bridge/bridge.py::save_weights", _AT[3])))
_LEFT = issued(WORLD, 5, "barrier", 1, at=_AT[3:], done=True)
_SAVED = _TRAINS._replace(last=(_LEFT,))
_ALONE = rank(issued(WORLD, 1, "barrier", 1, at=_AT))
_ELSEWHERE = rank(issued(hung_jobs.group("1", "DATA_PARALLEL_GROUP"), 1, "all_reduce", 8, at=("swift/a.py::step",)))
_SAVES, _PAST = (rank(at=at, recorded=False) for at in (_AT, (hung_jobs.C10D, "job/train.py::step")))
_BELOW = rank(at=(_C10D, "mcore_bridge/bridge.py::save_weights", _AT[3]), recorded=False)
HANGS = [  # without frames, it is any barrier of any job
    HungJob("dumps: the others are late", job([_WAITS, rank(), rank(), rank()])),
    HungJob("stacks", job([_SAVES, *[_PAST] * 3])),
    HungJob("one is gone", job([_SAVES, _PAST, rank(recorded=False)._replace(process="gone")]), "also"),
    HungJob("stacks: the others are in the save", job([_SAVES, *[_BELOW] * 2]), "also"),
    HungJob("dumps: one is in the save", job([_WAITS, _GATHERS, _TRAINS]), "also"),
    HungJob("the others left this save", job([_WAITS, *[_SAVED] * 3])),
    HungJob("rank 0 saves alone, first of all", job([_ALONE, *[_ELSEWHERE] * 3])),
    HungJob("a loader elsewhere", job([rank(issued(WORLD, 6, "barrier", 1, at=_AT[:3])), rank(), rank()]), ""),
]
