"""megatron-core: with a padding mask and per-token loss, the router's auxiliary loss grows with TP * CP.

python router-token-scale.py, where megatron-core and torch are: TP 2 and TP 1, on a CPU.
"""

import os
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

torch.cuda.current_device = lambda: "cpu"
TOKENS, WIDTH, EXPERTS, TP = 4, 4, 4, 2
CONFIG = TransformerConfig(
    num_layers=1,
    hidden_size=WIDTH,
    num_attention_heads=2,
    add_bias_linear=False,
    num_moe_experts=EXPERTS,
    moe_router_topk=2,
    moe_router_load_balancing_type="aux_loss",
    moe_aux_loss_coeff=1.0,
    calculate_per_token_loss=True,
)


def norm(group):
    """Return the norm of the router's gradient from its auxiliary loss, with the tokens split over a group."""
    router = TopKRouter(CONFIG, SimpleNamespace(tp=group, cp=group, tp_cp=group, tp_dp_cp=group))
    router.set_layer_number(1)
    torch.manual_seed(3)
    tokens = torch.randn(TOKENS, 1, WIDTH)
    weight = torch.randn(EXPERTS, WIDTH, requires_grad=True)
    padding = torch.tensor([[False], [False], [False], [True]])  # the second rank has one token, the first has two
    own = slice(group.rank() * TOKENS // group.size(), (group.rank() + 1) * TOKENS // group.size())
    probs, _ = router.routing(tokens[own] @ weight.T, padding_mask=padding[own])
    (probs.sum() * 0).backward()
    dist.all_reduce(weight.grad, group=group)  # as finalize_model_grads does with sequence parallelism
    return (weight.grad / (~padding).sum()).norm()  # and as it does with per-token loss


def run(rank, folder):
    """Print the norm with TP 2, and that with TP 1 on the same tokens."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", TP), rank=rank, world_size=TP)
    alone = [dist.new_group([one]) for one in range(TP)][rank]
    for name, group in {"wrong": dist.group.WORLD, "right": alone}.items():
        gradient = norm(group)
        if rank == 0:
            print(f"{name}: {gradient:.4f}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), TP, start_method="fork")
