"""expert-grad-norm: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.tell import fix_page

FIX = "expert-grad-norm"
OLD, NEW = ("0.10.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1"), ("0.17.1", "0.18.2")
CASES = sources.cases(FIX, {"megatron-core": [*OLD, *NEW]})


def test_each_release_before_upstreams_fix_needs_it() -> None:
    releases = catalog.releases()["megatron-core"]
    rows = matrix.rows([catalog.fix(FIX)], {"megatron-core": releases}, catalog.shape_table())
    now = {row.version: row.verdict for row in rows}
    assert {now[version] for version in (*OLD, *NEW)} == {"needed"}
    assert {now[version] for version in ("0.19.0", "0.19.2")} == {"fixed-upstream"}


def test_a_user_is_told_where_megatron_fsdp_rules_it_out() -> None:
    assert "below 0.16, a job without Megatron-FSDP" in catalog.fix(FIX).manifest["assumes"]
    assert "--skip expert-grad-norm" in fix_page.with_facts(catalog.fix(FIX))


_EDITED = [
    ("0.16.1", "for param in self.parameters():", "for param in self.buffers():", "not found: for ... in self.p"),
    ("0.16.1", "parallel_mode = None", "tp_size = 1", "not found: if ...: parallel_mode = None"),
    ("0.16.1", "tp_size = 1", "self.tensor_model_parallel = 1", "tensor_model_parallel, which is ours"),
    ("0.18.2", "self.is_first_microbatch = True", "mode = parallel_mode", "found 2 times, expected once: ... = para"),
]
REFUSED = [edit for version, *row in _EDITED for edit in sources.edits(sources.case(FIX, version), [row])]


# -- for the sessions -------------------------------------------------------------------------------------------------

_MODE, _TP = 'original_parallel_mode in ("column", "row")', "config.tensor_model_parallel_size > 1"
_LORA = " or config.expert_tensor_parallel_size == 1"
_EP, _ETP = "self.expert_parallel\n", "config.expert_tensor_parallel_size == config.tensor_model_parallel_size"
_NAME = 'own_name.rstrip("0123456789") == "weight"'
_SET = "own.tensor_model_parallel = True"
_ROW = 'int(original_parallel_mode == "row")'
OF_OLD: ByHand = {
    "rows as columns": Sub(_ROW, "0"),
    "columns as rows": Sub(_ROW, "1"),
    "the other dimension": Sub(_ROW, 'int(original_parallel_mode == "column")'),
    "by the mode that Transformer Engine gets": Sub(_ROW, 'int(parallel_mode == "row")'),
    "where there is a dimension": Sub('not hasattr(own, "partition_dim")', 'hasattr(own, "partition_dim")'),
    "with another stride": Sub("own.partition_stride = 1", "own.partition_stride = 2"),
    "without a stride": Sub("own.partition_stride = 1", "pass"),
}
BY_HAND: ByHand = {
    "with any mode": Sub(_MODE, "True"),
    "columns alone": Sub(_MODE, 'original_parallel_mode == "column"'),
    "rows alone": Sub(_MODE, 'original_parallel_mode == "row"'),
    "the mode that Transformer Engine gets": Sub(_MODE, 'parallel_mode in ("column", "row")'),
    "with no mode": Sub(_MODE, "original_parallel_mode is None"),
    "without LoRA": Sub(_LORA, ""),
    "with LoRA in all layouts": Sub(_LORA, " or original_parallel_mode is None"),
    "LoRA in shards": Sub(_LORA, f" or {_ETP}"),
    "from four TP ranks on": Sub(_TP, "config.tensor_model_parallel_size > 2"),
    "with expert parallelism alone": Sub(f" or {_ETP}", ""),
    "with shards alone": Sub(f"{_EP}", "False\n"),
    "with both": Sub(_ETP, f"{_ETP} and self.expert_parallel"),
    "with shards of fewer ranks": Sub(" == config.tensor", " <= config.tensor"),
    "with shards": Sub(_ETP, "config.expert_tensor_parallel_size > 1"),
    "always": Sub(_ETP, "True"),
    "with an explicit exchange": Sub(_EP, "self.explicit_expert_comm\n"),
    "by the size of the group": Sub(_ETP, "tp_size == config.tensor_model_parallel_size"),
    "biases too": Sub(_NAME, 'own_name.rstrip("0123456789") in ("weight", "bias")'),
    "biases alone": Sub(_NAME, 'own_name.rstrip("0123456789") == "bias"'),
    "all parameters": Sub(_NAME, "True"),
    "what begins with it": Sub(_NAME, 'own_name.startswith("weight")'),
    "what has it inside": Sub(_NAME, '"weight" in own_name'),
    "the only weight": Sub(_NAME, 'own_name == "weight"'),
    "the first weight": Sub(_NAME, 'own_name == "weight0"'),
    "one digit": Sub(_NAME, 'own_name[:-1] == "weight"'),
    "numbered ones": Sub(_NAME, 'own_name.rstrip("0123456789") == "weight" != own_name'),
    "of children too": Sub(_NAME, 'own_name.rpartition(".")[2].rstrip("0123456789") == "weight"'),
    "not marked": Sub(_SET, "own.tensor_model_parallel = False"),
    "marked by a number of ranks": Sub(_SET, "own.tensor_model_parallel = config.expert_tensor_parallel_size > 1"),
    "another mark": Sub(_SET, "own.allreduce = True"),
    "with a wrong dimension": Sub(_SET, f"{_SET}; own.partition_dim = -1"),
}
MUTANTS = [
    Mutants("megatron-core", ("0.12.3",), {**BY_HAND, **OF_OLD}),
    Mutants("megatron-core", ("0.18.2",), BY_HAND),
]
_OTHER_FSDP = {
    "tp2-ep2-fsdp": "before 0.15 Megatron-FSDP needs an older torch, and from 0.16 on it has a mesh for experts"
}
PROOFS = [
    Proofs(
        "megatron-core",
        [
            Release(version, core=version == "0.18.2", lacking={} if version == "0.15.3" else _OTHER_FSDP)
            for version in ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", *NEW)
        ],
        {
            "half: with expert parallelism alone": Other(
                without(r"or config\.expert_tensor_parallel_size == config", "or None == config"),
                ("tp2-etp2",),
                "differs",
            ),
            "half: with shards alone": Other(without(r"self\.expert_parallel\s", "False "), ("tp2-ep2",), "differs"),
            "half: columns alone": Other(without(r'\("column", "row"\)', '("column",)'), ("tp2-etp2",), "differs"),
            "half: without LoRA": Other(
                without(r" or config\.expert_tensor_parallel_size == 1", ""), ("tp2-ep2-lora",), "differs"
            ),
            "without its condition": Other(
                without(r"self\.expert_parallel\s", "True "), ("tp2", "tp2-sharded"), "differs"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 1, "parallel_mode|allreduce|parameters|expert_parallel|tensor_model_parallel", examples=40)
