"""Judge the end state of a rewrite by running the function. Nothing here asks the codemod that wrote it.

A *mutant* is a real upstream function (its *base*) after some mutations; *written* is what our rewrite made of it. For
each setting of a job, the fix's own test module runs the function with recording stand-ins. Each setting has two
parts: the *promise*, the faults in what the fix is about (sender against receiver, which ranks join, the rows, the
groups), and the *control*, everything that the function does in the same setting where the fix plays no part (without
``args.sft``, without the loss, with tokens, the groups themselves). ``wrongs`` then demands:

1. If the mutant is *sound* (its control is that of its base), the promise holds in full, and the control of *written*
   is that of our rewrite of the base: nothing else has changed.
2. If it is not sound, the mutation broke the job with or without us. Then nothing may be worse: *written* has no
   fault, and raises nothing, that the mutant does not; and if it runs at all, its control is that of the mutant, or
   that of our rewrite of the base.

For mutants of a pull request as written only the promise is demanded: our rewrite undoes the pull request, so the
control may change, and effects of a mutation that the pull request hid may appear.

A mutant is excused from the promise only if it is broken in a job where the fix plays no part. The harness does not
judge what it cannot see: decorators, annotations, other threads.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import Any, ClassVar

from fixes import test_empty_expert_hang as experts
from fixes import test_expert_dp_warmup as warmup
from fixes import test_mtp_cp_deadlock as mtp
from fixes import test_sft_packed_seq_broadcast as sft
from support import sources
from support.sources import Source

RAISED = "raises"


class Judge:
    """Runs the function of one fix.

    ``base`` is what is mutated: an upstream function (``origin``), or our rewrite of it (``rewritten``).
    """

    harness: ModuleType
    """The fix's test module, which runs its function."""
    share: int
    """The fix's share of the mutations. Shorter code has fewer different mutants."""
    focus: str
    """What the fix is about, as a regular expression: every second mutation is made there."""

    def __init__(self, base: Source, origin: Source, rewritten: Source) -> None:
        self.base, self.origin, self.rewritten = base, origin, rewritten
        self.keys = self.settings()
        self._sound = {key: _tried(partial(self.control, base), key) for key in self.keys}
        self._wanted = {key: _tried(partial(self.control, rewritten), key) for key in self.keys}
        raised = [key for key, what in self._sound.items() if _raised(what)]
        assert not raised, f"the harness itself cannot run {base.target.function} in {raised[0]}"
        forget()

    def settings(self) -> Sequence[Hashable]:
        raise NotImplementedError

    def promise(self, source: Source, key: Any) -> set[str]:
        """Return the faults in what the fix is about."""
        raise NotImplementedError

    def control(self, source: Source, key: Any) -> Any:
        """Return what the function does where the fix plays no part."""
        raise NotImplementedError

    def ran(self, control: Any) -> bool:
        """Return whether the function did its work there."""
        return not _raised(control)

    def wrongs(self, mutant: Source, written: Source) -> tuple[list[str], bool]:
        """Return what is wrong with *written*, and whether the mutant is sound in every setting."""
        found, sound_everywhere = [], True
        for key in self.keys:
            before = _tried(partial(self.control, mutant), key)
            after = before if written.data == mutant.data else _tried(partial(self.control, written), key)
            sound = before == self._sound[key]
            sound_everywhere &= sound
            excused = not sound and (not self.ran(before) or after == before)
            if after != self._wanted[key] and not excused and not self.base.known.note:
                found.append(f"{key}: the function does other things where the fix plays no part")
            faults = self._faults(written, key)
            if faults and (sound or not faults <= self._faults(mutant, key)):
                found.append(
                    f"{key}: {', '.join(sorted(faults))}" + ("" if sound else " (which the mutant does not have)")
                )
        forget()
        return found, sound_everywhere

    def _faults(self, source: Source, key: Any) -> set[str]:
        faults = _tried(partial(self.promise, source), key)
        return {RAISED} if isinstance(faults, tuple) else set(faults)


