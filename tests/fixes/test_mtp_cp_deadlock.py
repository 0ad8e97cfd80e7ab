"""mtp-cp-deadlock: its anchors, and what the sessions need of it."""

from __future__ import annotations

import ast
from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, Mutants, Sub
from mutants.rules import CP, DP, TP
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, played, sources
from support.hung_jobs import IDLE, WORLD, HungJob, issued, job, rank, without_frames
from unhang.codemods.base import AnchorError
from unhang.diagnose.evidence import Count, Job, Rank
from unhang.judge.decide import codemod
from unhang.judge.rows import Source
from unhang.shapes import catalog

FIX = "mtp-cp-deadlock"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
FIXED = sources.cases(FIX, {"verl": ["0.8.0", "0.9.1"]}, state="fixed")


UNLIKE_UPSTREAM = sources.edits(
    FIXED[0],
    [
        (
            "mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True)",
            "mtp.enable and mpu.is_pipeline_last_stage()",
        ),
        (
            "metrics = get_megatron_mtp_loss(n_micro_batch)",
            "metrics = get_megatron_mtp_loss(n_micro_batch) + get_megatron_mtp_loss(1)",
        ),
        ("if self.is_mp_src_rank_with_outputs():", "if True:"),
    ],
)


def test_the_actor_of_the_same_release_is_left_alone() -> None:
    """The actor calls the function too, but correctly, from every rank: it is no target."""
    assert {target.file for target in catalog.fix(FIX).targets} == {"verl/workers/engine/megatron/transformer_impl.py"}


_GATE = "if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():"


REFUSED = sources.edits(
    CASES[0],
    [
        (_GATE, "if self.model_config.mtp.enable and self.is_source():"),
        (_GATE, f"if self.asked:\n        pass\n    el{_GATE}"),
        (_GATE, f"{_GATE}\n        n_micro_batch = 2"),
        (_GATE, _GATE.replace(" and ", " or ")),
        # a number that is bound in the gate itself would be asked for before
        (_GATE, "if self.is_mp_src_rank_with_outputs() and (n_micro_batch := len(data)):"),
        ("metrics = get", "with self.counted() as n_micro_batch:\n            metrics = get"),
        (
            "metrics = get_megatron_mtp_loss(n_micro_batch)",
            "with x:\n            metrics = get_megatron_mtp_loss(n_micro_batch)\n            self.log(metrics)",
        ),
        ("metrics = get", "with x:\n            if self.rank == 0:\n                metrics = get"),
        ("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(2)"),
        ("metrics = get_megatron_mtp_loss(n_micro_batch)", "metrics, _ = get_megatron_mtp_loss(n_micro_batch), 1"),
        ("metrics = get_megatron_mtp_loss(n_micro_batch)", "losses.update(get_megatron_mtp_loss(n_micro_batch))"),
    ],
    "not found",
)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("metrics = get", "before = {}\n        metrics = get"),
        ("metrics = get", "with open('/dev/null'):\n            metrics = get"),
        (_GATE, "if self.is_mp_src_rank_with_outputs():"),
        (_GATE, "if not False and (self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs()):"),
    ],
)
def test_an_edited_gate_is_rewritten_as_it_stands(old: str, new: str) -> None:
    source = sources.first(CASES)
    text = ast.unparse(sources.mutated(sources.bare(source.function), old, new))
    before, _, after = (b"".join(part).decode() for part in sources.around(source))
    edited = before + "".join(f"    {line}\n" for line in text.splitlines()) + after
    done = sources.rewritten(source.target, edited.encode(), None)
    row = played.row(source, Source(done.decode(), source.target.function), edited)
    assert (row.worse, row.cured > 0) == (0, True)
    assert all("'mtp': False}: rank 0 of 1 joins" in it for it in row.problems), (
        "an edit may not ask for the prediction"
    )


@pytest.mark.parametrize("outer", [None, "if self.is_mp_src_rank_with_outputs(): pass"])
def test_a_gate_that_stands_twice_or_inside_of_another_is_no_anchor(outer: str | None) -> None:
    source = sources.first(CASES)
    function = sources.bare(source.function)
    (gate,) = (node for node in function.body if ast.unparse(node).startswith(_GATE))
    place = function.body.index(gate)
    if outer is None:
        function.body.insert(place, gate)
    else:
        function.body[place : place + 1] = ast.parse(outer).body
        function.body[place].body.append(gate)  # type: ignore[attr-defined]
    with pytest.raises(AnchorError, match="found 2 times"):
        codemod(source.target).plan(function)


