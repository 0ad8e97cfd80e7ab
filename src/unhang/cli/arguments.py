"""The command line's arguments, and their help. It imports nothing slow but `argparse`: `--help` should be fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from unhang import __version__
from unhang.records import UPSTREAMS
from unhang.tell.terminal import columns

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import Any

_SIZES = {
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "etp": "expert tensor parallel (Megatron's own default: as --tp)",
    "dp": "data parallel",
    "world-size": "all ranks",
}
_EXITS = (
    "exit codes: 0 the end state is reached, 1 it is not, 2 wrong usage or failure (nothing was changed), 130 Ctrl-C"
)
_PROVE = (
    "Runs what is installed, untouched and patched, on this machine's CPU: a small job with real ranks (gloo), a large "
    "one by recording each rank and playing the recordings against each other. Needs torch in the environment, and "
    "changes nothing there. Without sizes, each proof runs its own small cases."
)
_PROVE_EXITS = (
    "exit codes: 0 the patched code passes, and what is installed does not need it; 1 what is installed fails at this "
    "topology, or the patched code does; 2 something could not be shown (no torch, no proof, a version that no proof "
    "knows), or wrong usage; 130 Ctrl-C"
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of these arguments (by default the command line's); exit with 2 on wrong usage.

    ``command`` is the command's name.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    return _parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)


class _Formatter(argparse.HelpFormatter):
    """argparse's formatter, given the width: to find it, argparse imports shutil and three compression modules."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=(columns(1) or 80) - 2)  # of stdout


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command, or of all if there is no such command: making the options of all is slow."""
    parser = _Parser(
        prog="unhang",
        description="Finds Megatron-LM, megatron-core, verl and ms-swift, reports which of four hangs each would run "
        "into, and rewrites them.",
        epilog=_EXITS,
    )
    parser.add_argument("--version", action="version", version=f"unhang {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    if command in _COMMANDS:
        summary, add_options = _COMMANDS[command]
        subparser = subparsers.add_parser(command, help=summary)
        add_options(subparser)
        _common(subparser)
    else:  # then there is only help or an error to print, which names the commands
        for name, (summary, _) in _COMMANDS.items():
            subparsers.add_parser(name, help=summary)
    return parser


def _check(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    parser.add_argument(
        "--expect-digest", metavar="DIGEST", type=_digest,
        help="exit with 1 unless the code has this digest, as `unhang check` printed it elsewhere",
    )  # fmt: skip
    _output(parser, "text", "json", "github")
    _require(parser)


def _apply(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    parser.add_argument("--dry-run", action="store_true", help="report as apply would, and write nothing")
    _output(parser, "text", "json", "github")
    _require(parser)
    _unverified(parser)


def _diff(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    _unverified(parser)


def _revert(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    _output(parser, "text", "json", "github")
    parser.add_argument(
        "--force", action="store_true",
        help="revert a patched file that you edited since, too: your version is kept beside it, as FILE.unhang-kept",
    )  # fmt: skip


def _overlay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new or empty folder, or an overlay to replace")
    parser.add_argument("--check", action="store_true", help="write nothing; check what a job with DIR imports")
    parser.set_defaults(expect_digest=None)
    _environment(parser)
    _output(parser, "text", "json", "github")
    _require(parser)
    _unverified(parser)


def _wheel(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXITS
    parser.add_argument("requirements", metavar="REQ", nargs="*", help="megatron-core==0.17.1, or the path of a wheel")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where to write them")
    _selection(parser)
    _output(parser, "text", "json")
    _require(parser)
    _unverified(parser)
    group = parser.add_argument_group("how to download (passed to pip)")
    group.add_argument(
        "-r", "--requirement", metavar="FILE", action="append", default=[], dest="requirement_files",
        help="a requirements file, also with hashes (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--python-version", metavar="X.Y", help="default: this Python, else one that the release has a wheel for"
    )
    parser.set_defaults(pip_options=[])
    for option in ("--index-url", "--extra-index-url", "--find-links", "--platform", "--abi", "--implementation"):
        group.add_argument(option, metavar=option.rpartition("-")[2].upper(), action=_PipOption)
    for option in ("--no-index", "--require-hashes", "--pre"):
        group.add_argument(option, nargs=0, action=_PipOption)


def _prove(parser: argparse.ArgumentParser) -> None:
    parser.description = _PROVE
    parser.epilog = _PROVE_EXITS
    group = parser.add_argument_group("where to look (else $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this interpreter)")
    group.add_argument("--python", metavar="PY", help="the environment of this interpreter, which runs the proofs")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, run by --python PY")
    place.add_argument("--source", metavar="DIR", help="a checkout, run by --python PY")
    _script(group)
    _fix(parser)
    group = parser.add_argument_group("the job (sizes not given are 1; DP follows from the world size)")
    for name, what in _SIZES.items():
        group.add_argument(f"--{name}", metavar="N", type=_size, help=what)
    _output(parser, "text", "json")
    parser.set_defaults(upstream=[], skip=[], allow_none=False)


def _list(_parser: argparse.ArgumentParser) -> None:
    pass


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fix_id", metavar="FIX")


def _matrix(parser: argparse.ArgumentParser) -> None:
    _selection(parser)
    parser.add_argument(
        "--version", metavar="SPEC", dest="release",
        help="only these releases: a version (0.17.1) or a PEP 440 specifier (~=0.17)",
    )  # fmt: skip
    _output(parser, "text", "markdown", "json", "svg")
    parser.add_argument("--against-index", action="store_true", help="compare with what the package index offers now")


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "check": ("what is needed here", _check),
    "apply": ("bring every needed fix into place", _apply),
    "diff": ("print on stdout what apply would change", _diff),
    "revert": ("restore the original bytes", _revert),
    "overlay": ("write the rewritten modules into a folder of their own, for PYTHONPATH", _overlay),
    "wheel": ("download wheels, and write patched ones", _wheel),
    "prove": ("show each hang on a CPU, and that the patched code does not have it", _prove),
    "list": ("the fixes", _list),
    "explain": ("symptom, cause, evidence and cost of a fix", _explain),
    "matrix": ("which release of an upstream needs which fix", _matrix),
}


def _common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command: how much it says, and in which colours."""
    group = parser.add_argument_group("how much to say")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", action="store_true", help="only results and errors: no notes, and no progress"
    )
    loudness.add_argument(
        "-v", "--verbose", action="store_true", help="more detail, such as the import path and copies that it hides"
    )
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto",
        help="default: auto, on a terminal unless NO_COLOR is set",
    )  # fmt: skip


