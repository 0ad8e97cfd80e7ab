"""expert-dp-warmup: its anchors, the backends that it does not recognise, and what the sessions need of it."""

from __future__ import annotations

import ast
import re
from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import hung_jobs, sources, wheels
from support.hung_jobs import HungJob
from unhang.codemods import expert_dp_warmup
from unhang.prove.cases import DIFFERS, PASSED, Topology
from unhang.prove.fixes import expert_dp_warmup as scene
from unhang.shapes import catalog

FIX = "expert-dp-warmup"
LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
RELEASES = (*LINES, "0.12.0", "0.17.0", "0.16.0rc0.dev100093", "0.16.0rc0.dev132550")
CASES = sources.cases(FIX, {"megatron-core": RELEASES, "ms-swift": ["4.0.0", "4.2.3", "4.6.0"]})
CORE = [case for case in CASES if case.values[0].target.upstream == "megatron-core" and case.values[0].kind == "wheel"]
SWIFT = [case for case in CASES if case.values[0].target.upstream == "ms-swift"]
FOCUS = r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE"
FUZZ = Fuzz(CASES, 4, FOCUS, examples=30, every=7)


def test_ms_swift_imports_the_device_from_where_it_is() -> None:
    """Every release that is rewritten has the name in `swift.utils`."""
    for version in (case.values[0].key for case in SWIFT if case.values[0].kind == "wheel"):
        assert b"get_current_device" in (wheels.read("ms-swift", version, "swift/utils/__init__.py") or b"")


_BUFFER, _MAKES = "_set_global_memory_buffer()", "mpu.initialize_model_parallel"


REFUSED = [
    *sources.edits(
        CORE[0],
        [
            (_BUFFER, "pass", "not found: _set_global_memory_buffer"),
            (_BUFFER, f"{_BUFFER}; {_BUFFER}", "found 2 times"),
            ("expert_model_parallel_size: int=", "size: int=", "not found: the argument expert_model_parallel_size"),
            # the ranks that return would leave the others waiting
            (_BUFFER, f"if rank == 0:\n        {_BUFFER}\n        return", "and no return"),
            (_BUFFER, f"later = lambda: {_BUFFER}", "and no return or definition"),
        ],
    ),
    *sources.edits(
        SWIFT[0],
        [
            (_MAKES, f"return {_MAKES}", "and no return"),
            (_MAKES, "mpu.start", f"not found: {_MAKES}"),
            ("else:\n", f"else:\n        with x: {_MAKES}()\n", "found 2 times"),
        ],
    ),
]


@pytest.mark.parametrize("upstream", ["megatron-core", "ms-swift"])
def test_the_case_of_a_users_job(upstream: str) -> None:
    large, small = Topology(tp=4, pp=8, ep=8, dp=32), Topology(tp=2, pp=3, ep=2, dp=2)
    dense, unreplicated = Topology(tp=2, dp=4), Topology(ep=8, dp=8)  # of the last, the release decides
    for job, runs in ((large, small), (small, small), (dense, dense), (unreplicated, unreplicated)):
        case = scene.case_for(job, upstream, ())
        assert (case.topology, case.untouched) == (runs, PASSED if job == dense else DIFFERS)
        assert bool(case.options.get("may_pass")) is (job == unreplicated)
        assert ("function" in case.options) is (upstream == "ms-swift")


LOOKS = catalog.fix(FIX).manifest["looks-at"]
STARTS = "import torch\nimport torch.distributed as dist\nfrom torch.distributed import init_process_group as start\n"
DOES_NOTHING = ("flagcx", "xccl", "cpu:gloo,cuda:flagcx")
UNTOLD = ("nccl", "NCCL", "hccl", "mccl", "cpu:gloo,npu:hccl", "cpu:gloo,musa:mccl", "gloo", "fake", "cpu:gloo", "mpi")


def notes(code: str) -> list[tuple[int, str]]:
    return list(expert_dp_warmup.notes(ast.parse(STARTS + code)))


@pytest.mark.parametrize("start", ["torch.distributed.init_process_group", "dist.init_process_group", "start"])
def test_a_start_with_a_backend_that_is_not_recognised_is_told(start: str) -> None:
    for backend in DOES_NOTHING:
        why = f"starts torch.distributed with backend {backend!r}, with which this fix does nothing"
        for argument in (f"'{backend}', x", f"backend='{backend}'"):
            assert notes(f"if x:\n    {start}({argument})\n") == [(5, why)]
    for argument in (*map(repr, UNTOLD), "", "None", "timeout=x", "backend=None", "x", "*x", "**x", "f'{x}'"):
        assert notes(f"{start}({argument})\n") == []
    assert notes(f"{start}\ndef init_process_group(x=None): pass\ninit_process_group()\nengine.{start}()\n") == []


def test_the_search_finds_what_is_told_and_no_release_is_even_parsed_for_it() -> None:
    told = ("", "\n", "None", "'flagcx'", "\n    timeout=x", "backend='flagcx'", "backend = None")
    for arguments in (*told, "x, backend='nccl'"):
        assert bool(re.search(LOOKS["pattern"], f"init_process_group({arguments})")) is (arguments in told)
    for release in ("megatron-core 0.19.2", "ms-swift 3.12.6", "ms-swift 4.6.0", "verl 0.6.0", "verl 0.9.1"):
        project, version = release.split()
        contents = [wheels.read(project, version, item["file"]) for item in LOOKS["files"]]
        assert any(contents)
        assert not any(re.search(LOOKS["pattern"].encode(), data or b"") for data in contents), release


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_same_result(pull: sources.Case) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert source.known.note.startswith("pull request 9486 applied as written: warms nothing")
    assert source.known.result == sources.first(SWIFT).known.result


