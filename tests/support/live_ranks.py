"""Processes that look like ranks, and stand-ins of the programs that look at them."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from support import recorder_dumps

# A process that has loaded "torch", as far as /proc tells. Its rank is in os.environ only, as a worker of Ray's has it.
# It reads its pipe as NCCL's heartbeat does, and writes its dump then.
RANK = """
import contextlib, mmap, os, select, shutil, sys
library, rank, folder = sys.argv[1:]
os.environ["RANK"] = rank
with open(library, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
os.mkfifo(f"{folder}/pipe_{rank}.pipe")
pipe = os.open(f"{folder}/pipe_{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while True:
    ready = select.select([pipe, 0], [], [])[0]
    if 0 in ready:
        break
    with contextlib.suppress(BlockingIOError):  # who writes has opened it, and not written yet
        if os.read(pipe, 128):
            shutil.copy(f"{folder}/recorded", f"{folder}/dump_{rank}")
"""
# py-spy, whose stacks of rank 5 differ from one call to the next.
PY_SPY = f"""#!{sys.executable}
import pathlib, sys
assert sys.argv[1:3] + sys.argv[4:] == ["dump", "--pid", "--nonblocking"]
pid = sys.argv[3]
calls = pathlib.Path(__file__).with_name(f"calls_{{pid}}")
number = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (number + 1))
rank = [one for one in pathlib.Path(f"/proc/{{pid}}/cmdline").read_text().split(chr(0)) if one in "567" and one][0]
line = 7 + number if rank == "5" else 7
thread = f'Thread {{pid}} (idle): "MainThread"\\n    load{{pid}} (job/data.py:{{line}})'
print(f'Process {{pid}}: python\\nPython v3\\n\\n{{thread}}\\n')
"""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Mapping[int, int]]:
    """Start two ranks of four of a job that nobody else has, of which rank 6 is stopped; yield their pids."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("no /proc")
    # `--live` looks at all processes of this machine, and takes two such jobs at once for one
    with FileLock(Path(tempfile.gettempdir()) / "unhang-live-ranks.lock"):
        library = tmp_path / "libtorch_python.so"
        library.write_bytes(b"x")
        entry = recorder_dumps.entry(0, state="scheduled")
        recorded = recorder_dumps.dump([entry], {"0": ("default_pg", (4, 5, 6, 7))})
        (tmp_path / "recorded").write_bytes(recorder_dumps.as_json(recorded))
        job = {
            "MASTER_ADDR": "hung", "MASTER_PORT": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
            "SLURM_JOB_ID": "77",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
        }  # fmt: skip
        children = {}
        for rank in (5, 6):
            environment = {**os.environ, **job, "LOCAL_RANK": str(rank - 4)}
            command = [sys.executable, "-c", RANK, str(library), str(rank), str(tmp_path)]
            pipe = subprocess.PIPE
            children[rank] = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
        for child in children.values():
            assert child.stdout
            assert child.stdout.readline() == b"ready\n"
        children[6].send_signal(signal.SIGSTOP)
        os.waitpid(children[6].pid, os.WUNTRACED)  # it stops only once it has its turn on a CPU
        yield {rank: child.pid for rank, child in children.items()}
        for child in children.values():
            child.send_signal(signal.SIGCONT)
            child.communicate()
