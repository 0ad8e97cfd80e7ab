"""The error that is reported to the user: a stable code, the place, what is wrong, and the next command."""

from __future__ import annotations

import os
from collections.abc import Iterable

STDOUT = "stdout"
"""The filename in an OSError of the standard output (``cli.main`` puts it there)."""


def joined(*parts: str | None) -> str:
    """Return what there is to say of one thing, in one line; a part may be empty."""
    return "; ".join(filter(None, parts))


class UnhangError(Exception):
    """A failure to report to the user; a command that raises it exits with 2, and nothing was changed.

    ``code`` is stable and documented (``no-upstream``, ``not-writable``, ...); ``message`` says what is wrong;
    ``path`` is the file or folder concerned, if any; ``hint`` names the next command.
    """

    def __init__(self, code: str, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.hint = hint


def described(error: BaseException) -> UnhangError:
    """Return the error to report for any exception: the same, ``io``, or ``internal`` for a bug of unhang's."""
    if isinstance(error, UnhangError):
        return error
    if isinstance(error, OSError) and error.filename is STDOUT:
        found = UnhangError("io", f"cannot write to stdout: {error.strerror}")
    elif isinstance(error, OSError):
        path = None if error.filename is None else os.fsdecode(error.filename)
        found = UnhangError("io", error.strerror or str(error), path=path)
    else:
        hint = "please report it, with the traceback that UNHANG_DEBUG=1 prints"
        found = UnhangError("internal", f"this is a bug in unhang: {told(error)} (at {_place(error)})", hint=hint)
    found.__cause__ = error
    return found


def told(error: BaseException) -> str:
    """Return an error's class and text, in one line."""
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # its class is somebody else's
        return type(error).__name__


def _place(error: BaseException) -> str:
    """Return the innermost line of ours that an exception passed, as module:line."""
    place, trace = "an unknown line", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == "unhang":
            place = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def is_near(word: str, known: Iterable[str]) -> bool:
    """Return whether a word is one of the known names, but for a slip."""
    return bool(_nearest(word.lower(), known, 0.8))


def misspelt(word: str, known: Iterable[str]) -> str:
    """Return the known name that a word is but for a letter or two, or an empty string if there is none.

    Two names that differ in a word, as those of two parallel sizes do, are less alike.
    """
    return _nearest(word, known, 0.88)


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known name that a mistyped or shortened one means, or an empty string if none is near."""
    names, word = list(known), word.lower()
    holding = [name for name in names if len(word) > 2 and word in name]  # `mtp`, `swift`, `--req`
    return _nearest(word, holding or names, 0 if holding else 0.6)


def _nearest(word: str, known: Iterable[str], least: float) -> str:
    """Return the known name that is most like a word, if it is that much so; else an empty string."""
    import difflib  # here: it is slow to import

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=least)), "")
