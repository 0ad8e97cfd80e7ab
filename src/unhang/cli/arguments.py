"""The command line's arguments, and their help. It imports nothing slow but `argparse`: `--help` should be fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from unhang import __version__
from unhang.cli.help import COMMANDS, MORE, PACK, PAGES, TOP, Page
from unhang.draft.kinds import HARNESSES
from unhang.errors import closest
from unhang.plugins import packs
from unhang.records import KINDS
from unhang.tell.terminal import columns, folded, width

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

SHELLS = ("bash", "fish", "tcsh", "zsh")
_SEVERAL = {"wheel": "requirements", "diagnose": "paths", "list": "words"}
"""The commands that take several arguments, by the name of these."""
_IN_SHORT = {
    "check": "what this environment needs; changes nothing",
    "apply": "bring every needed fix into place",
    "revert": "take them back, to the byte",
    "diagnose": "a hung job's dumps, stacks and logs: which bug it is",
    "explain": "a fix, a cause, an error, or any words of a symptom",
}
"""The commands that matter to somebody who does not know any."""
_OTHERS = {
    **dict.fromkeys(("status", "scan", "doctor", "audit", "verify"), "check"),
    **dict.fromkeys(("install", "patch", "fix", "up", "update"), "apply"),
    **dict.fromkeys(("undo", "rollback", "restore", "uninstall", "unapply", "reset"), "revert"),
    **dict.fromkeys(("show", "info", "describe", "why"), "explain"),
    **dict.fromkeys(("debug", "hang", "inspect", "analyze"), "diagnose"),
    **dict.fromkeys(("fixes", "ls", "search"), "list"),
    **dict.fromkeys(("releases", "versions", "compat"), "matrix"),
    "build": "pack build",
    "version": "--version",
    "-n": "--dry-run",
    "--dryrun": "--dry-run",
    "--env": "--python",
    "--venv": "--python",
    "--path": "--target",
    "--only": "--fix",
    "--exclude": "--skip",
}
"""What other tools call a command or an option, and its name here."""
_HELP = ("help", "-help", "-?")
_WHERE = "where to look (default: $VIRTUAL_ENV, $CONDA_PREFIX, .venv, this Python)"
_SIZES = {
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "vpp": "virtual pipeline chunks on each rank",
    "cp": "context parallel",
    "ep": "expert parallel",
    "etp": "expert tensor parallel (Megatron itself takes --tp by default)",
    "dp": "data parallel",
    "world-size": "the number of ranks",
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of these arguments (by default the command line's); exit with 2 on wrong usage.

    ``command`` is the command's name.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        _welcome()
    if words[0] in _HELP:  # as git and cargo have it: `unhang help`, `unhang help check`
        words = [*(word for word in words[1:3] if word not in _HELP), "--help"]
    words = joined(words)
    at = next((number for number, word in enumerate(words) if not word.startswith("-")), len(words))
    command = "".join(words[at : at + 1])
    parser, parsers = _parsers(command)
    parser.refuse_unknown(words[:at], "; options follow the command, as in `unhang check -q`")
    chosen = parsers.get(command, parser)
    if chosen is not parser:
        chosen.refuse_unknown(words[at + 1 :])
    options, left = parser.parse_known_args(words)
    if command == "pack":  # after `--`
        chosen.error("the following arguments are required: ACTION")
    if command in _SEVERAL:  # of `a -o out b`, argparse takes only a
        getattr(options, _SEVERAL[command]).extend(word for word in left if word != "--")
    elif left:
        chosen.refuse_argument(left[-1])
    for name, value in vars(options).items():
        if value == "" or (isinstance(value, list) and "" in value):  # it must not mean the working directory
            chosen.error(f"the value of {name} is empty: is a variable not set?")
    return options


def named_packs(words: Sequence[str]) -> tuple[list[str], bool] | None:
    """Return the values of ``--pack`` in a command line, and whether ``--no-packs`` is; None if it asks for help only.

    The packs must be known before the options are parsed: they may bring upstreams, which are values of an option.
    ``pack new`` begins a pack where there is none.
    """
    words = joined(words)
    if not {*words}.isdisjoint(("-h", "--help", "--version")) or not {*words} & PAGES.keys():
        return None
    named, rest = [], iter(words)
    begins = next((word for word in words if word in PAGES), "") == "pack new"
    for word in rest:
        if word == "--":
            break
        if word == "--pack":
            named.append(next(rest, ""))
        elif word.startswith("--pack="):
            named.append(word.partition("=")[2])
    named = [name for name in named if name and not (begins and not os.path.isfile(os.path.join(name, "pack.json")))]
    return named, "--no-packs" in words


def whole() -> argparse.ArgumentParser:
    """Return the parser of all commands with all their options, for shell completion."""
    return _parsers(*COMMANDS, *MORE, *PACK)[0]


def joined(words: Sequence[str]) -> list[str]:
    """Return a command line with `pack new` as one word; `new` and `sweep` once were commands of their own."""
    at = next((number for number, word in enumerate(words) if not word.startswith("-")), len(words))
    name = " ".join(words[at : at + 2])
    if name in PACK:
        return [*words[:at], name, *words[at + 2 :]]
    old = words[at : at + 1] in (["new"], ["sweep"])
    return [*words[:at], f"pack {words[at]}", *words[at + 1 :]] if old else [*words]


class _Formatter(argparse.HelpFormatter):
    """argparse's formatter, given the width: to find it, argparse imports shutil and three compression modules."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=(columns(1) or 80) - 2)  # of stdout

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap the paragraphs, but not the examples, which are to be pasted."""
        prose, mark, examples = text.partition("examples:\n")
        wrapped = [super(_Formatter, self)._fill_text(part, width, indent) for part in prose.split("\n\n")]
        return "\n\n".join(wrapped) + mark + examples


class _Parser(argparse.ArgumentParser):
    """argparse's parser, with no abbreviations and with suggestions."""

    def __init__(self, *, page: Page, **options: Any) -> None:
        examples = "\n".join(f"  {example}" for example in page.examples)
        super().__init__(
            formatter_class=_Formatter,
            allow_abbrev=False,  # `--req` must not become another option when one is added
            description=page.description,
            epilog=f"{page.exits}\n\nexamples:\n{examples}",
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with 2. argparse would print up to ten lines of usage above the message."""
        from unhang import gate  # here: `--help` should be fast

        if message.startswith("one of the arguments PATH --live is "):
            message += "; --slurm, --ray and --kubectl go with --live"
        if message == "argument --fix: expected one argument":
            apply = "; to fix what is needed, run: unhang apply" if self.prog == "unhang check" else ""
            message = f"argument --fix: expected the id of a fix, as `unhang list` prints them{apply}"
        hint = f"  hint: `{self.prog} --help` shows the options, and examples"
        lines = gate.line(f"{self.prog}: error: {message}"), hint
        self.exit(2, "".join(f"{part}\n" for line in lines for part in folded(line, width(sys.stderr), "  ")))

    def refuse_unknown(self, words: Sequence[str], otherwise: str = "") -> None:
        """Exit if one of these words is an unknown option: argparse may name another mistake first."""
        known = self._option_string_actions
        for at, word in enumerate(words):
            name = word.partition("=")[0]
            if word == "--":
                return
            if len(word) == 1 or not word.startswith("-") or " " in word or word[1].isdigit():
                continue  # a value, as argparse reads it
            if name not in known and (name.startswith("--") or name[:2] not in known):  # -oDIR is -o DIR
                near = self._format_meant(name, words[at + 1 :]) or _OTHERS.get(name, "")
                near = near if near.partition(" ")[0] in known else closest(name, known)
                self.error(f"unrecognized option {name!r}{_meant(near) or otherwise}")

    def _format_meant(self, name: str, following: Sequence[str]) -> str:
        """Return the output format that another tool's option means, such as `--json` or `-f json`; else nothing."""
        action = self._option_string_actions.get("--output-format")
        words = (name.lstrip("-"), *following[:1]) if name in ("-f", "-o", "--format", "--output") else (name[2:],)
        found = [word for word in words if action is not None and word in (action.choices or ())]
        return f"--output-format {found[0]}" if found else ""

    def refuse_argument(self, word: str) -> NoReturn:
        """Exit because of an argument that the command does not take, and say which option may be meant."""
        instead = _meant("--help") if word in _HELP else ""
        if "--upstream" in self._option_string_actions:
            near = closest(word, packs.names())
            instead = instead or _meant(near and f"--upstream {near}")
        if "--fix" in self._option_string_actions and not instead:
            from unhang.shapes import catalog  # only an error needs it

            near = closest(word, catalog.fixes())
            instead = _meant(near and f"--fix {near}")
        if "--source" in self._option_string_actions and os.path.isdir(word):
            instead = "; for a folder write --source (a checkout), --target (a site-packages) or --python (a venv)"
        self.error(f"unexpected argument {word!r}{instead}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = action.dest == "command"
            choices = [*COMMANDS, *MORE] if is_command else [str(choice) for choice in action.choices]
            near = _OTHERS.get(str(value), "") if is_command else ""
            meant = _meant(near or closest(str(value), choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{meant} (choose from {', '.join(choices)})")


def _parsers(*commands: str) -> tuple[_Parser, dict[str, _Parser]]:
    """Return the whole parser, and that of each of these commands with its options: making those of all is slow.

    If there is no such command, all are there, without options: there is only help or an error to print.
    """
    parser = _Parser(prog="unhang", page=TOP, usage="unhang [-h] [--version] COMMAND ...", add_help=False)
    subparsers = parser.add_subparsers(
        required=True, prog="unhang", metavar="COMMAND", dest="command", help=argparse.SUPPRESS
    )
    known = [command for command in commands if command in PAGES]
    made = {name: subparsers.add_parser(name, page=PAGES[name]) for name in known or PAGES}
    for name in known:
        _OPTIONS[name](made[name])
        if name != "pack":  # it is none, but for what follows it
            _common(made[name])
    _listed(parser, "commands", COMMANDS)
    _listed(parser, "more", MORE)
    group = parser.add_argument_group("options")
    group.add_argument("-h", "--help", action="help", help="show this help message and exit")
    group.add_argument("--version", action="version", version=f"unhang {__version__}")
    return parser, made


def _listed(parser: argparse.ArgumentParser, title: str, names: Sequence[str]) -> None:
    """Add a list of commands to a help, as argparse would list them."""
    choice = argparse._SubParsersAction._ChoicesPseudoAction
    group = parser.add_argument_group(title)
    group._group_actions += [choice(name.rpartition(" ")[2], (), PAGES[name].summary) for name in names]


def _welcome() -> NoReturn:
    """Say what the commands are that matter, and exit with 2, as without a command nothing was done."""
    lines = [f"  unhang {name:<10}{_IN_SHORT[name]}" for name in _IN_SHORT]
    more = "`unhang --help` lists all commands, and `unhang COMMAND --help` has examples."
    print("\n".join([*folded(TOP.description, columns(2) or 80, ""), "", *lines, "", more]), file=sys.stderr)
    sys.exit(2)


def _meant(name: str) -> str:
    return f"; did you mean {name}?" if name else ""


def _check(parser: argparse.ArgumentParser) -> None:
    place = _environment(parser)
    place.add_argument(
        "--lock", metavar="FILE", nargs="+", action="extend", default=[],
        help="what a lock file or an SBOM pins, without an environment (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--image", metavar="PATH",
        help="an image, of which nothing is run: from `docker save`, an OCI layout, or an unpacked root file system; "
        "--python, --target and --source then name what is in it",
    )  # fmt: skip
    parser.add_argument(
        "--live", action="store_true",
        help="what the ranks that run here import, and which of them were started before a rewrite, by /proc alone",
    )  # fmt: skip
    parser.add_argument(
        "--expect-digest", metavar="DIGEST", type=_digest,
        help="exit with 1 unless the code has this digest, as `unhang check` printed it elsewhere",
    )  # fmt: skip
    _job(parser)
    _output(parser, "text", "json", "github", "sarif", "gitlab", "vex")
    _require(parser)
    _accept(parser)


def _apply(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    _job(parser)
    _even_if(parser)
    parser.add_argument("--dry-run", action="store_true", help="report as apply would, and write nothing")
    _output(parser, "text", "json", "github")
    _require(parser)
    _accept(parser)


def _diff(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    _job(parser)
    _even_if(parser)
    parser.add_argument(
        "--applied", action="store_true",
        help="show what is written here, against the original bytes that the receipts keep",
    )  # fmt: skip
    parser.add_argument(
        "--unknown", action="store_true",
        help="show what a rewrite would do to unknown shapes, each with the token that accepts it",
    )  # fmt: skip
    parser.add_argument(
        "--run", action="store_true",
        help="show the same, and run these functions on real torch in a child process, without the fix and with it",
    )  # fmt: skip
    _output(parser, "text", "json")
    _accept(parser)


def _revert(parser: argparse.ArgumentParser) -> None:
    _environment(parser)
    _output(parser, "text", "json", "github")
    parser.add_argument(
        "--force", action="store_true",
        help="also revert a file whose patched function you edited; your version is kept beside it, as "
        "FILE.unhang-kept",
    )  # fmt: skip


def _overlay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new or empty folder, or an overlay to replace")
    parser.add_argument("--check", action="store_true", help="write nothing; check what a job with DIR imports")
    parser.set_defaults(expect_digest=None)
    _environment(parser)
    _job(parser)
    _even_if(parser)
    _output(parser, "text", "json", "github")
    _require(parser)
    _accept(parser)


def _wheel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("requirements", metavar="REQ", nargs="*", help="megatron-core==0.17.1, or the path of a wheel")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="where to write them")
    _selection(parser)
    _job(parser)
    _even_if(parser)
    _output(parser, "text", "json")
    _require(parser)
    _accept(parser)
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
    group = parser.add_argument_group(_WHERE)
    group.add_argument("--python", metavar="PY", help="the environment of this interpreter, which runs the proofs")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, run by --python PY")
    place.add_argument("--source", metavar="DIR", help="a checkout, run by --python PY")
    _script(group)
    _fix(parser)
    what = "without sizes: only the proofs' own cases with this text in their name, including slow ones"
    parser.add_argument("--case", metavar="TEXT", help=what)
    group = parser.add_argument_group("on real NCCL")
    group.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="where the ranks run: a CPU, with gloo (default); or the GPUs that are free, with NCCL",
    )  # fmt: skip
    group.add_argument("--keep", metavar="DIR", help="with cuda: keep the logs, stacks and dumps of ranks that hang")
    group = parser.add_argument_group("the job (sizes not given are 1; DP follows from the world size)")
    for name, what in _SIZES.items():
        group.add_argument(f"--{name}", metavar="N", type=_size, help=what)
    _job(parser)
    _output(parser, "text", "json")
    parser.set_defaults(allow_none=None)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "paths", metavar="PATH", nargs="*", default=[],
        help="a dump of the flight recorder, stacks of py-spy, a log, or a folder of them; also gzipped",
    )  # fmt: skip
    what.add_argument(
        "--live", action="store_true",
        help="collect stacks, twice, and the recorder's dumps from a job that hangs now, and diagnose them; this takes "
        "a minute",
    )  # fmt: skip
    group = parser.add_argument_group("with --live (default: the ranks of this node)")
    nodes = group.add_mutually_exclusive_group()
    nodes.add_argument("--slurm", metavar="JOB", help="the nodes of this Slurm job")
    nodes.add_argument("--ray", metavar="ADDRESS", help="the nodes of this Ray cluster, such as auto")
    nodes.add_argument(
        "--kubectl", metavar="SELECTOR", help="the pods with this label; kubectl's options may follow: 'job=x -n team'"
    )
    group.add_argument(
        "--master", metavar="ADDRESS:PORT", help="if there are several jobs: the one whose ranks meet there"
    )
    group.add_argument("--keep", metavar="DIR", help="keep what was collected in this folder, to diagnose it again")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write a single page with ranks over time, and each rank's stack",
    )
    _place(parser)
    parser.set_defaults(allow_none=True)
    _job(parser)
    _output(parser, "text", "json", "github")


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", metavar="WORD", nargs="*", help="only fixes whose symptom or stacks have these words")
    _output(parser, "text", "json")


def _explain(parser: argparse.ArgumentParser) -> None:
    what = "a fix, a cause, an error code, a word of a report, or any words of an error or a symptom"
    parser.add_argument("query", metavar="WORDS", nargs="+", help=what)
    _output(parser, "text", "json")


def _matrix(parser: argparse.ArgumentParser) -> None:
    _selection(parser)
    parser.add_argument(
        "--version", metavar="SPEC", dest="release",
        help="only these releases: a version (0.17.1) or a PEP 440 specifier (~=0.17)",
    )  # fmt: skip
    parser.add_argument(
        "--upgrade",
        metavar="REQ",
        nargs="+",
        action="extend",
        default=[],
        help="what each newer release changes: for verl==0.7.1, or for all that a lock file pins (repeatable)",
    )
    _output(parser, "text", "markdown", "json", "svg", "osv")
    parser.add_argument("-o", "--output", metavar="DIR", help="where to write the advisories of --output-format osv")
    parser.add_argument("--against-index", action="store_true", help="compare with what the package index offers now")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.add_argument("--line", metavar="TEXT", help="print what may follow this line, as the script asks")


def _pack(parser: argparse.ArgumentParser) -> None:
    choices = [name.rpartition(" ")[2] for name in PACK]
    parser.add_argument("action", metavar="ACTION", choices=choices, help=argparse.SUPPRESS)
    parser.usage = "unhang pack [-h] ACTION ..."
    _listed(parser, "actions", PACK)


def _build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that has pack.json")
    parser.add_argument("-o", "--output", metavar="DIR", default=".", help="where to write it (default: this folder)")


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fix_id", metavar="ID", help="the id of the new fix, such as mtp-cp-deadlock")
    parser.add_argument(
        "--upstream",
        metavar="REQ",
        required=True,
        dest="release",
        help="the release: verl==0.7.1, or the path of a wheel",
    )
    begun = parser.add_mutually_exclusive_group(required=True)
    begun.add_argument(
        "--from-patch",
        metavar="FILE",
        help="a diff, or mails, as `git` writes them: a file, - for stdin, or the https address of a pull request",
    )
    begun.add_argument(
        "--from-commit", nargs=2, metavar=("CLONE", "REV"), help="a commit of upstream's, or a merge, in a clone"
    )
    parser.add_argument(
        "--kind", choices=HARNESSES, default=HARNESSES[0], dest="harness",
        help="how the scene shows the defect: by ranks that wait, or by the values that they compute",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=".", help="a checkout of unhang (default: this folder)"
    )
    group = parser.add_argument_group("with --pack DIR: an unproved fix of that pack, begun where there is none")
    group.add_argument("--import-name", metavar="NAME", help="the package of an upstream that no pack has yet")
    group.add_argument(
        "--leave-out", metavar="PATH", action="append", default=[], help="do without this part of the diff (repeatable)"
    )
    group.add_argument(
        "--strict", action="store_true", help="refuse a diff with parts for files that the release does not have"
    )
    _place(parser)
    parser.set_defaults(allow_none=True)


def _sweep(parser: argparse.ArgumentParser) -> None:
    _fix(parser)
    parser.add_argument(
        "--releases", metavar="REQ", nargs="+", action="extend", default=[],
        help="these releases: verl==0.7.1, from the environment if it has that, else from the index; paths of wheels",
    )  # fmt: skip
    parser.add_argument(
        "--from-clone", nargs=2, metavar=("CLONE", "TAGS"), action="append", default=[],
        help="the tags of a clone that match a pattern, such as 'v0.*', or one commit (repeatable)",
    )  # fmt: skip
    _place(parser)
    parser.set_defaults(allow_none=True)


_OPTIONS = {
    "check": _check,
    "apply": _apply,
    "diff": _diff,
    "revert": _revert,
    "overlay": _overlay,
    "wheel": _wheel,
    "prove": _prove,
    "diagnose": _diagnose,
    "list": _list,
    "explain": _explain,
    "matrix": _matrix,
    "pack": _pack,
    "pack new": _new,
    "pack build": _build,
    "pack sweep": _sweep,
    "completion": _completion,
}


def _common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command: whose fixes, how much it says, and in which colours."""
    group = parser.add_argument_group("fixes besides unhang's own")
    group.add_argument(
        "--pack", metavar="DIR", action="append", default=[], help="add the fixes of this pack (repeatable)"
    )
    group.add_argument(
        "--no-packs", action="store_true", help="ignore UNHANG_PACKS, and the packs installed beside unhang"
    )
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="give a fix's parameter this value (repeatable)",
    )
    group = parser.add_argument_group("how much to say")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="only results and errors, no notes or progress")
    loudness.add_argument(
        "-v", "--verbose", action="store_true", help="more detail, such as settled fixes and the import path"
    )
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto",
        help="default: auto, which is on a terminal unless NO_COLOR is set",
    )  # fmt: skip


def _environment(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the options of the commands that work on an environment: where to look, which is returned, and at what."""
    group, place = _place(parser)
    group.add_argument("--allow-none", action="store_true", help="do not fail if no upstream is installed")
    _selection(parser)
    return place


def _place(parser: argparse.ArgumentParser) -> tuple[argparse._ArgumentGroup, argparse._MutuallyExclusiveGroup]:
    group = parser.add_argument_group(_WHERE)
    place = group.add_mutually_exclusive_group()
    place.add_argument("--python", metavar="PY", help="the environment of this interpreter")
    place.add_argument("--target", metavar="DIR", help="a site-packages folder, without an interpreter")
    place.add_argument("--source", metavar="DIR", help="a checkout")
    _script(group)
    return group, place


def _selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to look at")
    _fix(group)
    group.add_argument(
        "--skip", metavar="ID", action="append", default=[], help="all fixes except this one (repeatable)"
    )
    group.add_argument(
        "--kind", metavar="KIND", action="append", default=[], choices=KINDS,
        help=f"only fixes whose defect does this to a job (repeatable): {', '.join(KINDS)}",
    )  # fmt: skip
    group.add_argument(
        "--upstream", metavar="NAME", action="append", default=[], choices=packs.names(),
        help=f"only this upstream (repeatable): {', '.join(packs.names())}",
    )  # fmt: skip


def _fix(group: argparse._ActionsContainer) -> None:
    group.add_argument("--fix", metavar="ID", action="append", default=[], help="only this fix (repeatable)")


def _script(group: argparse._ActionsContainer) -> None:
    group.add_argument("--script", metavar="FILE", help="put this script's folder first on the path, as torchrun does")


def _output(parser: argparse.ArgumentParser, *formats: str) -> None:
    parser.add_argument("--output-format", choices=formats, default=formats[0], help=f"default: {formats[0]}")


def _job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job: which defects strike it, and which fixes would harm it")
    group.add_argument(
        "--job", metavar="FILE", action="append", default=[],
        help="what it is started with: a script, a config, - for a command line on stdin, pid:1234 (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--setting", metavar="NAME=VALUE", action="append", default=[],
        help="one of its settings, which wins over those of --job (repeatable)",
    )  # fmt: skip


def _even_if(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--even-if", metavar="CONDITION", action="append", default=[],
        help="write a fix also where it would harm the job, under the condition that was printed (repeatable)",
    )  # fmt: skip


def _require(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--require", metavar="ID", action="append", default=[],
        help="exit with 1 unless this fix is in place, or not needed, on every installation (repeatable)",
    )  # fmt: skip


def _accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept", metavar="TOKEN", action="append", default=[],
        help="accept the rewrite that has this token, as `unhang diff` prints it for an unknown shape (repeatable)",
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
