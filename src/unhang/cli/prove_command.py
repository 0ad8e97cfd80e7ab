"""``unhang prove``: its options, and what it prints."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.errors import UnhangError
from unhang.job import lookup
from unhang.prove import answers, gpus, installed, topology
from unhang.prove.installed import Job
from unhang.suggest import RECOVERY, Hint
from unhang.survey import history
from unhang.survey.verdicts import survey
from unhang.tell import console, progress, terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from unhang.job import settings
    from unhang.records import Installation

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "",
    "world_size": "ranks",
}
"""The sizes, by what sets them in a job."""


def run(options: argparse.Namespace) -> int:
    """Run ``unhang prove``: return 0, 1 or 2 as ``answers.exit_code``.

    Raises UnhangError ``bad-option``, ``bad-topology``, ``no-interpreter``, ``no-torch``, ``no-gpu``,
    ``broken-interpreter``, ``interrupted``, ``no-case``, and as ``check`` does.
    """
    if options.keep and options.device != "cuda":
        raise UnhangError("bad-option", "--keep keeps what ranks on GPUs leave", hint="give --device cuda too")
    devices = gpus.free(os.environ) if options.device == "cuda" else []
    sizes = {name: value for name in _SIZES if (value := getattr(options, name)) is not None}
    if sizes and options.case:
        hint = "leave out --case, or the sizes"
        raise UnhangError("bad-topology", "--case narrows the proofs' own cases, but sizes ask for yours", hint=hint)
    wanted = request(options)
    chosen = topology.from_sizes(**sizes) if sizes and wanted.job is None else None
    seen = survey(wanted)
    if wanted.job is not None and not options.case:
        sizes = {**_of_job(wanted.job, seen.search.installations), **sizes}
        chosen = topology.from_sizes(**sizes) if sizes else None
    place = seen.environment
    python = installed.interpreter(place, options.python, os.getcwd(), os.environ)
    if seen.interrupted:
        hint = Hint(*RECOVERY, " first")
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=place.prefix, hint=hint)
    paths = {finding.seen.place for finding in seen.findings}
    kept = history.originals(seen.receipts, paths)
    with progress.shown() as step:
        job = Job(
            place, seen.search.installations, seen.findings, kept, python, chosen, step,
            options.case or "", devices, options.keep or "",
        )  # fmt: skip
        proved = installed.prove(job)
    shown = answers.Report(
        place, python, proved.versions, chosen, proved.lines, seen.search.warnings, wanted, proved.pip,
        devices, options.keep or "",
    )  # fmt: skip
    if options.output_format == "json":
        print(answers.document(shown))
    else:
        width, verbose = terminal.width(sys.stdout), terminal.settings.verbose
        print(answers.text(shown, colour=console.colour(), width=width, verbose=verbose))
        console.warnings(seen.search)
    console.searched(seen.search)
    return answers.exit_code(proved.lines)


def _of_job(job: settings.Job, installations: Sequence[Installation]) -> dict[str, int]:
    """Return the sizes that a job is started with, as far as they are known: those of its first role."""
    looks = [look for it in installations for look in lookup.looks(job, installations, it.upstream)]
    found = {}
    for size, name in _SIZES.items():
        values = (setting.value for look in looks if name and (setting := look(name)))
        if value := next((it for it in values if isinstance(it, int) and it is not True and it > 0), 0):
            found[size] = value
    return found
