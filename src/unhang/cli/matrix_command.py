"""``unhang matrix``: which release needs which fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unhang import packs
from unhang.cli.requests import selection
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.records import Pin
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import console, matrix_text, terminal, version_ranges

_REQUIREMENT = "a release is written verl==0.7.1; a file is a lock file, or an SBOM"


def run(options: argparse.Namespace) -> int:
    """Run ``unhang matrix``: return 0; with ``--against-index``, the radar's exit code.

    Raises UnhangError ``unknown-fix``, ``bad-version``, ``no-such-release``, ``bad-option``, and as the radar and
    ``files.read`` do.
    """
    fixes = [catalog.fix(name) for name in selection(vars(options)).fixes]
    if options.against_index:
        return _against_index(options, fixes)
    if options.upgrade:
        return _upgrade(options, fixes)
    releases = {
        name: found for name, found in catalog.releases().items() if name in (options.upstream or packs.names())
    }
    rows = matrix.rows(fixes, releases, catalog.shape_table())
    if options.release is not None:
        rows = matrix.matching(rows, options.release)
    if options.output_format == "json":
        print(matrix_text.json_rows(rows))
    elif options.output_format == "markdown":
        print(matrix_text.markdown_table(version_ranges.panels(rows, fixes)))
    elif options.output_format == "svg":
        from unhang.tell.picture import picture  # the XML library, for this format alone

        print(picture(rows, fixes), end="")
    else:
        width = terminal.width(sys.stdout) or matrix_text.WIDTH
        print(matrix_text.text_table(version_ranges.panels(rows, fixes), colour=console.colour(), width=width))
    return 0


def _upgrade(options: argparse.Namespace, fixes: Sequence[Fix]) -> int:
    """Print what each newer release changes, for one release or for all that a lock file pins; return 0."""
    from unhang.judge import pinned, upgrade
    from unhang.tell import upgrade_text

    if options.output_format == "svg" or options.release is not None:
        hint = "leave out --version, and ask for text, markdown or json"
        raise UnhangError("bad-option", "--upgrade draws no picture and takes no --version", hint=hint)
    found = {}
    for pin in _pins(options.upgrade):
        known = pinned.release(pin)
        if known and not (options.upstream and set(options.upstream).isdisjoint(pinned.held(pin.distribution, known))):
            needs = upgrade.needs(pin.distribution, known, fixes)
            steps = tuple(upgrade.steps(pin.distribution, known, fixes))
            found[pin.distribution, known] = upgrade_text.Upgrades(pin.distribution, known, *needs, steps)
        elif not known:
            console.note(f"note: not in the matrix: {pin.distribution} {pin.told or pin.version}")
    if not found:
        what = f"the matrix has no release that {options.upgrade} names"
        raise UnhangError("no-such-release", what, hint=_REQUIREMENT)
    if options.output_format == "json":
        print(upgrade_text.json_upgrades(found.values()))
    elif options.output_format == "markdown":
        print(upgrade_text.markdown(found.values()))
    else:
        print(upgrade_text.text(found.values(), terminal.width(sys.stdout) or matrix_text.WIDTH))
    return 0


def _pins(wanted: str) -> Sequence[Pin]:
    """Return the pins of a lock file; or the one that a requirement is."""
    from unhang.judge.pinned import distributions
    from unhang.pins import files, requirements
    from unhang.pins.values import DamagedError

    if os.path.exists(wanted) or os.sep in wanted:
        return files.read(wanted, distributions()).pins
    try:
        pins = [pin for pin in requirements.pins(wanted, distributions()) if pin.version]
    except DamagedError:
        pins = []
    if not pins:
        raise UnhangError("bad-option", f"{wanted!r} is neither a release nor a file", hint=_REQUIREMENT)
    return pins


def _against_index(options: argparse.Namespace, fixes: Sequence[Fix]) -> int:
    if options.output_format == "svg" or options.release is not None:
        hint = "leave out --version, and ask for text, markdown or json"
        raise UnhangError("bad-option", "--against-index draws no picture and takes no --version", hint=hint)
    from unhang.compat import radar  # here: `matrix` itself needs none of what that imports

    return radar.against_index(fixes, options.upstream or packs.names(), options.output_format)
