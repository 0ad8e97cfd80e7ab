"""sft-packed-seq-broadcast: its rewrite and anchors, and all of history."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, ByHand, Mutants, Sub
from mutants.rules import DP, PP, TP
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import examples, hung_jobs, sources, wheels
from support.hung_jobs import HungJob, issued, job, rank
from unhang.codemods.base import AnchorError
from unhang.diagnose.evidence import Job
from unhang.judge.decide import codemod
from unhang.prove.fixes.sft_packed_seq_broadcast import CASES_0_16
from unhang.shapes import catalog, shape

FIX, FUNCTION = "sft-packed-seq-broadcast", "get_batch_on_this_tp_rank"
# The head of a pull request, 2026-06-29: upstream's fix, and with it a padding mask. No release or branch has it.
FIXED = {"1a5108c6c76f75b8"}
CASES = sources.cases(FIX, {"megatron-lm": ["0.17.0", "0.17.1"]}, {"megatron-lm": ["0.16.0", "0.16.1"]})
FUZZ = Fuzz(CASES, 7, r"seqlen|_broadcast|args\b|is_pipeline|batch\b", examples=70)


def test_the_short_check_is_right_on_all_of_history() -> None:
    """It knows each shape on record, and calls no other one fixed."""
    change, seen = codemod(catalog.fix(FIX).targets[0]), set()
    for function in history():
        digest = shape.digest(function)
        known = catalog.shape_table().shapes.get((FIX, FUNCTION, digest))
        assert change.fixed_upstream(function) is (known.state == "fixed" if known else digest in FIXED), digest
        seen |= {digest} if known else set()
    assert seen >= {row["shape"] for row in sources._ROWS if row["fix"] == FIX and "first" in row}


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_affected_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert [(item.state, item.note) for item in sources.same_result(source)] == [("affected", "")]


_NULLED = "            max_seqlen = None\n            _broadcast(labels)\n"
_PAIR = "            _broadcast_cu_seqlens(batch['cu_seqlens'])\n            _broadcast(batch['max_seqlen'])\n"
_BUFFER = "        if args.sft:\n            max_seqlen"
_HELPER = "        def _broadcast_cu_seqlens(cu_seqlens): ...\n"
_ARM = "        elif mpu.is_pipeline_last_stage():\n            _broadcast(batch['labels'])\n"
_ADDED = "        {}:\n            _broadcast(batch['padding_mask'])\n"
_FIRST = "        if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...\n"


@pytest.mark.parametrize(
    ("example", "old", "new", "refused"),
    [
        (0, "_rank() == 0", "_rank() == 1", "not found: if mpu"),
        (0, _FIRST, f"{_FIRST}{_FIRST}        elif stage: ...\n", "found 2 times, expected once: if args.pipe"),
        (0, "elif mpu.is_pipeline_last_stage()", "elif stage == 3", "not found: .*last_stage"),
        (0, _BUFFER, _BUFFER.replace("sft", "packed"), "not found: if args.sft"),
        (0, _NULLED, _NULLED.partition("\n")[2], "not found: max_seqlen = None"),
        (0, _NULLED, "            max_seqlen = None\n" + _NULLED, "found 2 times, expected once: max_seqlen = None"),
        (0, _ARM, _ARM + _PAIR, "not found: an arm of the last stage without"),
        (0, "        batch = {", "        batch = 3, {", "not found: batch = {...}"),
        (0, _ARM, _ARM + _ADDED.format("elif args.padded"), "no other arm but else"),
        (0, _ARM, _ARM + _ADDED.format("else") + _PAIR, r"not found: batch\['cu_seqlens'\] = None"),
        # `del int` makes `int` local to the function, and the last stage calls the helper only when rewritten
        (0, "    return batch", "    del int\n    return batch", "that does not rebind int"),
        (1, _HELPER, "", "not found: def _broadcast_cu_seqlens"),
        (1, _PAIR, "", "not found: _broadcast_cu_seqlens"),
        (1, _PAIR, _PAIR * 2, "found 2 times, expected once: _broadcast_cu_seqlens"),
        (1, " if args.hybrid_context_parallel else None", "", "not found: max_seqlen made for args.sft, and then"),
    ],
)
def test_a_missing_anchor_or_one_too_many_is_refused(example: int, old: str, new: str, refused: str) -> None:
    change = codemod(catalog.fix(FIX).targets[0])
    code = examples.examples(type(change))[example].before
    assert change.plan(examples.function_of(code))
    assert old in code
    with pytest.raises(AnchorError, match=refused):
        change.plan(examples.function_of(code.replace(old, new)))


def history() -> Iterator[shape.Function]:
    """Yield the function as it ever was; skips the test without a clone."""
    git = ["git", "-C", str(wheels.clone("megatron-core"))]
    files = {target.file for target in catalog.fix(FIX).targets}
    log = [*git, "log", "--all", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", *files]
    rows = subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines()
    code = re.compile(rf"^def {FUNCTION}\(.*?(?=^[\w@#]|\Z)", re.MULTILINE | re.DOTALL)
    texts: set[str] = set()
    for blob in {row.split()[3] for row in rows} - {"0" * 40}:
        data = subprocess.run([*git, "cat-file", "blob", blob], capture_output=True, text=True, check=True).stdout
        texts.update(code.findall(data))
    for text in texts:
        with contextlib.suppress(SyntaxError):  # heads of pull requests may have conflict markers
            yield examples.function_of(text)


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
