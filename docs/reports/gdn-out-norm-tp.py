"""megatron-core: without sequence parallelism, gated delta net's output norm drifts apart over TP ranks.

python gdn-out-norm-tp.py, where megatron-core and torch are: TP 2, on a CPU.
"""

import os
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads as finalize
from megatron.core.ssm.gated_delta_net import GatedDeltaNet

HEADS, WIDTH, TOKENS, TP = 4, 3, 5, 2
torch.compiler.set_stance("force_eager")  # so that no compiler is needed


class Attention(torch.nn.Module):
    """A gated delta net from its output norm on: all heads share its weight."""

    def __init__(self):
        super().__init__()
        self.out_norm, self.act_fn = torch.nn.RMSNorm(WIDTH), torch.nn.functional.silu

    forward = GatedDeltaNet._apply_gated_norm


def model_after_backward(heads):
    """Return a model of one layer, and its weight, after the backward pass of these heads."""
    torch.manual_seed(0)
    inputs, gate, scale = (torch.randn(TOKENS, HEADS, WIDTH)[:, heads].contiguous() for _ in range(3))
    layer = torch.nn.ModuleDict({"self_attention": Attention()})
    (layer["self_attention"](inputs, gate) * scale.view(-1, WIDTH)).sum().backward()
    model = torch.nn.ModuleDict({"layer": layer})
    return model, layer["self_attention"].out_norm.weight


def run(rank, folder):
    """Print the gradients of all ranks after the finalizer, and that of all heads in one process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", TP), rank=rank, world_size=TP)
    model, weight = model_after_backward(slice(rank * HEADS // TP, (rank + 1) * HEADS // TP))
    weight.main_grad, model.ddp_config = weight.grad, SimpleNamespace(use_megatron_fsdp=False)
    finalize([model], SimpleNamespace(sequence_parallel=False, qk_layernorm=False), dist.group.WORLD)
    each = [torch.empty(WIDTH) for _ in range(TP)]
    dist.all_gather(each, weight.main_grad)
    if rank == 0:
        _, whole = model_after_backward(slice(HEADS))
        for name, gradients in {"wrong": each, "right": [whole.grad] * TP}.items():
            print(f"{name}:", *([round(value, 4) for value in gradient.tolist()] for gradient in gradients))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), TP, start_method="fork")
