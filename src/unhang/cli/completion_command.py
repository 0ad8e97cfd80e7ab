"""``unhang completion SHELL``: a script for the shell, which asks the same command what may follow a line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from unhang.cli.arguments import joined, whole
from unhang.cli.error_codes import causes, codes, words
from unhang.cli.help import COMMANDS, MORE
from unhang.shapes import catalog

_FIXES = ("fix", "skip", "require")
_SCRIPTS = {
    "bash": """\
_unhang() {
    local IFS=$'\\n'
    COMPREPLY=($(unhang completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _unhang unhang
""",
    "zsh": """\
#compdef unhang
_unhang() {
    local -a found
    found=(${(f)"$(unhang completion zsh --line "${BUFFER[1,CURSOR]}" 2>/dev/null)"})
    (( $#found )) && compadd -- $found || _files
}
if [ "$funcstack[1]" = _unhang ]; then _unhang "$@"; else compdef _unhang unhang; fi
""",
    "fish": """\
complete -c unhang -a '(unhang completion fish --line (commandline -cp) 2>/dev/null)'
""",
    "tcsh": """\
complete unhang 'C@*/*@f@' 'p@*@`unhang completion tcsh --line "$COMMAND_LINE"`@'
""",
}


def run(options: argparse.Namespace) -> int:
    """Run ``unhang completion``: print the script; or, with ``--line``, what may follow that line."""
    print("\n".join(following(options.line)) if options.line else _SCRIPTS[options.shell].rstrip())
    return 0


def following(line: str) -> list[str]:
    """Return the words that may end a line; none where a path or a value of one's own is due, which the shell knows."""
    *before, last = line.split(" ")
    typed = [word for word in before[1:] if word]
    found = _next(typed, is_option=last.startswith("-"))
    return sorted(word for word in found if word.startswith(last))


def _next(typed: list[str], *, is_option: bool) -> Iterable[str]:
    """Return the words that may come after these."""
    parser: argparse.ArgumentParser = whole()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if not typed:
        return [*parser._option_string_actions] if is_option else [*COMMANDS, *MORE]
    typed = joined(typed)
    if typed[0] not in commands.choices:
        return ()
    command: argparse.ArgumentParser = commands.choices[typed[0]]
    options: dict[str, argparse.Action] = command._option_string_actions
    given = options.get(typed[-1])
    if given is not None and given.nargs != 0:
        return _values(given)
    if is_option:
        return options
    return [word for action in command._actions if not action.option_strings for word in _values(action)]


def _values(action: argparse.Action) -> Iterable[str]:
    if action.dest in _FIXES:
        return catalog.fixes()
    if action.dest == "query":
        return (*catalog.fixes(), *causes(), *codes(), *words())
    return map(str, action.choices or ())
