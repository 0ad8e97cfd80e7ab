"""``unhang prove``: its options, and what it prints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unhang.cli.scope import find, findings, originals
from unhang.errors import UnhangError
from unhang.prove import answers, installed, topology
from unhang.prove.installed import Job
from unhang.store.state import interrupted
from unhang.tell import console

if TYPE_CHECKING:
    import argparse

_SIZES = ("tp", "pp", "cp", "ep", "etp", "dp", "world_size")


def prove(options: argparse.Namespace) -> int:
    """``unhang prove``: 0, 1 or 2 as ``answers.exit_code``.

    Raises UnhangError ``bad-topology``, ``no-interpreter``, ``no-torch``, ``broken-interpreter``, ``interrupted``, and
    as ``check`` does.
    """
    sizes = {name: value for name in _SIZES if (value := getattr(options, name)) is not None}
    chosen = topology.from_sizes(**sizes) if sizes else None
    scope = find(options)
    place = scope.environment
    python = installed.interpreter(place, options.python, os.getcwd(), os.environ)
    if interrupted(place.state_dir):
        hint = "run `unhang apply` or `unhang revert` first"
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=place.prefix, hint=hint)
    found, original = findings(scope), originals(place)
    paths = {os.path.realpath(finding.seen.path) for finding in found}
    kept = {path: known for path in paths if (known := original(path)) is not None}
    proved = installed.prove(Job(place, scope.search.installations, found, kept, python, chosen))
    shown = answers.Report(place, python, proved.versions, chosen, proved.lines, scope.search.warnings)
    if options.output_format == "json":
        print(answers.document(shown))
    else:
        print(answers.text(shown, colour=console.colour()))
        console.warnings(scope.search)
    return answers.exit_code(proved.lines)
