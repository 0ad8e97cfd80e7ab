"""The command line: arguments in, exit code out."""

# `unhang --help` and a mistyped option should answer at once: a command's module is imported when the command is run.

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from unhang.cli.arguments import parse
from unhang.errors import UnhangError
from unhang.tell.terminal import Settings, settings, width, wrapped

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import NoReturn


def run() -> NoReturn:
    """Run the command's own process, and leave with its exit code.

    The garbage collector is off, because it would walk every syntax tree for nothing, and the process ends without
    destroying each object.
    """
    gc.disable()
    try:
        code = main()
    except SystemExit as end:  # argparse's: `--help`, `--version`, wrong usage
        code = int(end.code or 0)
    for stream in sys.stdout, sys.stderr:
        with suppress(OSError, ValueError):  # the reader is gone; `main` has reported what it could
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``unhang`` with these arguments (by default the command line's); return the exit code, and raise nothing."""
    options = parse(arguments)
    for name in "color", "quiet", "verbose":
        setattr(settings, name, getattr(options, name, getattr(Settings, name)))
    try:
        if "skip" in options:  # a command that chooses fixes
            from unhang.cli.requests import fill_in

            fill_in(vars(options), os.environ)
        code = _command(options.command)(options)
        sys.stdout.flush()
        return code
    except UnhangError as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        print("interrupted: nothing is half done", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader is gone (`unhang diff | head`): no traceback, and no second error when stdout is closed
        sys.stderr.close()
        return 2
    except OSError as error:
        path = None if error.filename is None else os.fspath(error.filename)
        return _fail(UnhangError("io", error.strerror or str(error), path=path, hint="nothing was changed"), options)
    except Exception as error:
        import traceback

        traceback.print_exc()
        message = f"this is a bug in unhang: {type(error).__name__}: {error}"
        hint = "nothing was changed; please report it with the lines above"
        return _fail(UnhangError("internal", message, hint=hint), options)


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that runs a command: it takes the options, and returns the exit code."""
    command: Callable[[argparse.Namespace], int] = __import__(f"unhang.cli.{name}_command", fromlist=["run"]).run
    return command


def _fail(error: UnhangError, options: argparse.Namespace) -> int:
    from unhang.tell import report

    if getattr(options, "output_format", "text") == "json":
        print(report.json_error(error))
    print(wrapped(report.text_error(error), width(sys.stderr)), file=sys.stderr)
    return 2