class Mtp(Judge):
    """Which ranks of a grid join the all-reduce, and which report."""

    harness = mtp
    share = 5
    focus = r"mtp|losses_reduced|n_micro_batch|metrics|is_mp_src|is_pipeline"

    GRIDS = (mtp.Grid(cp=2), mtp.Grid(tp=2, cp=2, dp=2, pp=2), mtp.Grid(tp=2, cp=2, pp=2, virtual=2), mtp.Grid(tp=2))
    NONE = mtp.Grid(cp=2, batches=0)

    def settings(self) -> Sequence[mtp.Grid]:
        # upstream's own fix also calls without a micro-batch, and then has no loss to write to
        return (*self.GRIDS, self.NONE) if self.base.known.state != "fixed" else self.GRIDS

    def promise(self, source: Source, key: mtp.Grid) -> set[str]:
        if key == self.NONE:
            return {"called without a micro-batch"} if mtp.calls_at_all(source.function, key) else set()
        return set(mtp.faults(source.function, (key,)))

    def control(self, source: Source, key: mtp.Grid) -> Any:
        grid = key._replace(enabled=False)
        return [mtp.run_rank(source.function, grid, rank, each) for rank in grid.ranks() for each in (True, False)]


class Sft(Judge):
    """What TP rank 0 sends, and what the receiving half does with it."""

    harness = sft
    share = 7
    focus = r"seqlen|_broadcast|args\b|is_pipeline|batch\b"

    def settings(self) -> Sequence[sft.Setting]:
        function = self.base.function
        graphs = (setting for setting in sft.settings(function, sft=False) if setting.graph)
        return [*sft.settings(function, sft=True), *graphs]

    @cached_property
    def trailing(self) -> bool:
        """Whether this is 0.16, whose middle stages have no arm and get none."""
        return sft.is_trailing(self.origin.function)

    def promise(self, source: Source, key: sft.Setting) -> set[str]:
        return sft.faults_in(source.function, key, not self.trailing) if key.sft else set()

    def control(self, source: Source, key: sft.Setting) -> Any:
        made = sft.run(source.function, key._replace(sft=False))
        return made.sent, made.received, sft.described(made.sender), sft.described(made.receiver), made.error

    def ran(self, control: Any) -> bool:
        # in the harness, ranks that do not agree end in an error; real ones would wait forever
        return super().ran(control) and not control[-1]


class Experts(Judge):
    """Which rows the grouped linears get, and what the forward returns."""

    harness = experts
    share = 6
    focus = r"tokens_per_expert|permuted_|output|has_no_tokens|num_rows|skip_routed|grouped|linear_fc"

    def settings(self) -> Sequence[experts.Setting]:
        return list(experts.settings(self.base.function))

    @staticmethod
    def _as_asked(source: Source, key: experts.Setting) -> experts.Setting:
        """Return the setting, without the fused path if a mutant has lost it."""
        names = {node.attr for node in ast.walk(source.function) if isinstance(node, ast.Attribute)}
        return key if "_with_fused_impl" in names else key._replace(fused=False)

    def promise(self, source: Source, key: experts.Setting) -> set[str]:
        key = self._as_asked(source, key)
        if not experts.is_ours(key):
            return set()
        function = source.function
        found = experts.faults_in(function, key)
        if not found and experts.run(function, key).synchronised != ["cpu"]:
            found.add("tokens_per_expert is fetched again")
        return found

    def control(self, source: Source, key: experts.Setting) -> Any:
        key = self._as_asked(source, key)
        made = [key._replace(tokens=(16, 0, 32)), key._replace(spare=4)]
        made += [key._replace(tokens=(2, 0, 1))] if not (key.skip and key.quantized) else []
        made += [key] if not experts.is_ours(key) else []
        return [experts.run(source.function, setting) for setting in made]


class Warmup(Judge):
    """Which groups every rank of a job makes and warms up."""

    harness = warmup
    share = 4
    focus = r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE"

    JOBS = (warmup.Job(), warmup.Job(tp=2, pp=2, ep=2), warmup.Job(pp=2, ep=2, instances=2), warmup.Job(ep=4))

    def settings(self) -> Sequence[warmup.Job]:
        known = warmup.jobs(self.base)
        return [job for job in self.JOBS if job.instances == 1 or any(other.instances > 1 for other in known)]

    def promise(self, source: Source, key: warmup.Job) -> set[str]:
        found = set(warmup.faults(source, key))
        # the first optimizer step would hang on these, with or without a warm-up
        made = [warmup.initialised(source, key, rank)[1] for rank in range(8)]
        groups = [warmup.distinct([namespace.get(name) for name in warmup.GROUPS]) for namespace in made]
        if warmup.stuck([[group.ranks for group in own] for own in groups]):
            found.add("the ranks wait for each other forever")
        return found

    def control(self, source: Source, key: warmup.Job) -> Any:
        made: list[Any] = [_globals(warmup.initialised(source, key, rank)[1]) for rank in range(8)]
        for other in (key._replace(ep=1), key._replace(backend="gloo")):
            for rank in (0, 5):
                torch, namespace = warmup.initialised(source, other, rank)
                made.append((torch.done, _globals(namespace)))
        return made


