"""verl: without LoRA merging, a disaggregated rollout never gets the adapter.

python async-lora-never-synced.py, where verl and torch are: one process, on a CPU.
"""

import asyncio
from types import SimpleNamespace

import peft
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

transformer_impl.get_device_id, transformer_impl.log_gpu_memory_usage = lambda: "cpu", lambda *_, **__: None


class Model(torch.nn.Module):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.linear, self.config = torch.nn.Linear(8, 8, bias=False), {}


class Sender:
    """Stands in for the sender of a checkpoint engine, such as that of NCCL: it keeps what it is given."""

    async def send_weights(self, weights, **_):
        """Keep the names of the tensors."""
        self.names = [name for name, _ in weights]


def engine(model):
    """Return verl's engine around a model with unmerged LoRA."""
    made = object.__new__(transformer_impl.FSDPEngine)
    made.module, made._is_offload_param, made._qat_enabled = model, False, False
    made._uses_fsdp2_cpu_offload_policy = True
    made.model_config = SimpleNamespace(lora={"merge": False}, hf_config=SimpleNamespace(model_type="qwen2"))
    return made


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = peft.get_peft_model(Model(), peft.LoraConfig(r=2, target_modules=["linear"]))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    worker, sender = object.__new__(ActorRolloutRefWorker), Sender()
    worker.actor, worker.checkpoint_engine = SimpleNamespace(engine=engine(fully_shard(model))), sender
    worker.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=SimpleNamespace(backend="nccl")))
    asyncio.run(worker.update_weights(global_steps=1))
    sent = [name for name in sender.names if "lora_" in name]
    print(f"wrong: {len(sent)} of {len(trained)} trained tensors are sent")
    print(f"right: {len(trained)} of {len(trained)} trained tensors are sent")
