"""Shell scripts: the words of their commands, as far as the script itself tells them."""

from __future__ import annotations

import pytest

from unhang.job import shell
from unhang.job.words import NoShellError, Word


def last(script: str) -> list[str]:
    """Return the words of the last command, after its name; what is unknown as ``?``, what may be left out in ()."""
    return [shown(word) for word in shell.commands(script, {}, [])[-1].words[1:]]


def shown(word: Word) -> str:
    text = f"{word.text}{'?' if word.unknown else ''}{f'~{word.unless}' if word.unless else ''}"
    return f"({text})" if word.maybe else text


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("x a 'b $c' \"d e\" f\\ g", ["a", "b $c", "d e", "f g"]),
        ("x a \\\n  b  # c\n", ["a", "b"]),
        ("x a > log 2>&1 | tee b", ["b"]),
        ("A=1\nx $A ${A}b \"${A}\" '$A'", ["1", "1b", "1", "$A"]),
        ('A="1 2"\nx $A "$A"', ["1", "2", "1 2"]),
        ('A=(1 "2 3" # no\n 4)\nA+=(5)\nx "${A[@]}" ${#A[@]} ${A[1]}', ["1", "2 3", "4", "5", "4", "2", "3"]),
        ('A=("--a 1" "")\nx ${A[@]} "${A[@]}"', ["--a", "1", "--a 1", ""]),
        ('x ${A:-4} ${B-} "${B-}" ${A:=5} $A', ["4~A", "~B", "5~A", "5~A"]),
        ("A=2\nx ${A:-4} ${A:+set} ${B:+--b}", ["2", "set", "(--b)"]),
        ("A=3\nB=$((A * 2 + 8/4))\nx $B $((B%3)) $((1<<2))", ["8", "2", "?"]),
        ("x $A $(date) `id` $1 a$A", ["?", "?", "?", "?", "a?"]),
        ('x "$@" a', ["a"]),
        ("export A=1 B=2\nlocal C=3\nx $A$B$C", ["123"]),
        ("A=1 x $A", ["?"]),  # it is set for the command, and not for its words
        ("if [ $M = a ]; then A=1; else A=2; fi\nx $A b", ["?", "b"]),
        ("M=a\nif [ $M = a ]; then A=1; else A=2; fi\nx $A", ["1"]),
        ("M=a\nif [[ \"$M\" != a && -n $M ]]; then A=1; elif [ -z '' ]; then A=3; fi\nx $A", ["3"]),
        ("M=${M:-a}\nif [ $M == a ]; then A=1; fi\nx $A", ["1~M"]),
        ("A=(a)\nif f; then A+=(--b 1); fi\nx ${A[@]}", ["a", "(--b)", "(1)"]),
        ("if f; then A=(--a 1 --b 2); else A=(--a 2 --b 2); fi\nx ${A[@]}",
         ["(--a)", "(1)", "--b", "2", "(--a)", "(2)"]),
        ("if f; then A=(--a 1 --b 2); else A=(--a 2 --b 1); fi\nx ${A[@]}",
         ["(--a)", "(1)", "(--b)", "(2)", "(--a)", "(2)", "(--b)", "(1)"]),
        ("case $M in a|b) A=1 ;; *) A=2 ;; esac\nx $A", ["?"]),
        ("M=b\ncase $M in a|b) A=1 ;; *) A=2 ;; esac\nx $A", ["1"]),
        ("f() { A=1; }\nf\nx $A", ["?"]),
        ("for A in 1 2; do B=$A; done\nx $A $B", ["?", "?"]),
        ("A=1\n(A=2; f)\nx $A", ["1"]),
        ("A=1\ncd b && A=2\nx $A", ["2"]),
        ("A=1\n[ -n $Q ] && A=2\nx $A", ["?"]),
        ("A=1\n[ -n '' ] && A=2\nx $A", ["1"]),
        ("A=1\ncommand -v uv || { A=2; }\nx $A", ["?"]),
        ("A=1\nread A\nx $A", ["?"]),
        ("A=1\n((A += 1))\nx $A", ["?"]),
        ("cat <<EOF\nx no\nEOF\nx $A yes", ["?", "yes"]),
        ("A=1\nsbatch <<EOF\n#SBATCH -N 1\nx $A \\$B\nEOF\n", ["1", "?"]),
        ("A=1\nbash -c \"x $A '$B' \\$A\"", ["1", "?", "1"]),
        ("A='x 1'\neval $A", ["1"]),
        ("A=$(pwd)/b\nB=\"--c 1 --d $A\"\nx $B", ["--c", "1", "--d", "/b?"]),
        ("while f; do for a in b; do c; done; done\nx y", ["y"]),
        ("if [[ ( a == b || c == c ) && d == d ]]; then e; fi\nx y", ["y"]),
        ("x --a 'don'\"'\"'t'", ["--a", "don't"]),
        ("x \"it's $((1 + 1)) o'clock\"", ["it's 2 o'clock"]),
    ],
)  # fmt: skip
def test_the_words_of_a_command(script: str, expected: list[str]) -> None:
    assert last(script) == expected


