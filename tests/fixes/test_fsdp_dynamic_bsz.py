"""fsdp-dynamic-bsz: its anchors, and what the sessions need of it."""

from __future__ import annotations

import re

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import hung_jobs, sources
from support.hung_jobs import IDLE, WORLD, HungJob, issued, job, rank
from support.sources import Case
from unhang.diagnose.evidence import Job, Rank
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "fsdp-dynamic-bsz"
TARGETS = catalog.fix(FIX).targets
ACTOR, CRITIC = "verl/workers/actor/dp_actor.py", "verl/workers/critic/dp_critic.py"
_WORLD = "torch.distributed.group.WORLD"
CASES = [pytest.param(Case("wheel", to, "0.7.1"), id=to.function.rpartition(".")[2]) for to in TARGETS]


def as_pulled(data: bytes) -> bytes:
    """Pass the group in every call of a file, as pull request 5591 does in the actor."""
    call = rb"(prepare_dynamic_batch\(.*max_token_len)\)"
    return re.sub(call, rb"\1, dp_group=%s)" % _WORLD.encode(), data)


@pytest.mark.parametrize("case", CASES)
def test_an_upstream_fix_is_told_from_ours(case: Case) -> None:
    source, change = case.load(), codemod(case.target)
    pulled = sources.function_in(as_pulled(source.data), case.target)
    assert [change.fixed_upstream(it) for it in (pulled, source.rewritten.function)] == [True, False]


