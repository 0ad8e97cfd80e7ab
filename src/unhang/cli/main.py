"""The command line: options in, exit code out. The commands themselves are in ``unhang.cli.commands``."""

# `unhang --help` and a mistyped option should answer at once: what the commands need is imported when one is run.

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from unhang.cli.arguments import parse
from unhang.errors import UnhangError

TYPE_CHECKING = False  # as typing's, which is slow to import
if TYPE_CHECKING:
    import argparse
    from typing import NoReturn


def run() -> NoReturn:
    """The command's own process: `main`, without a garbage collector that would walk every syntax tree for nothing,
    and without taking every object apart at its end. Leaves with the exit code.
    """
    gc.disable()
    try:
        code = main()
    except SystemExit as end:  # argparse's: `--help`, `--version`, wrong usage
        code = int(end.code or 0)
    for stream in sys.stdout, sys.stderr:
        with suppress(OSError, ValueError):  # nobody reads it, or it was closed for that: `main` has told what it could
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``unhang`` with these arguments (by default the command line's); gives the exit code, and raises nothing."""
    options = parse(arguments)
    try:
        from unhang.cli import commands

        code: int = getattr(commands, options.run)(options)
        sys.stdout.flush()
        return code
    except UnhangError as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        print("interrupted: nothing is half done", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader has gone (`unhang diff | head`): no traceback, and no second error when stdout is closed
        sys.stderr.close()
        return 2
    except OSError as error:
        path = None if error.filename is None else os.fspath(error.filename)
        return _fail(UnhangError("io", error.strerror or str(error), path=path, hint="nothing was changed"), options)
    except Exception as error:
        import traceback

        traceback.print_exc()
        message = f"this is a mistake in unhang: {type(error).__name__}: {error}"
        hint = "nothing was changed; please report it with the lines above"
        return _fail(UnhangError("internal", message, hint=hint), options)


def _fail(error: UnhangError, options: argparse.Namespace) -> int:
    from unhang.tell import report

    if getattr(options, "output_format", "text") == "json":
        print(report.json_error(error))
    print(report.text_error(error), file=sys.stderr)
    return 2
