"""The GPUs of this machine that ranks may use: those with nothing in their memory, or those that the user names."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from unhang.errors import UnhangError

WITHOUT_GPU = "leave out --device: the ranks then speak gloo, on a CPU"
NAMES = "CUDA_VISIBLE_DEVICES"
_MIB = 2**20
_IDLE = 1024 * _MIB  # what drivers take of an idle GPU is less
_ASK = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total,name", "--format=csv,noheader,nounits")
_WAIT_S = 30.0


class Gpu(NamedTuple):
    """One GPU, as nvidia-smi has it."""

    number: str
    uuid: str
    used: int
    """Bytes of its memory, by all processes."""
    total: int
    name: str


def free(environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs to use: those that ``CUDA_VISIBLE_DEVICES`` names, else all that nobody uses.

    Raises UnhangError ``no-gpu`` where there are none.
    """
    try:
        told = subprocess.run(_ASK, capture_output=True, text=True, timeout=_WAIT_S, check=True).stdout
    except FileNotFoundError:
        raise _none("no GPU is found here: there is no nvidia-smi", "run it on a node with a GPU") from None
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stdout", None) or str(error)
        raise _none(f"nvidia-smi finds no GPU: {why.strip().splitlines()[0]}", "run it where one works") from None
    every = read(told)
    if NAMES in environ:
        named = [name.strip() for name in environ[NAMES].split(",")]
        chosen = [gpu for name in named for gpu in every if name and (name == gpu.number or gpu.uuid.startswith(name))]
        if not chosen:
            raise _none(f"{NAMES}={environ[NAMES]!r} leaves no GPU", f"unset {NAMES}")
        return chosen
    chosen = [gpu for gpu in every if gpu.used < _IDLE]
    if not chosen:
        busy = ", ".join(f"GPU {gpu.number} has {gpu.used >> 20} of {gpu.total >> 20} MiB in use" for gpu in every)
        raise _none(f"no GPU is free: {busy or 'nvidia-smi lists none'}", f"name one by {NAMES}")
    return chosen


def read(told: str) -> list[Gpu]:
    """Return the GPUs of nvidia-smi's table."""
    rows = [[part.strip() for part in line.split(",", 4)] for line in told.splitlines()]
    return [
        Gpu(row[0], row[1], int(row[2]) * _MIB, int(row[3]) * _MIB, row[4])
        for row in rows
        if len(row) == 5 and row[2].isdigit() and row[3].isdigit()
    ]


def _none(message: str, hint: str) -> UnhangError:
    return UnhangError("no-gpu", message, hint=f"{hint}, or {WITHOUT_GPU}")
