"""The command line's arguments: what each command accepts, its help, and wrong usage."""

import re
import shlex
import sys

import pytest

from unhang.cli import explain_command
from unhang.cli.arguments import parse
from unhang.cli.requests import selection
from unhang.shapes import catalog

PLACES = ("--python", "--target", "--source", "--script")
COMMON = "-h --help -q --pack --no-packs --set --quiet -v --verbose --color"
PLACE = "--python --target --source --script --allow-none"
CHOICE = "--fix --skip --kind --upstream"
COMMANDS = ("check", "apply", "revert", "diff", "diagnose", "explain", "list")
MORE = ("prove", "wheel", "overlay", "matrix", "pack", "completion")
ALL = (*COMMANDS, *MORE, "pack new", "pack sweep", "pack build")


def stopped(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    """Return the exit code, stdout and stderr of arguments that end the program."""
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    return (caught.value.code, *capsys.readouterr())


def test_the_arguments_are_those_given_or_the_command_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["unhang", "apply", "--target", "site"])
    assert parse() == parse(["apply", "--target", "site"])
    assert (parse().command, parse().target) == ("apply", "site")
    assert parse(["check"]).command == "check"


def listed(help_: str, title: str) -> list[str]:
    """Return the words that begin the lines below a title of a help."""
    below = help_.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (\w+)", below, re.MULTILINE)


def test_help_and_an_unknown_command_name_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = stopped(capsys, "--help")
    assert (code, err) == (0, "")
    assert (listed(out, "commands"), listed(out, "more")) == ([*COMMANDS], [*MORE])
    assert listed(stopped(capsys, "pack", "--help")[1], "actions") == ["new", "sweep", "build"]
    code, out, err = stopped(capsys, "frobnicate")
    assert (code, out) == (2, "")
    assert f"'frobnicate' (choose from {', '.join([*COMMANDS, *MORE])})\n" in err


@pytest.mark.parametrize("action", ["new", "sweep"])
def test_what_was_a_command_once_still_works(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"new": "ID --upstream verl==1 --from-patch a", "sweep": "--pack a"}[action].split()
    old, new = parse([action, *words]), parse(["pack", action, *words])
    assert old == new
    assert old.command == f"pack {action}"
    helps = [stopped(capsys, *it, "--help") for it in ([action], ["pack", action])]
    helps += [stopped(capsys, "help", *it) for it in ([action], ["pack", action])]
    assert len({*helps}) == 1
    assert f"\n  unhang pack {action} " in helps[0][1]
    assert stopped(capsys, action, "--frob") == stopped(capsys, "pack", action, "--frob")


def test_a_pack_of_the_command_line_may_have_the_name_of_an_action() -> None:
    assert parse(["check", "--pack", "new"]).command == "check"
    assert parse(["list", "pack", "new"]).words == ["pack", "new"]
    assert (parse(["pack", "build", "new"]).command, parse(["pack", "build", "new"]).folder) == ("pack build", "new")


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    whole, of_check = stopped(capsys, "--help"), stopped(capsys, "check", "--help")
    assert whole != of_check
    for word in "help", "-help", "-?":
        assert stopped(capsys, word) == stopped(capsys, word, "help") == whole
        assert stopped(capsys, word, "check") == of_check
    code, out, err = stopped(capsys, "help", "frobnicate")
    assert (code, out) == (2, "")
    assert "invalid choice: 'frobnicate'" in err
    assert "did you mean --help?" in stopped(capsys, "check", "help")[2]


