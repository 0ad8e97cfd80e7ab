"""mtp-cp-deadlock: run the real method for every rank of a grid, and record which ranks join the all-reduce."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import EVERY, Mutants, Sub
from mutants.rules import CP, DP, TP
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "mtp-cp-deadlock"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
FIXED = sources.cases(FIX, {"verl": ["0.8.0", "0.9.1"]}, state="fixed")
NOT_AFFECTED = sources.cases(FIX, {"verl": ["0.7.0"]}, state="not-affected")


class Rank(NamedTuple):
    """A rank's place in the grid."""

    tp: int
    cp: int
    dp: int
    pp: int


class Grid(NamedTuple):
    """The sizes of a job, and the settings that the gate may depend on."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    virtual: int | None = None
    batches: int = 2
    enabled: bool = True
    looks_at_virtual: bool = True
    """Whether `is_pipeline_last_stage` looks at virtual stages by default, as in some releases."""

    def ranks(self) -> list[Rank]:
        return [Rank(*place) for place in itertools.product(*map(range, (self.tp, self.cp, self.dp, self.pp)))]


GRIDS = [
    Grid(),
    Grid(tp=2),
    Grid(cp=2),
    Grid(dp=2),
    Grid(pp=2),
    Grid(tp=2, cp=2, dp=2, pp=2),
    Grid(cp=4, pp=3),
    Grid(tp=2, cp=2, pp=2, virtual=2),
    Grid(cp=2, pp=2, virtual=2, looks_at_virtual=False),
]


class Seen(NamedTuple):
    """What one rank did: the arguments of its calls, and the metrics that it has afterwards."""

    calls: list[Any]
    metrics: list[Any]


def run_rank(function: Any, grid: Grid, rank: Rank, forward_only: bool, own: dict[str, float] | None = None) -> Seen:
    """Run the method as one rank of the grid."""
    last = rank.pp == grid.pp - 1
    calls: list[Any] = []
    # as the real schedules do, only the last stage returns losses
    losses: list[dict[str, Any]] = [{"loss": index} for index in range(grid.batches)] if last else []
    if own is not None:
        losses = [{**loss, "metrics": dict(own)} for loss in losses]

    def is_pipeline_last_stage(ignore_virtual: bool = not grid.looks_at_virtual, vp_stage: int | None = None) -> bool:
        # a schedule leaves a virtual rank that is not the last one
        return last and (ignore_virtual or grid.virtual is None)

    def get_megatron_mtp_loss(n_micro_batch: int) -> dict[str, float]:
        calls.append(n_micro_batch)
        return {"mtp_losses/mtp_1_loss": 0.5}

    anything = SimpleNamespace(
        assign_non_tensor=lambda *_, **__: None,
        get_non_tensor_data=lambda data, key, default: default,
        set_global_router_replay_action=lambda action: None,
        is_r2_record_action=lambda config: False,
    )
    mask = SimpleNamespace(sum=lambda: SimpleNamespace(to=lambda device: SimpleNamespace(item=lambda: 8)))
    mpu = SimpleNamespace(
        get_virtual_pipeline_model_parallel_world_size=lambda: grid.virtual,
        is_pipeline_last_stage=is_pipeline_last_stage,
    )
    group = SimpleNamespace(all_reduce=lambda *_, **__: None, ReduceOp=SimpleNamespace(SUM="sum"))
    engine = SimpleNamespace(
        engine_config=SimpleNamespace(context_parallel_size=grid.cp),
        tf_config=SimpleNamespace(microbatch_group_size_per_vp_stage=1),
        model_config=SimpleNamespace(mtp=SimpleNamespace(enable=grid.enabled)),
        module=[object()] * (grid.virtual or 1),
        get_data_parallel_group=lambda: "dp",
        get_data_parallel_size=lambda: grid.dp,
        postprocess_micro_batch_func=None,
        forward_step=None,
        is_mp_src_rank_with_outputs=lambda: last and rank.tp == 0 and rank.cp == 0,
    )
    namespace = {
        "tu": anything,
        "RouterReplay": anything,
        "RouterReplayHelper": anything,
        "mpu": mpu,
        "torch": SimpleNamespace(distributed=group),
        "partial": lambda *_, **__: None,
        "get_device_id": lambda: 0,
        "prepare_micro_batches": lambda **_: ([object()] * grid.batches, None),
        "get_forward_backward_func": lambda: lambda **_: losses,
        "make_batch_generator": lambda batches, vpp_size: iter(batches),
        "get_megatron_mtp_loss": get_megatron_mtp_loss,
        "postprocess_batch_func": lambda output_lst, indices, data: {"losses": output_lst},
    }
    output = sources.callable_of(function, namespace)(engine, {"loss_mask": mask}, None, forward_only)
    if last and output != {"losses": losses}:
        raise ValueError(f"the last stage returned {output}")
    if [set(loss) - {"metrics"} for loss in losses] != [{"loss"}] * len(losses):
        raise ValueError(f"the losses became {losses}")
    return Seen(calls, [loss["metrics"] for loss in losses if "metrics" in loss])


@functools.cache
def faults(function: Any, grids: tuple[Grid, ...] = tuple(GRIDS)) -> frozenset[str]:
    """Return what is wrong with a method's gate over the grids; nothing if every rank keeps the fix's promise."""
    found = set()
    for grid, forward_only in itertools.product(grids, (True, False)):
        seen = {rank: run_rank(function, grid, rank, forward_only) for rank in grid.ranks()}
        joined = {rank for rank, what in seen.items() if what.calls}
        stage = {rank for rank in seen if rank.pp == grid.pp - 1}
        # the all-reduce is over DP x CP: ranks with the same tp and pp wait for each other
        if any((rank in joined) != (other in joined) for rank in seen for other in seen if rank[::3] == other[::3]):
            found.add("a rank waits for one that never joins")
        if joined - stage:
            found.add("a rank of another stage joins")
        if stage - joined:
            found.add("a rank of the last stage does not join")
        if any(what.calls not in ([], [grid.batches]) for what in seen.values()):
            found.add("called more than once, or with another count")
        reporting = {rank for rank in stage if rank.tp == rank.cp == 0}
        if {rank for rank, what in seen.items() if what.metrics} != reporting:
            found.add("not only the source ranks report")
        if any(what.metrics not in ([], [{"mtp_losses/mtp_1_loss": 0.5}]) for what in seen.values()):
            found.add("other metrics are reported")
    return frozenset(found)


def calls_at_all(function: Any, grid: Grid) -> bool:
    return any(run_rank(function, grid, rank, False).calls for rank in grid.ranks())


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIXED + NOT_AFFECTED + CASES)
def test_upstreams_own_fix_is_found_in_every_shape_that_has_it(case: sources.Case) -> None:
    source = case.load()
    change, state = codemod(source.target), source.known.state
    assert change.fixed_upstream(source.function) is (state == "fixed")
    if state == "affected":
        assert not change.fixed_upstream(source.rewritten.function), "it also asks whether there is a micro-batch"
    else:
        with pytest.raises(AnchorError, match=r"^not found: if self.model_config.mtp.enable and "):
            change.plan(source.function)


@pytest.mark.parametrize(
    ("old", "new"),
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
def test_another_gate_is_not_taken_for_upstreams_own_fix(old: str, new: str) -> None:
    source = sources.wheel(FIX, "0.8.0")
    function = sources.mutated(source.function, old, new)
    assert not codemod(source.target).fixed_upstream(function)


def test_nothing_calls_without_the_feature_or_without_a_micro_batch() -> None:
    source = sources.first(CASES)
    empty = [grid._replace(batches=0) for grid in GRIDS]
    for grid in [*empty, *(grid._replace(enabled=False) for grid in GRIDS)]:
        assert not calls_at_all(source.rewritten.function, grid)
    unguarded = sources.mutated(source.rewritten.function, "n_micro_batch > 0 and ", "")
    assert faults(unguarded) == set()
    for function in source.function, unguarded:  # these call, and then have no loss to write the metrics to
        with pytest.raises(IndexError):
            calls_at_all(function, empty[0])


def test_the_actor_of_the_same_release_is_left_alone() -> None:
    """The actor calls the function too, but correctly, from every rank: it is no target."""
    assert {target.file for target in catalog.fix(FIX).targets} == {"verl/workers/engine/megatron/transformer_impl.py"}


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_upstreams_own_fix(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "fixed"
    assert "5895" in source.known.note
    assert faults(source.function) == set()


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    def test_every_rank_of_the_last_stage_joins_and_the_source_ranks_report(self, case: sources.Case) -> None:
        source = case.load()
        assert faults(source.rewritten.function) == set()
        # the defect, by the same measure: only with context parallelism
        assert "a rank waits for one that never joins" in faults(source.function, (Grid(cp=2),))
        assert "a rank waits for one that never joins" not in faults(source.function, (Grid(tp=2, dp=2, pp=2),))


def test_metrics_of_the_loss_itself_are_kept() -> None:
    source = sources.first(CASES).rewritten
    seen = run_rank(source.function, Grid(), Rank(0, 0, 0, 0), False, own={"own": 1.0})
    assert seen.metrics == [{"own": 1.0, "mtp_losses/mtp_1_loss": 0.5}, {"own": 1.0}]


_STAGE = " and mpu.is_pipeline_last_stage(ignore_virtual=True)"
MUTATIONS = [
    (_STAGE, " and self.is_mp_src_rank_with_outputs()", "a rank waits for one that never joins"),
    (_STAGE, "", "a rank of another stage joins"),
    (_STAGE, " and mpu.is_pipeline_last_stage()", "a rank of the last stage does not join"),
    ("if self.is_mp_src_rank_with_outputs():", "if True:", "not only the source ranks report"),
    (
        "get_megatron_mtp_loss(n_micro_batch)",
        "get_megatron_mtp_loss(n_micro_batch) if self.is_mp_src_rank_with_outputs() else {}",
        "a rank waits for one that never joins",
    ),
]


@pytest.mark.parametrize(("old", "new", "fault"), MUTATIONS)
def test_half_of_the_rewrite_is_not_enough(old: str, new: str, fault: str) -> None:
    source = sources.first(CASES)
    function = sources.mutated(source.rewritten.function, old, new)
    assert fault in faults(function)
    assert is_no_rewrite(source, function)


_GATE = "if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs():"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_GATE, "if self.model_config.mtp.enable and self.is_source():"),
        (_GATE, f"if self.asked:\n        pass\n    el{_GATE}"),
        ("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(2)"),
    ],
)
def test_a_gate_that_differs_is_no_anchor(old: str, new: str) -> None:
    source = sources.first(CASES)
    with pytest.raises(AnchorError, match="not found"):
        codemod(source.target).plan(sources.mutated(source.function, old, new))


def test_a_gate_that_stands_twice_is_no_anchor() -> None:
    source = sources.first(CASES)
    function = sources.bare(source.function)
    (gate,) = (node for node in function.body if ast.unparse(node).startswith(_GATE))
    function.body.insert(function.body.index(gate), gate)
    with pytest.raises(AnchorError, match="found 2 times"):
        codemod(source.target).plan(function)


_LAST_STAGE = "mpu.is_pipeline_last_stage(ignore_virtual=True)"
_UPDATED = 'losses_reduced[0]["metrics"].update(metrics)'
_TWICE = r"count: {} -> \[\.\.\. for _ in range\(2\)\]"
_SOURCE = "the source rank is TP rank 0 and CP rank 0"
_OF_SOURCE = (
    r"rank: (self\.is_mp_src|.metrics. not|losses_).* -> "
    r"(\(\.\.\.\) and )?mpu\.get_(tensor_model|context)_parallel_rank\(\) == 0( and \.\.\.)?"
)
_REPEATED = "a second one changes nothing"


def _by_hand() -> Mapping[str, tuple[Sub, ...]]:
    def gate(new: str) -> tuple[Sub, ...]:
        return (Sub(_LAST_STAGE, new),)

    return {
        "not the CP ranks after the second": gate(f"{_LAST_STAGE} and mpu.get_context_parallel_rank() < 2"),
        "the first half of the DP ranks": gate(f"{_LAST_STAGE} and 2 * mpu.get_data_parallel_rank() < 2"),
        "looks at virtual stages": gate("mpu.is_pipeline_last_stage(ignore_virtual=False)"),
        "looks at virtual stages by default": gate("mpu.is_pipeline_last_stage()"),
        "first stage": gate("mpu.is_pipeline_first_stage(ignore_virtual=True)"),
        "the ranks that have losses": gate("losses_reduced"),
        "the ranks whose loss has no metrics": gate(f"{_LAST_STAGE} and not losses_reduced[0].get('metrics')"),
        "only while it trains": gate(f"{_LAST_STAGE} and not forward_only"),
        "only with context parallelism": gate(f"{_LAST_STAGE} and self.engine_config.context_parallel_size > 1"),
        "each CP rank 0 reports": (
            Sub("if self.is_mp_src_rank_with_outputs()", "if mpu.get_context_parallel_rank() == 0"),
        ),
        "each TP rank 0 reports": (
            Sub("if self.is_mp_src_rank_with_outputs()", "if mpu.get_tensor_model_parallel_rank() == 0"),
        ),
        "more than one micro-batch": (Sub("n_micro_batch > 0", "n_micro_batch > 1"),),
        "metrics replaced": (Sub(_UPDATED, 'losses_reduced[0]["metrics"] = metrics'),),
        "metrics of the last loss": (Sub("losses_reduced[0]", "losses_reduced[-1]", EVERY),),
        "metrics of every loss": (
            Sub(_UPDATED, '[it.setdefault("metrics", {}).update(metrics) for it in losses_reduced]'),
        ),
        "metrics below a name": (Sub(_UPDATED, 'losses_reduced[0]["metrics"]["mtp"] = metrics'),),
        "divided twice": (Sub("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(2 * n_micro_batch)"),),
        "called twice": (
            Sub(
                "get_megatron_mtp_loss(n_micro_batch)\n",
                "get_megatron_mtp_loss(n_micro_batch)\n            metrics = get_megatron_mtp_loss(n_micro_batch)\n",
            ),
        ),
        "called once for each micro-batch": (
            Sub(
                "get_megatron_mtp_loss(n_micro_batch)",
                "[get_megatron_mtp_loss(n_micro_batch) for _ in range(n_micro_batch)][-1]",
            ),
        ),
        "the source rank calls once more": (
            Sub(_UPDATED, f"get_megatron_mtp_loss(n_micro_batch)\n                {_UPDATED}"),
        ),
        "MTP is not asked": (Sub("self.model_config.mtp.enable and ", ""),),
    }


EQUIVALENT = {
    r"by hand: the ranks that have losses": "the schedules return losses on the last stage only, one a micro-batch",
    _OF_SOURCE: _SOURCE,
    _TWICE.format(r'losses_reduced\[0\]\["metrics"\]\.update\(metrics\)'): _REPEATED,
    r"late: if self\.model_config\.mtp\.enable .* <-> if RouterReplayHelper.*": (
        "the recording of routes uses other groups, after the loss or before it on all ranks of the stage"
    ),
}
MUTANTS = [Mutants("verl", ("0.7.1",), _by_hand(), EQUIVALENT, ranks=(TP, CP, DP))]
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
                ("cp2", "schedule-32"),
            ),
            "half: called by all ranks, reports on all": Other(
                without(r"if self\.is_mp_src_rank_with_outputs\(\):", "if True:"), ("cp2",)
            ),
            "without the guard for no micro-batch": Other(without(r"n_micro_batch > 0 and ", ""), ("no-micro-batch",)),
        },
        timed=True,
    )
]
FUZZ = Fuzz(CASES, 5, r"mtp|losses_reduced|n_micro_batch|metrics|is_mp_src|is_pipeline", examples=80)
