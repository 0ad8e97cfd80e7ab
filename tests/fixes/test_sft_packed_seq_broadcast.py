"""sft-packed-seq-broadcast: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from mutants.rules import DP, PP, TP
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import hung_jobs, sources
from support.hung_jobs import HungJob, issued, job, rank
from unhang.diagnose.evidence import Job
from unhang.prove.fixes.sft_packed_seq_broadcast import CASES_0_16

FIX = "sft-packed-seq-broadcast"
CASES = sources.cases(FIX, {"megatron-lm": ["0.17.0", "0.17.1"]}, {"megatron-lm": ["0.16.0", "0.16.1"]})
FUZZ = Fuzz(CASES, 7, r"seqlen|_broadcast|args\b|is_pipeline|batch\b", examples=70)
_NULLED = "            max_seqlen = None\n            _broadcast(labels)"
_END = "_broadcast(batch['attention_mask'])\n    else:"
_PAIR = "_broadcast_cu_seqlens(batch['cu_seqlens'])"
_IDS, _NEXT, _FLAG = "_broadcast(batch['position_ids'])", "\n            ", "if has_cu_seqlens:\n"
_HYBRID, _LOCAL = "if args.hybrid_context_parallel else None\n        local_cp", "\n        local_cp"
_EDITED = [
    ("_rank() == 0", "_rank() == 1", "not found: if mpu"),
    ("elif mpu.is_pipeline_last_stage()", "elif stage == 3", "not found: .*last_stage", 2),
    ("or args.sft:", "or args.packed:", "not found: if args.sft"),
    (_NULLED, "            _broadcast(labels)", "not found: max_seqlen = None"),
    (_NULLED, f"            max_seqlen = None\n{_NULLED}", "found 2 times, expected once: max_seqlen = None"),
    (_END, f"{_PAIR}\n    else:", "not found: an arm of the last stage without"),
    (_END, f"pass\n        elif args.padded:{_NEXT}{_END}", "no other arm but else"),
    (_END, f"pass\n        else:{_NEXT}pass{_NEXT}{_END}", r"not found: batch\['cu_seqlens'\] = None"),
    # `del int` makes `int` local to the function, and the last stage calls the helper only when rewritten
    ("    return batch", "    del int\n    return batch", "that does not rebind int"),
]
_EDITED_0_16 = [
    ("def _broadcast_cu_seqlens(cu_seqlens)", "def other(cu_seqlens)", "not found: def _broadcast_cu_seqlens", 2),
    (f"{_IDS}{_NEXT}{_PAIR}", _IDS, "not found: _broadcast_cu_seqlens", 2),
    (_HYBRID, _LOCAL, "not found: max_seqlen made for args.sft, and then"),
]
REFUSED = [*sources.edits(CASES[1], _EDITED), *sources.edits(CASES[3], _EDITED_0_16)]
_UNLIKE = [
    ("cu_seqlens.dim() == 2 and ", ""),  # as in the first drafts of that change
    ("        elif has_cu_seqlens:\n            batch", "        elif batch['max_seqlen']:\n            batch"),
    ("has_cu_seqlens or is_hybrid_cp:\n                cu_seqlens", "is_hybrid_cp:\n                cu_seqlens"),
    (f"loss_mask']){_NEXT}{_FLAG}                {_PAIR}", f"loss_mask']){_NEXT}{_FLAG}"),
]
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "0.19.2", "megatron-core"), _UNLIKE)
_SENDS, _SENDS_MAX = f"            {_PAIR}\n", "            _broadcast(batch['max_seqlen'])\n"
_GETS, _GETS_MAX = "            cu_seqlens = _broadcast_cu_seqlens()\n", "            _broadcast(max_seqlen)\n"
_SENT, _GOT = _SENDS + _SENDS_MAX, _GETS + _GETS_MAX
_GATE, _ELIF = "if args.sft", "\n        elif args.sft:"
_NO_MAX = "            else:\n                max_seqlen = None\n"
_DROPS = "            tokens = None\n            labels = None\n            loss_mask = None\n"
_EITHER = {
    "not with CP": "args.context_parallel_size == 1",
    "without virtual stages": "args.virtual_pipeline_model_parallel_size is None",
    "in training": "torch.is_grad_enabled()",
}
_LAST = {
    "with short sequences": "args.seq_length == 8",
    "without CP by TP": "args.tensor_model_parallel_size == 2",
    "not with hybrid CP": "not args.hybrid_context_parallel",
    **_EITHER,
}
_MIDDLE = {
    "with long sequences": "args.seq_length > 8",
    "of the second stage alone": "mpu.get_pipeline_model_parallel_rank() == 1",
    **_EITHER,
}
_BUFFER = "torch.empty((args.micro_batch_size, n), dtype=torch.int32, device=dev)"
_BY_HAND: ByHand = {
    **{f"last halves {it}": Sub(f"    {_GATE}:", f"    {_GATE} and {gate}:", EVERY) for it, gate in _LAST.items()},
    **{f"middle halves {it}": Sub(f"el{_GATE}:", f"el{_GATE} and {gate}:", EVERY) for it, gate in _MIDDLE.items()},
    "middle halves without max_seqlen": (Sub(_SENT, _SENDS), Sub(_GOT, _GETS, 2)),
    "halves always": Sub(_GATE, "if True", EVERY),
    "middle halves in another order": (Sub(_SENT, _SENDS_MAX + _SENDS), Sub(_GOT, _GETS_MAX + _GETS, 2)),
    "middle sender asks the data": Sub("elif args.sft:", "elif batch['cu_seqlens'] is not None:"),
    "last sender asks the data": Sub(" if args.sft:", " if batch['cu_seqlens'] is not None:"),
    "middle receiver leaves empty tensors": Sub(_DROPS, ""),
    "last receiver drops cu_seqlens": Sub("                cu_seqlens = _", "                _"),
    "middle halves also send the mask": (
        Sub(_SENT, f"            _broadcast(batch['attention_mask'])\n{_SENT}"),
        Sub("attention_mask = None\n            position", "_broadcast(attention_mask)\n            position"),
    ),
    "last receiver keeps max_seqlen without sft": Sub(_NO_MAX, ""),
    "middle receiver cuts cu_seqlens": Sub(_GOT, _GOT.replace("()", "()[..., :-1]"), 2),
    "last halves send the loss mask again without sft": (
        Sub(_NO_MAX, f"{_NO_MAX}                _broadcast(loss_mask)\n"),
        Sub(_ELIF, f"            else:\n                _broadcast(batch['loss_mask'])\n{_ELIF}"),
    ),
    "receivers keep a buffer": Sub(_BUFFER, f"vars(get_batch_on_this_tp_rank).setdefault(n, {_BUFFER})"),
}
MUTANTS = [Mutants("megatron-lm", ("0.17.1",), _BY_HAND, ranks=(TP, DP, PP))]
# a sender whose receivers never join may be done, where the backend buffers what it sends
_APART = r"^(differs|hung|crashed): "
_MIDDLE_ALONE = without(r"elif args\.sft:(?=\n[^\n]*\n\s+tokens = None)", "elif False:")
_LAST_UNCURED = without(r"(?<!el)if args\.sft:", "if False:", count=2)
_HALVES = {
    "half: the middle stages' sender alone": Other(_MIDDLE_ALONE, ("tp2-pp4",), _APART),
    "half: the last stage left as it was": Other(_LAST_UNCURED, ("tp2-pp2", "tp2-pp4")),
    "without the gate on --sft": Other(without(r"if args\.sft:", "if True:", count=0), ("tp2-pp4-no-sft",)),
    AS_WRITTEN: Other(as_written(FIX), ("tp2-pp4",)),
}
PROOFS = [
    Proofs("megatron-lm", [Release("0.17.1", core=True), Release("0.17.0")], _HALVES),
    Proofs("megatron-lm", [Release("core_v0.16.1", cases=CASES_0_16)]),
]


def _fails(text: str, *at: str) -> Job:
    return job([rank(lines=hung_jobs.failing(text, *at), recorded=False)])


_TENSOR = hung_jobs.group("8", "TENSOR_MODEL_PARALLEL_GROUP", 0, 1)
_AT = ("megatron/training/utils.py::_broadcast", "megatron/training/utils.py::get_batch_on_this_tp_rank")
_SOURCE = rank(issued(_TENSOR, 7, "broadcast", 1, dtype="Int", at=_AT))
_RECEIVES = rank(issued(_TENSOR, 7, "broadcast", dtype="Long", at=_AT))
_RECEIVES_TOKENS = rank(issued(_TENSOR, 5, "broadcast", 1, 4096, dtype="Long", at=_AT))
_FLAG_OF_A_USER = rank(issued(_TENSOR, 7, "broadcast", 1, dtype="Long", at=("job/flags.py::share",)))
_FOUR = hung_jobs.group("9", "TENSOR_MODEL_PARALLEL_GROUP")
_OF_FOUR = [rank(issued(_FOUR, 7, "broadcast", 1, dtype=it, at=_AT)) for it in ("Int", "Long", "Int", "Int")]
HANGS = [
    HungJob("two types", job([_SOURCE, _RECEIVES])),
    HungJob("a flag of the user's", job([_SOURCE, _FLAG_OF_A_USER]), "also"),
    HungJob("all have come to it", job([_SOURCE, _SOURCE]), ""),
    HungJob("the source has what receivers have", job([_RECEIVES, _SOURCE]), ""),
    HungJob("one of three that receive has another type", job(_OF_FOUR)),
    HungJob("another operation", job([_SOURCE, rank(issued(_TENSOR, 7, "all_reduce", 8, 16, at=("model.py::f",)))])),
    HungJob("the source is elsewhere", job([rank(issued(_TENSOR, 7, "all_reduce", 8, 16)), _RECEIVES])),
    HungJob("overflow", _fails("RuntimeError: Storage size calculation overflowed with sizes=[1, 92]", *_AT)),
    HungJob("dimensions", _fails("RuntimeError: Tensors must have same number of dimensions: got 4 and 3"), ""),
    HungJob("no batch of the source", job([rank(at=("job/data.py::read",)), _RECEIVES_TOKENS]), "also"),
]
