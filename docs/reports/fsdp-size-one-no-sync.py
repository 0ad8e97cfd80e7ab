"""verl: with strategy fsdp and fsdp_size=1, no gradient is averaged over the ranks.

python fsdp-size-one-no-sync.py, where verl and torch are: 2 ranks, on a CPU.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from verl.workers.engine.fsdp import utils

RANKS = 2
utils.get_device_name = lambda: "cpu"  # also where there is a GPU


def model():
    """Return the same model each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 1))


def loss(of, rank):
    """Return the loss of a model on the rows of a rank."""
    torch.manual_seed(1 + rank)
    return of(torch.randn(5, 6)).pow(2).mean()


def step(of):
    """Make one step of the optimizer, and return the norm of the gradient that it took."""
    norm = of.clip_grad_norm_(1e9) if isinstance(of, FSDP) else torch.nn.utils.clip_grad_norm_(of.parameters(), 1e9)
    torch.optim.SGD(of.parameters(), lr=0.1).step()
    return float(norm)


def run(rank, folder):
    """Train one step with all ranks, and with all rows in one process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    mesh = utils.create_device_mesh(world_size=RANKS, fsdp_size=1)
    strategy = utils.get_sharding_strategy(mesh)
    split = FSDP(model(), sharding_strategy=strategy, device_mesh=mesh, device_id=torch.device("cpu"))
    loss(split, rank).backward()
    norm = step(split)
    with FSDP.summon_full_params(split):
        own = torch.cat([weight.detach().flatten() for weight in split.parameters()])
    each = [torch.empty_like(own) for _ in range(RANKS)]
    dist.all_gather(each, own)
    whole = model()
    (sum(loss(whole, one) for one in range(RANKS)) / RANKS).backward()
    if rank == 0:
        print(f"wrong: gradient norm {norm:.4f}, then weights {(each[0] - each[1]).abs().max():.4f} apart")
        print(f"right: gradient norm {step(whole):.4f}, then weights {0:.4f} apart")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), RANKS, start_method="fork")
