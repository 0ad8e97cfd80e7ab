"""`unhang diagnose --live` on real jobs that hang: torchrun's with gloo in `nox -s proofs`, Ray's in `nox -s fleet`."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from unhang.diagnose import collector, intake, known, live
from unhang.diagnose.live import Place
from unhang.diagnose.who import Who
from unhang.tell import progress

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(collector.py_spy() is None, reason="needs py-spy: nox -s proofs, nox -s fleet"),
]
with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: nox -s proofs")
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: nox -s fleet")
# Rank 2 does not come to the second all-reduce. Where it ends, its peers wait in the store: gloo would tell them.
JOB = """
import datetime, os, pathlib, signal, sys, torch, torch.distributed as dist
what, folder = sys.argv[1:]
def load():
    while True:
        sum(number * number for number in range(3000))
def stay():
    dist.distributed_c10d._get_default_store().wait(["never"], datetime.timedelta(seconds=600))
def main(*spawned):
    at = dict(rank=spawned[0], world_size=4, init_method=f"file://{folder}/store") if spawned else {}
    dist.init_process_group("gloo", **at)
    ones, rank = torch.ones(4), dist.get_rank()
    dist.all_reduce(ones)
    pathlib.Path(folder, str(rank)).write_text(str(os.getpid()))
    if rank == 2:
        {"late": load, "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP), "ended": lambda: os._exit(0)}[what]()
    if what == "ended":
        stay()
    dist.all_reduce(ones)
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, nprocs=4) if "RANK" not in os.environ else main()
"""
ACTORS = """
import mmap, os, pathlib, sys, time, ray
library, folder = sys.argv[1:]
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
@ray.remote(num_cpus=1, max_restarts=0)
class Worker:
    def train(self, rank):
        os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR=pathlib.Path(folder).name, MASTER_PORT="1")
        with open(library, "rb") as file:  # as if it had loaded torch
            self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        pathlib.Path(folder, str(rank)).write_text(str(os.getpid()))
        if rank == 1:
            os._exit(1)
        time.sleep(600)
pathlib.Path(folder, "address").write_text(ray.get_runtime_context().gcs_address)
workers = [Worker.remote() for _ in range(3)]
tasks = [worker.train.remote(rank) for rank, worker in enumerate(workers)]
time.sleep(600)
"""


def hung(folder: Path, command: list[str], ranks: int, end: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
    """Start a job, and wait until each of its ranks is where it stays."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # else the cluster wants a token
        "RAY_raylet_start_wait_time_s": "60",
    }
    end.append((subprocess.Popen(command, env=environment, start_new_session=True), folder))
    until = time.monotonic() + 600
    while sum(map(settled, pids(folder))) < ranks:
        is_late = time.monotonic() > until
        if end[-1][0].poll() is not None:
            assert command[1] == "-c", "the job has ended"
            assert not any(folder.iterdir()), "the job has ended"
            if is_late:
                pytest.skip("Ray does not start here: it gives up where an agent of its own takes more than 15 s")
            end.append((subprocess.Popen(command, env=environment, start_new_session=True), folder))
        assert not is_late, "the job has not begun"
        time.sleep(0.5)


def pids(folder: Path) -> list[int]:
    """Return the processes that have said that they are there."""
    texts = (path.read_text() for path in folder.iterdir() if path.name.isdecimal())
    return [int(text) for text in texts if text]


def settled(pid: int) -> bool:
    """Return whether a process is where its job lets it hang."""
    if collector.state_of(pid) != "running":
        return True
    return bool(re.search(rb"[ .](all_reduce|load|stay|train) \(", collector.dump(collector.py_spy() or "", pid)[0]))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[subprocess.Popen[bytes], Path]]]:
    monkeypatch.setattr(live, "APART_S", 4.0)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    started: list[tuple[subprocess.Popen[bytes], Path]] = []
    yield started
    for process, folder in started:
        for pid in pids(folder):  # torchrun gives each rank a session of its own
            with suppress(OSError):
                if os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            time.sleep(0.5)
        process.wait()


def suspects(places: list[Place], kept: Path, world: str) -> Who:
    """Return whom a diagnosis of the job suspects; other jobs may run on this machine."""
    (one,) = [one for one in live.collect(places, kept, progress.silent) if one.folder.name == world]
    return known.diagnose(intake.read([str(one.folder)], progress.silent)).who


@with_torch
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("late", ""),
        ("stopped", "its process is stopped"),
        ("ended", "its process is gone"),
    ],
)
def test_a_job_of_torchrun_s(
    what: str, why: str, tmp_path: Path, jobs: list[tuple[subprocess.Popen[bytes], Path]]
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "there").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={port}"]
    command = [*torchrun, str(tmp_path / "job.py"), what, str(tmp_path / "there")]
    hung(tmp_path / "there", command, 4, jobs)
    found = suspects(live.here(), tmp_path / "kept", f"127_0_0_1_{port}")
    assert [*found.why] == [2]
    assert found.why[2].startswith(why)
    assert "does not move" not in found.why[2], "two stacks of a tight loop may be alike"


@with_torch
def test_a_job_of_mp_spawn_s_whose_rank_is_an_argument(
    tmp_path: Path, jobs: list[tuple[subprocess.Popen[bytes], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "there").mkdir()
    hung(tmp_path / "there", [sys.executable, str(tmp_path / "job.py"), "late", str(tmp_path / "there")], 4, jobs)
    found = suspects(live.here(), tmp_path / "kept", f"pid{jobs[0][0].pid}_")
    assert [*found.why] == [2]


@with_ray
def test_workers_of_ray_s_whose_rank_is_in_os_environ_alone(
    tmp_path: Path, jobs: list[tuple[subprocess.Popen[bytes], Path]]
) -> None:
    (tmp_path / "libtorch.so").write_bytes(b"x")
    there = tmp_path / f"ray{os.getpid()}"
    there.mkdir()
    hung(there, [sys.executable, "-c", ACTORS, str(tmp_path / "libtorch.so"), str(there)], 3, jobs)
    places = live.ray((there / "address").read_text(), None)
    found = suspects(places, tmp_path / "kept", f"{there.name}_1")
    assert found.why == {1: "its process is gone: it has ended or was killed, and its peers run"}
    (stack,) = (tmp_path / "kept").rglob(f"{there.name}_1/**/rank_0.txt")
    assert "train" in stack.read_text()
