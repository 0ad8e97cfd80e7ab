"""fsdp-dynamic-bsz: which group each of the four methods passes on, and what the verdict rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import hung_jobs, sources
from support.hung_jobs import IDLE, WORLD, HungJob, issued, job, rank
from support.sources import Case
from unhang.codemods.base import AnchorError
from unhang.diagnose.evidence import Job, Rank
from unhang.judge import matrix
from unhang.judge.decide import codemod
from unhang.judge.findings import Finding, judge
from unhang.rewrite.plan import plan
from unhang.shapes import catalog

FIX = "fsdp-dynamic-bsz"
TARGETS = catalog.fix(FIX).targets
ACTOR, CRITIC = "verl/workers/actor/dp_actor.py", "verl/workers/critic/dp_critic.py"
(HELPER,) = {target.depends_on for target in TARGETS if target.depends_on}
_WORLD = "torch.distributed.group.WORLD"
CASES = [pytest.param(Case("wheel", to, "0.7.1"), id=to.function.rpartition(".")[2]) for to in TARGETS]


def verdicts(findings: list[Finding]) -> list[str]:
    return [finding.verdict.verdict for finding in findings]


def as_pulled(data: bytes) -> bytes:
    """Pass the group in every call of a file, as pull request 5591 does in the actor."""
    pulled, found = re.subn(
        rb"(prepare_dynamic_batch\(.*max_token_len)\)", rb"\1, dp_group=%s)" % _WORLD.encode(), data
    )
    assert found == 2
    return pulled


def edited(data: bytes) -> bytes:
    """Edit the first of the fix's methods in a file, far from the call."""
    head, name, tail = data.partition(b".eval()\n")
    return head + name + b"        print(data)\n" + tail


def test_every_release_has_the_verdict_that_its_own_helper_gives_it() -> None:
    releases = catalog.releases()
    now = matrix.rows([catalog.fix(FIX)], {"verl": releases["verl"]}, catalog.shape_table())
    assert {row.version for row in now if row.verdict == "needed"} == {"0.7.1"}
    assert {row.verdict for row in now} == {"needed", "not-affected"}
    place = f"{TARGETS[2].file}::{TARGETS[2].function}"
    assert releases["verl"]["0.7.0"].shapes[place] == releases["verl"]["0.7.1"].shapes[place] is not None


@pytest.mark.parametrize("case", CASES)
def test_an_upstream_fix_is_told_from_ours(case: Case) -> None:
    source, change = case.load(), codemod(case.target)
    pulled = sources.function_in(as_pulled(source.data), case.target)
    every = (pulled, source.function, source.rewritten.function)
    assert [change.fixed_upstream(it) for it in every] == [True, False, False]
    with pytest.raises(AnchorError, match="not found"):
        change.plan(pulled)


REFUSED = sources.edits(
    sources.case(FIX, "0.7.1", function=TARGETS[2].function),
    [
        ("prepare_dynamic_batch(data,", "prepare(data,", "without a group"),
        ("max_token_len=max_token_len)", "max_token_len=max_token_len, dp_group=None)", "without a group"),
        ("max_token_len=max_token_len)", "max_token_len=max_token_len, **self.more)", "without a group"),
        ("max_token_len=max_token_len)", "max_token_len, self.group)", "without a group"),
        ("values_lst = []", "values_lst = world = []", "without world, which is ours"),
    ],
)


NEEDED, NOT, FIXED = ["needed"] * 4, ["not-affected"] * 4, ["fixed-upstream"] * 2


@pytest.mark.parametrize(
    ("version", "change", "wanted"),
    [
        ("0.4.0", {}, NOT),
        ("0.7.0", {}, NOT),
        ("0.7.1", {}, NEEDED),
        ("0.8.0", {}, NOT),
        ("0.7.1", {HELPER.file: "0.7.0"}, NOT),
        ("0.7.0", {HELPER.file: "0.7.1"}, ["drifted"] * 2 + NEEDED[2:]),  # upstream has never had the two
        ("0.7.0", {ACTOR: edited}, ["drifted", *NOT[1:]]),
        ("0.7.1", {ACTOR: as_pulled}, [*FIXED, "needed", "needed"]),
        ("0.7.1", {HELPER.file: lambda data: data.replace(b"and dp_group is not None", b"")}, ["drifted"] * 4),
        ("0.7.1", {HELPER.file: "0.8.0", CRITIC: edited}, ["needed", "needed", "drifted", "needed"]),
    ],
)
def test_the_same_methods_are_wrong_or_right_by_the_function_that_they_depend_on(
    tmp_path: Path, version: str, change: Mapping[str, Any], wanted: list[str]
) -> None:
    now = judge([sources.installed(tmp_path, FIX, version, version, change)], [catalog.fix(FIX)], {})
    assert [finding.target for finding in now] == list(TARGETS)
    assert verdicts(now) == wanted
    planned = plan(now, {})
    if "drifted" in wanted:
        (blocked,) = planned.blocked
        assert (planned.files, blocked.fix) == ((), FIX), "in whole or not at all"
        return
    files = {finding.target.file for finding in now if finding.verdict.verdict == "needed"}
    assert {file.path for file in planned.files} == {str(tmp_path / file) for file in files}
    for file in planned.files:
        Path(file.path).write_bytes(file.after)
    after = judge([now[0].installation], [catalog.fix(FIX)], {})
    assert verdicts(after) == ["applied" if verdict == "needed" else verdict for verdict in wanted]
    assert change or all(finding.seen.on_record for finding in after if finding.seen.data), "nothing is parsed again"