def test_words_know_their_line_and_why_they_are_unknown() -> None:
    (command,) = shell.commands("A=(\n  --b 1\n  --c $D\n)\n\nx ${A[@]} e", {}, [])
    assert [(word.text, word.line) for word in command.words] == [
        ("x", 6), ("--b", 2), ("1", 2), ("--c", 3), ("", 3), ("e", 6),
    ]  # fmt: skip
    assert command.words[4].unknown == "D is not set here"


def test_scripts_know_the_variables_of_those_before_them_and_what_they_source() -> None:
    variables, notes = {}, list[str]()  # type: ignore[var-annotated]
    shell.commands("A=1", variables, notes)
    (command,) = shell.commands("A=2; source env.sh\nx $A", variables, notes)
    assert (command.words[1].text, notes) == ("1", [])
    (command,) = shell.commands("A=2; source env.sh\nx $A", {}, notes)
    assert command.words[1].unknown == "A may be set by env.sh"
    assert notes == ["line 1 reads env.sh: give it too, before this file"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('f() { x "$@"; }\nf --a 4', "the arguments of a function are not followed"),
        ("f() { A=4; }\nA=1\nf\nx $A", "A is set in f"),
        ("mapfile -t A < args.txt\nx ${A[*]}", "A is read when the script runs"),
    ],
)
def test_what_a_function_or_a_file_brings_is_not_known(script: str, why: str) -> None:
    (command,) = [it for it in shell.commands(script, {}, []) if it.words[0].text == "x"]
    assert command.words[1].unknown == why


def test_the_arguments_of_a_script_are_none_and_it_says_so_and_those_that_it_sets_are_its_own() -> None:
    notes: list[str] = []
    (command,) = shell.commands('x --a 1 "$@"', {}, notes)
    assert [it.text for it in command.words] == ["x", "--a", "1"]
    assert notes == ["line 1 passes on what the script itself is given: if that is anything, name it by --setting"]
    (command,) = shell.commands("set -- --a 4\nx $*", {}, [])
    assert [it.text for it in command.words] == ["x", "--a", "4"]


@pytest.mark.parametrize(
    "script",
    [
        "x 'a",
        'x "a',
        "x ${a",
        "A=(1",
        "fi",
        "a )",
        "x $((" * 200,
        "x " + '"$(' * 100,
        "A=" + "a" * 1000 + "\n" + "A=$A$A\n" * 40,
        "A=(a a)\n" + "A=(${A[@]} ${A[@]})\n" * 40,
        "if a; then\n" * 200,
        "A='eval $A'\n" + 'bash -c "bash -c \\"$A\\""\nx )',
    ],
)
def test_what_is_no_script_is_refused_soon(script: str) -> None:
    with pytest.raises(NoShellError, match=r"."):
        shell.commands(script, {}, [])
