"""Makes overlays of a stand-in for megatron.core with one real module, and runs jobs with them."""

import os
from pathlib import Path

from support import cli, environments, wheels

STATE = "megatron/core/parallel_state.py"
MODULE = "megatron.core.parallel_state"
FIX = ["--fix", "expert-dp-warmup"]
LOOK = f"import {MODULE} as m; print(m.__file__)"
"""Prints where the module comes from."""
# The module imports these, and its functions are not called.
STUBS = {
    "torch/__init__.py": """\
        class Anything:
            def __getattr__(self, name): return self
            def __call__(self, *arguments, **named): return self
        def __getattr__(name):
            if name.startswith("__"): raise AttributeError(name)
            return Anything()
        """,
    "numpy/__init__.py": "",
    "megatron/core/utils.py": "def __getattr__(name): return lambda first, *rest: first\n",
    "megatron/core/inference/__init__.py": "",
    "megatron/core/inference/symmetric_memory.py": "SymmetricMemoryManager = object\n",
}


def install(folder: Path, version: str = "0.17.1") -> Path:
    """Write a namespace package that can be imported, with one module of a real release; return the folder."""
    environments.write(environments.core(folder, "0.17.1"), STUBS)
    put(folder, version)
    return folder


def put(site: Path, version: str) -> None:
    """Replace the module by that of another release."""
    source = wheels.read("megatron-core", version, STATE)
    assert source is not None
    (site / STATE).write_bytes(source)


def make(folder: Path, site: Path) -> cli.Ran:
    """Run `unhang overlay`, which must succeed."""
    ran = cli.called("overlay", folder, *FIX, "--target", site)
    assert ran.code == 0, ran.err
    return ran


def job(code: str, *path: Path, options: tuple[str, ...] = (), env: dict[str, str] | None = None) -> cli.Ran:
    """Run Python with these folders in PYTHONPATH."""
    return cli.python(*options, "-c", code, env={"PYTHONPATH": os.pathsep.join(map(str, path)), **(env or {})})


def contents(folder: Path) -> dict[str, tuple[int, str, int]]:
    """Return mode, digest and time of each file; of folders no time, since bytecode may appear in them."""
    times = {name: (folder / name).stat().st_mtime_ns for name in cli.tree(folder) if (folder / name).is_file()}
    return {name: (*entry, times.get(name, 0)) for name, entry in cli.tree(folder).items()}