def test_a_helper_that_nobody_has_verified_is_named(tmp_path: Path) -> None:
    change = {HELPER.file: lambda data: data.replace(b"dp_group is not None", b"True")}
    first, *_ = judge([sources.installed(tmp_path, FIX, "0.7.1", "0.7.1", change)], [catalog.fix(FIX)], {})
    assert first.verdict.code == "depends-on-unknown"
    assert "closest known shape: c7e86c973afc94c9 (wrong; verl 0.7.1" in first.verdict.detail
    assert "1 statement differs" in first.verdict.detail


# -- what the sessions need -------------------------------------------------------------------------------------------

_GIVEN = "dp_group=world"
_OTHERS = ("None", "'shard'", f"({_WORLD},)", "'WORLD'", "torch.distributed.group")
_SIZE, _RANK = "self.ulysses_sequence_parallel_size", "torch.distributed.get_rank()"
_ARGUMENTS = (
    *("group=world", "dp_group=None", f"{_GIVEN} and None", "dp_group=None, same_micro_num_in_dp=True"),
    *(f"{_GIVEN}, {it}" for it in ("same_micro_num_in_dp=False", "num_batches_divided_by=2", "min_num_micro_batch=4")),
)


def _by_hand(dynamic: str, batch: str) -> ByHand:
    """Return what a person may write instead, named by itself."""
    conditions = (
        *(f"{_SIZE} > 1", f"{_SIZE} == 1", f"{_RANK} == 0", _RANK, f"not {dynamic}"),
        *(f"{batch}.batch['input_ids'].shape[0] > 4", f"{batch}.batch['input_ids'][0, 0] > 1"),
    )
    again = f"prepare_dynamic_batch({batch}, max_token_len=max_token_len, {_GIVEN})"
    return {
        **{it: Sub(_WORLD, it) for it in (*_OTHERS, *(f"{_WORLD} if {one} else None" for one in conditions))},
        **{it: Sub(_GIVEN, it) for it in _ARGUMENTS},
        "another bound": Sub("max_token_len=max_token_len", "max_token_len=2 * max_token_len"),
        "half of the batch": Sub(f"prepare_dynamic_batch({batch}, ", f"prepare_dynamic_batch({batch}.split(2)[0], "),
        "cut twice": Sub(f"world = {_WORLD}\n", f"world = {_WORLD}; {again}\n"),
    }


_DYNAMIC, _BATCHES = ("use_dynamic_bsz", "self.config.use_dynamic_bsz"), ("data", "mini_batch")
MUTANTS = [
    Mutants("verl", ("0.7.1",), _by_hand(dynamic, batch), function=target.function)
    for target, dynamic, batch in zip(TARGETS, _DYNAMIC * 2, _BATCHES * 2)
]
_SHARD = "next(self.actor_module.parameters()).device_mesh.get_all_groups()[-1]"
_OF_ALL = r"torch\.distributed\.group\.WORLD"
PROOFS = [
    Proofs(
        "verl",
        [Release("0.7.1", core=True)],
        {
            "half: the actor alone, as upstream": Other(in_file("dp_critic.py", untouched), ("critic-update",)),
            "half: the critic alone": Other(in_file("dp_actor.py", untouched), ("log-prob",)),
            "half: the second method of each": Other(without(f", {_GIVEN}", ""), ("values",)),
            "the shard group": Other(in_file("dp_actor.py", without(_OF_ALL, _SHARD, 0)), ("hybrid-policy-update",)),
        },
    )
]
FUZZ = Fuzz(CASES, 2, "prepare_dynamic_batch|max_token_len|dp_group|use_dynamic_bsz", examples=40)