_CUT = "max_token_len=max_token_len)"
REFUSED = sources.edits(
    sources.case(FIX, "0.7.1", function=TARGETS[2].function),
    [
        ("prepare_dynamic_batch(data,", "prepare(data,", "without a group"),
        (_CUT, "max_token_len=max_token_len, dp_group=None)", "without a group"),
        (_CUT, "max_token_len=max_token_len, **self.more)", "without a group"),
        (_CUT, "max_token_len, self.group)", "without a group"),
        ("values_lst = []", "values_lst = world = []", "without world, which is ours"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_GIVEN = "dp_group=world"
_SIZE, _RANK = "self.ulysses_sequence_parallel_size", "torch.distributed.get_rank()"
_ARGUMENTS = (
    *("group=world", "dp_group=None", "dp_group=None, same_micro_num_in_dp=True"),
    *(f"{_GIVEN}, {it}" for it in ("same_micro_num_in_dp=False", "num_batches_divided_by=2", "min_num_micro_batch=4")),
)


def _mutants(function: str, dynamic: str, batch: str) -> Mutants:
    conditions = (
        *(f"{_SIZE} > 1", f"{_SIZE} == 1", _RANK, f"not {dynamic}"),
        *(f"{batch}.batch['input_ids'].shape[0] > 4", f"{batch}.batch['input_ids'][0, 0] > 1"),
        *("any(hasattr(it, 'unshard') for it in vars(self).values())", "self.__dict__.setdefault('now', [0, 1]).pop()"),
        *(("not calculate_entropy", "self.actor_optimizer") if "log_prob" in function else ()),
    )
    groups = ("'shard'", f"({_WORLD},)")
    instead = {
        _WORLD: [*groups, *(f"{_WORLD} if {one} else None" for one in conditions)],
        _GIVEN: _ARGUMENTS,
        f"prepare_dynamic_batch({batch}, ": [f"prepare_dynamic_batch({batch}.split(2)[0], "],
        f"{_WORLD}\n": [f"{_WORLD}; prepare_dynamic_batch({batch}, max_token_len=max_token_len, {_GIVEN})\n"],
        **({"entropys = restore_dynamic_batch(": ["entropys, _ = ("]} if "log_prob" in function else {}),
    }
    return Mutants("verl", ("0.7.1",), each(instead), function=function)


_OF_ANSWERS, _OF_UPDATES = ("use_dynamic_bsz", "data"), ("self.config.use_dynamic_bsz", "mini_batch")
MUTANTS = [_mutants(it.function, *(_OF_UPDATES if ".update" in it.function else _OF_ANSWERS)) for it in TARGETS]
_SHARD = "next(self.actor_module.parameters()).device_mesh.get_all_groups()[-1]"
_OF_ALL = r"torch\.distributed\.group\.WORLD"
_HALVES = {
    "half: the actor alone, as upstream": Other(in_file("dp_critic.py", untouched), ("critic-update",)),
    "half: the critic alone": Other(in_file("dp_actor.py", untouched), ("log-prob",)),
    "half: the second method of each": Other(without(f", {_GIVEN}", ""), ("values",)),
    "the shard group": Other(in_file("dp_actor.py", without(_OF_ALL, _SHARD, 0)), ("hybrid-policy-update",)),
}
PROOFS = [Proofs("verl", [Release("0.7.1", core=True)], _HALVES)]
FUZZ = Fuzz(CASES, 2, "prepare_dynamic_batch|max_token_len|dp_group|use_dynamic_bsz", examples=40)


def _at(*functions: str, of: str = f"{ACTOR}::DataParallelPPOActor") -> tuple[str, ...]:
    """Return the frames of methods, innermost first."""
    return tuple(f"{of}.{name}" for name in functions)


def _gathers(at: tuple[str, ...], *others: Rank | None) -> Job:
    """Return a job of four, of whose ranks those that are not given are in a forward pass."""
    inside = rank(issued(WORLD, 26, "all_gather", 130, at=at))
    return job([inside] * (4 - len(others)) + [*others])


def _clips(at: tuple[str, ...]) -> Rank:
    return rank(issued(WORLD, 26, "all_reduce", 21, at=at))


_TORCH, _NO_MEMORY = hung_jobs.C10D, "torch.OutOfMemoryError: CUDA out of memory"
_INSIDE, _END, _UPDATE = "_forward_micro_batch", "_optimizer_step", "update_policy"
_SAVE = "job/checkpoint.py::save_checkpoint"
_FORWARD, _CLIP, _LOG_PROB = _at(_INSIDE, _UPDATE), _at(_END, _UPDATE), _at(_INSIDE, "compute_log_prob")
_OF_CRITIC, _CRITIC_CLIP = (_at(it, "update_critic", of=f"{CRITIC}::DataParallelPPOCritic") for it in (_INSIDE, _END))
_CLIPS, _CRITIC_CLIPS = _clips(_CLIP), _clips(_CRITIC_CLIP)
_DONE = rank(issued(WORLD, 25, "all_reduce", 1, done=True), at=IDLE)
_REPLICA = rank(issued(hung_jobs.group("14", "mesh_ddp", 0, 2), 7, "all_reduce", 328, at=_FORWARD[1:]))
_STACK, _CLIP_STACK = (rank(at=(_TORCH, *at), recorded=False) for at in (_FORWARD, _CLIP))
_SAVES, _SAVES_AT_END = (rank(at=(_TORCH, _SAVE, *at), recorded=False) for at in (_FORWARD[1:], _CLIP))
_FAILED = rank(lines=hung_jobs.failing(_NO_MEMORY))
_CAUGHT = _CLIPS._replace(stacks=_CLIP_STACK.stacks, messages=tuple(hung_jobs.failing(_NO_MEMORY, *_FORWARD)))
HANGS = [
    HungJob("an update", _gathers(_FORWARD, _CLIPS, _CLIPS)),
    HungJob("an update of the critic", _gathers(_OF_CRITIC, _CRITIC_CLIPS, _CRITIC_CLIPS)),
    HungJob("the critic beside the actor", _gathers(_FORWARD, _CRITIC_CLIPS, _CRITIC_CLIPS), ""),
    HungJob("a backward that gathers again", _gathers(("torch/a.py::b", *_FORWARD[1:]), _CLIPS), ""),
    HungJob("log-probabilities", _gathers(_LOG_PROB, _DONE, _DONE)),
    HungJob("replicas", job([_REPLICA, None, rank(at=IDLE), None])),
    HungJob("one rank saves below the same call", job([_STACK, _STACK, _CLIP_STACK, _SAVES]), ""),
    HungJob("one rank saves at the end of it", job([_STACK, _STACK, _CLIP_STACK, _SAVES_AT_END]), "also"),
    HungJob("one rank is not heard of", _gathers(_FORWARD, _CLIPS, None)),
    HungJob("late for a micro-batch", _gathers(_LOG_PROB, *[rank(at=_LOG_PROB)] * 2), ""),
    HungJob("no memory in a micro-batch of a patched job", _gathers(_LOG_PROB, _FAILED), "also"),
    HungJob("no memory in a micro-batch, and left out", _gathers(_FORWARD, _CAUGHT, _CLIPS)),
]
