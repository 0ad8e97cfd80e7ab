"""expert-grad-norm: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "expert-grad-norm"
RELEASES = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2")
CASES = sources.cases(FIX, {"megatron-core": ["0.10.0", *RELEASES]})


_EDITED = [
    ("0.16.1", "for param in self.parameters():", "for param in self.buffers():", "not found: for ... in self.p"),
    ("0.16.1", "parallel_mode = None", "tp_size = 1", "not found: if ...: parallel_mode = None"),
    ("0.16.1", "tp_size = 1", "self.tensor_model_parallel = 1", "tensor_model_parallel, which is ours"),
    ("0.18.2", "self.is_first_microbatch = True", "mode = parallel_mode", "found 2 times, expected once: ... = para"),
]
REFUSED = [edit for version, *row in _EDITED for edit in sources.edits(sources.case(FIX, version), [row])]


# -- for the sessions -------------------------------------------------------------------------------------------------

_KEPT, _STEM = "original_parallel_mode", 'own_name.rstrip("0123456789")'
_MODE, _ROW = f'{_KEPT} in ("column", "row")', f'int({_KEPT} == "row")'
_SIZE, _DIM, _STRIDE = (
    "config.tensor_model_parallel_size",
    'not hasattr(own, "partition_dim")',
    "own.partition_stride = ",
)
_ETP, _SET = f"config.expert_tensor_parallel_size == {_SIZE}", "own.tensor_model_parallel = "
_INSTEAD: dict[str, tuple[str, ...]] = {
    _MODE: (
        *("True", f"{_KEPT} is None", 'parallel_mode in ("column", "row")'),
        *(f'{_KEPT} == "column"', f'{_KEPT} == "row"'),
    ),
    " or config.expert_tensor_parallel_size == 1": ("", f" or {_KEPT} is None", f" or {_ETP}"),
    f"{_SIZE} > 1": (
        *(f"{_SIZE} > 2", f"{_SIZE} > 1 and not config.use_cpu_initialization"),
        *(f"{_SIZE} > 1 and config.pipeline_model_parallel_size == 1", f"{_SIZE} > 1 and not config.fp8"),
    ),
    "self.expert_parallel\n": ("False\n", "self.explicit_expert_comm\n"),
    f" or {_ETP}": (
        *("", f" or {_ETP} and self.expert_parallel", f" or {_ETP.replace('==', '<=')}", " or True"),
        *(" or config.expert_tensor_parallel_size > 1", f" or tp_size == {_SIZE}"),
    ),
    f'{_STEM} == "weight"': (
        *("True", f'{_STEM} in ("weight", "bias")', f'{_STEM} == "bias"', f'{_STEM} == "weight" != own_name'),
        *('own_name.startswith("weight")', '"weight" in own_name', 'own_name == "weight"', 'own_name == "weight0"'),
        f'{_STEM} == "weight" and own.dtype == torch.bfloat16',
        *('own_name[:-1] == "weight"', 'own_name.rpartition(".")[2].rstrip("0123456789") == "weight"'),
    ),
    f"{_SET}True": (
        *(f"{_SET}False", f"{_SET}config.expert_tensor_parallel_size > 1", "own.allreduce = True"),
        *(f"{_SET}True; own.partition_dim = -1", f"{_SET}True; own.allreduce = False"),
        f"{_SET}True; own.sequence_parallel = config.sequence_parallel",
    ),
}
_OF_OLD: dict[str, tuple[str, ...]] = {
    _ROW: ("0", "1", f'int({_KEPT} == "column")', 'int(parallel_mode == "row")'),
    _DIM: (_DIM.removeprefix("not "),),
    f"{_STRIDE}1": (f"{_STRIDE}2", "pass"),
}


def _by_hand(instead: dict[str, tuple[str, ...]]) -> ByHand:
    return {f"{new.strip()} for {old.strip()}": Sub(old, new) for old, its in instead.items() for new in its}


MUTANTS = [
    Mutants("megatron-core", ("0.12.3",), _by_hand(_INSTEAD | _OF_OLD)),
    Mutants("megatron-core", ("0.18.2",), _by_hand(_INSTEAD)),
]
_HALVES = {
    "half: with expert parallelism alone": (r"or config\.expert_tensor_parallel_size == config", "or None == config"),
    "half: with shards alone": (r"self\.expert_parallel\s", "False "),
    "half: columns alone": (r'\("column", "row"\)', '("column",)'),
    "half: without LoRA": (r" or config\.expert_tensor_parallel_size == 1", ""),
    "without its condition": (r"self\.expert_parallel\s", "True "),
}
_FAILS = ("tp2-etp2",), ("tp2-ep2",), ("tp2-etp2",), ("tp2-ep2-lora",), ("tp2", "tp2-sharded")
_WITHOUT = {name: Other(without(*half), fails, "differs") for (name, half), fails in zip(_HALVES.items(), _FAILS)}
_OTHER_FSDP = "before 0.15 Megatron-FSDP needs an older torch, and from 0.16 on it has a mesh for experts"
_RUN = [
    Release(it, core=it == "0.18.2", lacking={} if it == "0.15.3" else {"tp2-ep2-fsdp": _OTHER_FSDP}) for it in RELEASES
]
PROOFS = [Proofs("megatron-core", _RUN, _WITHOUT)]
FUZZ = Fuzz(CASES, 1, "parallel_mode|allreduce|parameters|expert_parallel|tensor_model_parallel", examples=40)
