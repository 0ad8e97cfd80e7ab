"""One test file in its own process, and the outcomes read from it, however it ends."""

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
@pytest.fixture
def messy():
    yield
    raise OSError("left behind")
def test_6(messy): pass
"""
LATE = "import time\ndef test_1(): pass\ndef test_hangs(): time.sleep(600)\ndef test_2(): pass\n"
CASES = [
    (KINDS, {"1": P, "2": F, "3[a]": P, "3[b]": P, "4": S, "6": F}, ["of course", "not here"]),
    ("import no_such_module\ndef test_it(): pass\n", {"": F}, ["no_such_module"]),
    ("import pytest\npytest.skip('no GPU', allow_module_level=True)\n", {"": S}, ["no GPU"]),
    ("import os\ndef test_1(): os._exit(7)\ndef test_2(): pass\n", {"1": F, "2": "unreached"}, ["the process died"]),
    pytest.param(LATE, {"1": P, "hangs": "cut", "2": "unreached"}, ["in test_hangs"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("own", ["", "[project]\n"], ids=["none", "without pytest's"])
def test_the_settings_of_a_folder_above_are_not_the_trees(tmp_path: Path, own: str) -> None:
    files = {"pytest.ini": "[pytest]\nfilterwarnings = error\n", "tree/pyproject.toml": own}
    warns = "import warnings\ndef test_1(): warnings.warn('hello')\n"
    environments.write(tmp_path, files | {"tree/tests/test_it.py": warns})
    result = runner.run(PLAIN, tmp_path / "tree", "tests/test_it.py", tmp_path / "place")
    assert outcomes(result) == {"1": P}


@pytest.mark.parametrize(("source", "ends", "why"), CASES)
def test_each_test_or_the_whole_file_has_an_outcome_and_what_hangs_has_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, ends: dict[str, str], why: list[str]
) -> None:
    for variable in "PYTEST_ADDOPTS", "PYTHONPATH", "VIRTUAL_ENV":
        monkeypatch.setenv(variable, "--nowhere")
    result = ran(tmp_path, source, PLAIN._replace(deadline=30))
    assert (outcomes(result), result.was_cut) == (ends, source == LATE)
    assert [word for word in why if word not in str(result.tests)] == []


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
            time.sleep(0.1 * (is_left := status.exists() and "State:\tZ" not in status.read_text()))
        assert not is_left
    (_, first, seeds), (_, second, same) = wrote
    assert (seeds == same, first != second, Path(first).exists()) == (True, True, False)


def test_which_rewritten_lines_each_test_executes_is_measured(tmp_path: Path) -> None:
    source = """
import pytest, threading
def forward(x):
    if x:  # rewritten: gate
        return [
            one for one in x  # rewritten: inner
        ]
    raise ValueError  # rewritten: later
def f(x): return 1 if x else 0  # rewritten: f
def test_gate(): assert forward([1]) == [1]
def test_later():
    with pytest.raises(ValueError):
        forward([])
def test_thread():
    thread = threading.Thread(target=f, args=(1,))
    thread.start()
    thread.join()
def test_none(): assert f
"""
    rows = enumerate(source.splitlines(), 1)
    names = {number: row.partition("# rewritten: ")[2] for number, row in rows if "# rewritten: " in row}
    rewritten = {str((tmp_path / "tree/tests/test_it.py").resolve()): names, "/elsewhere": {1: "elsewhere"}}
    result = ran(tmp_path, source, PLAIN._replace(rewritten=rewritten))
    executed = {id.partition("::test_")[2]: answer.executed for id, answer in result.tests.items()}
    assert executed == {"gate": ("gate", "inner"), "later": ("gate", "later"), "thread": ("f",), "none": ()}


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
