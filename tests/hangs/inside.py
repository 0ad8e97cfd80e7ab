"""Runs in the interpreter that has torch: real ranks as the proofs make them, which leave what a hung job leaves.

When ``gloo.run`` would end its ranks, each writes torch's record of it, and py-spy reads the stacks of each. What a
rank writes to stderr, and what it raised, is its log. gloo aborts the rank that gets more than it expects; here that
rank stays, so that its peers wait as NCCL's would.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

DUMPS = {
    "recorder": ("_dump_fr_trace", {}),
    "recorder-no-frames": ("_dump_fr_trace", {"includeStackTraces": False}),
    "recorder-json": ("_dump_fr_trace_json", {}),
}
"""By folder: torch's function that writes the record, and its options."""
_DUMPED_S = 60.0
_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
_TIMEOUT_S = float(os.environ.get("UNHANG_HANGS_TIMEOUT_S", "0"))
"""When gloo gives up, if it is to do so before the stacks and dumps are taken."""
_APART_S = 3.0  # how far apart the ranks may give up
_SHORT_S = 0.1  # how long a foreign job may run; ranks at work get more, see ``gloo.run``


def main() -> None:
    """Answer the question of ``unhang.prove.host``, or run the foreign jobs that the arguments name.

    Each run of ranks writes to a folder below ``UNHANG_HANGS``.
    """
    prove, names = Path(sys.argv[1]), sys.argv[2:]
    spec = importlib.util.spec_from_file_location(
        "unhang_prove", prove / "__init__.py", submodule_search_locations=[str(prove)]
    )
    assert spec is not None
    sys.modules["unhang_prove"] = importlib.util.module_from_spec(spec)
    if names:
        _foreign(names)
    else:
        install(_folder)
        importlib.import_module("unhang_prove.child").main()


def _foreign(names: Sequence[str]) -> None:
    importlib.import_module("unhang_prove.ranks.tidy").end_with(os.getppid())
    importlib.import_module("torch.distributed.fsdp")  # once, not in every fork
    gloo: Any = importlib.import_module("unhang_prove.ranks.gloo")
    jobs = runpy.run_path(str(Path(__file__).with_name("foreign.py")))["JOBS"]
    left = list(names)
    install(lambda: Path(os.environ["UNHANG_HANGS"], left.pop(0)))
    for name in names:
        gloo.run(jobs[name].world, jobs[name].body, deadline_s=_SHORT_S)


def _folder() -> Path:
    """Return the folder of the case that runs: the variant of the source, and in it the case."""
    variant, _, case = Path("begun").read_text().splitlines()[-1].partition(" ")
    return Path(os.environ["UNHANG_HANGS"], variant, case)


def install(folder: Callable[[], Path]) -> None:
    """Have ``gloo.run`` record its ranks into ``folder()``."""
    gloo: Any = importlib.import_module("unhang_prove.ranks.gloo")
    run, alive = gloo.run, gloo._alive
    scene: Any = importlib.import_module("unhang_prove.scene")
    scene.refuse = lambda *_: None  # a rank writes its dumps

    def recorded(world: int, body: Callable[[int], Any], **options: Any) -> Any:
        out = folder()
        out.mkdir(parents=True)
        asks, asked = os.pipe()

        def asking(*given: Any) -> Any:
            if _TIMEOUT_S:
                time.sleep(_APART_S)
            os.write(asked, b"." * world)
            _finish(out, world)
            return alive(*given)

        gloo._alive = asking
        if _TIMEOUT_S:
            gloo._TORCH_TIMEOUT = timedelta(seconds=_TIMEOUT_S)
            options["deadline_s"] = 2 * _TIMEOUT_S
        try:
            return run(world, lambda rank: _rank(rank, body, out, asks), **options)
        finally:
            gloo._alive = alive
            os.close(asks)
            os.close(asked)

    gloo.run = recorded


def _rank(rank: int, body: Callable[[int], Any], out: Path, asks: int) -> Any:
    """Run the body of a rank."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1))  # py-spy is not its parent
    (out / "log").mkdir(exist_ok=True)
    log = os.open(out / "log" / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 2)
    if _TIMEOUT_S:
        _shorten_timeouts()
    else:
        _stay_when_aborted()
    (out / f"pid_{rank}").write_text(str(os.getpid()))
    threading.Thread(target=_dump, args=(rank, out, asks), daemon=True).start()
    try:
        return body(rank)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        raise


def _shorten_timeouts() -> None:
    """Give each group that the rank makes the short timeout."""
    import torch.distributed as dist

    new_group = dist.new_group

    def shortened(*args: Any, **kwargs: Any) -> Any:
        return new_group(*args, **{**kwargs, "timeout": timedelta(seconds=_TIMEOUT_S)})

    dist.new_group = dist.distributed_c10d.new_group = shortened


def _stay_when_aborted() -> None:
    """Have abort() wait forever instead."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))


def _dump(rank: int, out: Path, asks: int) -> None:
    from torch._C import _distributed_c10d

    os.read(asks, 1)
    for folder, (name, options) in DUMPS.items():
        data: bytes = getattr(_distributed_c10d, name)(**options)
        (out / folder).mkdir(exist_ok=True)
        suffix = ".json" if folder.endswith("json") else ""
        (out / folder / f"nccl_trace_rank_{rank}{suffix}").write_bytes(data)
    (out / f"dumped_{rank}").touch()


def _finish(out: Path, world: int) -> None:
    """Wait for the dumps, and take the stacks."""
    pids = {rank: int((out / f"pid_{rank}").read_text()) for rank in range(world)}
    alive = {rank: pid for rank, pid in pids.items() if _is_alive(pid)}
    end = time.monotonic() + _DUMPED_S
    while not all((out / f"dumped_{rank}").exists() for rank in alive) and time.monotonic() < end:
        time.sleep(0.02)
    with _as_packages():
        _spy(out, alive)
    for file in [*out.glob("pid_*"), *out.glob("dumped_*")]:
        file.unlink()


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def _as_packages() -> Iterator[None]:
    """Make packages of the folders in which a proof lays out modules alone: py-spy cuts a path down to the package."""
    made = []
    for folder in Path.cwd().glob("*/**/") if Path("begun").exists() else ():
        is_package = folder.parent != Path.cwd() and (folder.name, folder.parent.parent) != ("megatron", Path.cwd())
        if is_package and not (folder / "__init__.py").exists():
            made.append(folder / "__init__.py")
            made[-1].touch()
    yield
    for file in made:
        file.unlink()


def _spy(out: Path, pids: Mapping[int, int]) -> None:
    """Have py-spy write the stacks of the ranks as text and as JSON, if it is installed."""
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    for folder, suffix, options in ("py-spy", ".txt", []), ("py-spy-json", ".json", ["--json"]):
        if spy is None:
            return
        (out / folder).mkdir()
        running = []
        for rank, pid in pids.items():
            with open(out / folder / f"rank_{rank}{suffix}", "wb") as file:
                running.append(subprocess.Popen([spy, "dump", "--pid", str(pid), *options], stdout=file))
        for one in running:
            one.wait()


if __name__ == "__main__":
    main()
