"""megatron-core: the AllGather dispatcher with moe_permute_fusion stops a rank whose experts get no token.

python allgather-empty-expert.py, where megatron-core and torch are: EP 2, on a CPU; it takes 10 s more with the defect.
"""

import os
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher

torch.cuda.current_device = lambda: "cpu"
EP, TOKENS = 2, 3


def permute(tokens, routing_map, num_out_tokens):
    """Stand in for Transformer Engine's, which needs a GPU: from 2.15 on, it refuses to return no row."""
    assert num_out_tokens > 0
    rows = routing_map.T.nonzero()[:, 1]
    return tokens[rows], rows


def unpermute(tokens, rows, restore_shape, **_):
    """Stand in for its inverse."""
    return tokens.new_zeros(restore_shape).index_add_(0, rows, tokens)


def total(rank, fusion):
    """Return the sum of what a rank gets back where rank 0 has the expert of all tokens; or what stops the rank."""
    config = SimpleNamespace(moe_permute_fusion=fusion, moe_router_topk=1, add_bias_linear=False)
    layer = MoEAllGatherTokenDispatcher(1, [rank], config, ProcessGroupCollection.use_mpu_process_groups())
    probs = torch.tensor([[1.0, 0.0]]).repeat(TOKENS, 1)
    try:
        given = layer.dispatch_preprocess(torch.full((TOKENS, 1, 4), 1.0 + rank), probs.bool(), probs)
        rows, *_ = layer.dispatch_postprocess(*layer.token_dispatch(*given))
        return float(layer.token_combine(layer.combine_preprocess(rows)).sum())
    except (AssertionError, RuntimeError) as error:  # the latter is gloo's, after 10 s; with NCCL, the rank waits
        return "raises AssertionError" if isinstance(error, AssertionError) else "waits for the other, 10 s"


def run(rank, folder):
    """Run the dispatcher on all ranks without fusion, then with it."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", EP), rank=rank, world_size=EP)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=EP, distributed_timeout_minutes=1 / 6)
    moe_utils.HAVE_TE, moe_utils.fused_permute, moe_utils.fused_unpermute = True, permute, unpermute
    for name, fusion in {"right": False, "wrong": True}.items():
        dist.all_gather_object(each := [None] * EP, total(rank, fusion))
        if rank == 0:
            print(f"{name}:", "; ".join(f"rank {one} {value}" for one, value in enumerate(each)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), EP, start_method="fork")
