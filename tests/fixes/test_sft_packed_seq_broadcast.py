"""sft-packed-seq-broadcast: its rewrite and anchors."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_affected_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert [(item.state, item.note) for item in sources.same_result(source)] == [("affected", "")]


_WHOLE = "        if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank:\n            "
_NULLED = "            max_seqlen = None\n            _broadcast(labels)"
_END = "_broadcast(batch['attention_mask'])\n    else:"
_PAIR = "_broadcast_cu_seqlens(batch['cu_seqlens'])"
_IDS, _NEXT, _FLAG = "_broadcast(batch['position_ids'])", "\n            ", "if has_cu_seqlens:\n"
_HYBRID, _LOCAL = "if args.hybrid_context_parallel else None\n        local_cp", "\n        local_cp"
_EDITED = [
    ("_rank() == 0", "_rank() == 1", "not found: if mpu"),
    (f"{_WHOLE}_broadcast(tokens)", f"{_WHOLE}pass\n{_WHOLE}pass", "found 2 times, expected once: if args.pipe"),
    ("elif mpu.is_pipeline_last_stage()", "elif stage == 3", "not found: .*last_stage", 2),
    ("or args.sft:", "or args.packed:", "not found: if args.sft"),
    (_NULLED, "            _broadcast(labels)", "not found: max_seqlen = None"),
    (_NULLED, f"            max_seqlen = None\n{_NULLED}", "found 2 times, expected once: max_seqlen = None"),
    (_END, f"{_PAIR}\n    else:", "not found: an arm of the last stage without"),
    ("        batch = {'tokens': tokens", "        batch = 3, {'tokens': tokens", "not found: batch = {...}"),
    (_END, f"pass\n        elif args.padded:{_NEXT}{_END}", "no other arm but else"),
    (_END, f"pass\n        else:{_NEXT}pass{_NEXT}{_END}", r"not found: batch\['cu_seqlens'\] = None"),
    # `del int` makes `int` local to the function, and the last stage calls the helper only when rewritten
    ("    return batch", "    del int\n    return batch", "that does not rebind int"),
]
_EDITED_0_16 = [
    ("def _broadcast_cu_seqlens(cu_seqlens)", "def other(cu_seqlens)", "not found: def _broadcast_cu_seqlens", 2),
    (f"{_IDS}{_NEXT}{_PAIR}", _IDS, "not found: _broadcast_cu_seqlens", 2),
    (f"{_IDS}{_NEXT}{_PAIR}", f"{_PAIR}{_NEXT}{_PAIR}", "found 2 times, expected once: _broadcast_cu_seqlens", 2),
    (_HYBRID, _LOCAL, "not found: max_seqlen made for args.sft, and then"),
]
REFUSED = [*sources.edits(CASES[1], _EDITED), *sources.edits(CASES[3], _EDITED_0_16)]
_UNLIKE = [
    ("cu_seqlens.dim() == 2 and ", ""),  # as in the first drafts of that change
    ("        elif has_cu_seqlens:\n            tokens", "        elif cp_size > 1:\n            tokens"),
    ("        elif has_cu_seqlens:\n            batch", "        elif batch['max_seqlen']:\n            batch"),
    ("has_cu_seqlens or is_hybrid_cp:\n                cu_seqlens", "is_hybrid_cp:\n                cu_seqlens"),
    (f"loss_mask']){_NEXT}{_FLAG}                {_PAIR}", f"loss_mask']){_NEXT}{_FLAG}"),
]
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "0.19.2", "megatron-core"), _UNLIKE)
_SENT = "            _broadcast_cu_seqlens(batch['cu_seqlens'])\n            _broadcast(batch['max_seqlen'])\n"
_RECEIVED = "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n\n        batch = {"
_ELIF = "\n        elif args.sft:"
_GATE = "            if args.sft:\n            "
_NO_MAX = "            else:\n                max_seqlen = None\n"
_DROPS = "            tokens = None\n            labels = None\n            loss_mask = None\n"
_SENDER = f"        elif args.sft:\n            {{}}\n{_SENT}".format(
    "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too"
)


def _last(gate: str) -> Sub:
    return Sub("            if args.sft:", f"            if args.sft and {gate}:", EVERY)


def _middle(gate: str) -> Sub:
    return Sub("        elif args.sft:", f"        elif args.sft and {gate}:", EVERY)


_BY_HAND: ByHand = {
    "middle halves without max_seqlen": (
        Sub(_SENDER, _SENDER.replace("            _broadcast(batch['max_seqlen'])\n", "")),
        Sub(_RECEIVED, _RECEIVED.replace("            _broadcast(max_seqlen)\n", "")),
    ),
    "last halves with short sequences": _last("args.seq_length == 8"),
    "middle halves with long sequences": _middle("args.seq_length > 8"),
    "last halves without CP by TP": _last("args.tensor_model_parallel_size == 2"),
    "last halves never": _last("False"),
    "middle halves never": _middle("False"),
    "halves always": Sub("if args.sft:", "if True:", EVERY),
    "middle halves in another order": (
        Sub(_SENDER, "\n".join([*_SENDER.split("\n")[:2], *_SENDER.split("\n")[3:1:-1], ""])),
        Sub(_RECEIVED, "\n".join([*_RECEIVED.split("\n")[1::-1], *_RECEIVED.split("\n")[2:]])),
    ),
    "middle sender asks the data": Sub("elif args.sft:", "elif batch['cu_seqlens'] is not None:"),
    "last sender asks the data": Sub(" if args.sft:", " if batch['cu_seqlens'] is not None:"),
    "middle receiver leaves empty tensors": Sub(_DROPS, ""),
    "second stage alone of the middle ones": _middle("mpu.get_pipeline_model_parallel_rank() == 1"),
    "last receiver drops cu_seqlens": Sub(f"{_GATE}    cu_seqlens = ", f"{_GATE}    "),
    "last halves not with CP": _last("args.context_parallel_size == 1"),
    "middle halves not with CP": _middle("args.context_parallel_size == 1"),
    "last halves on DP rank 0": _last("mpu.get_data_parallel_rank() == 0"),
    "last halves not with hybrid CP": _last("not args.hybrid_context_parallel"),
    "middle halves also send the mask": (
        Sub(_SENT, f"            _broadcast(batch['attention_mask'])\n{_SENT}"),
        Sub("attention_mask = None\n            position", "_broadcast(attention_mask)\n            position"),
    ),
    "middle halves also send the tokens": (
        Sub(_SENT, f"            _broadcast(batch['tokens'])\n{_SENT}"),
        Sub(_DROPS, f"            _broadcast(tokens)\n{_DROPS}"),
    ),
    "last receiver keeps max_seqlen without sft": Sub(_NO_MAX, ""),
    "last receiver drops max_seqlen with sft": Sub(_NO_MAX, "            max_seqlen = None\n"),
    "middle receiver cuts cu_seqlens": Sub(_RECEIVED, _RECEIVED.replace("seqlens()", "seqlens()[..., :-1]")),
    "last halves send the loss mask again without sft": (
        Sub(_NO_MAX, f"{_NO_MAX}                _broadcast(loss_mask)\n"),
        Sub(_ELIF, f"            else:\n                _broadcast(batch['loss_mask'])\n{_ELIF}"),
    ),
}
MUTANTS = [Mutants("megatron-lm", ("0.17.1",), _BY_HAND, ranks=(TP, DP, PP))]
# a sender whose receivers never join may be done, where the backend buffers what it sends
_APART = r"^(differs|hung|crashed): "
PROOFS = [
    Proofs(
        "megatron-lm",
        [Release("0.17.1", core=True), Release("0.17.0")],
        {
            "half: the middle stages' sender alone": Other(
                without(r"elif args\.sft:(?=\n[^\n]*\n\s+tokens = None)", "elif False:"), ("tp2-pp4",), _APART
            ),
            "half: the last stage left as it was": Other(
                without(r"(?<!el)if args\.sft:", "if False:", count=2), ("tp2-pp2", "tp2-pp4")
            ),
            "without the gate on --sft": Other(without(r"if args\.sft:", "if True:", count=0), ("tp2-pp4-no-sft",)),
            AS_WRITTEN: Other(as_written(FIX), ("tp2-pp4",)),
        },
    ),
    Proofs("megatron-lm", [Release("core_v0.16.1", cases=CASES_0_16)]),
]


def _fails(text: str, *at: str) -> Job:
    return job([rank(lines=hung_jobs.failing(text, *at), recorded=False)])


_TENSOR = hung_jobs.group("8", "TENSOR_MODEL_PARALLEL_GROUP", 0, 1)
_AT = ("megatron/training/utils.py::_broadcast", "megatron/training/utils.py::get_batch_on_this_tp_rank")
_SOURCE = rank(issued(_TENSOR, 7, "broadcast", 1, dtype="Int", at=_AT))
_RECEIVES = rank(issued(_TENSOR, 7, "broadcast", dtype="Long", at=_AT))
_LATE = rank(at=("job/data.py::read",))


def _of_four(*dtypes: str) -> Job:
    group = hung_jobs.group("9", "TENSOR_MODEL_PARALLEL_GROUP")
    return job([rank(issued(group, 7, "broadcast", 1, dtype=one, at=_AT)) for one in dtypes])


HANGS = [
    HungJob("two types", job([_SOURCE, _RECEIVES])),
    HungJob(
        "a flag of the user's",
        job([_SOURCE, rank(issued(_TENSOR, 7, "broadcast", 1, dtype="Long", at=("job/flags.py::share",)))]),
        "also",
    ),
    HungJob("all have come to it", job([_SOURCE, _SOURCE]), ""),
    HungJob("the source has what receivers have", job([_RECEIVES, _SOURCE]), ""),
    HungJob("two types, four ranks", _of_four("Int", "Long", "Long", "Long")),
    HungJob("one of three that receive has another type", _of_four("Int", "Long", "Int", "Int")),
    HungJob("another operation", job([_SOURCE, rank(issued(_TENSOR, 7, "all_reduce", 8, 16, at=("model.py::f",)))])),
    HungJob("the source is elsewhere", job([rank(issued(_TENSOR, 7, "all_reduce", 8, 16)), _RECEIVES])),
    HungJob("overflow", _fails("RuntimeError: Storage size calculation overflowed with sizes=[1, 92]", *_AT)),
    HungJob("dimensions", _fails("RuntimeError: Tensors must have same number of dimensions: got 4 and 3"), ""),
    HungJob("no memory for a batch", _fails("torch.OutOfMemoryError: CUDA out of memory", *_AT), ""),
    HungJob(
        "no batch of the source",
        job([_LATE, rank(issued(_TENSOR, 5, "broadcast", 1, 4096, dtype="Long", at=_AT))]),
        "also",
    ),
]
