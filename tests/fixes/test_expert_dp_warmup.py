"""expert-dp-warmup: its anchors, the backends that it does not recognise, and what the sessions need of it."""

from __future__ import annotations

import ast
import re

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, each
from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from support import hung_jobs, sources, wheels
from support.hung_jobs import HungJob
from unhang.codemods import expert_dp_warmup
from unhang.shapes import catalog

FIX = "expert-dp-warmup"
LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
RELEASES = (*LINES, "0.12.0", "0.17.0", "0.16.0rc0.dev100093", "0.16.0rc0.dev132550")
CASES = sources.cases(FIX, {"megatron-core": RELEASES, "ms-swift": ["4.0.0", "4.2.3", "4.6.0"]})
CORE = [case for case in CASES if case.values[0].target.upstream == "megatron-core" and case.values[0].kind == "wheel"]
SWIFT = [case for case in CASES if case.values[0].target.upstream == "ms-swift"]
FOCUS = r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE"
FUZZ = Fuzz(CASES, 4, FOCUS, examples=30, every=7)
_BUFFER, _MAKES = "_set_global_memory_buffer()", "mpu.initialize_model_parallel"
_IN_CORE = [
    (_BUFFER, f"{_BUFFER}; {_BUFFER}", "found 2 times"),
    ("expert_model_parallel_size: int=", "size: int=", "not found: the argument expert_model_parallel_size"),
    # the ranks that return would leave the others waiting
    (_BUFFER, f"if rank == 0:\n        {_BUFFER}\n        return", "and no return"),
    (_BUFFER, f"later = lambda: {_BUFFER}", "and no return or definition"),
]
_IN_SWIFT = [
    (_MAKES, f"return {_MAKES}", "and no return"),
    ("else:\n", f"else:\n        with x: {_MAKES}()\n", "found 2 times"),
]
REFUSED = sources.edits(CORE[0], _IN_CORE) + sources.edits(SWIFT[0], _IN_SWIFT)

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


_ZEROS = "torch.zeros(1, device=torch.cuda.current_device())"
_REDUCED = f"torch.distributed.all_reduce(\n                {_ZEROS}, group=warmup_group\n            )"
_RANK, _RANKS = "torch.distributed.get_rank()", "torch.distributed.get_process_group_ranks(warmup_group)"
_IS_KNOWN = "backend.split(':')[-1] in ('nccl', 'hccl', 'mccl')"
_SIZE, _FIRST = "expert_model_parallel_size > 1", "        warmed_up_groups = []\n"
_ONES = ("pipeline_model_parallel_size", "num_distributed_optimizer_instances")
_CORE = {
    _IS_KNOWN: [f"{_IS_KNOWN} or backend.startswith('cuda:')"],
    " or not any(\n": [" or not all(\n"],
    "any(warmup_group is other for": [f"any({_RANKS} == torch.distributed.get_process_group_ranks(other) for"],
    _REDUCED: [
        "torch.distributed.barrier(group=warmup_group)",
        f"torch.distributed.all_reduce({_ZEROS}, group=torch.distributed.new_group({_RANKS}))",
        f"{_REDUCED}\n            if {_RANK} == 0:\n                warmup_group.allreduce([{_ZEROS}])",
    ],
    _SIZE: [f"{_SIZE} and {it} == 1" for it in _ONES],
    "device=torch.cuda.current_device()": [f"device={_RANK}", "device=f'cuda:{rank}'"],
    ", group=warmup_group\n": [", group=warmup_group, async_op=True\n"],
    _FIRST: [f"{_FIRST}        {it}torch.distributed.new_group([0, 1])\n" for it in ("", f"{_RANK} % 2 == 0 and ")],
}
_GATES = ("args.expert_tensor_parallel_size == 1", "not args.virtual_pipeline_model_parallel_size", "is_master()")
_SWIFT = {
    "device=get_current_device()": ["device=torch.cuda.current_device()", f"device=f'cuda:{{{_RANK}}}'"],
    "warmup_tensor.item()": ["torch.cuda.synchronize()"],
    "accessor_name)()": ["accessor_name)(check_initialized=False)"],
    "                    continue\n": ["                    break\n"],
    _SIZE: [f"{_SIZE} and {it}" for it in _GATES],
}
_OTHERS = ("_EXPERT_MODEL_PARALLEL_GROUP", "_DATA_PARALLEL_GROUP")
MUTANTS = [
    Mutants("megatron-core", ("0.16.1",), each(_CORE), others=_OTHERS),
    Mutants("ms-swift", ("4.6.0",), each(_SWIFT), others=("get_data_parallel_group",)),
]
_HUNG = "^hung: rank (1-3|2) waits in all_reduce"  # rank 2 alone, where no group that is warmed up has all ranks
_HALVES = {
    "any backend": Other(without(r"in \('nccl', 'hccl', 'mccl'\)", "!= ''"), ("ep2-4-gloo",)),
    "one rank skips": Other(without(_SIZE, f"{_SIZE} and {_RANK} != 0"), ("ep2-4",), _HUNG),
}
_ONE_GROUP = {"ep4-4": "without replicas of an expert it has no group to warm up"}
_LINES = [Release(it, core=it == "0.16.1", lacking=_ONE_GROUP if it in LINES[:3] else {}) for it in LINES]
_OF_SWIFT = [Release("4.6.0", (("megatron-core", "0.16.1"),), True), Release("4.0.0", (("megatron-core", "0.13.1"),))]
PROOFS = [
    Proofs("megatron-core", _LINES, _HALVES),
    Proofs("ms-swift", _OF_SWIFT, _HALVES | {AS_WRITTEN: Other(as_written(FIX), ("tp2-pp2-ep2-8",))}),
]
_EXPERT_DP = hung_jobs.group("13", "EXPERT_DATA_PARALLEL_GROUP")
_SYNC = ("megatron/core/distributed/param_and_grad_buffer.py::_ParamAndGradBucketGroup.start_grad_sync",)
_WAITS = hung_jobs.rank(hung_jobs.issued(_EXPERT_DP, 1, "reduce_scatter", 4096, at=_SYNC))
_ERROR = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with more)"
_FAILS = hung_jobs.rank(lines=hung_jobs.failing(_ERROR, hung_jobs.C10D, *_SYNC), recorded=False)
_OTHER = hung_jobs.rank(lines=hung_jobs.failing("RuntimeError: unhandled cuda error", "job/train.py::step"))
HANGS = [
    HungJob("no memory for a communicator", hung_jobs.job([_FAILS, _FAILS, _FAILS, _WAITS])),
    HungJob("first gradients", hung_jobs.job([_WAITS, _WAITS, _WAITS, hung_jobs.rank()]), ""),
    HungJob("an error elsewhere", hung_jobs.job([_OTHER, _WAITS, _WAITS, _WAITS]), ""),
]
