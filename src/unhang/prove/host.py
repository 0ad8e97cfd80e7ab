"""Runs a proof in the target's interpreter, on variants of the source in a temporary folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.prove import answers
from unhang.prove.cases import Case, Outcome
from unhang.prove.child import MARK
from unhang.prove.gpus import WITHOUT_GPU
from unhang.prove.ranks import tidy
from unhang.tell.progress import Step, silent

UNTOUCHED, PATCHED = "untouched", "patched"
_CHILD = """
import importlib.util, os, sys
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "unhang_prove", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
sys.modules["unhang_prove"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["unhang_prove"])
from unhang_prove import child
child.main()
"""
_CACHES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")


class Answer(NamedTuple):
    """The answer of the target's interpreter."""

    versions: Mapping[str, str]
    """``torch``, ``python``, and on a GPU ``nccl``."""
    pip: bool
    """Whether it has pip."""
    outcomes: Mapping[str, Mapping[str, Outcome]]
    """By variant and case."""


def ask(
    python: str,
    fix: str,
    path: Sequence[str],
    variants: Mapping[str, tuple[Mapping[str, bytes], Sequence[str]]],
    cases: Sequence[Case],
    *,
    deadline_s: float | None = None,
    timeout_s: float = 1800.0,
    step: Step = silent,
    gpus: Sequence[str] = (),
    keep: str = "",
) -> Answer:
    """Run the cases of a fix in ``python``, with ``path`` first on its import path, once for each variant of the files.

    ``variants`` maps a name to the files of the variant, by their path below the import path, and to the names of the
    cases to run on it. Real ranks that have not ended after ``deadline_s`` seconds have hung, unless one is at work
    (default: 2, on GPUs 30); ``timeout_s`` limits the whole run; ``step`` is told which case runs. Where ``gpus`` names
    some, as ``CUDA_VISIBLE_DEVICES`` does, the ranks are on these and speak NCCL; what those leave that do not end well
    is kept in ``FIX/VARIANT/CASE`` below ``keep``, if it is given. Everything else is written to a temporary folder,
    which is removed even where this process is killed. Raises UnhangError ``no-torch``, ``no-gpu``, or
    ``broken-interpreter`` where no answer comes.
    """
    with tidy.folder("unhang-prove-") as (folder, held):
        begun = os.path.join(folder, "begun")
        question = {
            "fix": fix,
            "packs": packs.folders("prove"),
            "path": list(path),
            "variants": {
                name: (_lay_out(os.path.join(folder, name), files), list(wanted))
                for name, (files, wanted) in variants.items()
            },
            "cases": [case._replace(options=dict(case.options)) for case in cases],
            "deadline_s": deadline_s or (30.0 if gpus else 2.0),
            "begun": begun,
            "device": "cuda" if gpus else "cpu",
            "keep": keep and os.path.abspath(keep),
        }
        total = sum(len(wanted) for _, wanted in variants.values())
        places = {case.name: case.topology.text() for case in cases}
        step(lambda: f"{fix}: {_begun(begun, places, total)}")
        try:
            run = _run(python, json.dumps(question).encode(), folder, held, timeout_s, gpus)
        finally:
            step("")
    for line in run.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            try:
                return _read(python, json.loads(line[len(MARK) :]))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise _no_answer(python, "its answer is not one that unhang asked for") from error
    raise _no_answer(python, run.stderr.decode("utf-8", "replace").strip()[-500:] or f"exit status {run.returncode}")


def _run(
    python: str, question: bytes, folder: str, held: int, timeout_s: float, gpus: Sequence[str]
) -> subprocess.CompletedProcess[bytes]:
    """Run ``child`` with this question on stdin, in ``folder``, which ``held`` keeps; with these GPUs alone."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # otherwise to ask for a GPU keeps the forks from using it
    environ |= dict.fromkeys(_CACHES, folder)  # torch makes these folders on import
    command = [python, "-B", "-W", "ignore", "-c", _CHILD, os.path.dirname(os.path.abspath(__file__))]
    try:
        return subprocess.run(
            command,
            input=question,
            capture_output=True,
            cwd=folder,
            env=environ,
            pass_fds=(held,),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(python, f"no answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise _no_answer(python, error.strerror or str(error)) from None


def _begun(path: str, places: Mapping[str, str], total: int) -> str:
    """Return which case runs, from the file that gets a line for each one that begins."""
    lines = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    if not lines:  # the file is there before its first line
        return "imports torch and the upstream"
    variant, _, case = lines[-1].partition(" ")
    return f"case {case}, {variant}, {len(lines)} of {total}: {places.get(case, '')}"


def _lay_out(folder: str, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write the files of a variant below a folder, and return the file of each module."""
    where = {}
    for path, data in files.items():
        target = os.path.join(folder, *path.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(data)
        where[path.removesuffix(".py").replace("/", ".")] = target
    return where


def _read(python: str, answer: Mapping[str, Any]) -> Answer:
    if answer.get("code") == "no-gpu":
        hint = f"name an interpreter whose torch has CUDA, on a machine with a GPU; or {WITHOUT_GPU}"
        raise UnhangError("no-gpu", answer["problem"], path=python, hint=hint)
    if "problem" in answer:
        installing = answers.installing(python, answer["pip"], ["torch"])
        hint = f"install it: {installing}; or name an interpreter that has it, and the packages by --target or --source"
        raise UnhangError("no-torch", answer["problem"], path=python, hint=hint)
    outcomes = {
        variant: {case: Outcome(*row) for case, row in rows.items()} for variant, rows in answer["outcomes"].items()
    }
    return Answer(answer["versions"], answer["pip"], outcomes)


def _no_answer(python: str, why: str) -> UnhangError:
    return UnhangError("broken-interpreter", f"the interpreter does not answer: {why}", path=python)