_ZEROS = "torch.zeros(1, device=torch.cuda.current_device())"
_REDUCED = f"torch.distributed.all_reduce(\n                {_ZEROS}, group=warmup_group\n            )"
_RANK, _RANKS = "torch.distributed.get_rank()", "torch.distributed.get_process_group_ranks(warmup_group)"
_IS_KNOWN = "backend.split(':')[-1] in ('nccl', 'hccl', 'mccl')"
_SIZE, _FIRST = "expert_model_parallel_size > 1", "        warmed_up_groups = []\n"
_reduced, _gated = partial(Sub, _REDUCED), partial(Sub, _SIZE)
_CORE = {
    "every part of cuda": Sub(_IS_KNOWN, f"{_IS_KNOWN} or backend.startswith('cuda:')"),
    "every part of a backend": Sub(" or not any(\n", " or not all(\n"),
    "groups of the same ranks once": Sub(
        "any(warmup_group is other for", f"any({_RANKS} == torch.distributed.get_process_group_ranks(other) for"
    ),
    "barrier": _reduced("torch.distributed.barrier(group=warmup_group)"),
    "broadcast": _reduced(f"torch.distributed.broadcast({_ZEROS}, {_RANKS}[0], group=warmup_group)"),
    "EP above 2": _gated("expert_model_parallel_size > 2"),
    "not with pipeline stages": _gated(f"{_SIZE} and pipeline_model_parallel_size == 1"),
    "not with several instances": _gated(f"{_SIZE} and num_distributed_optimizer_instances == 1"),
    "not waited for": Sub(", group=warmup_group\n", ", group=warmup_group, async_op=True\n"),
    "a fresh group of the same ranks": _reduced(
        f"torch.distributed.all_reduce({_ZEROS}, group=torch.distributed.new_group({_RANKS}))"
    ),
    "even ranks make one more group": Sub(
        _FIRST, f"{_FIRST}        {_RANK} % 2 == 0 and torch.distributed.new_group([0, 1])\n"
    ),
    "every rank makes one more group": Sub(_FIRST, f"{_FIRST}        torch.distributed.new_group([0, 1])\n"),
    "rank 0 once more, by the group's own method": _reduced(
        f"{_REDUCED}\n            if {_RANK} == 0:\n                warmup_group.allreduce([{_ZEROS}])"
    ),
}
_SWIFT = {
    "tensor on a GPU": Sub("device=get_current_device()", "device=torch.cuda.current_device()"),
    "a GPU waited for": Sub("warmup_tensor.item()", "torch.cuda.synchronize()"),
    "check_initialized given": Sub("accessor_name)()", "accessor_name)(check_initialized=False)"),
    "the first missing one ends it": Sub("                    continue\n", "                    break\n"),
    "EP above 2": _gated("expert_model_parallel_size > 2"),
    "only without expert tensors": _gated(f"{_SIZE} and args.expert_tensor_parallel_size == 1"),
    "only without virtual stages": _gated(f"{_SIZE} and not args.virtual_pipeline_model_parallel_size"),
    "master rank alone": _gated(f"{_SIZE} and is_master()"),
}
MUTANTS = [
    Mutants("megatron-core", ("0.16.1",), _CORE, others=("_EXPERT_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP")),
    Mutants("ms-swift", ("4.6.0",), _SWIFT, others=("get_data_parallel_group",)),
]
_HALVES = {
    "any backend": Other(without(r"in \('nccl', 'hccl', 'mccl'\)", "!= ''"), ("ep2-4-gloo",)),
    "one rank skips": Other(
        without(_SIZE, f"{_SIZE} and {_RANK} != 0"),
        ("ep2-4",),
        "^hung: rank (1-3|2) waits in all_reduce",  # rank 2 alone, where no group that is warmed up has all ranks
    ),
}
_ONE_GROUP = {"ep4-4": "without replicas of an expert it has no group to warm up"}
PROOFS = [
    Proofs(
        "megatron-core",
        [Release(line, core=line == "0.16.1", lacking=_ONE_GROUP if line in LINES[:3] else {}) for line in LINES],
        _HALVES,
    ),
    Proofs(
        "ms-swift",
        [
            Release("4.6.0", (("megatron-core", "0.16.1"),), core=True),
            Release("4.0.0", (("megatron-core", "0.13.1"),)),
        ],
        _HALVES | {AS_WRITTEN: Other(as_written(FIX), ("tp2-pp2-ep2-8",))},
    ),
]
_EXPERT_DP = hung_jobs.group("13", "EXPERT_DATA_PARALLEL_GROUP")
_SYNC = ("megatron/core/distributed/param_and_grad_buffer.py::_ParamAndGradBucketGroup.start_grad_sync",)
_WAITS = hung_jobs.rank(hung_jobs.issued(_EXPERT_DP, 1, "reduce_scatter", 4096, at=_SYNC))
_FAILS = hung_jobs.rank(
    lines=hung_jobs.failing(
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details)",
        hung_jobs.C10D,
        *_SYNC,
    ),
    recorded=False,
)
_OTHER = hung_jobs.rank(lines=hung_jobs.failing("RuntimeError: unhandled cuda error", "job/train.py::step"))
HANGS = [
    HungJob("no memory for a communicator", hung_jobs.job([_FAILS, _FAILS, _FAILS, _WAITS])),
    HungJob("first gradients", hung_jobs.job([_WAITS, _WAITS, _WAITS, hung_jobs.rank()]), ""),
    HungJob("an error elsewhere", hung_jobs.job([_OTHER, _WAITS, _WAITS, _WAITS]), ""),
]
