"""The command line's arguments, and their help. Imports nothing but `argparse`: `--help` should answer at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from unhang import __version__
from unhang.records import UPSTREAMS

TYPE_CHECKING = False  # as typing's, which is slow to import
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
_EXITS = "exit codes: 0 the end state is there, 1 it is not, 2 wrong usage or failure (nothing was changed), 130 Ctrl-C"

_PROVE = (
    "Runs what is installed, untouched and patched, on this machine's CPU: with real ranks (gloo) for a small job, "
    "rank by rank and played against each other for a large one. Needs torch in the environment it looks at, and "
    "changes nothing there. Without sizes, each proof runs its own small cases."
)
_PROVE_EXITS = (
    "exit codes: 0 patched code passes, and what is installed has no need of it; 1 what is installed fails at this "
    "topology, or patched code does; 2 something could not be shown (no torch, no proof, another version than a proof "
    "knows), or wrong usage; 130 Ctrl-C"
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options that these arguments (by default the command line's) stand for; exits with 2 on wrong usage."""
    return _parser().parse_args(arguments)


class _Formatter(argparse.HelpFormatter):
    """argparse's own, told the width: to ask, it would import shutil and three compressors, for every command."""

    def __init__(self, prog: str) -> None:
        columns = os.environ.get("COLUMNS", "")
        try:
            width = int(columns) if columns.isdecimal() else os.get_terminal_size(1).columns  # of stdout
        except OSError:  # stdout is closed, or no terminal
            width = 0
        super().__init__(prog, width=(width or 80) - 2)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
    check.add_argument(
        "--expect-digest", metavar="DIGEST", type=_digest,
        help="exit with 1 unless the code in question has this digest, as `unhang check` printed it elsewhere",
    )  # fmt: skip
    check.set_defaults(command="check")

    apply = subparsers.add_parser("apply", help="bring every needed fix into place", epilog=_EXITS)
    _where(apply)
    _which(apply)
    _output(apply)
    _require(apply)
    _unverified(apply)
    apply.set_defaults(command="apply")

    diff = subparsers.add_parser("diff", help="what apply would change, on stdout alone", epilog=_EXITS)
    _where(diff)
    _which(diff)
    _unverified(diff)
    diff.set_defaults(command="diff")

    revert = subparsers.add_parser("revert", help="restore the original bytes", epilog=_EXITS)
    _where(revert)
    _which(revert)
    _output(revert)
    revert.add_argument(
        "--force", action="store_true",
        help="also where you edited a patched file since: your version is kept beside it, as FILE.unhang-kept",
    )  # fmt: skip
    revert.set_defaults(command="revert")

    overlay = subparsers.add_parser(
        "overlay", help="write the rewritten modules into a folder of their own, for PYTHONPATH", epilog=_EXITS
    )
    overlay.add_argument("folder", metavar="DIR", help="a new or empty folder, or an overlay to make anew")
    _where(overlay)
    _which(overlay)
    _output(overlay)
    _require(overlay)
    _unverified(overlay)
    overlay.set_defaults(command="overlay")

    wheel = subparsers.add_parser("wheel", help="download wheels, and write patched ones", epilog=_EXITS)
    wheel.add_argument("requirements", metavar="REQ", nargs="*", help="megatron-core==0.17.1, or the path of a wheel")
    wheel.add_argument("-o", "--output", metavar="DIR", required=True, help="where to write them")
    _which(wheel)
    _text_or_json(wheel)
    _require(wheel)
    _unverified(wheel)
    _download(wheel)
    wheel.set_defaults(command="wheel")

    prove = subparsers.add_parser("prove", help="show each hang on a CPU, and that the patched code has it no more")
    prove.description = _PROVE
    prove.epilog = _PROVE_EXITS
    _where_to_prove(prove)
    _job(prove)
    _text_or_json(prove)
    prove.set_defaults(command="prove", upstream=[], skip=[], allow_none=False)

    list_ = subparsers.add_parser("list", help="the fixes")
    list_.set_defaults(command="list")

    explain = subparsers.add_parser("explain", help="symptom, cause, evidence and cost of a fix")
    explain.add_argument("fix_id", metavar="FIX")
    explain.set_defaults(command="explain")

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
    matrix.set_defaults(command="matrix")
    return parser


def _digest(word: str) -> str:
    """A digest as ``check`` prints it. An empty one, of a command that failed, is wrong usage and no digest."""
    if len(word) != 16 or set(word) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{word!r} is no digest: 16 hexadecimal digits, as `unhang check` prints it")
    return word


def _where(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to look (else $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this interpreter)")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--python", metavar="PY", help="the environment of this interpreter")
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, without an interpreter")
    place.add_argument("--source", metavar="DIR", help="a checkout")
    group.add_argument("--script", metavar="FILE", help="put this script's folder first on the path, as torchrun does")
    group.add_argument("--allow-none", action="store_true", help="finding no upstream at all is not an error")


def _download(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to download (as pip understands it, to which it is handed)")
    group.add_argument(
        "-r", "--requirement", metavar="FILE", action="append", default=[], dest="requirement_files",
        help="a requirements file, also with hashes (repeatable)",
    )  # fmt: skip
    group.add_argument("--python-version", metavar="X.Y", help="default: this Python, or one that there is a wheel for")
    parser.set_defaults(pip_options=[])
    for option in ("--index-url", "--extra-index-url", "--find-links", "--platform", "--abi", "--implementation"):
        group.add_argument(option, metavar=option.rpartition("-")[2].upper(), action=_HandedOn)
    for option in ("--no-index", "--require-hashes", "--pre"):
        group.add_argument(option, nargs=0, action=_HandedOn)


class _HandedOn(argparse.Action):
    """Collects options of pip's, as they were given."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        given = [option or "", *([values] if isinstance(values, str) else [])]
        namespace.pip_options = [*namespace.pip_options, *given]


def _where_to_prove(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to look (else $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this interpreter)")
    group.add_argument("--python", metavar="PY", help="the environment of this interpreter, which runs the proofs")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, run by --python PY")
    place.add_argument("--source", metavar="DIR", help="a checkout, run by --python PY")
    group.add_argument("--script", metavar="FILE", help="put this script's folder first on the path, as torchrun does")


def _job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fix", metavar="ID", action="append", default=[], help="this fix alone (repeatable)")
    group = parser.add_argument_group("the job (sizes not given are 1; DP follows from the world size)")
    for name, what in _SIZES.items():
        group.add_argument(f"--{name}", metavar="N", type=_size, help=what)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _which(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to look at")
    group.add_argument("--fix", metavar="ID", action="append", default=[], help="this fix alone (repeatable)")
    group.add_argument("--skip", metavar="ID", action="append", default=[], help="all fixes but this (repeatable)")
    group.add_argument(
        "--upstream", metavar="NAME", action="append", default=[], choices=UPSTREAMS,
        help=f"this upstream alone (repeatable): {', '.join(UPSTREAMS)}",
    )  # fmt: skip


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output-format", choices=("text", "json", "github"), default="text", help="default: text")


def _text_or_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output-format", choices=("text", "json"), default="text", help="default: text")


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
