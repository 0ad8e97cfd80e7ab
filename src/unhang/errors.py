"""The errors a user can meet: each has a stable code, the place, what is missing, and the next command."""

from __future__ import annotations


class UnhangError(Exception):
    """A failure to be told to the user; the command exits with 2 and nothing was changed.

    ``code`` is stable and documented (``no-upstream``, ``not-writable``, ...); ``message`` says what is wrong;
    ``path`` is the file or folder it is about, if there is one; ``hint`` names the next command.
    """

    def __init__(self, code: str, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.hint = hint
