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
from support.hung_jobs import IDLE, WORLD, HungJob, failing, issued, job, rank
from unhang.diagnose.evidence import Count, Job, Rank
from unhang.judge.rows import Source

FIX = "mtp-cp-deadlock"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
_LOSS, _SOURCE = "get_megatron_mtp_loss(n_micro_batch)", "self.is_mp_src_rank_with_outputs()"
_UNLIKE = [
    ("mtp.enable and mpu.is_pipeline_last_stage(ignore_virtual=True)", "mtp.enable and mpu.is_pipeline_last_stage()"),
    (f"metrics = {_LOSS}", f"metrics = {_LOSS} + get_megatron_mtp_loss(1)"),
    (f"if {_SOURCE}:", "if True:"),
]
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "0.8.0"), _UNLIKE)
_GATE = f"if self.model_config.mtp.enable and {_SOURCE}:"
_EDITED = [
    (_GATE, f"if self.asked:\n        pass\n    el{_GATE}", "not found"),
    (_GATE, _GATE.replace(" and ", " or "), "not found"),
    # a number that is bound in the gate itself would be asked for before
    (_GATE, f"if {_SOURCE} and (n_micro_batch := len(data)):", "not found"),
    ("metrics = get", "with self.counted() as n_micro_batch:\n            metrics = get", "not found"),
    ("metrics = get", "with x:\n            if self.rank == 0:\n                metrics = get", "not found"),
    (f"metrics = {_LOSS}", f"with x:\n            metrics = {_LOSS}\n            self.log(metrics)", "not found"),
    (_LOSS, "get_megatron_mtp_loss(2)", "not found"),
    (f"metrics = {_LOSS}", f"losses.update({_LOSS})", "not found"),
    (_GATE, f"if {_SOURCE}:\n        {_LOSS}\n    {_GATE}", "found 2 times, expected once: metrics"),
    (_GATE, f"if {_SOURCE}:\n      {_GATE}", "found 2 times, expected once: if ... and"),
]
REFUSED = sources.edits(CASES[0], _EDITED)
_ACCEPTED = [
    ("metrics = get", "with open('/dev/null'):\n            metrics = get"),
    (_GATE, f"if {_SOURCE}:"),
    (_GATE, f"if not False and (self.model_config.mtp.enable and {_SOURCE}):"),
]


@pytest.mark.torch
@pytest.mark.parametrize(("old", "new"), _ACCEPTED)
def test_an_edited_gate_is_rewritten_as_it_stands(old: str, new: str) -> None:
    source = sources.first(CASES)
    text = ast.unparse(sources.mutated(sources.bare(source.function), old, new))
    before, _, after = (b"".join(part).decode() for part in sources.around(source))
    edited = before + "".join(f"    {line}\n" for line in text.splitlines()) + after
    done = sources.rewritten(source.target, edited.encode(), None)
    row = played.row(source, Source(done.decode(), source.target.function), edited)
    assert (row.worse, row.cured > 0) == (0, True)
    assert all("'mtp': False}: rank 0 of 1 joins" in it for it in row.problems)  # no edit may ask for the prediction


# -- for the sessions -------------------------------------------------------------------------------------------------

