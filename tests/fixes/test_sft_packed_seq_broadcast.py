"""sft-packed-seq-broadcast: its rewrite and anchors, and all of history."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from fixes.sft_packed_seq_broadcast.mutants import MUTANTS as MUTANTS
from fixes.sft_packed_seq_broadcast.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import examples, hung_jobs, sources, wheels
from support.hung_jobs import HungJob, issued, job, rank
from support.rewrites import EveryRewrite
from unhang.codemods.base import AnchorError
from unhang.compat.endstates.compare import compare
from unhang.compat.endstates.endstate import Source as Endstate
from unhang.compat.endstates.sft_packed_seq_broadcast import END_STATES
from unhang.diagnose.evidence import Job
from unhang.judge.decide import codemod
from unhang.shapes import catalog, shape

FIX, FUNCTION = "sft-packed-seq-broadcast", "get_batch_on_this_tp_rank"
# The head of a pull request, 2026-06-29: upstream's fix, and with it a padding mask, which the stand-ins do not have.
NOT_RUN = {"1a5108c6c76f75b8"}
CASES = sources.cases(FIX, {"megatron-lm": ["0.17.0", "0.17.1"]}, {"megatron-lm": ["0.16.0", "0.16.1"]})
FUZZ = Fuzz(CASES, 7, r"seqlen|_broadcast|args\b|is_pipeline|batch\b", examples=70)


@pytest.mark.parametrize(
    ("kind", "version", "folder", "state"),
    [
        ("wheel", "0.18.2", "core", "fixed"),
        ("wheel", "0.19.2", "core", "fixed"),
        # source trees before packed sequences
        ("tree", "0.10.0", "training", "not-affected"),
        ("tree", "0.15.3", "training", "not-affected"),
    ],
)
def test_a_release_without_the_defect_is_known_as_such(kind: str, version: str, folder: str, state: str) -> None:
    (target,) = (item for item in catalog.fix(FIX).targets if item.file == f"megatron/{folder}/utils.py")
    source = sources.Case(kind, target, version).load()
    assert (source.known.state, source.known.result) == (state, None)
    assert codemod(target).fixed_upstream(source.function) is (state == "fixed")


def test_the_short_check_is_right_on_all_of_history() -> None:
    """It knows each shape on record; another shape that it calls fixed passes in every configuration."""
    change, seen = codemod(catalog.fix(FIX).targets[0]), set()
    for code, function in history():
        digest = shape.digest(function)
        known = catalog.shape_table().shapes.get((FIX, FUNCTION, digest))
        is_fixed = change.fixed_upstream(function)
        if known is not None:
            assert is_fixed is (known.state == "fixed"), digest
            seen.add(digest)
        elif is_fixed and digest not in NOT_RUN:
            row = compare(END_STATES[FUNCTION], Endstate(code, FUNCTION), None)
            assert (row.failed, row.problems) == (0, []), digest
    assert seen >= {row["shape"] for row in sources._ROWS if row["fix"] == FIX and "first" in row}


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    pass


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert source.known.note == "pull request 4150 applied as written: still broken on the last stage"
    assert [(item.state, item.note) for item in sources.same_result(source)] == [("affected", "")]


_NULLED = "            max_seqlen = None\n            _broadcast(labels)\n"
_PAIR = "            _broadcast_cu_seqlens(batch['cu_seqlens'])\n            _broadcast(batch['max_seqlen'])\n"
_BUFFER = "        if args.sft:\n            max_seqlen"
_HELPER = "        def _broadcast_cu_seqlens(cu_seqlens): ...\n"
_ARM = "        elif mpu.is_pipeline_last_stage():\n            _broadcast(batch['labels'])\n"
_ADDED = "        {}:\n            _broadcast(batch['padding_mask'])\n"


@pytest.mark.parametrize(
    ("example", "old", "new", "refused"),
    [
        (0, "_rank() == 0", "_rank() == 1", "not found: if mpu"),
        (
            0,
            "        if args.pipe",
            "        if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...\n        if args.pipe",
            "found 2 times, expected once: if args.pipe",
        ),
        (0, "elif mpu.is_pipeline_last_stage()", "elif stage == 3", "not found: .*last_stage"),
        (0, _BUFFER, _BUFFER.replace("sft", "packed"), "not found: if args.sft"),
        (0, _NULLED, _NULLED.partition("\n")[2], "not found: max_seqlen = None"),
        (0, _NULLED, "            max_seqlen = None\n" + _NULLED, "found 2 times, expected once: max_seqlen = None"),
        (0, _ARM, _ARM + _PAIR, "not found: an arm of the last stage without"),
        (0, "        batch = {", "        other = {", "not found: other alone, without batch"),
        (0, _ARM, _ARM + _ADDED.format("elif args.padded"), "no other arm but else"),
        (0, _ARM, _ARM + _ADDED.format("else"), r"not found: batch\['cu_seqlens'\] = None"),
        (0, _ARM, _ARM + _ADDED.format("else") + _PAIR, r"not found: batch\['cu_seqlens'\] = None"),
        # `del int` makes `int` local to the function, and the last stage calls the helper only when rewritten
        (0, "    return batch", "    del int\n    return batch", "that does not rebind int"),
        (0, "    return batch", "    import types as isinstance\n    return batch", "that does not rebind isinstance"),
        (1, _HELPER, "", "not found: def _broadcast_cu_seqlens"),
        (1, _PAIR, "", "not found: _broadcast_cu_seqlens"),
        (1, _PAIR, _PAIR * 2, "found 2 times, expected once: _broadcast_cu_seqlens"),
        (
            1,
            " if args.hybrid_context_parallel else None",
            "",
            "not found: max_seqlen made for args.sft, and then again",
        ),
        (1, "            tokens = None\n", "", "not found: a statement before"),
    ],
)
def test_a_missing_anchor_or_one_too_many_is_refused(example: int, old: str, new: str, refused: str) -> None:
    change = codemod(catalog.fix(FIX).targets[0])
    code = examples.examples(type(change))[example].before
    assert change.plan(examples.function_of(code))
    assert old in code
    with pytest.raises(AnchorError, match=refused):
        change.plan(examples.function_of(code.replace(old, new)))


def history() -> Iterator[tuple[str, shape.Function]]:
    """Yield the function as it ever was, and its code; skips the test without a clone."""
    git = ["git", "-C", str(wheels.clone("megatron-core"))]
    files = {target.file for target in catalog.fix(FIX).targets}
    log = [*git, "log", "--all", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", *files]
    rows = subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines()
    code = re.compile(rf"^def {FUNCTION}\(.*?(?=^[\w@#]|\Z)", re.MULTILINE | re.DOTALL)
    seen: set[str] = set()
    for blob in {row.split()[3] for row in rows} - {"0" * 40}:
        data = subprocess.run([*git, "cat-file", "blob", blob], capture_output=True, text=True, check=True).stdout
        seen.update(code.findall(data))
    for text in seen:
        with contextlib.suppress(SyntaxError):  # heads of pull requests may have conflict markers
            yield text, examples.function_of(text)


def _fails(text: str, *at: str) -> Job:
    return job([rank(lines=hung_jobs.failing(text, *at), recorded=False)])


_TENSOR = hung_jobs.group("8", "TENSOR_MODEL_PARALLEL_GROUP", 0, 1)
_AT = ("megatron/training/utils.py::_broadcast", "megatron/training/utils.py::get_batch_on_this_tp_rank")
_SOURCE = rank(issued(_TENSOR, 7, "broadcast", 1, dtype="Int", at=_AT))
_RECEIVES = rank(issued(_TENSOR, 7, "broadcast", dtype="Long", at=_AT))
_LATE = rank(at=("job/data.py::read",))
_DIMENSIONS = "Tensors must have same number of dimensions: got 4 and 3"


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
