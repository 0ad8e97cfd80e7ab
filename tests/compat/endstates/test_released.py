"""Each fix on releases: the state and the figures on record, and what a part of its rewrite would do."""

from __future__ import annotations

import pytest

from support import sources
from support.endstates import row, row_of
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import compare
from unhang.compat.endstates.endstate import Source
from unhang.compat.sweep.classify import classify

EXPERTS, WARMUP, MTP, SFT = "empty-expert-hang", "expert-dp-warmup", "mtp-cp-deadlock", "sft-packed-seq-broadcast"
RELEASES = {
    EXPERTS: [("megatron-core", it) for it in ("0.10.0", "0.15.3", "0.16.0rc0.dev132550", "0.18.2")],
    WARMUP: [("megatron-core", "0.10.0"), ("ms-swift", "4.6.0")],
    MTP: [("verl", version) for version in ("0.7.0", "0.7.1", "0.8.0", "0.9.1")],
    SFT: [("megatron-lm", "0.17.1"), ("megatron-core", "0.18.2"), ("megatron-core", "0.19.2")],
}
_SENDS, _NONE = "if args.sft:\n                _broadcast", "else:\n                max_seqlen = None"
PARTS = [
    (WARMUP, "0.10.0", "if expert_model_parallel_size > 1:\n        warmed", "if True:\n        warmed", "worse with"),
    (
        WARMUP,
        "0.10.0",
        "for group_name in (",
        "for group_name in ()[::-1] or (rank % 2) * (",
        "not cured with the defaults: ",
    ),
    (
        WARMUP,
        "0.13.0",
        "'_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP',",
        "",
        "not each of the groups is warmed up, once",
    ),
    (WARMUP, "0.10.0", "in ('nccl', 'hccl', 'mccl')", "in ('nccl', 'gloo')", "worse with backend=gloo: "),
    (WARMUP, "0.10.0", "        if warmed_up_groups:", "        if False:", "the rank does not wait for its device"),
    (MTP, "0.7.1", "and mpu.is_pipeline_last_stage(ignore_virtual=True):\n", "and True:\n", "worse with pp=2"),
    (MTP, "0.7.1", "n_micro_batch > 0 and mpu", "n_micro_batch > 1 and mpu", "worse with batches=1"),
    (
        MTP,
        "0.7.1",
        "if self.is_mp_src_rank_with_outputs():",
        "if True:",
        "not cured with tp=2, batches=1: not the source ranks",
    ),
    (MTP, "0.7.1", "self.model_config.mtp.enable and n_micro", "n_micro", "worse with mtp=False, batches=1"),
    (SFT, "0.17.1", "elif args.sft:", "elif False:", "not cured with stages=4, stage=1, replica=1: middle: "),
    (
        SFT,
        "0.17.1",
        _SENDS,
        _SENDS.replace("args.sft", "False"),
        "not cured with stages=4, stage=3, replica=1: raises MismatchError: ",
    ),
    (
        SFT,
        "0.17.1",
        _NONE,
        "else:\n                pass",
        "worse with stages=4, stage=3, replica=1, sft=False, dynamic=True: ",
    ),
]


@pytest.mark.parametrize(
    ("fix", "upstream", "version"), [(fix, *release) for fix, releases in RELEASES.items() for release in releases]
)
def test_a_release_is_as_on_record(fix: str, upstream: str, version: str) -> None:
    source = sources.wheel(fix, version, upstream)
    found, known = classify(source.data, source.target), source.known
    assert (found.state, found.result, found.names) == (known.state, known.result, known.names)
    assert found.row == row_of(source)


@pytest.mark.slow
@pytest.mark.parametrize(("fix", "version", "old", "new", "problem"), PARTS)
def test_part_of_a_rewrite_is_a_problem(fix: str, version: str, old: str, new: str, problem: str) -> None:
    source = sources.wheel(fix, version, "megatron-core" if fix == WARMUP else "")
    text = source.rewritten.data.decode()
    assert old in text
    found = row(source, Source(text.replace(old, new), source.target.function))
    assert [it for it in found.problems if problem in it], found.problems


@pytest.mark.parametrize(("fix", "version"), [(MTP, "0.7.1"), (MTP, "0.8.0"), (SFT, "0.17.1"), (SFT, "0.18.2")])
def test_a_function_that_is_taken_to_lack_the_feature_does_not_pass(
    fix: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the audit of 2026-11-21, H4: nothing objected to a predicate that found too little."""
    source = sources.wheel(fix, version)
    endstate = sandbox.end_state(fix, source.target.function)
    assert endstate is not None
    monkeypatch.setattr(type(endstate), "has_feature", lambda *_: False)
    assert compare(endstate, Source(source.data.decode(), source.target.function), None).problems
