"""The independent judge: it agrees with the matrix on every shape, and calls wrong rewrites wrong."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from independent import __main__ as over_history
from independent.judges import Judgement, judge, known, wrong
from support import sources
from support.sources import Case, Source
from unhang.compat.sweep import clones, commits
from unhang.compat.sweep.sources import content
from unhang.shapes import catalog

MTP, SFT, EXPERTS, WARMUP = "mtp-cp-deadlock", "sft-packed-seq-broadcast", "empty-expert-hang", "expert-dp-warmup"
CORE = ("0.10.0", "0.12.0", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.0", "0.18.2", "0.19.2")
NIGHTLIES = ("0.16.0rc0.dev100093", "0.16.0rc0.dev132550")
WHEELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    MTP: {"verl": ("0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0.dev0", "0.8.0", "0.9.0", "0.9.1")},
    SFT: {"megatron-lm": ("0.17.0rc0", "0.17.1"), "megatron-core": ("0.18.2", "0.19.2")},
    EXPERTS: {"megatron-core": (*CORE, *NIGHTLIES)},
    WARMUP: {"megatron-core": (*CORE, *NIGHTLIES), "ms-swift": ("4.0.0", "4.6.0")},
}
QUICK = ("0.7.0", "0.7.1", "0.17.1", "0.19.2", "0.9.1", "4.6.0")
"""The releases that the quick suite judges."""


def _cases() -> list[Any]:
    """Return each shape of these wheels once, then every other shape of the matrix, from a clone."""
    found, covered = [], set()
    for fix, upstreams in WHEELS.items():
        for target in catalog.fix(fix).targets:
            for version in upstreams.get(target.upstream, ()):
                digest = catalog.releases()[target.upstream][version].shapes[f"{target.file}::{target.function}"]
                if digest and (fix, digest) not in covered:
                    covered.add((fix, digest))
                    marks = [] if version in QUICK else [pytest.mark.slow]
                    where = f"{fix}-{target.upstream}-{version}"
                    found.append(pytest.param(Case("wheel", target, version), marks=marks, id=where))
    for (fix, function, digest), listed in catalog.shape_table().shapes.items():
        if known(fix) and listed.state not in ("ours", "superseded") and (fix, digest) not in covered:
            kind = "pull" if listed.note.startswith("pull request") else "shape"
            target = next(target for target in catalog.fix(fix).targets if target.function == function)
            found.append(pytest.param(Case(kind, target, digest), marks=pytest.mark.slow, id=f"{fix}-{digest}"))
    return found


def _judged(source: Source, after: bytes | None) -> Judgement:
    as_written = source.known.note.startswith("pull request")
    return judge(source.target.fix, source.target.function, source.data, after, as_written)


@pytest.mark.parametrize("case", _cases())
def test_the_judge_agrees_with_the_matrix(case: Case) -> None:
    source = case.load()
    after = source.rewritten.data if source.known.state == "affected" else None
    assert _judged(source, after) == (source.known.state, [])


GATE = "n_micro_batch > 0 and mpu.is_pipeline_last_stage(ignore_virtual=True)"
MIDDLE = "elif args.sft:\n            _broadcast_cu"
EMPTY = "permuted_local_hidden_states.shape[0] == 0"
ZEROS = "zero_rows = permuted_local_hidden_states.new_zeros("
WRONG: Mapping[tuple[str, str, str], Mapping[str, tuple[str, str]]] = {
    (MTP, "verl", "0.7.1"): {
        "source-rank-alone": (GATE, "n_micro_batch > 0 and self.is_mp_src_rank_with_outputs()"),
        "first-tp-rank-alone": (GATE, "n_micro_batch > 0 and mpu.get_tensor_model_parallel_rank() == 0"),
        "last-virtual-chunk-alone": (GATE, "n_micro_batch > 0 and mpu.is_pipeline_last_stage()"),
        "every-stage": (GATE, "n_micro_batch > 0"),
        "no-micro-batch": ("n_micro_batch > 0 and", ""),
        "too-few-micro-batches": ("n_micro_batch > 0 and", "n_micro_batch > 2 and"),
        "metrics-on-every-rank": ("if self.is_mp_src_rank_with_outputs():", "if True:"),
        "metrics-overwritten": ("if 'metrics' not in losses_reduced[0]:", "if True:"),
        "name-not-bound": (GATE, GATE.replace("mpu", "parallel_states")),
    },
    (SFT, "megatron-lm", "0.17.1"): {
        "receiver-without-middle": (
            "elif args.sft:\n            tokens = None",
            "elif False:\n            tokens = None",
        ),
        "gated-on-the-data": (MIDDLE, MIDDLE.replace("args.sft", "batch['cu_seqlens'] is not None")),
        "mask-on-middle": (
            MIDDLE,
            MIDDLE.replace("_broadcast_cu", "_broadcast(batch['attention_mask'])\n            _broadcast_cu"),
        ),
        "other-order": (
            "cu_seqlens = _broadcast_cu_seqlens()\n                _broadcast(max_seqlen)",
            "_broadcast(max_seqlen)\n                cu_seqlens = _broadcast_cu_seqlens()",
        ),
        "max-seqlen-without-sft": ("            else:\n                max_seqlen = None\n", ""),
        "garbage-on-middle": ("position_ids = None\n            local_cp_size = None", "local_cp_size = None"),
        "builtin-unbound": ("    return batch", "    del int\n    return batch"),
    },
    (EXPERTS, "megatron-core", "0.19.2"): {
        "no-rows": ("rows_per_expert = 1", "rows_per_expert = 0"),
        "all-rows-to-one-expert": (
            "[rows_per_expert] * self.num_local_experts",
            "[num_rows] + [0] * (self.num_local_experts - 1)",
        ),
        "one-row-for-all": ("rows_per_expert * self.num_local_experts", "rows_per_expert"),
        "rows-returned": ("output = output[:0]", "pass"),
        "counts-instead-of-rows": (EMPTY, "sum(tokens_per_expert) == 0"),
        "one-token-too": (EMPTY, EMPTY.replace("== 0", "<= 1")),
        "probability-one": ("permuted_probs.new_zeros(num_rows)", "torch.ones(num_rows)"),
        "float32": (ZEROS, "zero_rows = torch.zeros("),
        "garbage": (ZEROS, "zero_rows = torch.empty("),
        "no-fp4": (
            "(self.config.fp8 or self.config.fp4):\n            rows_per",
            "self.config.fp8:\n            rows_per",
        ),
    },
    (EXPERTS, "megatron-core", "0.15.3"): {
        # generation 1 crashed a configuration that worked: the bias comes after the unpadding
        "rows-not-aligned": ("if self.config.fp8:\n            zero_rows", "if False:\n            zero_rows"),
    },
    (WARMUP, "megatron-core", "0.19.2"): {
        "group-left-out": ("'_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP')", ")"),
        "another-group": ("'_INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP'", "'_TENSOR_MODEL_PARALLEL_GROUP'"),
        "rank-left-out": (
            "if expert_model_parallel_size > 1:\n        warm",
            "if expert_model_parallel_size > 1 and rank:\n        warm",
        ),
        "dense-models": ("if expert_model_parallel_size > 1:\n        warm", "if True:\n        warm"),
        "one-group-twice": (" or any((warmup_group is other for other in warmed_up_groups))", ""),
        "groups-of-one": ("torch.distributed.get_world_size(warmup_group) == 1 or", ""),
        "gloo": ("('nccl', 'hccl', 'mccl')", "('nccl', 'hccl', 'mccl', 'gloo')"),
        "no-hccl": ("('nccl', 'hccl', 'mccl')", "('nccl',)"),
        "first-backend-alone": (".split(',')", ".split(',')[:1]"),
        "tensor-on-the-cpu": ("torch.zeros(1, device=torch.cuda.current_device())", "torch.zeros(1)"),
        "not-synchronized": ("if warmed_up_groups:\n            torch.cuda.synchronize()", "pass"),
    },
    (WARMUP, "ms-swift", "4.6.0"): {
        "group-left-out": ("'get_intra_distributed_optimizer_instance_group')", ")"),
        "assertion-not-caught": ("except (AttributeError, AssertionError)", "except AttributeError"),
        "not-synchronized": ("warmup_tensor.item()", "pass"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "edit"),
    [
        pytest.param(place, edit, id="-".join([*place, name]))
        for place, edits in WRONG.items()
        for name, edit in edits.items()
    ],
)
def test_a_wrong_rewrite_is_called_wrong(place: tuple[str, str, str], edit: tuple[str, str]) -> None:
    fix, upstream, version = place
    source = sources.wheel(fix, version, upstream)
    changed = _mutated(source.rewritten, *edit)
    assert next(wrong(fix, source.target.function, source.data, changed), "")


def _mutated(source: Source, old: str, new: str) -> bytes:
    """Return the file with a part of its function, as ``ast.unparse`` spells it, replaced."""
    before, _, after = sources.around(source)
    text = sources.unparsed(source.function)
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    changed = textwrap.indent(text.replace(old, new), " " * source.function.col_offset)
    return b"".join([*before, changed.encode(), b"\n", *after])


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    """Its entry point, which enumerates history with the sweep's code, imports none of the other judges either."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name.startswith("test_"):
            continue
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_bytes()))
            for name in (
                [it.name for it in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")]
            )
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
        others = {name for name in imported if name.split(".")[0] not in {*sys.stdlib_module_names, "independent"}}
        if path.stem == "__main__":
            others = {
                it for it in others if it.startswith(("unhang.codemods", "unhang.prove", "unhang.compat.endstates"))
            }
        assert others == set(), path


def test_each_disagreement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = catalog.fix(MTP).targets
    found = commits.Found(target, content(b""), ["new", "old"])
    listed = catalog.Shape("affected", "1", (), "")
    job = over_history.Job(found, "0", listed)
    key = (MTP, target.function, "0")
    for rows, done, words in (
        ({key: {"worse": 0, "cured": 1}}, Judgement("affected", []), []),
        ({}, Judgement("affected", []), ["no end state is on record"]),
        ({key: {"worse": 1, "cured": 1}}, Judgement("affected", []), ["1 worse"]),
        ({key: {"worse": 0, "cured": 0}}, Judgement("affected", []), ["0 cured"]),
        ({key: {"worse": 0, "cured": 1}}, Judgement("fixed", []), ["the judge says fixed"]),
        ({key: {"worse": 0, "cured": 1}}, Judgement("affected", ["a", "b"]), ["wrong in 2 settings: a"]),
    ):
        monkeypatch.setattr(over_history, "_endstates", lambda rows=rows: rows)
        lines = [*over_history._disagreements(job, done)]
        assert len(lines) == len(words)
        assert all(f"{MTP} 0 in {target.file} at old" in line and word in line for line, word in zip(lines, words))


def test_a_fix_without_a_judge_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [fix for fix in WHEELS if not known(fix)] == []
    for variable in clones.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(over_history, "known", lambda fix: fix != MTP)
    assert over_history.main() == 0
    assert capsys.readouterr().out.splitlines().count(f"no independent judge: {MTP}") == 1


def test_a_clone_that_is_not_given_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in clones.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    assert over_history.main() == 0
    told = capsys.readouterr().out
    assert [variable for variable in clones.VARIABLES.values() if variable not in told] == []
