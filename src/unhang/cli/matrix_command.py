"""``unhang matrix``: which release needs which fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unhang import suggest
from unhang.cli.requests import selection
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.judge.matrix import Row
from unhang.plugins import packs
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
    if options.output and options.output_format != "osv":
        message = "-o is for --output-format osv alone: any other format is printed"
        raise UnhangError("bad-option", message, hint="leave out -o, or add --output-format osv")
    if options.against_index:
        return _against_index(options, fixes)
    if options.upgrade:
        return _upgrade(options, fixes)
    releases = {
        name: found for name, found in catalog.releases().items() if name in (options.upstream or packs.names())
    }
    rows = matrix.rows(fixes, releases, catalog.shape_table())
    if options.output_format == "osv":
        return _advisories(options, rows, fixes)
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


def _require_text(options: argparse.Namespace, message: str) -> None:
    """Raise UnhangError ``bad-option`` with this message for the formats and the option that need the plain matrix."""
    if options.output_format in ("svg", "osv") or options.release is not None:
        raise UnhangError("bad-option", message, hint="leave out --version, and ask for text, markdown or json")


def _upgrade(options: argparse.Namespace, fixes: Sequence[Fix]) -> int:
    """Print what each newer release changes, for releases and for all that lock files pin; return 0."""
    from unhang.judge import pinned, upgrade
    from unhang.tell import upgrade_text

    _require_text(options, "--upgrade draws no picture, writes no advisories and takes no --version")
    found = {}
    for pin in (pin for wanted in options.upgrade for pin in _pins(wanted)):
        known = pinned.release(pin)
        if known and not (options.upstream and set(options.upstream).isdisjoint(pinned.held(pin.distribution, known))):
            needs = upgrade.needs(pin.distribution, known, fixes)
            steps = tuple(upgrade.steps(pin.distribution, known, fixes))
            found[pin.distribution, known] = upgrade_text.Upgrades(pin.distribution, known, *needs, steps)
        elif not known:
            console.note(f"note: not in the matrix: {pin.distribution} {pin.told or pin.version}")
    if not found:
        what = f"the matrix has no release that {' or '.join(options.upgrade)} names"
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
    from unhang.judge.pinned import names
    from unhang.pins import files, requirements
    from unhang.pins.values import DamagedError

    if os.path.exists(wanted) or os.sep in wanted:
        return files.read(wanted, names()).pins
    try:
        pins = [pin for pin in requirements.pins(wanted, names()) if pin.version]
    except DamagedError:
        pins = []
    if not pins:
        raise UnhangError("bad-option", f"{wanted!r} is neither a release nor a file", hint=_REQUIREMENT)
    return pins


def _advisories(options: argparse.Namespace, rows: Sequence[Row], fixes: Sequence[Fix]) -> int:
    """Write the advisories of these fixes. Raises UnhangError ``bad-option``, and as ``osv_folder.write``."""
    if not options.output:
        raise UnhangError("bad-option", "--output-format osv writes files, and no folder is given", hint="add -o DIR")
    if options.release is not None:
        message = "an advisory names all releases of an upstream, so --version cannot choose some"
        raise UnhangError("bad-option", message, hint="leave out --version")
    from unhang.deliver import osv_folder
    from unhang.tell import osv

    found = osv.advisories(rows, fixes)
    if not found:
        hint = "`unhang matrix` shows which releases need which fix"
        raise UnhangError("no-such-release", "no release in the matrix needs any of these fixes", hint=hint)
    osv_folder.write(options.output, found)
    others = f"; no release needs {len(fixes) - len(found)} of the fixes" if len(found) < len(fixes) else ""
    console.note(f"advisories written into {options.output}: {len(found)}{others}; next:")
    words = ("scan", "source", "--offline-vulnerabilities", "--local-db-path", options.output, "-L", "uv.lock")
    console.note(f"  {suggest.line('osv-scanner', *words)}")
    return 0


def _against_index(options: argparse.Namespace, fixes: Sequence[Fix]) -> int:
    _require_text(options, "--against-index draws no picture, writes no advisories and takes no --version")
    from unhang.compat import radar  # here: `matrix` itself needs none of what that imports

    return radar.against_index(fixes, options.upstream or packs.names(), options.output_format)
