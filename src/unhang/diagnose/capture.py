"""What to set before a job, what to run on one that hangs, and the stacks of this node's ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_PROC = Path("/proc")
_PY_SPY_S = 60

# How launchers tell a process its rank: torchrun and Ray, mpirun, srun.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

_ADVICE = """\
Before a job, in the environment of every rank (with Ray: before `ray start` on each node). DIR is on a disk that
all nodes share:

    mkdir -p DIR/dumps
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_FR_BUFFER_SIZE=2000      # record; old and new name
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=60000
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/dumps/rank_ TORCH_FR_DUMP_TEMP_FILE=DIR/dumps/rank_
    export TORCH_INCLUDE_STACK_TRACE=1 TORCH_INCLUDE_ONLY_ACTIVE=0          # what Megatron-LM leaves out
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/unhang_rank_                # a dump whenever you ask for it
    export RAY_DEDUP_LOGS=0                                                 # Ray: the lines of all ranks

The recorder writes when a collective times out, so let it time out, after more than your longest save or rollout:

    Megatron-LM   --distributed-timeout-minutes 10              (the default)
    verl          actor_rollout_ref.nccl_timeout=600            (seconds, the default)
    ms-swift      --ddp_timeout 1800                            (seconds; the default is 208 days)

Keep what each rank prints: `torchrun --log-dir DIR/logs --redirects 3`, or `srun --label`.

On a job that hangs now, before you stop it. Each node writes the stacks of its ranks into DIR/unhang-stacks; it needs
py-spy (`pip install py-spy`), and in a container the capability SYS_PTRACE:

    cd DIR && unhang diagnose --capture

    Slurm     srun --jobid JOB --overlap -N "$(squeue -h -j JOB -o %D)" --ntasks-per-node=1 --chdir DIR \\
                unhang diagnose --capture

    Ray       import ray, subprocess
              from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
              ray.init("auto")
              take = ray.remote(num_cpus=0)(subprocess.run)
              for node in [node["NodeID"] for node in ray.nodes() if node["Alive"]]:
                  on = take.options(scheduling_strategy=On(node, soft=False))
                  ray.get(on.remote(["unhang", "diagnose", "--capture"], cwd="DIR"))

    kubectl   cd DIR
              for pod in $(kubectl get pods -l training.kubeflow.org/job-name=JOB -o name); do
                kubectl exec "$pod" -- sh -c 'cd /tmp && unhang diagnose --capture >&2; tar c unhang-stacks' | tar x
              done

Where only py-spy is at hand: `py-spy dump --pid PID > DIR/unhang-stacks/rank_R.txt` for each rank R.
If the pipes above are set, this makes the ranks of a node write their dumps at once:

    for pipe in /tmp/unhang_rank_*.pipe; do timeout 5 sh -c 'echo 1 > "$0"' "$pipe"; done

Then: unhang diagnose DIR"""


class Process(NamedTuple):
    """A process of this node."""

    pid: int
    parent: int
    environment: Mapping[str, str]
    torch: bool
    """Whether it has loaded torch."""


class Found(NamedTuple):
    """A rank of this node."""

    rank: int
    pid: int
    world: str
    """Where its ranks meet: of two jobs on a node, each has a rank 0."""


def advice() -> str:
    """Return what to set before a job, and what to run on one that hangs."""
    return _ADVICE


def take(folder: Path) -> tuple[Path, ...]:
    """Write py-spy's stacks of each rank on this node into a folder, and return the files.

    They are called ``rank_3.txt``, and are in a folder for each job if there are several. A rank that ends meanwhile is
    left out. Raises UnhangError ``no-py-spy``, ``no-ranks``, or ``py-spy-failed`` where it gave nothing of any rank,
    and OSError if the folder cannot be written.
    """
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        raise UnhangError("no-py-spy", "py-spy is not on PATH", hint="do: pip install py-spy")
    found = ranks(tuple(_processes()))
    if not found:
        raise UnhangError("no-ranks", "no process on this node has loaded torch and has a rank in its environment")
    several = len({one.world for one in found}) > 1
    written, wrong = [], ""
    for one in found:
        stacks, why = _dump(py_spy, one.pid)
        if stacks:
            file = folder / (one.world if several else "") / f"rank_{one.rank}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(stacks)
            written.append(file)
        wrong = wrong or why
    if not written:
        hint = "it needs root, or the capability SYS_PTRACE" if "ermission" in wrong else None
        raise UnhangError("py-spy-failed", f"py-spy took no stacks: {wrong}", hint=hint)
    return tuple(written)


def ranks(processes: Collection[Process]) -> tuple[Found, ...]:
    """Return the ranks among the processes of a node, in ascending order; a rank's own children are none."""
    trained = [process for process in processes if process.torch]
    name = next((name for name in _RANKS if any(_rank(process, name) >= 0 for process in trained)), "")
    parents = {process.pid: process.parent for process in processes}
    ranked = {process.pid: (process, _rank(process, name)) for process in trained if _rank(process, name) >= 0}
    found = []
    for pid, (process, rank) in ranked.items():
        above = (ranked[parent][1] for parent in _above(pid, parents) if parent in ranked)
        if rank not in above:
            world = "_".join(process.environment.get(part, "") for part in ("MASTER_ADDR", "MASTER_PORT"))
            found.append(Found(rank, pid, "".join(c if c.isalnum() else "_" for c in world)))
    return tuple(sorted(found))


def _above(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    seen = {pid}
    while (pid := parents.get(pid, 0)) and pid not in seen:
        seen.add(pid)
        yield pid


def _rank(process: Process, name: str) -> int:
    value = process.environment.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() else -1


def _processes() -> Iterator[Process]:
    """Yield the processes that this user may look at; none where there is no /proc."""
    for entry in _PROC.glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            parts = [part.partition("=") for part in os.fsdecode((entry / "environ").read_bytes()).split("\0")]
            torch = b"/libtorch" in (entry / "maps").read_bytes()
        except (OSError, ValueError, IndexError):  # it has ended, or is another user's
            continue
        yield Process(int(entry.name), parent, {name: value for name, _, value in parts}, torch)


def _dump(py_spy: str, pid: int) -> tuple[bytes, str]:
    """Return the stacks of a process, or why there are none."""
    command = [py_spy, "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PY_SPY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", f"process {pid}: {error}"
    if done.returncode == 0:
        return done.stdout, ""
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return b"", f"process {pid}: {said[0]}"
