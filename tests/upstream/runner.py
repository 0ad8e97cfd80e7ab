"""Runs one test file of a tree in its own process, with a deadline, and reads the outcome of each test."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from upstream.compare import CUT, FAILED, UNREACHED, Answer, of_ranks

INJECTED = Path(__file__).parent / "injected"
_FRAMES = 20
_GRACE = 15  # seconds for torchrun to end its ranks
# These could make the sides differ, or pass our own options to upstream's pytest.
_DROPPED = ("PYTEST_", "PYTHON", "COV_", "VIRTUAL_ENV", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
_SETTINGS = {"pytest.ini": "", "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}
"""The files that pytest reads its settings from, each with what it has in it then."""


class Conditions(NamedTuple):
    """What is equal on both sides."""

    python: Path
    ranks: int
    gpus: int
    deadline: float
    """Seconds for each file."""
    shims: bool
    """Whether ``unhang_on_cpu`` is injected."""
    variables: Mapping[str, str]
    rewritten: Mapping[str, Mapping[int, str]] = {}
    """The names of the lines whose execution is measured, by file and number; only the patched tree has these files."""


class Result(NamedTuple):
    """One run of one file on one side."""

    tests: dict[str, Answer]
    seconds: float
    was_cut: bool


def command(conditions: Conditions, tree: Path, file: str) -> list[str]:
    """Return the command: pytest itself for one rank on a CPU, else torchrun."""
    start = [str(conditions.python), "-m"]
    if conditions.ranks > 1 or conditions.gpus:
        # standalone: a free port for the ranks to meet at
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={conditions.ranks}", "-m"]
    plugins = ["-p", "unhang_reports", *(("-p", "unhang_on_cpu") if conditions.shims else ())]
    # upstream's own options may stop at the first failure, or need plugins
    options = ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=short", "-q", "--rootdir=."]
    files = [(tree / name, mark) for name, mark in _SETTINGS.items()]
    if not any(path.is_file() and mark in path.read_text(encoding="utf-8") for path, mark in files):
        options += ["-c", os.devnull]  # else pytest takes those of a folder above, such as ours
    return [*start, "pytest", *plugins, *options, file]


def environment(conditions: Conditions, tree: Path, reports: Path, scratch: Path) -> dict[str, str]:
    """Return the environment variables: ours without ``_DROPPED``, then the data's, then those of the run."""
    import unhang.prove.ranks.shims as shims

    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    ours = {
        "PATH": os.pathsep.join((str(conditions.python.parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(INJECTED), str(tree))),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(scratch),
        "UNHANG_REPORTS": str(reports),
        "UNHANG_SHIMS": str(shims.__file__),
        "UNHANG_REWRITTEN": json.dumps(conditions.rewritten),
        "OMP_NUM_THREADS": "1",
    }
    if conditions.ranks == 1 and not conditions.gpus:
        ours |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(_free_port())}
    return {**kept, **conditions.variables, **ours}


def run(conditions: Conditions, tree: Path, file: str, place: Path) -> Result:
    """Run a test file of a tree; ``place`` is a new folder for its reports and output.

    Raises OSError where the interpreter does not start; any other failure is an answer.
    """
    reports, output = place / "reports", place / "output.txt"
    place.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp(prefix="u-"))  # a short path: Ray has sockets there
    began = time.monotonic()
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command(conditions, tree, file),
            cwd=tree,
            env=environment(conditions, tree, reports, scratch),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(conditions.deadline)
            was_cut = False
        except subprocess.TimeoutExpired:
            was_cut = not all(_ended(lines) for lines in _reports(reports, conditions.ranks))
        finally:
            if process.poll() is None:
                _end(process, reports, conditions.ranks)
            with contextlib.suppress(ProcessLookupError):  # processes that a test left running
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(scratch, ignore_errors=True)
    tail = output.read_text(encoding="utf-8", errors="replace")[-3000:]
    ranks = [
        _answers(lines, was_cut, file, tail, _stack(reports, rank))
        for rank, lines in enumerate(_reports(reports, conditions.ranks))
    ]
    return Result(of_ranks(ranks), time.monotonic() - began, was_cut)


def _answers(
    lines: Sequence[Mapping[str, Any]], was_cut: bool, file: str, output: str, stack: str
) -> dict[str, Answer]:
    """Return one rank's answers. If its process died, the running test has failed, or else the file."""
    found = {line["id"]: Answer(UNREACHED) for line in lines if line["kind"] == "collected"}
    running = ""
    for line in lines:
        if line["kind"] == "started":
            running = line["id"]
        elif line["kind"] == "finished":
            found[line["id"]] = Answer(line["outcome"], line["output"], tuple(line["executed"]))
            running = ""
        elif line["kind"] == "collector":
            found[line["id"] or file] = Answer(line["outcome"], line["output"])
    if not _ended(lines):
        why = f"at the deadline:\n{stack}" if was_cut else f"the process died:\n{output}"
        found[running or file] = Answer(CUT if was_cut else FAILED, why)
    elif not found:
        (code,) = (line["exitstatus"] for line in lines if line["kind"] == "ended")
        if code != 5:  # no test was collected, which is not a failure
            found[file] = Answer(FAILED, f"pytest ended with {code}:\n{output}")
    return found


def _reports(path: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """Return the lines of each rank, without an incomplete last line."""
    found = []
    for rank in range(ranks):
        lines = []
        with contextlib.suppress(OSError, ValueError):
            for line in path.with_name(f"{path.name}.{rank}").read_text(encoding="utf-8").splitlines():
                lines.append(json.loads(line))
        found.append(lines)
    return found


def _ended(lines: Sequence[Mapping[str, Any]]) -> bool:
    return any(line["kind"] == "ended" for line in lines)


def _end(process: subprocess.Popen[bytes], reports: Path, ranks: int) -> None:
    """Make each rank write its stacks, then end all of them."""
    pids = [line["pid"] for lines in _reports(reports, ranks) for line in lines if line["kind"] == "process"]
    for number in signal.SIGUSR1, signal.SIGKILL:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.5)  # until the stacks are written
    process.terminate()  # torchrun ends the ranks that have not reported their pid yet
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    process.kill()
    process.wait()


def _stack(reports: Path, rank: int) -> str:
    """Return the frames of a rank outside the interpreter and its packages, innermost first."""
    with contextlib.suppress(OSError):
        lines = reports.with_name(f"{reports.name}.{rank}.stack").read_text(encoding="utf-8").splitlines()
        foreign = ("site-packages", "/lib/python", "<frozen", "/injected/")
        return "\n".join([line for line in lines if line and not any(word in line for word in foreign)][:_FRAMES])
    return ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])
