"""Which GPUs are free, by a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli
from unhang.cli.main import main
from unhang.errors import UnhangError
from unhang.prove import gpus

TABLE = """0, GPU-aa1, 4, 81559, NVIDIA H100 80GB HBM3
1, GPU-bb2, 70211, 81559, NVIDIA H100 80GB HBM3
2, GPU-bb3, 600, 81559, NVIDIA H100, a name with a comma
"""
BUSY = "0, GPU-aa1, 70000, 81559, NVIDIA H100\n"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The answer of a nvidia-smi that is first on PATH; the test fills it."""
    told, script = tmp_path / "told", tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ncat "{told}"\ngrep -q failed "{told}" && exit 9\nexit 0\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(gpus.NAMES, raising=False)
    return told


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        (None, ["0", "2"]),  # those that nobody uses
        ("1", ["1"]),  # one that the user names may be in use
        ("2,0", ["2", "0"]),
        ("GPU-bb", ["1", "2"]),
        (" GPU-aa1 , 7", ["0"]),
    ],
)
def test_the_gpus_that_are_free_or_named(named: str | None, chosen: list[str], smi: Path) -> None:
    smi.write_text(TABLE)
    found = gpus.free({} if named is None else {gpus.NAMES: named})
    assert [gpu.number for gpu in found] == chosen
    assert gpus.read(TABLE)[2] == gpus.Gpu("2", "GPU-bb3", 600 << 20, 81559 << 20, "NVIDIA H100, a name with a comma")


@pytest.mark.parametrize(
    ("told", "named", "message"),
    [
        (BUSY, None, "no GPU is free: GPU 0 has 70000 of 81559 MiB in use"),
        (BUSY, "", "CUDA_VISIBLE_DEVICES='' leaves no GPU"),
        (BUSY, "3", "CUDA_VISIBLE_DEVICES='3' leaves no GPU"),
        ("", None, "no GPU is free: nvidia-smi lists none"),
        ("NVIDIA-SMI has failed: no driver\n", None, "nvidia-smi finds no GPU: NVIDIA-SMI has failed: no driver"),
        ("0, GPU-aa1, [N/A], [N/A], NVIDIA GB10\n", None, "no GPU is free: nvidia-smi lists none"),
    ],
)
def test_no_gpu_is_told_with_what_to_do(told: str, named: str | None, message: str, smi: Path) -> None:
    smi.write_text(told)
    with pytest.raises(UnhangError) as caught:
        gpus.free({} if named is None else {gpus.NAMES: named})
    assert (caught.value.code, caught.value.message) == ("no-gpu", message)
    assert str(caught.value.hint).endswith("leave out --device: the ranks then speak gloo, on a CPU")


def test_prove_without_a_gpu_ends_with_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["prove", "--device", "cuda", "--target", str(tmp_path)]) == 2
    first, hint, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("error[no-gpu]: no GPU is found here: there is no nvidia-smi")
    assert (hint.strip(), rest) == (
        "hint: run it on a node with a GPU, or leave out --device: the ranks then speak gloo, on a CPU",
        [],
    )
    assert main(["prove", "--keep", "left", "--target", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error[bad-option]: --keep keeps")
    assert "give --device cuda too" in error


def test_a_torch_without_cuda_is_told(smi: Path, tmp_path: Path, capsys: Any) -> None:
    smi.write_text(TABLE)
    site = cli.unpack(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.16.1"))
    stub = site / "torch"
    stub.mkdir()
    (stub / "__init__.py").write_text(
        "from types import SimpleNamespace as N\n__version__ = '2.9'\nversion = N(cuda=None)\n"
        "cuda = N(device_count=lambda: 0)\n"
    )
    where = ("--target", str(site), "--python", sys.executable, "--fix", "mtp-cp-deadlock", "--cp", "2")
    assert main(["prove", "--device", "cuda", *where]) == 2
    err = capsys.readouterr().err
    assert "error[no-gpu]: torch 2.9 is built without CUDA" in err
    assert "name an interpreter whose torch has CUDA" in err
