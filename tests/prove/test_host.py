"""Interpreters that give no answer, and the environment that a proof runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.errors import UnhangError
from unhang.prove import host
from unhang.prove.cases import Case, Topology

CASE = Case("any", Topology(cp=2), "hung")


@pytest.mark.parametrize(
    ("module", "code"),
    [("raise ImportError('none of it here')", "no-torch"), ("import os; os._exit(3)", "broken-interpreter")],
)
def test_an_interpreter_without_torch_or_that_dies_is_an_error(module: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(module)
    with pytest.raises(UnhangError) as caught:
        host.ask(sys.executable, "mtp-cp-deadlock", [str(tmp_path)], {"untouched": ({}, ["any"])}, [CASE])
    assert caught.value.code == code
    assert ("none of it here" in caught.value.message) is (code == "no-torch")


def test_it_says_which_case_begins_on_which_source(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    def run(python: str, question: bytes, *_: object) -> None:
        assert callable(said[-1])
        assert said[-1]() == "mtp-cp-deadlock: imports torch and the upstream"
        for number, variant in enumerate(("patched", "untouched"), 1):  # the child adds a line for each case
            with open(json.loads(question)["begun"], "a") as file:
                file.write(f"{variant} any\n")
            assert said[-1]() == f"mtp-cp-deadlock: case any, {variant}, {number} of 3: CP 2 (2 ranks)"
        raise KeyboardInterrupt

    monkeypatch.setattr(host, "_run", run)
    cases: dict[str, tuple[dict[str, bytes], list[str]]] = {
        "untouched": ({}, ["any"]),
        "patched": ({}, ["any", "other"]),
    }
    with pytest.raises(KeyboardInterrupt):
        host.ask(sys.executable, "mtp-cp-deadlock", [], cases, [CASE], step=said.append)
    assert said[1:] == [""]


@pytest.mark.parametrize("gpus", [[], ["GPU-1", "GPU-7"]])
def test_a_proof_sees_a_gpu_only_if_asked_to_and_writes_to_a_temporary_folder(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, fake = tmp_path / "environ", tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nenv > "{kept}"; pwd >> "{kept}"; exit 7\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UnhangError) as caught:
        host.ask(str(fake), "mtp-cp-deadlock", [], {"untouched": ({"a/b.py": b""}, ["any"])}, [CASE], gpus=gpus)
    assert caught.value.code == "broken-interpreter"
    assert "exit status 7" in caught.value.message
    lines = kept.read_text().splitlines()
    assert f"CUDA_VISIBLE_DEVICES={','.join(gpus)}" in lines
    assert "PYTHONDONTWRITEBYTECODE=1" in lines
    assert f"TORCHINDUCTOR_CACHE_DIR={lines[-1]}" in lines
    assert not os.path.exists(lines[-1])  # the folder that it ran in


def test_a_killed_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    scratch, fifo = tmp_path / "scratch", tmp_path / "fifo"
    scratch.mkdir()
    os.mkfifo(fifo)
    (tmp_path / "torch.py").write_text(
        f"import time\nkept = open({str(fifo)!r}, 'w')\nprint('begun', file=kept, flush=True)\ntime.sleep(600)\n"
    )
    variants: dict[str, object] = {"untouched": ({"a/b.py": b""}, [])}
    code = (
        f"import sys; from unhang.prove.host import ask; ask(sys.executable, 'x', [{str(tmp_path)!r}], {variants}, [])"
    )
    environ = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as run, open(fifo) as child:
        assert child.readline() == "begun\n"
        assert os.listdir(scratch)
        run.kill()
        assert child.read() == ""  # the child has ended
        assert run.stdout is not None
        assert run.stdout.read() == b""  # so has what removes the folder
    assert os.listdir(scratch) == []


def test_the_progress_names_no_case_before_the_first_has_begun(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    assert host._begun(str(begun), {}, 2) == "imports torch and the upstream"
    begun.touch()
    assert host._begun(str(begun), {}, 2) == "imports torch and the upstream"
    begun.write_text("patched cp2\n")
    assert host._begun(str(begun), {"cp2": "CP 2"}, 2) == "case cp2, patched, 1 of 2: CP 2"
