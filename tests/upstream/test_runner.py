"""One test file in its own process, and the outcomes read from it, however it ends."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from support import environments, interpreters
from upstream import runner
from upstream.runner import Conditions, Result

PLAIN = Conditions(Path(sys.executable), 1, 0, 60, False, {"A": "1"})


def ran(tmp_path: Path, source: str, conditions: Conditions = PLAIN) -> Result:
    """Run this as the test file `tests/test_it.py` of a tree, whose own options no pytest would take."""
    options = "[tool.pytest.ini_options]\naddopts = '--no-such-option -x'\n"
    tree = environments.write(tmp_path / "tree", {"tests/test_it.py": source, "pyproject.toml": options})
    return runner.run(conditions, tree, "tests/test_it.py", tmp_path / "place")


def outcomes(result: Result) -> dict[str, str]:
    return {id.removeprefix("tests/test_it.py").removeprefix("::test_"): it.outcome for id, it in result.tests.items()}


P, F, S = "passed", "failed", "skipped"
KINDS = """
import os, pytest
def test_1(): assert os.environ["A"] == "1" and "VIRTUAL_ENV" not in os.environ
def test_2(): assert 1 == 2, "of course"
@pytest.mark.parametrize("x", ["a", "b"])
def test_3(x): assert int(os.environ["MASTER_PORT"]) > 0
@pytest.mark.skip(reason="not here")
def test_4(): pass
@pytest.mark.xfail(reason="one day")
def test_5(): assert False
@pytest.fixture
def broken(): raise OSError("no such thing")
def test_6(broken): pass
@pytest.fixture
def messy():
    yield
    raise OSError("left behind")
def test_7(messy): pass
"""
CASES = [
    (KINDS, {"1": P, "2": F, "3[a]": P, "3[b]": P, "4": S, "5": S, "6": F, "7": F}, ["of course", "not here"]),
    ("import no_such_module\ndef test_it(): pass\n", {"": F}, ["no_such_module"]),
    ("import pytest\npytest.skip('no GPU', allow_module_level=True)\n", {"": S}, ["no GPU"]),
    (
        "import os\ndef test_1(): pass\ndef test_dies(): os._exit(7)\ndef test_last(): pass\n",
        {"1": P, "dies": F, "last": "unreached"},
        ["the process died"],
    ),
]


@pytest.mark.parametrize(("source", "ends", "why"), CASES)
def test_each_test_or_the_whole_file_has_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, ends: dict[str, str], why: list[str]
) -> None:
    for variable in "PYTEST_ADDOPTS", "PYTHONPATH", "VIRTUAL_ENV":
        monkeypatch.setenv(variable, "--nowhere")
    result = ran(tmp_path, source)
    assert (outcomes(result), result.was_cut) == (ends, False)
    assert [word for word in why if word not in str(result.tests)] == []


@pytest.mark.slow
def test_the_test_running_at_the_deadline_is_cut_and_has_its_stack(tmp_path: Path) -> None:
    source = "import time\ndef test_1(): pass\ndef test_hangs(): time.sleep(600)\ndef test_last(): pass\n"
    result = ran(tmp_path, source, PLAIN._replace(deadline=30))
    assert outcomes(result) == {"1": P, "hangs": "cut", "last": "unreached"}
    assert (result.was_cut, "test_hangs" in result.tests["tests/test_it.py::test_hangs"].output) == (True, True)
    lines = [json.loads(line) for line in (tmp_path / "place" / "reports.0").read_text().splitlines()]
    (pid,) = (line["pid"] for line in lines if line["kind"] == "process")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_runs_have_equal_seeds_and_leave_no_process_and_no_temporary_folder(tmp_path: Path) -> None:
    source = f"""
import random, subprocess, sys, tempfile, threading, time
def test_leaves_something():
    threading.Thread(target=time.sleep, args=(600,)).start()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    wrote = child.pid, tempfile.gettempdir(), random.random() + hash("x")
    print(*wrote, file=open({str(tmp_path / "wrote")!r}, "w"))