_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_UPDATED = 'losses_reduced[0]["metrics"].update(metrics)'
_gate = partial(Sub, _LAST_STAGE)
_BY_HAND = {
    "not the CP ranks after the second": _gate(f"{_LAST_STAGE} and mpu.get_context_parallel_rank() < 2"),
    "the first half of the DP ranks": _gate(f"{_LAST_STAGE} and 2 * mpu.get_data_parallel_rank() < 2"),
    "looks at virtual stages": _gate("mpu.is_pipeline_last_stage(ignore_virtual=False)"),
    "looks at virtual stages by default": _gate("mpu.is_pipeline_last_stage()"),
    "first stage": _gate("mpu.is_pipeline_first_stage(ignore_virtual=True)"),
    "the ranks that have losses": _gate("losses_reduced"),
    "the ranks whose loss has no metrics": _gate(f"{_LAST_STAGE} and not losses_reduced[0].get('metrics')"),
    "only while it trains": _gate(f"{_LAST_STAGE} and not forward_only"),
    "only with context parallelism": _gate(f"{_LAST_STAGE} and self.engine_config.context_parallel_size > 1"),
    "each CP rank 0 reports": Sub("if self.is_mp_src_rank_with_outputs()", "if mpu.get_context_parallel_rank() == 0"),
    "each TP rank 0 reports": Sub(
        "if self.is_mp_src_rank_with_outputs()", "if mpu.get_tensor_model_parallel_rank() == 0"
    ),
    "more than one micro-batch": Sub("n_micro_batch > 0", "n_micro_batch > 1"),
    "metrics replaced": Sub(_UPDATED, 'losses_reduced[0]["metrics"] = metrics'),
    "metrics of the last loss": Sub("losses_reduced[0]", "losses_reduced[-1]", EVERY),
    "metrics of every loss": Sub(_UPDATED, '[it.setdefault("metrics", {}).update(metrics) for it in losses_reduced]'),
    "metrics below a name": Sub(_UPDATED, 'losses_reduced[0]["metrics"]["mtp"] = metrics'),
    "divided twice": Sub("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(2 * n_micro_batch)"),
    "called twice": Sub(
        "get_megatron_mtp_loss(n_micro_batch)\n",
        "get_megatron_mtp_loss(n_micro_batch)\n            metrics = get_megatron_mtp_loss(n_micro_batch)\n",
    ),
    "called once for each micro-batch": Sub(
        "get_megatron_mtp_loss(n_micro_batch)",
        "[get_megatron_mtp_loss(n_micro_batch) for _ in range(n_micro_batch)][-1]",
    ),
    "the source rank calls once more": Sub(
        _UPDATED, f"get_megatron_mtp_loss(n_micro_batch)\n                {_UPDATED}"
    ),
    "MTP is not asked": Sub("self.model_config.mtp.enable and ", ""),
    "divided as at first": Sub(
        "get_megatron_mtp_loss(n_micro_batch)", 'get_megatron_mtp_loss(vars(self).setdefault("_n", n_micro_batch))'
    ),
    "the first loss for good": Sub(
        "metrics = get_megatron_mtp_loss(n_micro_batch)",
        'metrics = vars(self).setdefault("_kept", get_megatron_mtp_loss(n_micro_batch))',
    ),
    "at the first call alone": _gate(f'{_LAST_STAGE} and vars(self).setdefault("_first", data) is data'),
}


MUTANTS = [Mutants("verl", ("0.7.1",), _BY_HAND, ranks=(TP, CP, DP))]
PROOFS = [
    Proofs(
        "verl",
        [
            Release("0.7.1", (("megatron-core", "0.16.1"),), core=True),
            Release("0.7.1", (("megatron-core", "0.15.3"),)),
        ],
        {
            "half: reports on one rank, called by one rank": Other(
                without(r"mpu\.is_pipeline_last_stage\(ignore_virtual=True\)", "self.is_mp_src_rank_with_outputs()"),
                ("cp2",),
            ),
            "half: called by all ranks, reports on all": Other(
                without(r"if self\.is_mp_src_rank_with_outputs\(\):", "if True:"), ("cp2",)
            ),
            "without the guard for no micro-batch": Other(without(r"n_micro_batch > 0 and ", ""), ("no-micro-batch",)),
        },
    )
]
FUZZ = Fuzz(CASES, 5, r"mtp|losses_reduced|n_micro_batch|metrics|is_mp_src|is_pipeline", examples=80)

