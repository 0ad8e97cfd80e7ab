"""What to set before a job, what to run on one that hangs, and the stacks of this node's ranks."""

from __future__ import annotations

import socket
from pathlib import Path

from unhang.diagnose import collector
from unhang.errors import UnhangError

_ADVICE = """\
Set this before a job, in the environment of every rank (with Ray: before
`ray start` on each node). DIR is on a disk that all nodes share:

    mkdir -p DIR/dumps
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_FR_BUFFER_SIZE=2000      # record; old and new name
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=60000
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/dumps/rank_ TORCH_FR_DUMP_TEMP_FILE=DIR/dumps/rank_
    export TORCH_INCLUDE_STACK_TRACE=1 TORCH_INCLUDE_ONLY_ACTIVE=0          # what Megatron-LM leaves out
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/unhang_rank_                # a dump whenever you ask for it
    export RAY_DEDUP_LOGS=0                                                 # Ray: the lines of all ranks

The recorder writes when a collective times out. So let it time out, after more
than your longest save or rollout takes:

    Megatron-LM   --distributed-timeout-minutes 10              (the default)
    verl          actor_rollout_ref.nccl_timeout=600            (seconds, the default)
    ms-swift      --ddp_timeout 1800                            (seconds; the default is 208 days)

Keep what each rank prints: `torchrun --log-dir DIR/logs --redirects 3`, or
`srun --label`.

If a job hangs now, run one of these before you stop it. It takes stacks twice,
asks for dumps, and diagnoses both. It needs py-spy on each node
(`pip install py-spy`), and in a container the capability SYS_PTRACE:

    unhang diagnose --live --keep DIR/live                        # the ranks of this node
    unhang diagnose --live --keep DIR/live --slurm JOB
    unhang diagnose --live --keep DIR/live --ray auto             # in the job's own environment
    unhang diagnose --live --keep DIR/live --kubectl training.kubeflow.org/job-name=JOB

If these cannot reach the other nodes, run this on each node. It writes the
stacks of that node's ranks into DIR/unhang-stacks:

    cd DIR && unhang diagnose --capture

If a node has only py-spy, run this there for each rank R:

    mkdir -p DIR/unhang-stacks && py-spy dump --pid PID > DIR/unhang-stacks/rank_R.txt

Then run:

    unhang diagnose DIR"""


_NEXT_RUN = """\
if the job still runs, before you end it:
  unhang diagnose --live
if it is gone, what it has left is here. For the next run (DIR is on a disk that all nodes share)
with torchrun:
  {words} torchrun --log-dir DIR/logs --redirects 3 ...
with Slurm:
  srun --label --export=ALL,{commas} ...
with Ray, on each node:
  RAY_DEDUP_LOGS=0 {words} ray start ...
with kubectl, or the same in `env` of the pods' template:
  kubectl set env statefulset/JOB {words}"""
_RECORD = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_INCLUDE_STACK_TRACE": "1",
    "TORCH_INCLUDE_ONLY_ACTIVE": "0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "DIR/rank_",
}  # fmt: skip


def advice() -> str:
    """Return what to set before a job, and what to run on one that hangs."""
    return _ADVICE


def before_the_next_run() -> tuple[str, ...]:
    """Return what to do about a job that has ended or soon will, each command as an indented line of its own."""
    pairs = [f"{name}={value}" for name, value in _RECORD.items()]
    return tuple(_NEXT_RUN.format(words=" ".join(pairs), commas=",".join(pairs)).splitlines())


def take(folder: Path) -> tuple[Path, ...]:
    """Write py-spy's stacks of each rank on this node into a folder, and return these files.

    They are called ``rank_3.txt``, and are in a folder for each job if there are several. Beside them is a file of the
    node's own that says of how many ranks the job is. A rank that ends meanwhile is left out. Raises UnhangError
    ``no-py-spy``, ``no-ranks``, or ``py-spy-failed`` where it gave nothing of any rank, and OSError if the folder
    cannot be written.
    """
    py_spy = collector.py_spy()
    if py_spy is None:
        raise UnhangError("no-py-spy", "py-spy is not on PATH", hint="do: pip install py-spy")
    processes = tuple(collector.processes())
    found = collector.ranks(processes)
    if not found:
        raise UnhangError("no-ranks", "no process on this node has loaded torch and has a rank in its environment")
    worlds = sorted({one.world for one in found})
    written, wrong = [], ""
    for world in worlds:
        here = [one for one in found if one.world == world]
        into = folder / (world if len(worlds) > 1 else "")
        taken = []
        for one in here:
            stacks, why = collector.dump(py_spy, one.pid)
            if stacks:
                into.mkdir(parents=True, exist_ok=True)
                taken.append(into / f"rank_{one.rank}.txt")
                taken[-1].write_bytes(stacks)
            wrong = wrong or why
        if taken:
            state = {one.pid: collector.state_of(one.pid) for one in here}
            notes = collector.census(here, {one.pid: one for one in processes}, state, ())
            (into / f"on-{collector.name_of(socket.gethostname())}.json").write_bytes(notes)
        written += taken
    if not written:
        raise UnhangError("py-spy-failed", f"py-spy took no stacks: {wrong}")
    return tuple(written)