def _environment(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that work on an environment: where to look, and at what."""
    parser.epilog = _EXITS
    group = parser.add_argument_group("where to look (else $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this interpreter)")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--python", metavar="PY", help="the environment of this interpreter")
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, without an interpreter")
    place.add_argument("--source", metavar="DIR", help="a checkout")
    _script(group)
    group.add_argument("--allow-none", action="store_true", help="finding no upstream at all is not an error")
    _selection(parser)


def _selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to look at")
    _fix(group)
    group.add_argument("--skip", metavar="ID", action="append", default=[], help="all fixes but this (repeatable)")
    group.add_argument(
        "--upstream", metavar="NAME", action="append", default=[], choices=UPSTREAMS,
        help=f"only this upstream (repeatable): {', '.join(UPSTREAMS)}",
    )  # fmt: skip


def _fix(group: argparse._ActionsContainer) -> None:
    group.add_argument("--fix", metavar="ID", action="append", default=[], help="only this fix (repeatable)")


def _script(group: argparse._ActionsContainer) -> None:
    group.add_argument("--script", metavar="FILE", help="put this script's folder first on the path, as torchrun does")


def _output(parser: argparse.ArgumentParser, *formats: str) -> None:
    parser.add_argument("--output-format", choices=formats, default=formats[0], help=f"default: {formats[0]}")


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


class _PipOption(argparse.Action):
    """Collects pip's options in the order in which they were given."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        given = [option or "", *([values] if isinstance(values, str) else [])]
        namespace.pip_options = [*namespace.pip_options, *given]


def _digest(word: str) -> str:
    """Return a digest as ``check`` prints it. An empty one, from a command that failed, is wrong usage."""
    if len(word) != 16 or set(word) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{word!r} is not a digest: 16 hexadecimal digits, as `unhang check` prints")
    return word


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)