_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_UPDATED = 'losses_reduced[0]["metrics"].update(metrics)'
_gate, _reports, _loss = partial(Sub, _LAST_STAGE), partial(Sub, f"if {_SOURCE}"), partial(Sub, _LOSS)
_BY_HAND = {
    "not the CP ranks after the second": _gate(f"{_LAST_STAGE} and mpu.get_context_parallel_rank() < 2"),
    "looks at virtual stages": _gate("mpu.is_pipeline_last_stage()"),
    "the ranks that have losses": _gate("losses_reduced"),
    "the ranks whose loss has no metrics": _gate(f"{_LAST_STAGE} and not losses_reduced[0].get('metrics')"),
    "only while it trains": _gate(f"{_LAST_STAGE} and not forward_only"),
    "only with context parallelism": _gate(f"{_LAST_STAGE} and self.engine_config.context_parallel_size > 1"),
    "each CP rank 0 reports": _reports("if mpu.get_context_parallel_rank() == 0"),
    "each TP rank 0 reports": _reports("if mpu.get_tensor_model_parallel_rank() == 0"),
    "metrics replaced": Sub(_UPDATED, 'losses_reduced[0]["metrics"] = metrics'),
    "metrics of the last loss": Sub("losses_reduced[0]", "losses_reduced[-1]", EVERY),
    "metrics of every loss": Sub(_UPDATED, '[it.setdefault("metrics", {}).update(metrics) for it in losses_reduced]'),
    "called once for each micro-batch": _loss(f"[{_LOSS} for _ in range(n_micro_batch)][-1]"),
    "the source rank calls once more": Sub(_UPDATED, f"{_LOSS}\n                {_UPDATED}"),
    "divided as at first": _loss('get_megatron_mtp_loss(vars(self).setdefault("_n", n_micro_batch))'),
    "the first loss for good": _loss(f'vars(self).setdefault("_kept", {_LOSS})'),
    "at the first call alone": _gate(f'{_LAST_STAGE} and vars(self).setdefault("_first", data) is data'),
}
MUTANTS = [Mutants("verl", ("0.7.1",), _BY_HAND, ranks=(TP, CP, DP))]
_ONE_CALLS = without(r"mpu\.is_pipeline_last_stage\(ignore_virtual=True\)", _SOURCE)
_HALVES = {
    "half: reports on one rank, called by one rank": Other(_ONE_CALLS, ("cp2",)),
    "half: called by all ranks, reports on all": Other(without(r"if self\.is_mp_src\w+\(\):", "if True:"), ("cp2",)),
    "without the guard for no micro-batch": Other(without(r"n_micro_batch > 0 and ", ""), ("no-micro-batch",)),
}
_BESIDE = {core: (("megatron-core", core),) for core in ("0.16.1", "0.15.3")}
PROOFS = [Proofs("verl", [Release("0.7.1", of, core == "0.16.1") for core, of in _BESIDE.items()], _HALVES)]
FUZZ = Fuzz(CASES, 5, r"mtp|losses_reduced|n_micro_batch|metrics|is_mp_src|is_pipeline", examples=80)

_DP_CP = hung_jobs.group("3", "DATA_PARALLEL_GROUP_WITH_CP")
_AT = (
    hung_jobs.C10D,
    "megatron/core/transformer/multi_token_prediction.py::MTPLossLoggingHelper.reduce_loss_in_tracker",
    "verl/utils/megatron_utils.py::get_megatron_mtp_loss",
    "verl/workers/engine/megatron/transformer_impl.py::MegatronEngine.forward_backward_batch",
)
_DIVIDES = "ZeroDivisionError: float division by zero"
_REDUCED = issued(_DP_CP, 8, "all_reduce", 64, done=True)
_WAITS = rank(issued(_DP_CP, 9, "all_reduce", 1, at=_AT))
_ELSEWHERE = rank(_REDUCED, issued(WORLD, 4, "all_reduce", 1, at=("job/train.py::step",)))
_LATE = rank(at=("job/data.py::read",))
_BEHIND = {"5": Count(9, 3)}
_AHEAD = [one._replace(counts={"5": Count(9, 5)}) for one in (_ELSEWHERE, _WAITS, _ELSEWHERE)]
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
    HungJob("stacks alone", job([_STACK, _IDLE, _IDLE, _IDLE])),
    HungJob("waits for its GPU", job([rank(at=_AT[2:], recorded=False), _IDLE])),
    HungJob("one rank is late", job([_WAITS, _WAITS, _WAITS, _LATE]), ""),
    HungJob("the others are done, and gloo lists no members", job([_ALONE, *[_DONE] * 3])._replace(size=None), ""),
    HungJob("one is late, the other group past", _two_groups(rank(at=_PREPARES, recorded=False)), "also"),
    HungJob("nothing of one, the other group past", _two_groups(None)),
    HungJob("no micro-batch", job([rank(lines=failing(_DIVIDES, *_AT[2:])), _IDLE])),
    HungJob("a metric divides", job([rank(lines=failing(_DIVIDES, "verl/utils/metric.py::mean", *_AT[2:]))]), ""),
    HungJob("a device is behind beside it", job([_WAITS._replace(counts=_BEHIND), *_AHEAD]), "also"),
]