"""
    wrote = []
    for side in "before", "after":
        result = ran(tmp_path / side, source)
        assert (outcomes(result), result.seconds < 500) == ({"leaves_something": P}, True)
        wrote.append((tmp_path / "wrote").read_text().split())
        status = Path(f"/proc/{wrote[-1][0]}/status")
        for _ in range(50):  # once killed it is gone, or a zombie until init waits for it
            if not status.exists() or "State:\tZ" in status.read_text():
                break
            time.sleep(0.1)
        else:
            pytest.fail(status.read_text())
    (_, first, seeds), (_, second, same) = wrote
    assert (seeds == same, first != second, Path(first).exists()) == (True, True, False)
    assert len(first) < 40, "Ray has sockets below it, whose paths are limited"


def test_which_rewritten_lines_each_test_executes_is_measured(tmp_path: Path) -> None:
    source = """
import pytest, threading
class Layer:
    size = 1  # rewritten: of the class
    def forward(self, x):
        if x:  # rewritten: gate
            return [
                one for one in x  # rewritten: inner
            ]
        def later():
            raise ValueError  # rewritten: later
        return later()
def f(x): return 1 if x else 0  # rewritten: f
def test_gate(): assert Layer().forward([1]) == [1]
def test_later():
    with pytest.raises(ValueError):
        Layer().forward([])
def test_thread():
    thread = threading.Thread(target=f, args=(1,))
    thread.start()
    thread.join()
def test_none(): assert Layer.size
"""
    rows = enumerate(source.splitlines(), 1)
    names = {number: row.partition("# rewritten: ")[2] for number, row in rows if "# rewritten: " in row}
    rewritten = {str((tmp_path / "tree/tests/test_it.py").resolve()): names, "/elsewhere": {1: "elsewhere"}}
    result = ran(tmp_path, source, PLAIN._replace(rewritten=rewritten))
    executed = {id.partition("::test_")[2]: answer.executed for id, answer in result.tests.items()}
    assert executed == {"gate": ("gate", "inner"), "later": ("gate", "later"), "thread": ("f",), "none": ()}


@pytest.mark.parametrize(("ranks", "gpus"), [(1, 0), (2, 0), (8, 8), (1, 1)])
def test_more_ranks_and_gpus_are_run_by_torchrun(ranks: int, gpus: int, tmp_path: Path) -> None:
    conditions = Conditions(Path("/env/bin/python"), ranks, gpus, 60, gpus == 0, {})
    is_alone = (ranks, gpus) == (1, 0)
    launcher = [] if is_alone else ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = runner.command(conditions, "tests/test_it.py")
    assert [*command[: 5 + len(launcher)], command[-1]] == [
        "/env/bin/python", "-m", *launcher, "pytest", "-p", "unhang_reports", "tests/test_it.py",
    ]  # fmt: skip
    assert ("unhang_on_cpu" in command) == (gpus == 0)
    assert ("MASTER_PORT" in runner.environment(conditions, tmp_path, tmp_path, tmp_path)) == is_alone


def test_two_ranks_on_a_cpu_reduce_by_gloo_and_one_that_fails_counts(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
def test_both():
    dist.init_process_group("nccl")
    one = torch.ones(1, device=torch.cuda.current_device())
    dist.all_reduce(one)
    assert one.item() == 2 and dist.get_backend() == "nccl"
def test_rank_1_fails():
    assert dist.get_rank() == 0
def test_rank_1_never_comes():
    if dist.get_rank() == 0:
        dist.barrier()
    import time
    time.sleep(600)
"""
    result = ran(tmp_path, source, Conditions(Path(interpreters.with_torch()), 2, 0, 60, True, {}))
    assert outcomes(result) == {"both": P, "rank_1_fails": F, "rank_1_never_comes": "cut"}
    assert "rank 1" in result.tests["tests/test_it.py::test_rank_1_fails"].output
