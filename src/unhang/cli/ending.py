"""The end of a command that has written: if anything fails from then on, the user is told what is in place."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, TextIO

from unhang.errors import STDOUT, UnhangError, described
from unhang.survey.preview import with_rewrites
from unhang.survey.verdicts import again
from unhang.tell import console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from unhang.records import Request
    from unhang.rewrite.plan import FilePlan
    from unhang.survey.verdicts import Survey


_lost: list[TextIO] = []  # kept: Python 3.13 prints a traceback for what a discarded stream cannot flush


class Ending:
    """Guards the steps after the commit, each in a ``with``: a step that fails is named, and the next one follows."""

    def __init__(self, done: str) -> None:
        """``done`` is a clause that says what is on disk now."""
        self.done = done

    def __enter__(self) -> None:
        """Begin a step."""

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> bool:
        """End a step; what it has printed must have arrived."""
        if error is None:
            try:
                sys.stdout.flush()
            except OSError as failure:
                error = failure
        if error is None:
            return True
        if not isinstance(error, Exception):
            raise type(error)(self.done) from None  # Ctrl-C
        is_stdout = isinstance(error, OSError) and error.filename is STDOUT
        if is_stdout:
            _lost.append(sys.stdout)
            sys.stdout = io.StringIO()  # what the other steps print has nowhere to go
        if not (is_stdout and isinstance(error, BrokenPipeError)):  # that reader wants no more; stderr has the rest
            told = described(error)
            shown = UnhangError(told.code, f"{self.done}, but {told.message}", path=told.path, hint=told.hint)
            shown.__cause__ = error
            console.error(shown)
        return True


def clause(number: int, noun: str, done: str) -> str:
    """Return "2 files are patched", or "nothing was changed" for none."""
    return f"{console.count(number, noun)} {'is' if number == 1 else 'are'} {done}" if number else console.NOTHING


def look_again(ending: Ending, seen: Survey, wanted: Request, files: Sequence[FilePlan] = ()) -> Survey:
    """Return the survey after the commit; if that fails, say so, and return ``seen`` as planned for ``files``."""
    with ending:
        return again(seen.search, wanted)
    return seen._replace(findings=tuple(with_rewrites(seen.findings, files, "as planned")))
