"""Find the commands that an output suggests, and run them as they stand, as somebody who pastes them does."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# In backticks, in brackets at the end of an annotation, a whole hint, or to the end of the line that announces one.
_SUGGESTED = re.compile(
    r"`(unhang [^`]*)`|\((unhang [^`]*?)\)$|^ *(unhang .*)$|(?:run|do|to undo): (unhang .*)$", re.MULTILINE
)


class Suggestion(NamedTuple):
    """A command that an output suggests."""

    command: str
    lead: str
    """The text before it on its line."""


def found(output: str) -> list[Suggestion]:
    matches = _SUGGESTED.finditer(output)
    suggestions = [Suggestion(next(filter(None, match.groups())), _lead(output, match)) for match in matches]
    return list({one.command: one for one in suggestions}.values())


def _lead(output: str, match: re.Match[str]) -> str:
    return output[output.rfind("\n", 0, match.start()) + 1 : match.end()].partition("unhang ")[0]


def paste(command: str, *, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a suggested command in a shell; its exit code must say that it was understood and carried out.

    Raises AssertionError with the output.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["sh", "-c", command], cwd=cwd, env={**os.environ, "PATH": path, **env}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    accepted = ran.returncode in (0, 1) and not re.search("^(usage|Traceback)", ran.stderr, re.MULTILINE)
    assert accepted, f"$ {command}\n{ran.returncode}\n{ran.stdout}{ran.stderr}"
    return ran
