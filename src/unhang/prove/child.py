"""Runs the cases of a proof on every variant of the source, in the target's interpreter.

The question comes on stdin, as JSON: ``fix``; ``path``, which goes first on ``sys.path``; ``cases``, each as the fields
of ``Case``; ``deadline_s``; ``begun``, a file that gets a line for each case that begins (the variant, a space, the
case); ``device``, ``cpu`` or ``cuda``; ``keep``, a folder for what ranks leave that do not end well on a GPU, or empty;
and ``variants``, which maps a name to the modules that the variant replaces,
with their files, and to the names of its cases. The answer on stdout has the versions of ``torch`` and ``python``, and
``outcomes`` by variant and case. Each variant runs in its own process, which imports the real upstream and takes the
replaced modules from the variant's files.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import missing
from .cases import ABSENT, BROKEN, Case, Outcome, Topology
from .ranks import nccl, shims, sites, tidy
from .scene import alone, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from multiprocessing.connection import Connection
    from types import ModuleType

MARK = "unhang-proof:"
"""Precedes the answer, because other text may be printed too."""
_WARM = ("numpy", "torch._inductor.compile_fx", "torch.distributed.checkpoint", "setuptools")
"""What every upstream imports, for seconds: here once, and not in the process of each variant."""


class Variant(importlib.abc.MetaPathFinder):
    """Finds some modules in the files of a variant."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """``files`` maps the name of a module to its file."""
        self._files = files

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the variant, None for any other module."""
        file = self._files.get(fullname)
        return importlib.util.spec_from_file_location(fullname, file) if file else None


def main() -> None:
    """Answer the question on stdin. It ends with its parent."""
    tidy.end_with(os.getppid())
    question = json.load(sys.stdin)
    sys.path[:0] = question["path"]
    print(f"\n{MARK}{json.dumps(answer(question))}", flush=True)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Run the cases and return the answer, or ``problem`` where this interpreter has no torch."""
    try:
        import torch
    except ImportError as error:
        return {"problem": f"no torch here: {error}", "pip": importlib.util.find_spec("pip") is not None}
    importlib.import_module(".fixes", __package__).__path__ += question["packs"]
    proof = importlib.import_module(f".fixes.{question['fix'].replace('-', '_')}", __package__)
    warm(proof, *_WARM)
    shims.DEVICE = question["device"]
    if shims.DEVICE == "cuda" and not torch.cuda.device_count():
        built = "is built without CUDA" if torch.version.cuda is None else "sees no GPU"
        return {"problem": f"torch {torch.__version__} {built}", "code": "no-gpu"}
    cases = [Case(*row)._replace(topology=Topology(*row[1])) for row in question["cases"]]
    outcomes = {}
    for name, (files, wanted) in question["variants"].items():
        chosen = [case for case in cases if case.name in wanted]
        keep = question["keep"] and os.path.join(question["keep"], question["fix"], name)
        outcomes[name] = _forked(proof, files, chosen, float(question["deadline_s"]), name, question["begun"], keep)
    pip = importlib.util.find_spec("pip") is not None
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if shims.DEVICE == "cuda":
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {"versions": versions, "pip": pip, "outcomes": outcomes}


def _forked(
    proof: ModuleType, files: Mapping[str, str], cases: Sequence[Case], deadline_s: float, label: str, begun: str,
    keep: str,
) -> dict[str, Outcome]:  # fmt: skip
    """Run the cases on one variant in a fork, and return its outcomes by case."""
    sent, code = _sent(lambda pipe: _variant(pipe, proof, files, cases, deadline_s, label, begun, keep))
    return dict.fromkeys((case.name for case in cases), _ended(code)) | dict(sent)


def _variant(
    pipe: Connection,
    proof: ModuleType,
    files: Mapping[str, str],
    cases: Sequence[Case],
    deadline_s: float,
    label: str,
    begun: str,
    keep: str,
) -> None:
    """Import the upstream with the variant's files, and send the outcome of each case as soon as it is known."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    sys.meta_path.insert(0, Variant(files))
    sites.ROOTS += [file[: -len(f"{name.replace('.', '/')}.py")] for name, file in files.items()]
    try:
        proof.prepare()
    except Exception as error:
        tail = _tail()
        if absent := missing.names(proof.prepare, error):
            tail += f"\n{ABSENT}{' '.join(absent)}"
        for case in cases:
            pipe.send((case.name, Outcome(BROKEN, tail)))
        return
    gc.freeze()  # no rank looks through what is here
    for case in cases:
        with open(begun, "a") as file:
            file.write(f"{label} {case.name}\n")
        nccl.KEPT = keep and os.path.join(keep, case.name)
        start = time.monotonic()
        outcome = (_outcome if shims.DEVICE == "cpu" else _apart)(proof, case, deadline_s)
        pipe.send((case.name, outcome._replace(seconds=round(time.monotonic() - start, 2))))


def _outcome(proof: ModuleType, case: Case, deadline_s: float) -> Outcome:
    try:
        return alone(proof, case, deadline_s)
    except Exception:
        return Outcome(BROKEN, _tail())


def _apart(proof: ModuleType, case: Case, deadline_s: float) -> Outcome:
    """Run a case in a fork of its own: its right answer may use a GPU, and after that no process can fork ranks."""
    sent, code = _sent(lambda pipe: pipe.send(_outcome(proof, case, deadline_s)))
    return Outcome(*sent[0]) if sent else _ended(code)


def _sent(run: Callable[[Connection], None]) -> tuple[list[Any], int | None]:
    """Run this in a fork, with a pipe. Return what it sends, and its exit code."""
    context, parent = multiprocessing.get_context("fork"), os.getpid()
    ours, theirs = context.Pipe(duplex=False)

    def fork() -> None:
        tidy.end_with(parent)
        run(theirs)

    process = context.Process(target=fork)
    process.start()
    theirs.close()
    sent = []
    with suppress(EOFError):
        while True:
            sent.append(ours.recv())
    process.join()
    return sent, process.exitcode


def _ended(code: int | None) -> Outcome:
    return Outcome(BROKEN, f"its process ended with exit code {code}")


def _tail() -> str:
    return traceback.format_exc()[-1500:]
