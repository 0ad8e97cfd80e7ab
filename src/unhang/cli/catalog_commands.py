"""The commands that tell of the compat matrix, not of an environment: ``unhang matrix``, and what ``explain`` adds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from unhang.cli.scope import fixes_named
from unhang.errors import UnhangError
from unhang.judge import matrix as matrix_of
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import console, matrix_text, version_ranges


def explain(options: argparse.Namespace) -> int:
    """``unhang explain FIX``: its page, and what the matrix says of it. Raises UnhangError ``unknown-fix``."""
    fix, releases, table = catalog.fix(options.fix_id), catalog.releases(), catalog.shape_table()
    rows, droppable = matrix_of.rows([fix], releases, table), matrix_of.droppable(fix, releases, table)
    print(catalog.page(fix.id).rstrip(), matrix_text.section(fix, rows, droppable), sep="\n\n")
    return 0


def matrix(options: argparse.Namespace) -> int:
    """``unhang matrix``: 0; with ``--against-index``, the radar's exit code.

    Raises UnhangError ``unknown-fix``, ``bad-version``, ``no-such-release``, ``bad-option``, and what the radar raises.
    """
    fixes = fixes_named(options)
    if options.against_index:
        return _against_index(options, fixes)
    rows = matrix_of.rows(fixes, _releases(options.upstream), catalog.shape_table())
    if options.release is not None:
        rows = matrix_of.matching(rows, options.release)
    if options.output_format == "json":
        print(matrix_text.json_rows(rows))
    elif options.output_format == "markdown":
        print(matrix_text.markdown_table(version_ranges.panels(rows, fixes)))
    elif options.output_format == "svg":
        from unhang.tell.picture import picture  # the XML library, for this format alone

        print(picture(rows, fixes), end="")
    else:
        print(matrix_text.text_table(version_ranges.panels(rows, fixes), colour=console.colour()))
    return 0


def _against_index(options: argparse.Namespace, fixes: Sequence[Fix]) -> int:
    if options.output_format == "svg" or options.release is not None:
        hint = "leave out --version, and ask for text, markdown or json"
        raise UnhangError("bad-option", "--against-index draws no picture and takes no --version", hint=hint)
    from unhang.compat import radar  # here: `matrix` itself needs none of what that imports

    return radar.against_index(fixes, options.upstream, options.output_format)


def _releases(upstreams: Sequence[str]) -> matrix_of.Releases:
    """The releases in the matrix of these upstreams; of all, where none is named."""
    return {name: told for name, told in catalog.releases().items() if not upstreams or name in upstreams}
