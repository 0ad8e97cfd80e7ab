"""``unhang completion SHELL``: the script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from unhang.cli.arguments import whole
from unhang.cli.error_codes import codes
from unhang.errors import UnhangError
from unhang.shapes import catalog

_FIXES = ("fix", "skip", "require")
_FILES = ("script", "requirement_files", "python", "requirements", "paths")
_FOLDERS = ("target", "source", "folder", "output")


def run(options: argparse.Namespace) -> int:
    """Run ``unhang completion``: print the script. Raises UnhangError ``no-shtab``."""
    try:
        import shtab
    except ImportError:
        hint = "pip install shtab, into the environment of unhang"
        raise UnhangError(
            "no-shtab", "the completion scripts are made by shtab, which is not installed", hint=hint
        ) from None
    parser = whole()
    for action in _actions(parser):
        if action.dest in _FIXES:
            action.choices = list(catalog.fixes())
        elif action.dest == "name":
            action.choices = [*catalog.fixes(), *codes()]
        elif action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Return the options and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