def _globals(namespace: dict[str, Any]) -> dict[str, str]:
    """Return what the initialisation set in the module: groups, ranks, sizes."""
    kinds = (warmup.Group, list, tuple, int, type(None))
    return {
        name: repr(value) if isinstance(value, kinds) else type(value).__name__
        for name, value in namespace.items()
        if name.lstrip("_").isupper()
    }


class WarmupSwift(Judge):
    """Which groups of the accessors ms-swift warms up."""

    ONE, TWO, ALONE = (warmup.Group(ranks, "cpu:gloo,cuda:nccl") for ranks in ([0, 2], [0, 4], [0]))
    CASES: ClassVar[dict[str, tuple[dict[str, object], list[warmup.Group]]]] = {
        "two groups": (dict(zip(warmup.ACCESSORS, (ONE, warmup.asserting, TWO))), [ONE, TWO]),
        "one group twice": (dict(zip(warmup.ACCESSORS, (ONE, None, ONE))), [ONE]),
        "a group of one": (dict(zip(warmup.ACCESSORS, (ONE, ALONE, TWO))), [ONE, TWO]),
        "one accessor": ({warmup.ACCESSORS[0]: ONE}, [ONE]),
    }

    def settings(self) -> Sequence[str]:
        return list(self.CASES)

    def promise(self, source: Source, key: str) -> set[str]:
        groups, wanted = self.CASES[key]
        mpu = self._mpu(groups)
        done = warmup.initialise_mpu(source, warmup.Torch(), mpu)
        found = set() if mpu.made == ["groups"] else {"the groups are not made exactly once"}
        if done != [each for group in wanted for each in ((group, "npu:3"), "item")]:
            found.add("not each existing group once")
        return found

    def control(self, source: Source, key: str) -> Any:
        groups: dict[str, object] = dict.fromkeys(warmup.ACCESSORS, warmup.Group([0, 2], "gloo"))
        if self.base.known.note:
            groups["get_inter_distributed_optimizer_instance_group"] = warmup.asserting
        made: list[Any] = []
        mine = self.CASES[key][0]
        for given, ep, ready, backend in (
            (mine, 1, False, "nccl"),
            (mine, 2, True, "nccl"),
            (groups, 2, False, "gloo"),
        ):
            mpu = self._mpu(given, ready)
            made.append((warmup.initialise_mpu(source, warmup.Torch(backend=backend), mpu, ep), mpu.made))
        return made

    def _mpu(self, groups: dict[str, object], ready: bool = False) -> warmup.Mpu:
        """Return stand-ins whose inter-instance accessor takes the pull request's argument (megatron-core 0.15)."""
        if not self.base.known.note:
            return warmup.Mpu(groups, ready)
        name = "get_inter_distributed_optimizer_instance_group"
        return warmup.Mpu({**groups, name: partial(_checked, groups.get(name))}, ready)


def _checked(group: Any, check_initialized: bool = True) -> Any:
    """Return the group, as megatron-core's accessor does: by default it asserts that there is one."""
    if callable(group) or group is None:
        assert not check_initialized, "is not initialized"
        return None
    return group


JUDGES: dict[str, type[Judge]] = {kind.harness.FIX: kind for kind in (Mtp, Sft, Experts, Warmup)}
"""The judge of each fix that is fuzzed."""


def judge_of(base: Source, origin: Source, rewritten: Source) -> Judge:
    """Return the judge of a function."""
    kind = WarmupSwift if base.target.upstream == "ms-swift" else JUDGES[base.target.fix]
    return kind(base, origin, rewritten)


def forget() -> None:
    """Drop what the harnesses cache for each function: the fuzz runs tens of thousands."""
    for cached in (mtp.faults, sft.run, sft.faults, experts.run, experts.faults):
        cached.cache_clear()
    sources.forget()


def _tried(what: Any, key: Hashable) -> Any:
    """Return the result, or the name of what is raised."""
    try:
        return what(key)
    except Exception as error:
        return RAISED, type(error).__name__


def _raised(what: Any) -> bool:
    return isinstance(what, tuple) and what[:1] == (RAISED,)