def test_without_a_command_it_shows_the_five_that_matter(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = stopped(capsys)
    shown = [line.split()[1] for line in err.splitlines() if line.startswith("  unhang ")]
    assert (code, out, shown) == (2, "", ["check", "apply", "revert", "diagnose", "explain"])
    assert max(map(len, err.splitlines())) <= 80
    assert "`unhang --help` lists all commands" in err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("check", f"{PLACE} {CHOICE} --lock --image --live --expect-digest --output-format --require --accept "
         "--job --setting"),
        ("apply", f"{PLACE} {CHOICE} --dry-run --output-format --require --accept --job --setting --even-if"),
        ("diff", f"{PLACE} {CHOICE} --applied --unknown --run --output-format --accept --job --setting --even-if"),
        ("revert", f"{PLACE} {CHOICE} --output-format --force"),
        ("overlay", f"--check {PLACE} {CHOICE} --output-format --require --accept --job --setting --even-if"),
        ("wheel", f"--job --setting --even-if -o --output {CHOICE} --output-format --require --accept -r --requirement "
         "--python-version --index-url --extra-index-url --find-links --platform --abi --implementation --no-index "
         "--require-hashes --pre"),
        ("prove", "--python --target --source --script --fix --case --device --keep --tp --pp --vpp --cp --ep "
         "--etp --dp --world-size --output-format --job --setting"),
        ("diagnose", "--live --slurm --ray --kubectl -n --master --keep --html --python --target --source "
         "--job --setting --script --output-format"),
        ("list", "--output-format"),
        ("explain", "--output-format"),
         ("matrix", f"{CHOICE} --version --upgrade --output-format -o --output --against-index"),
        ("pack new", "--upstream --from-patch --from-commit --kind -o --output --import-name --leave-out --strict "
         "--python --target --source --script"),
        ("pack build", "-o --output"),
        ("pack sweep", "--fix --releases --from-clone --python --target --source --script"),
        ("completion", "--line"),
    ],
)  # fmt: skip
def test_the_help_of_a_command_has_all_its_options(
    command: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = stopped(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", out.partition("examples:")[0])) == {
        *COMMON.split(),
        *options.split(),
    }


@pytest.mark.parametrize("command", ["", *ALL])
def test_help_describes_the_command_and_ends_with_examples_that_can_be_run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = stopped(capsys, *command.split(), "--help")[1]
    assert max(map(len, out.splitlines())) <= 80
    help_, _, examples = out.partition("\n\nexamples:\n")
    usage, description, *_ = help_.split("\n\n")
    assert usage.startswith(f"usage: unhang {command}".rstrip())
    assert (len(description) > 60, "exit codes: 0 " in help_) == (True, True)
    lines = examples.splitlines()
    assert 2 <= len(lines) <= 4
    commands: list[str] = []
    for line in lines:
        line = re.sub(r"^eval \"\$\((.*)\)\"|[|>&].*", r"\1", line.strip())
        program, *words = shlex.split(line, comments=True)
        if words[0] != "COMMAND":
            options = parse(words)
            assert program == "unhang"
            commands.append(options.command)
            selection({**vars(options), "job": []})  # no fix has another name by now; no such job is here
            if options.command == "explain":
                explain_command.run(options)  # raises if it has no such page
            assert options.command != "pack new" or options.fix_id not in catalog.fixes()
    assert any(it.startswith(command) for it in commands)


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_width(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    longest = max(map(len, stopped(capsys, "check", "--help")[1].splitlines()))
    assert width - 20 < longest < width


def test_wrong_usage_is_folded_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unhang.cli.arguments.width", lambda _: 60)
    code, _, err = stopped(capsys, "frobnicate")
    assert code == 2
    assert max(map(len, err.splitlines())) <= 60
    assert "invalid choice:\n  'frobnicate' (choose from" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check --target a --python b", "not allowed with argument"),
        ("list -q --verbose", "not allowed with argument -q/--quiet"),
        ("explain", "required: WORDS"),
        ("pack", "unhang pack: error: the following arguments are required: ACTION"),
        ("pack -- new", "required: ACTION"),
        ("pack frob", "argument ACTION: invalid choice: 'frob' (choose from new, sweep, build)"),
        ("pack -q new", "unhang pack: error: unrecognized option '-q'"),
        ("prove --tp 0", "'0' is not a number of 1 or more"),
        ("prove --world-size -1", "'-1' is not a number of 1 or more"),
        ("prove --cp 1.5", "'1.5' is not a number of 1 or more"),
        ("prove --cp ''", "'' is not a number of 1 or more"),
        ("prove --cp two", "'two' is not a number of 1 or more"),
        *(
            (f"check --expect-digest '{word}'", f"{word!r} is not a digest: 16 hexadecimal digits")
            for word in ("", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdefg", "error[no-upstream]:")
        ),
        # a near name is suggested, a far one is not
        ("chek", "argument COMMAND: invalid choice: 'chek'; did you mean check? (choose from check, apply, "),
        ("chek --fix x", "invalid choice: 'chek'"),
        ("frobnicate", "invalid choice: 'frobnicate' (choose from"),
        # what other tools call it
        ("install", "invalid choice: 'install'; did you mean apply? (choose from"),
        ("undo", "did you mean revert?"),
        ("build our-pack", "did you mean pack build?"),
        ("version", "did you mean --version?"),
        ("apply -n", "unrecognized option '-n'; did you mean --dry-run?"),
        ("list -n", "unrecognized option '-n'\n"),
        ("check --venv x", "unrecognized option '--venv'; did you mean --python?"),
        ("check --json", "unrecognized option '--json'; did you mean --output-format json?"),
        ("check -f json", "unrecognized option '-f'; did you mean --output-format json?"),
        ("check --format sarif", "did you mean --output-format sarif?"),
        ("check -f yaml", "unrecognized option '-f'\n"),
        ("completion bash --json", "unrecognized option '--json'\n"),
        ("apply mtp-cp-deadlock", "unexpected argument 'mtp-cp-deadlock'; did you mean --fix mtp-cp-deadlock?"),
        ("apply mtp-cp-deadlok", "unexpected argument 'mtp-cp-deadlok'; did you mean --fix mtp-cp-deadlock?"),
        ("check --output-format yaml", "invalid choice: 'yaml' (choose from text, json, github, sarif, gitlab, vex)"),
        ("check --output-format jsn", "invalid choice: 'jsn'; did you mean json? (choose from"),
        ("list --color alway", "invalid choice: 'alway'; did you mean always? (choose from"),
        ("check --upstream swift", "argument --upstream: invalid choice: 'swift'; did you mean ms-swift? (choose from"),
        ("check --upstream megatron_core", "did you mean megatron-core?"),
        ("completion csh", "did you mean tcsh?"),
        (
            "check --fix",
            "--fix: expected the id of a fix, as `unhang list` prints them; to fix what is needed, run: unhang apply",
        ),
        ("apply --fix", "expected the id of a fix, as `unhang list` prints them\n"),
        # no abbreviations
        ("check --req mtp-cp-deadlock", "unrecognized option '--req'; did you mean --require?"),
        ("check --req=mtp-cp-deadlock", "unrecognized option '--req'; did you mean --require?"),
        ("wheel --outpt out verl==0.7.1", "unrecognized option '--outpt'; did you mean --output?"),
        ("apply --dryrun", "did you mean --dry-run?"),
        ("completion zsh --output-format json", "unrecognized option '--output-format'\n"),
        ("list --frobnicate", "unrecognized option '--frobnicate'\n"),
        ("check -x", "unrecognized option '-x'\n"),
        ("check -qx", "x'\n"),
        ("--versoin", "unrecognized option '--versoin'; did you mean --version?"),
        # options before the command, and arguments that are none
        ("--target site check", "unrecognized option '--target'; options follow the command"),
        ("-q check", "unrecognized option '-q'; options follow the command"),
        ("check verl", "unexpected argument 'verl'; did you mean --upstream verl?"),
        ("check /", "unexpected argument '/'; for a folder write --source (a checkout), --target (a site-packages)"),
        ("completion bash /", "unexpected argument '/'\n"),
        ("diagnose", "one of the arguments PATH --live is required"),
        ("diagnose --slurm 12", "is required; --slurm, --ray and --kubectl go with --live"),
        ("diagnose a --live", "argument --live: not allowed with argument PATH"),
        ("diagnose --live a", "argument PATH: not allowed with argument --live"),
        ("diagnose a ''", "the value of paths is empty"),
        ("check -- x", "unexpected argument 'x'\n"),
        # an unset variable of a script must not mean the working directory, or the default
        *((f"check {option}=", "is empty: is a variable not set?") for option in PLACES),
        *((f"check {option} ''", f"the value of {option[2:]} is empty: is a variable not set?") for option in PLACES),
        ("wheel x -o ''", "the value of output is empty"),
        ("wheel '' -o out", "the value of requirements is empty"),
        ("overlay ''", "the value of folder is empty"),
        ("check --fix ''", "the value of fix is empty"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = stopped(capsys, *shlex.split(arguments))
    assert (code, out, message in err) == (2, "", True), err
    assert re.fullmatch(
        r"unhang[ a-z]*: error: .+\n  hint: `unhang[ a-z]* --help` shows the options, and examples\n", err
    )


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("check --target=-site", "target", "-site"),
        ("check --script 'a b'", "script", "a b"),
        ("wheel -oout x", "output", "out"),
        ("wheel a -o out b -q c", "requirements", ["a", "b", "c"]),
        ("wheel -o out a -- b", "requirements", ["a", "b"]),
        ("diagnose a --python p b -q c", "paths", ["a", "b", "c"]),
        ("diagnose -- -a", "paths", ["-a"]),
        ("diagnose --live", "paths", []),
        ("list a -v b", "words", ["a", "b"]),
    ],
)
def test_what_is_no_option_is_a_value(arguments: str, name: str, value: object) -> None:
    assert getattr(parse(shlex.split(arguments)), name) == value


@pytest.mark.parametrize("command", ["check", "list", "explain FIX", "wheel -o DIR", "overlay DIR", "matrix", "prove"])
def test_every_command_can_say_less_or_more_and_in_colour(command: str) -> None:
    def said(*words: str) -> tuple[bool, bool, str]:
        options = parse([*command.split(), *words])
        return options.quiet, options.verbose, options.color

    assert said() == (False, False, "auto")
    assert said("-q", "--color", "never") == said("--quiet", "--color=never") == (True, False, "never")
    assert said("-v", "--color", "always") == said("--verbose", "--color=always") == (False, True, "always")


def test_pips_options_keep_their_order() -> None:
    words = ["--no-index", "--find-links", "here", "--index-url", "https://a", "--find-links", "there"]
    assert parse(["wheel", "verl==0.7.1", "-o", "out", *words]).pip_options == words
    assert parse(["wheel", "verl==0.7.1", "-o", "out"]).pip_options == []