def _at(kind: str, *functions: str) -> tuple[str, ...]:
    """Return the frames of functions of the actor or the critic, innermost first."""
    return tuple(f"{ACTOR if kind == 'Actor' else CRITIC}::DataParallelPPO{kind}.{name}" for name in functions)


def _micro_batches(at: tuple[str, ...], *others: Rank | None) -> Job:
    inside = rank(issued(WORLD, 26, "all_gather", 130, at=at))
    return job([inside] * (4 - len(others)) + [*others])


def _clips(at: tuple[str, ...]) -> Rank:
    return rank(issued(WORLD, 26, "all_reduce", 21, at=at))


def _seen(*at: str) -> Rank:
    """Return a rank of which there is a stack alone."""
    return rank(at=at, recorded=False)


_FORWARD, _CLIP = (_at("Actor", name, "update_policy") for name in ("_forward_micro_batch", "_optimizer_step"))
_OF_CRITIC, _CLIP_OF_CRITIC = (_at("Critic", it[0].rpartition(".")[2], "update_critic") for it in (_FORWARD, _CLIP))
_LOG_PROB = _at("Actor", "_forward_micro_batch", "compute_log_prob")
_CLIPS, _CRITIC_CLIPS = _clips(_CLIP), _clips(_CLIP_OF_CRITIC)
_DONE = rank(issued(WORLD, 25, "all_reduce", 1, done=True), at=IDLE)
_MESH = hung_jobs.group("12", "mesh_fsdp")
_REPLICA = rank(issued(hung_jobs.group("14", "mesh_ddp", 0, 2), 7, "all_reduce", 328, at=_FORWARD[1:]))
_INSIDE_BY_STACK, _CLIPS_BY_STACK = (_seen(hung_jobs.C10D, *at) for at in (_FORWARD, _CLIP))
_GATHERS = rank(issued(_MESH, 26, "all_gather", 130, at=_FORWARD), at=(hung_jobs.C10D, *_FORWARD))
_IN_ALL = rank(
    issued(_MESH, 25, "all_gather", 130, done=True),
    issued(WORLD, 3, "all_reduce", 1, at=_CLIP),
    at=(hung_jobs.C10D, *_CLIP),
)
_NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
_FAILED = rank(lines=hung_jobs.failing(_NO_MEMORY))
_CAUGHT = _CLIPS._replace(stacks=_CLIPS_BY_STACK.stacks, messages=tuple(hung_jobs.failing(_NO_MEMORY, *_FORWARD)))


def _one_saves(below: tuple[str, ...]) -> Job:
    saves = _seen(hung_jobs.C10D, "job/checkpoint.py::save_checkpoint", *below)
    return job([_INSIDE_BY_STACK, _INSIDE_BY_STACK, _CLIPS_BY_STACK, saves])


HANGS = [
    HungJob("an update", _micro_batches(_FORWARD, _CLIPS, _CLIPS)),
    HungJob("an update of the critic", _micro_batches(_OF_CRITIC, _CRITIC_CLIPS, _CRITIC_CLIPS)),
    HungJob("the critic beside the actor", _micro_batches(_FORWARD, _CRITIC_CLIPS, _CRITIC_CLIPS), ""),
    HungJob("a backward that gathers again", _micro_batches(("torch/a.py::b", *_FORWARD[1:]), _CLIPS), ""),
    HungJob("log-probabilities", _micro_batches(_LOG_PROB, _DONE, _DONE)),
    HungJob("stacks alone", job([_INSIDE_BY_STACK, _CLIPS_BY_STACK])),
    HungJob("an update in a group of the mesh", job([_GATHERS, _GATHERS, _IN_ALL, _IN_ALL])),
    HungJob("replicas", job([_REPLICA, None, rank(at=IDLE), None])),
    HungJob("one rank saves below the same call", _one_saves(_FORWARD[1:]), ""),
    HungJob("one rank saves at the end of it", _one_saves(_CLIP), "also"),
    HungJob("one rank is not heard of", _micro_batches(_FORWARD, _CLIPS, None)),
    HungJob("an uneven data loader", _micro_batches(("job/train.py::step",), _clips(()), _clips(())), ""),
    HungJob("late for a micro-batch", _micro_batches(_LOG_PROB, *[rank(at=_LOG_PROB)] * 2), ""),
    HungJob("failed in a micro-batch", _micro_batches(_LOG_PROB, rank(), rank())),
    HungJob("no memory in a micro-batch of a patched job", _micro_batches(_LOG_PROB, _FAILED), "also"),
    HungJob("no memory in a micro-batch, and left out", _micro_batches(_FORWARD, _CAUGHT, _CLIPS)),
    HungJob("stacks: at work in a micro-batch", job([_seen(*_FORWARD), _CLIPS_BY_STACK])),
]
