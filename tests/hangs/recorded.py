"""Records hangs: each fix's untouched source and foreign jobs, on real ranks. Needs torch 2.13, whose gloo records."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from proofs import suite
from support import interpreters
from unhang.prove import host
from unhang.prove.cases import Case

_INSIDE = f"import runpy; runpy.run_path({str(Path(__file__).with_name('inside.py'))!r}, run_name='__main__')"


def fix(proof: suite.Proof, side: str, cases: Sequence[Case], out: Path, **environ: str) -> Mapping[str, Path]:
    """Run cases on one side of a proof, ``untouched`` or ``patched``. Return the folder of each, below ``out``."""
    alone = dataclasses.replace(proof, of=proof.of._replace(others={}))
    ask = host.ask

    def one_side(python: str, name: str, path: Sequence[str], variants: Mapping[str, Any], *rest: Any) -> host.Answer:
        return ask(python, name, path, {side: variants[side]}, *rest)

    with mock.patch.multiple(host, _CHILD=_INSIDE, ask=one_side), mock.patch.dict(os.environ, _environ(out, environ)):
        suite.run(alone, cases)
    return {case.name: out / side / case.name for case in cases}


def foreign(names: Sequence[str], out: Path) -> Mapping[str, Path]:
    """Run these jobs of ``foreign``. Return the folder of each, below ``out``."""
    command = [interpreters.with_torch(), "-B", "-W", "ignore", "-c", _INSIDE, str(Path(host.__file__).parent), *names]
    environ = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env={**os.environ, **_environ(out, environ)}, check=True)
    return {name: out / name for name in names}


def _environ(out: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {"UNHANG_HANGS": str(out), "TORCH_FR_BUFFER_SIZE": "2000", **more}
