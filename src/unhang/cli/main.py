"""The command line: arguments in, exit code out."""

# `unhang --help` and a mistyped option should answer at once: a command's module is imported when the command is run.

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from unhang.cli.arguments import named_packs, parse
from unhang.errors import STDOUT, UnhangError, described, joined
from unhang.plugins import packs, parameters
from unhang.tell.terminal import Settings, settings

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, NoReturn


def run() -> NoReturn:
    """Run the command's own process, and leave with its exit code.

    The garbage collector is off, because it would walk every syntax tree for nothing, and the process ends without
    destroying each object.
    """
    gc.disable()
    _prepare_streams()
    try:
        code = main()
    except KeyboardInterrupt:  # again, while `main` reports the first
        code = 130
    with suppress(OSError, ValueError):  # `main` has flushed and reported what it could
        sys.stdout.flush()
    os._exit(code)


def _prepare_streams() -> None:
    """Let no text fail for its encoding, and have an error of stdout name it; a closed stream is as a full one."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:  # it is closed; what is opened next has its number
                os.open(os.devnull, os.O_RDONLY)
    old = sys.stdout
    # PYTHONUNBUFFERED=1, as images have it, keeps the order of what both streams say
    by_line = bool(old and (old.line_buffering or getattr(old, "write_through", False)))
    file = io.BufferedWriter(_Stdout(1, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(file, old.encoding if old else None, "backslashreplace", line_buffering=by_line)
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115 - for the whole run


class _Stdout(io.FileIO):
    """The standard output. An OSError of it has the filename STDOUT."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``unhang`` with these arguments (by default the command line's); return the exit code, and raise nothing.

    A command raises only what comes before it has written anything; what comes later it reports itself (``Ending``),
    except Ctrl-C, which says what is in place.
    """
    options = None
    try:
        wrong = _use_packs(sys.argv[1:] if arguments is None else arguments)
        try:
            options = parse(arguments)
        except SystemExit as end:  # argparse's: `--help`, `--version`, wrong usage
            code = int(end.code or 0)
        else:
            for name in "color", "quiet", "verbose":
                setattr(settings, name, getattr(options, name, getattr(Settings, name)))
            if wrong is not None:
                raise wrong
            if options.command != "pack new":  # it begins a pack
                packs.refuse_empty()
            parameters.use(options.set, os.environ)
            _tell_packs(options.command)
            if "skip" in options:  # a command that chooses fixes
                from unhang.cli.requests import fill_in

                fill_in(vars(options), os.environ)
            code = _command(options.command)(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        with suppress(OSError, ValueError):
            print(
                f"interrupted: {error.args[0] if error.args else 'nothing is half done'}", file=sys.stderr, flush=True
            )
        return 130
    except BaseException as error:  # a codemod of somebody's may end the process with any code
        if isinstance(error, BrokenPipeError) and error.filename in (None, STDOUT):
            return 141  # the reader is gone (`unhang diff | head`): 128 and SIGPIPE, as a shell has it of other tools
        told = described(error)
        if told is not error:
            told.hint = joined("nothing was changed", told.hint)
        return _fail(told, options)


def _use_packs(words: Sequence[str]) -> UnhangError | None:
    """Let the packs that these arguments name be in effect; return what is wrong with them, to be told in its turn."""
    named = named_packs(words)
    if named is None:
        return None
    try:
        packs.use(*named, os.environ)
        if packs.others():
            packs.upstreams()  # whose names the options take
    except UnhangError as error:
        packs.use([], True, {})
        return error
    return None


def _tell_packs(command: str) -> None:
    """Say which packs are in effect, if not only ours, above what a command prints that has no report to say it."""
    if packs.others() and command not in ("check", "apply", "revert", "overlay"):
        from unhang.tell import console, report

        console.note(report.packs_line())


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that runs a command: it takes the options, and returns the exit code."""
    module = f"unhang.cli.{name.rpartition(' ')[2]}_command"  # `pack new` is in new_command
    command: Callable[[argparse.Namespace], int] = __import__(module, fromlist=["run"]).run
    return command


def _fail(error: UnhangError, options: argparse.Namespace | None) -> int:
    from unhang.cli.requests import hinted
    from unhang.tell import console, report

    if options is not None:
        with suppress(Exception):  # what went wrong may go wrong again, as the fixes are read for the hint
            error = hinted(error, options)
    if getattr(options, "output_format", "text") == "json":
        with suppress(OSError, ValueError):  # it may be stdout that failed
            print(report.json_error(error), flush=True)
    console.error(error)
    return 2
