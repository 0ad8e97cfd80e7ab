"""The error that is reported to the user: a stable code, the place, what is wrong, and the next command."""

from __future__ import annotations

from collections.abc import Iterable


class UnhangError(Exception):
    """A failure to report to the user; the command exits with 2 and nothing was changed.

    ``code`` is stable and documented (``no-upstream``, ``not-writable``, ...); ``message`` says what is wrong;
    ``path`` is the file or folder concerned, if any; ``hint`` names the next command.
    """

    def __init__(self, code: str, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.hint = hint


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known name that a mistyped or shortened one means, or an empty string if none is near."""
    import difflib  # here: it is slow to import

    names, word = list(known), word.lower()
    holding = [name for name in names if len(word) > 2 and word in name]  # `mtp`, `swift`, `--req`
    near = difflib.get_close_matches(word, holding or names, n=1, cutoff=0 if holding else 0.6)
    return near[0] if near else ""
