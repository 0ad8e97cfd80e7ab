"""megatron-core: pipeline stages overwrite each other's layers in a checkpoint of Megatron-FSDP.

python mfsdp-pp-checkpoint.py, where megatron-core and torch are: two processes are two stages, on a CPU.
"""

import tempfile
import typing
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import typing_extensions
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

typing.override = typing_extensions.override  # of Python 3.12
STAGES = 2


def named(model, mesh):
    """Return what Megatron-LM saves and loads of a stage: each weight as Megatron-FSDP has it, on one rank."""
    from megatron.training.checkpointing import preprocess_fsdp_dtensor_state_dict

    weights = {name: it for name, it in model.state_dict().items() if isinstance(it, torch.Tensor) and it.numel()}
    state = {"model": {name: DTensor.from_local(it, mesh, [Shard(0)]) for name, it in weights.items()}}
    return preprocess_fsdp_dtensor_state_dict(SimpleNamespace(swiglu=False, num_experts=None), state, model)


def stage(rank, store, folder):
    """Save and load a stage whose layers have their numbers for weights."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer import TransformerConfig

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=STAGES)
    parallel_state.initialize_model_parallel(1, STAGES, create_gloo_process_groups=False)
    given = {"pipeline_model_parallel_size": STAGES, "pipeline_dtype": torch.float32, "use_cpu_initialization": True}
    config = TransformerConfig(num_layers=4, hidden_size=8, num_attention_heads=2, **given)
    ends = {"pre_process": rank == 0, "post_process": rank == STAGES - 1, "share_embeddings_and_output_weights": False}
    model = GPTModel(config, get_gpt_layer_local_spec(), 16, 8, **ends).requires_grad_(False)
    mesh = DeviceMesh.from_group(dist.new_subgroups(1)[0], "cpu", mesh=[rank])
    weights = [(it.layer_number, next(it.parameters()).fill_(it.layer_number)) for it in model.decoder.layers]
    dcp.save(named(model, mesh), checkpoint_id=folder)
    for _, it in weights:
        it.fill_(0)
    dcp.load(named(model, mesh), checkpoint_id=folder)  # strict, as by default
    dist.all_gather_object(rows := [None] * STAGES, [(number, int(it.flatten()[0])) for number, it in weights])
    if rank == 0:
        for word, at in ("wrong", 1), ("right", 0):
            print(f"{word}: layers 1 2 3 4 are {' '.join(str(row[at]) for part in rows for row in part)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(stage, (f"{place}/store", f"{place}/checkpoint"), STAGES)
