"""ms-swift: a resume with sequence parallelism replays the order of the first epoch.

python resume-data-order.py, where ms-swift and torch are: one process stands for a data parallel group, on a CPU.
"""

import tempfile
from types import SimpleNamespace

import torch.distributed as dist
from swift.trainers import mixin
from torch.distributed.device_mesh import init_device_mesh
from transformers import trainer

ROWS, BATCH, EPOCH, DONE = range(8), 2, 1, 2  # the run was stopped after two of the four batches of its second epoch


def job():
    """Return a trainer with swift's own loader, for `--sequence_parallel_size 2`."""
    kind = type("Job", (mixin.SwiftMixin, mixin.DataLoaderMixin), {})
    new = object.__new__(kind)
    given = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "drop_last": False}
    new.args = SimpleNamespace(**{f"dataloader_{name}": value for name, value in given.items()})
    new.args.train_dataloader_shuffle, new.args.data_seed = True, 0
    new.template, new.accelerator = SimpleNamespace(sequence_parallel_size=2), SimpleNamespace(device=None)
    new.train_dataset, new._train_batch_size, new.data_collator = ROWS, BATCH, list
    new._get_collator_with_removed_columns = lambda collator, **_: collator
    return new


with tempfile.TemporaryDirectory() as place:
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
    mixin.sequence_parallel.device_mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "sequence"))
    resumed = job()
    with resumed._patch_skip_first_batches():
        loader = resumed.get_train_dataloader()
        loader.set_epoch(EPOCH)  # as the Trainer of transformers 4 does
        rest = trainer.skip_first_batches(loader, DONE)
        getattr(rest, "set_epoch", int)(EPOCH)  # as that of transformers 5 does
        found = [row for batch in rest for row in batch]
    loader.sampler.set_epoch(EPOCH)
    print(f"wrong: after the resume come the samples {found}")
    print(f"right: after the resume come the samples {[*loader.sampler][DONE * BATCH :]}", flush=True)
    dist.destroy_process_group()