_DP_CP = hung_jobs.group("3", "DATA_PARALLEL_GROUP_WITH_CP")
_AT = (
    hung_jobs.C10D,
    "megatron/core/transformer/multi_token_prediction.py::MTPLossLoggingHelper.reduce_loss_in_tracker",
    "verl/utils/megatron_utils.py::get_megatron_mtp_loss",
    "verl/workers/engine/megatron/transformer_impl.py::MegatronEngine.forward_backward_batch",
)
_REDUCED = issued(_DP_CP, 8, "all_reduce", 64, done=True)
_WAITS = rank(issued(_DP_CP, 9, "all_reduce", 1, at=_AT))
_ELSEWHERE = rank(_REDUCED, issued(WORLD, 4, "all_reduce", 1, at=("job/train.py::step",)))
_LATE = rank(at=("job/data.py::read",))
_ASLEEP = rank(_REDUCED, at=("torch/utils/data/dataloader.py::_next_data",))
_BEHIND, _AHEAD = {"5": Count(9, 3)}, {"5": Count(9, 5)}
_ALONE, _DONE = (
    rank(issued(_DP_CP._replace(members=()), 9, "all_reduce", 1, at=_AT, done=done)) for done in (False, True)
)
_STACK, _IDLE = rank(at=_AT, recorded=False), rank(at=IDLE, recorded=False)
_PREPARES = ("job/balancing.py::rearrange", "verl/workers/engine_workers.py::TrainingWorker.train_batch", *IDLE)


def _two_groups(second: Rank | None) -> Job:
    """Return a job whose rank 0 waits for another one in the loss, and whose other group has gone on."""
    pairs = hung_jobs.group("3", _DP_CP.description, 0, 2), hung_jobs.group("4", _DP_CP.description, 1, 3)
    first = rank(issued(pairs[0], 9, "all_reduce", 1, at=_AT), at=_AT)
    past = rank(issued(pairs[1], 9, "all_reduce", 1, at=_AT, done=True), issued(WORLD, 2, "barrier"), at=_NEXT)
    return job([first, past, second, past])


_NEXT = (hung_jobs.C10D, "job/train.py::next_batch")
HANGS = [
    HungJob("four ranks", job([_WAITS, _ELSEWHERE, _WAITS, _ELSEWHERE])),
    HungJob("two ranks of four", job([_WAITS, _ELSEWHERE])),
    HungJob("stacks alone", job([_STACK, _IDLE, _IDLE, _IDLE])),
    HungJob("waits for its GPU", job([rank(at=_AT[2:], recorded=False), _IDLE])),
    HungJob("one rank is late", job([_WAITS, _WAITS, _WAITS, _LATE]), ""),
    HungJob("its pair is late", job([_WAITS, rank()])),
    HungJob("the others are done, and gloo lists no members", job([_ALONE, *[_DONE] * 3])._replace(size=None), ""),
    HungJob("another loss", without_frames(job([_WAITS, _WAITS, _WAITS, _ELSEWHERE])), ""),
    HungJob("at work before its loss", job([_WAITS, _WAITS, _WAITS, rank(_REDUCED, at=_PREPARES)]), ""),
    HungJob("one is late, the other group past", _two_groups(rank(at=_PREPARES, recorded=False)), "also"),
    HungJob("nothing of one, the other group past", _two_groups(None)),
    HungJob("asleep in a data loader", job([_WAITS, _ASLEEP, _WAITS, _ASLEEP]), "also"),
    HungJob(
        "a device is behind beside it",
        job(
            [
                _WAITS._replace(counts=_BEHIND),
                *[one._replace(counts=_AHEAD) for one in (_ELSEWHERE, _WAITS, _ELSEWHERE)],
            ]
        ),
        "also",
    ),
]
