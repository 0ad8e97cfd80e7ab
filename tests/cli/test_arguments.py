"""The command line's arguments: what each command accepts, its help, and wrong usage."""

from __future__ import annotations

import re
import sys

import pytest

from unhang.cli.arguments import parse

COMMON = "-h --help -q --quiet -v --verbose --color"
COMMANDS = ("check", "apply", "diff", "revert", "overlay", "wheel", "prove", "list", "explain", "matrix")


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


def test_help_and_an_unknown_command_name_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = stopped(capsys, "--help")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("    ") and line[4] != " "] == [*COMMANDS]
    code, out, err = stopped(capsys, "frobnicate")
    assert (code, out) == (2, "")
    assert all(command in err for command in ("frobnicate", *COMMANDS))
    code, out, err = stopped(capsys)
    assert (code, out, "COMMAND" in err) == (2, "", True)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("check", "--python --target --source --script --allow-none --fix --skip --upstream --expect-digest "
         "--output-format --require"),
        ("apply", "--python --target --source --script --allow-none --fix --skip --upstream --dry-run --output-format "
         "--require --unverified"),
        ("diff", "--python --target --source --script --allow-none --fix --skip --upstream --unverified"),
        ("revert", "--python --target --source --script --allow-none --fix --skip --upstream --output-format --force"),
        ("overlay", "--check --python --target --source --script --allow-none --fix --skip --upstream --output-format "
         "--require --unverified"),
        ("wheel", "-o --output --fix --skip --upstream --output-format --require --unverified -r --requirement "
         "--python-version --index-url --extra-index-url --find-links --platform --abi --implementation --no-index "
         "--require-hashes --pre"),
        ("prove", "--python --target --source --script --fix --tp --pp --cp --ep --etp --dp --world-size "
         "--output-format"),
        ("list", ""),
        ("explain", ""),
        ("matrix", "--fix --skip --upstream --version --output-format --against-index"),
    ],
)  # fmt: skip
def test_the_help_of_a_command_has_all_its_options(
    command: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = stopped(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", out)) == {*COMMON.split(), *options.split()}


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_width(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    longest = max(map(len, stopped(capsys, "check", "--help")[1].splitlines()))
    assert width - 20 < longest < width


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--target", "a", "--python", "b"], "not allowed with argument"),
        (["list", "-q", "--verbose"], "not allowed with argument -q/--quiet"),
        (["list", "--color", "yes"], "invalid choice: 'yes'"),
        (["check", "--output-format", "yaml"], "invalid choice: 'yaml'"),
        (["diff", "--output-format", "json"], "unrecognized arguments"),
        (["check", "--upstream", "megatron"], "invalid choice: 'megatron'"),
        (["explain"], "required: FIX"),
        (["--target", "site", "check"], "invalid choice: 'site'"),
        (["prove", "--tp", "0"], "'0' is not a number of 1 or more"),
        (["prove", "--world-size", "-1"], "'-1' is not a number of 1 or more"),
        (["prove", "--cp", "1.5"], "'1.5' is not a number of 1 or more"),
        (["prove", "--cp", ""], "'' is not a number of 1 or more"),
        (["prove", "--cp", "two"], "'two' is not a number of 1 or more"),
        *(
            (["check", "--expect-digest", word], f"{word!r} is not a digest: 16 hexadecimal digits")
            for word in ("", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdefg", "error[no-upstream]:")
        ),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = stopped(capsys, *arguments)
    assert (code, out, message in err) == (2, "", True), err


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
