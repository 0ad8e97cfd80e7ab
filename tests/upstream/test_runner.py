"""One test file in its own process, and the outcomes read from it, however it ends."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from support import environments, interpreters
from upstream import runner
from upstream.runner import Conditions, Result

PLAIN = Conditions(Path(sys.executable), 1, 0, 60, False, {})


def ran(tmp_path: Path, source: str, conditions: Conditions = PLAIN) -> Result:
    """Run this as the test file `tests/test_it.py` of a tree."""
    tree = environments.write(tmp_path / "tree", {"tests/test_it.py": source})
    return runner.run(conditions, tree, "tests/test_it.py", tmp_path / "place")


def outcomes(result: Result) -> dict[str, str]:
    return {id.removeprefix("tests/test_it.py::"): answer.outcome for id, answer in result.tests.items()}


def test_each_test_has_an_outcome(tmp_path: Path) -> None:
    result = ran(
        tmp_path,
        """
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2, "of course"
@pytest.mark.parametrize("x", ["a", "b"])
def test_each(x): pass
@pytest.mark.skip(reason="not here")
def test_skips(): pass
@pytest.mark.xfail(reason="one day")
def test_is_expected_to_fail(): assert False
@pytest.fixture
def broken(): raise OSError("no such thing")
def test_without_its_fixture(broken): pass
@pytest.fixture
def messy():
    yield
    raise OSError("left behind")
def test_whose_teardown_fails(messy): pass
""",
    )
    assert outcomes(result) == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_each[a]": "passed",
        "test_each[b]": "passed",
        "test_skips": "skipped",
        "test_is_expected_to_fail": "skipped",
        "test_without_its_fixture": "failed",
        "test_whose_teardown_fails": "failed",
    }
    assert "of course" in result.tests["tests/test_it.py::test_fails"].output
    assert "not here" in result.tests["tests/test_it.py::test_skips"].output
    assert not result.was_cut


@pytest.mark.parametrize(
    ("source", "ends", "why"),
    [
        ("import no_such_module\ndef test_it(): pass\n", {"": "failed"}, "no_such_module"),
        ("import pytest\npytest.skip('no GPU', allow_module_level=True)\n", {"": "skipped"}, "no GPU"),
        (
            "import os\ndef test_first(): pass\ndef test_dies(): os._exit(7)\ndef test_last(): pass\n",
            {"::test_first": "passed", "::test_dies": "failed", "::test_last": "unreached"},
            "the process died",
        ),
    ],
)
def test_a_file_may_fail_or_be_skipped_as_a_whole(tmp_path: Path, source: str, ends: dict[str, str], why: str) -> None:
    tests = ran(tmp_path, source).tests
    assert {id: answer.outcome for id, answer in tests.items()} == {f"tests/test_it.py{id}": ends[id] for id in ends}
    assert why in "".join(answer.output for answer in tests.values())


@pytest.mark.slow
def test_the_test_running_at_the_deadline_is_cut_and_has_its_stack(tmp_path: Path) -> None:
    source = """
import time
def test_first(): pass
def test_hangs():
    while True: time.sleep(0.1)
def test_last(): pass
"""
    result = ran(tmp_path, source, PLAIN._replace(deadline=30))
    assert outcomes(result) == {"test_first": "passed", "test_hangs": "cut", "test_last": "unreached"}
    assert result.was_cut
    assert "test_hangs" in result.tests["tests/test_it.py::test_hangs"].output
    lines = [json.loads(line) for line in (tmp_path / "place" / "reports.0").read_text().splitlines()]
    (pid,) = (line["pid"] for line in lines if line["kind"] == "process")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_test_leaves_running_is_killed(tmp_path: Path) -> None:
    source = """
import subprocess, sys, threading, time
def test_leaves_something():
    threading.Thread(target=time.sleep, args=(600,)).start()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(%r, "w").write(str(child.pid))
"""
    result = ran(tmp_path, source % str(tmp_path / "pid"))
    assert outcomes(result) == {"test_leaves_something": "passed"}
    assert result.seconds < 500
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/status")
    # once killed it is gone, or a zombie until init waits for it
    for _ in range(50):
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    pytest.fail(status.read_text())


def test_neither_upstreams_options_nor_ours_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "[tool.pytest.ini_options]\naddopts = '--no-such-option -x'\n"
    environments.write(tmp_path / "tree", {"pyproject.toml": options})
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    result = ran(tmp_path, "def test_fails(): assert False\ndef test_passes(): pass\n")
    assert outcomes(result) == {"test_fails": "failed", "test_passes": "passed"}


@pytest.mark.slow
def test_seeds_are_equal_and_the_temporary_folder_is_removed(tmp_path: Path) -> None:
    source = """
import os, random, tempfile
def test_it():
    open(%r, "w").write(f"{random.random()} {hash('x')} {tempfile.gettempdir()}")
"""
    wrote = []
    for name in "before", "after":
        ran(tmp_path / name, source % str(tmp_path / "wrote"))
        wrote.append((tmp_path / "wrote").read_text().split())
    assert wrote[0][:2] == wrote[1][:2]
    assert wrote[0][2] != wrote[1][2]
    assert len(wrote[0][2]) < 40, "Ray has sockets below it, whose paths are limited"
    assert not Path(wrote[0][2]).exists()


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
    executed = {id.partition("::")[2]: answer.executed for id, answer in result.tests.items()}
    assert executed == {
        "test_gate": ("gate", "inner"),
        "test_later": ("gate", "later"),
        "test_thread": ("f",),
        "test_none": (),
    }


def test_one_rank_on_a_cpu_is_a_plain_pytest_with_a_port_of_its_own(tmp_path: Path) -> None:
    environment = runner.environment(PLAIN._replace(variables={"A": "1"}), tmp_path, tmp_path / "r", tmp_path)
    assert environment["A"] == "1"
    assert int(environment["MASTER_PORT"]) > 0
    assert "VIRTUAL_ENV" not in environment
    command = runner.command(PLAIN, "t.py")
    assert command[1:5] == ["-m", "pytest", "-p", "unhang_reports"]
    assert "unhang_on_cpu" not in command


@pytest.mark.parametrize(("ranks", "gpus"), [(2, 0), (8, 8), (1, 1)])
def test_more_ranks_and_gpus_are_run_by_torchrun(ranks: int, gpus: int, tmp_path: Path) -> None:
    conditions = Conditions(Path("/env/bin/python"), ranks, gpus, 60, gpus == 0, {})
    command = runner.command(conditions, "tests/test_it.py")
    launcher = ["/env/bin/python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    assert command[:7] == [*launcher, "-m", "pytest"]
    assert command[-1] == "tests/test_it.py"
    assert ("unhang_on_cpu" in command) == (gpus == 0)
    assert "MASTER_PORT" not in runner.environment(conditions, tmp_path, tmp_path, tmp_path)


def test_two_ranks_on_a_cpu_reduce_by_gloo_and_one_that_fails_counts(tmp_path: Path) -> None:
    python = Path(interpreters.with_torch())
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
    result = ran(tmp_path, source, Conditions(python, 2, 0, 60, True, {}))
    assert outcomes(result) == {"test_both": "passed", "test_rank_1_fails": "failed", "test_rank_1_never_comes": "cut"}
    assert "rank 1" in result.tests["tests/test_it.py::test_rank_1_fails"].output
