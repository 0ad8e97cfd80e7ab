"""The error that is reported to the user: a stable code, the place, what is wrong, and the next command."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with its control characters escaped: what a checkout or an interpreter says goes to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
