"""The command line: options in, exit code out. The commands themselves are in ``unhang.commands``."""

# `unhang --help` and a mistyped option should answer at once: what the commands need is imported when one is run.

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from unhang import __version__
from unhang.errors import UnhangError

UPSTREAMS = ("megatron-core", "megatron-lm", "verl", "ms-swift")
_EXITS = "exit codes: 0 the end state is there, 1 it is not, 2 wrong usage or failure (nothing was changed), 130 Ctrl-C"


def run() -> int:
    """The command's own process: `main`, without a garbage collector that would walk every syntax tree for nothing."""
    gc.disable()
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``unhang`` with these arguments (by default the command line's); gives the exit code, and raises nothing."""
    options = _parser().parse_args(arguments)
    try:
        from unhang import commands

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
    from unhang import report

    if getattr(options, "output_format", "text") == "json":
        print(report.json_error(error))
    print(report.text_error(error), file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unhang",
        description="Finds Megatron-LM, megatron-core, verl and ms-swift, says which of four hangs each would run "
        "into, and rewrites them.",
        epilog=_EXITS,
    )
    parser.add_argument("--version", action="version", version=f"unhang {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    check = subparsers.add_parser("check", help="what is needed here", epilog=_EXITS)
    _where(check)
    _which(check)
    _output(check)
    _require(check)
    check.set_defaults(run="check")

    apply = subparsers.add_parser("apply", help="bring every needed fix into place", epilog=_EXITS)
    _where(apply)
    _which(apply)
    _output(apply)
    _require(apply)
    _unverified(apply)
    apply.set_defaults(run="apply")

    diff = subparsers.add_parser("diff", help="what apply would change, on stdout alone", epilog=_EXITS)
    _where(diff)
    _which(diff)
    _unverified(diff)
    diff.set_defaults(run="diff")

    revert = subparsers.add_parser("revert", help="restore the original bytes", epilog=_EXITS)
    _where(revert)
    _which(revert)
    _output(revert)
    revert.add_argument(
        "--force", action="store_true",
        help="also where you edited a patched file since: your version is kept beside it, as FILE.unhang-kept",
    )  # fmt: skip
    revert.set_defaults(run="revert")

    list_ = subparsers.add_parser("list", help="the fixes")
    list_.set_defaults(run="list_fixes")

    explain = subparsers.add_parser("explain", help="symptom, cause, evidence and cost of a fix")
    explain.add_argument("fix_id", metavar="FIX")
    explain.set_defaults(run="explain")

    matrix = subparsers.add_parser("matrix", help="which release of an upstream needs which fix")
    _which(matrix)
    matrix.add_argument(
        "--version", metavar="SPEC", dest="release",
        help="these releases alone: a version (0.17.1) or a PEP 440 specifier (~=0.17)",
    )  # fmt: skip
    matrix.add_argument(
        "--output-format", choices=("text", "markdown", "json", "svg"), default="text", help="default: text"
    )
    matrix.add_argument("--against-index", action="store_true", help="compare with what the package index offers now")
    matrix.set_defaults(run="matrix")
    return parser


def _where(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to look (else $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this interpreter)")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--python", metavar="PY", help="the environment of this interpreter")
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, without an interpreter")
    place.add_argument("--source", metavar="DIR", help="a checkout")
    group.add_argument("--script", metavar="FILE", help="put this script's folder first on the path, as torchrun does")
    group.add_argument("--allow-none", action="store_true", help="finding no upstream at all is not an error")


def _which(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(upstreams=UPSTREAMS)
    group = parser.add_argument_group("what to look at")
    group.add_argument("--fix", metavar="ID", action="append", default=[], help="this fix alone (repeatable)")
    group.add_argument("--skip", metavar="ID", action="append", default=[], help="all fixes but this (repeatable)")
    group.add_argument(
        "--upstream", metavar="NAME", action="append", default=[], choices=UPSTREAMS,
        help=f"this upstream alone (repeatable): {', '.join(UPSTREAMS)}",
    )  # fmt: skip


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output-format", choices=("text", "json", "github"), default="text", help="default: text")


def _require(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--require", metavar="ID", action="append", default=[],
        help="exit with 1 unless this fix is in place, or not needed, on every installation (repeatable)",
    )  # fmt: skip


def _unverified(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unverified", action="store_true",
        help="try unknown shapes too, if anchors and post-condition hold and a second pass changes nothing",
    )  # fmt: skip
