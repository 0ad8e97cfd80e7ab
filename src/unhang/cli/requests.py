"""The command line becomes a request, once: below this room nobody sees argparse's namespace."""

from __future__ import annotations

from contextlib import suppress

from unhang import suggest
from unhang.errors import UnhangError
from unhang.records import UPSTREAMS, Request
from unhang.shapes import catalog

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    import argparse

_CHOOSING = ("fix", "skip", "require", "upstream")


def request(options: argparse.Namespace) -> Request:
    """Return the request of a command that works on an environment. Raises UnhangError ``unknown-fix``."""
    return selection(options)._replace(
        python=options.python,
        target=options.target,
        source=options.source,
        script=options.script,
        allow_none=options.allow_none,
    )


def selection(options: argparse.Namespace) -> Request:
    """Return the request without its environment: what to look at. Raises UnhangError ``unknown-fix``."""
    required = tuple(catalog.fix(name).id for name in getattr(options, "require", ()))
    chosen = {*fixes(options), *required}  # a required fix is judged, whatever else was named
    return Request(
        fixes=tuple(name for name in catalog.fixes() if name in chosen),
        required=required,
        upstreams=tuple(options.upstream) or UPSTREAMS,
        chosen=tuple((f"--{name}", value) for name in _CHOOSING for value in getattr(options, name, ())),
    )


def hinted(error: UnhangError, options: argparse.Namespace) -> UnhangError:
    """Return the error with the options in the commands of its hint, if the command works on an environment."""
    if hasattr(options, "script"):
        with suppress(UnhangError):  # an unknown fix: then the hint is about that
            suggest.hinted(error, request(options))
    return error


def fixes(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the ids of the fixes that ``--fix`` and ``--skip`` leave. Raises UnhangError ``unknown-fix``."""
    chosen = {catalog.fix(name).id for name in options.fix} or set(catalog.fixes())
    skipped = {catalog.fix(name).id for name in options.skip}
    return tuple(name for name in catalog.fixes() if name in chosen - skipped)
