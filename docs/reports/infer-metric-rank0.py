"""ms-swift: swift infer --metric waits for ranks that never come.

python infer-metric-rank0.py, where ms-swift and torch are: 2 ranks, on a CPU; it takes 10 s more with the defect.
"""

import datetime
import json
import os
import tempfile
import traceback
from types import SimpleNamespace

import torch
import torch.distributed as dist
from swift.pipelines.infer import infer

RANKS, LONGEST = 2, datetime.timedelta(seconds=10)
ROWS = [("yes", "yes"), ("no", "yes"), ("no", "no")]


def metric():
    """Return what a rank logs, once it has the predictions of all ranks in a file."""
    logged = []
    infer.logger = SimpleNamespace(info=logged.append)
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
        file.write("".join(json.dumps({"response": given, "labels": right}) + "\n" for given, right in ROWS))
        file.flush()
        job = object.__new__(infer.SwiftInfer)
        job.args = SimpleNamespace(metric="acc", task_type="causal_lm")
        job.jsonl_writer = SimpleNamespace(fpath=file.name)
        try:
            job._calc_metric()
        except RuntimeError as error:  # of gloo, after the time that follows; with NCCL, it waits
            calls = [frame.name for frame in traceback.extract_tb(error.__traceback__) if "/swift/" in frame.filename]
            return f"waited {LONGEST.seconds} s in {' > '.join(calls)}"
    return logged


def run(rank, folder):
    """Compute the metric on all ranks, and print what the first one logs."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=LONGEST)
    found = metric()
    if rank == 0:
        accuracy = sum(given == right for given, right in ROWS) / len(ROWS)
        print(f"wrong: rank 0 {found}")
        print(f"right: rank 0 {[{'acc': accuracy}]}", flush=True)
        store.set("done", "")
    store.wait(["done"], LONGEST * 6)  # a rank that has ended would make an error of the wait


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(run, (place,), RANKS, start_method="fork")
