"""expert-dp-warmup: its rewrite and anchors, and the backends that it does not recognise."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from fixes.expert_dp_warmup.mutants import MUTANTS as MUTANTS
from fixes.expert_dp_warmup.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import hung_jobs, sources, wheels
from support.hung_jobs import HungJob
from support.rewrites import EveryRewrite
from unhang.codemods import expert_dp_warmup
from unhang.codemods.base import AnchorError
from unhang.compat.endstates import expert_dp_warmup as endstate
from unhang.compat.endstates.endstate import Source
from unhang.judge.decide import codemod
from unhang.shapes import catalog

FIX = "expert-dp-warmup"
RELEASES = (
    *("0.10.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.0", "0.17.1", "0.18.2", "0.19.2"),
    *("0.16.0rc0.dev100093", "0.16.0rc0.dev132550"),
)
CASES = sources.cases(FIX, {"megatron-core": RELEASES, "ms-swift": ["4.0.0", "4.2.3", "4.6.0"]})
CORE = [case for case in CASES if case.values[0].target.upstream == "megatron-core"]
SWIFT = [case for case in CASES if case.values[0].target.upstream == "ms-swift"]
CORE_WHEELS = [case for case in CORE if case.values[0].kind == "wheel"]
SERVED = ("nccl", "hccl", "mccl", "cpu:gloo,cuda:nccl", "cpu:gloo,npu:hccl", "cpu:gloo,musa:mccl")
NOT_SERVED = ("gloo", "fake", "cpu:gloo", "mpi")
FOCUS = r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE"
FUZZ = Fuzz(CASES, 4, FOCUS, examples=30, every=7)


def test_what_is_no_target() -> None:
    """verl has a function of the same name, and ms-swift 3 no such file."""
    (target,) = (item for item in catalog.fix(FIX).targets if item.upstream == "ms-swift")
    assert [wheels.read("ms-swift", version, target.file) for version in ("3.12.6", "3.0.0")] == [None, None]
    assert {target.upstream for target in catalog.fix(FIX).targets} == {"megatron-core", "ms-swift"}


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    settings = 3


@pytest.mark.parametrize("case", CORE_WHEELS)
def test_the_group_of_the_experts_gradients_comes_first(case: sources.Case) -> None:
    source = case.load().rewritten
    record, _ = endstate._initialised(Source(source.data.decode(), source.target.function), endstate.Job(), 0)
    assert next(item[0].ranks for item in record.done if isinstance(item, tuple)) == (0, 2, 4, 6)


def test_ms_swift_imports_the_device_from_where_it_is() -> None:
    """Every release that is rewritten has the name in `swift.utils`."""
    for case in SWIFT:
        if case.values[0].kind == "wheel":
            data = wheels.read("ms-swift", case.values[0].key, "swift/utils/__init__.py")
            assert data is not None
            assert b"get_current_device" in data


@pytest.mark.parametrize(
    ("cases", "old", "new", "anchor"),
    [
        (CORE_WHEELS, r"_set_global_memory_buffer\(\)", "pass", "not found: _set_global_memory_buffer"),
        (CORE_WHEELS, r"_set_global_memory_buffer\(\)", r"\g<0>; \g<0>", "found 2 times"),
        (CORE_WHEELS, "expert_model_parallel_size", "size", "not found: the argument expert_model_parallel_size"),
        # the ranks that return would leave the others waiting
        (
            CORE_WHEELS,
            r"_set_global_memory_buffer\(\)",
            r"if rank == 0:\n        \g<0>\n        return",
            "and no return",
        ),
        (CORE_WHEELS, r"_set_global_memory_buffer\(\)", r"later = lambda: \g<0>", "and no return or definition"),
        (SWIFT, r"mpu.initialize_model_parallel", r"return \g<0>", "and no return"),
        (SWIFT, "initialize_model_parallel", "start", "not found: mpu.initialize_model_parallel"),
        (SWIFT, r"else:\n", r"\g<0>        with x: mpu.initialize_model_parallel()\n", "found 2 times"),
    ],
)
def test_an_anchor_must_occur_once(cases: list[Any], old: str, new: str, anchor: str) -> None:
    source = sources.first(cases)
    text, count = re.subn(old, new, sources.unparsed(source.function))
    (function,) = ast.parse(text).body
    assert count
    assert isinstance(function, ast.FunctionDef)
    with pytest.raises(AnchorError, match=anchor):
        codemod(source.target).plan(function)


LOOKS = catalog.fix(FIX).manifest["looks-at"]
STARTS = "import torch\nimport torch.distributed as dist\nfrom torch.distributed import init_process_group as start\n"


def notes(code: str) -> list[tuple[int, str]]:
    return list(expert_dp_warmup.notes(ast.parse(STARTS + code)))


@pytest.mark.parametrize("start", ["torch.distributed.init_process_group", "dist.init_process_group", "start"])
def test_a_start_with_a_backend_that_is_not_recognised_is_told(start: str) -> None:
    for arguments in ("", "None", "timeout=x", "rank=0, backend=None"):
        assert notes(f"{start}({arguments})\n") == [
            (4, "starts torch.distributed without a backend, and then this fix does nothing")
        ]
    for backend in ("flagcx", "xccl", "cpu:gloo,cuda:flagcx"):
        why = f"starts torch.distributed with backend {backend!r}, with which this fix does nothing"
        for argument in (f"'{backend}', x", f"backend='{backend}'"):
            assert notes(f"if x:\n    {start}({argument})\n") == [(5, why)]
    for argument in (*map(repr, SERVED), *map(repr, NOT_SERVED), "'NCCL'", "x", "device_id=x", "*x", "**x", "f'{x}'"):
        assert notes(f"{start}({argument})\n") == []
    assert notes(f"{start}\ndef init_process_group(x=None): pass\ninit_process_group()\nengine.{start}()\n") == []


@pytest.mark.parametrize(
    ("code", "matches"),
    [
        (f"init_process_group({arguments})", arguments != "x, backend='nccl'")
        for arguments in (
            *("", "\n", "None", "'flagcx'", "\n    timeout=x", "backend='flagcx'", "backend = None"),
            "x, backend='nccl'",
        )
    ],
)
def test_the_search_finds_what_is_told(code: str, matches: bool) -> None:
    assert (re.search(LOOKS["pattern"], code) is not None) is matches


@pytest.mark.parametrize(
    ("project", "version"),
    [
        (project, version)
        for project, versions in (
            ("megatron-core", "0.17.1 0.19.2"),
            ("ms-swift", "3.12.6 4.0.0 4.6.0"),
            ("verl", "0.6.0 0.7.1 0.8.0 0.9.1"),
        )
        for version in versions.split()
    ],
)
def test_no_release_is_even_parsed_for_it(project: str, version: str) -> None:
    contents = {item["file"]: wheels.read(project, version, item["file"]) for item in LOOKS["files"]}
    found = [file for file, data in contents.items() if data is not None]
    assert found
    assert [file for file in found if re.search(LOOKS["pattern"].encode(), contents[file] or b"")] == []


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert source.known.note.startswith("pull request 9486 applied as written: warms nothing")
    assert "get_inter_distributed_optimizer_instance_group" in sources.unparsed(source.function)
    assert source.known.result == sources.first(SWIFT).known.result


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
