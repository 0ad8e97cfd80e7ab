"""The command line becomes a request, once: below this room nobody sees argparse's namespace."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from unhang import suggest
from unhang.errors import UnhangError, closest
from unhang.job.strikes import unasked
from unhang.judge import companions
from unhang.plugins import packs, parameters
from unhang.records import KINDS, Request, Token
from unhang.shapes import catalog
from unhang.suggest import Command, Hint
from unhang.tell import console

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from unhang.job.settings import Job

_CHOOSING = ("fix", "skip", "kind", "require", "upstream", "accept", "job", "setting")
_FORM = "([0-9a-f]{16})-([1-9][0-9]{0,8})-([0-9a-f]{16})(-[0-9a-f]{8})?"


def request(options: argparse.Namespace) -> Request:
    """Return the request of a command that works on an environment. Raises UnhangError as ``selection``."""
    return selection(vars(options))._replace(
        python=options.python,
        target=options.target,
        source=options.source,
        image=getattr(options, "image", None),
        script=options.script,
        allow_none=options.allow_none,
        locks=tuple(dict.fromkeys(getattr(options, "lock", ()))),
    )


def selection(given: Mapping[str, Any]) -> Request:
    """Return the request without its environment: what to look at.

    ``given`` are the options by name; those that are missing or empty choose everything, and require nothing. Raises
    UnhangError ``unknown-fix``, also if no fix is of the kinds; ``unknown-kind``, ``unknown-upstream``, ``bad-token``;
    ``bad-option`` for a fix that is required and skipped; and as ``parameters.keep``.
    """
    parameters.keep(name for fix in catalog.fixes().values() for it in fix.targets for name in it.parameters)
    fix, skip, required = (tuple(_fix(name) for name in given.get(option, ())) for option in ("fix", "skip", "require"))
    if both := [name for name in required if name in skip]:
        raise UnhangError("bad-option", f"{both[0]} is both required and skipped", hint="leave out --require or --skip")
    gone = tuple(given.get("gone", ()))
    kinds = _known("unknown-kind", given, "kind", KINDS)
    upstreams = _known("unknown-upstream", given, "upstream", packs.names())
    named = set(fix or (() if gone else catalog.fixes())).difference(skip)
    of_kinds = {name for name in named if not kinds or {*kinds}.intersection(catalog.fix(name).kinds)}
    # a required fix is judged, whatever else was named
    chosen = of_kinds.union(required)
    if named and not chosen:
        are = "; ".join(f"{name}: {', '.join(catalog.fix(name).kinds)}" for name in sorted(named))
        raise UnhangError("unknown-fix", f"none of the named fixes is of kind {' or '.join(kinds)}", hint=are)
    fixes = tuple(name for name in catalog.fixes() if name in chosen)
    comes_along = companions.of(fixes) if "accept" in given else ()  # to what brings fixes into place, or shows it
    return Request(
        fixes=fixes,
        required=required,
        upstreams=upstreams,
        skipped=skip,
        companions=comes_along,
        job=_job(given),
        even_if=_even_if(given, (*fixes, *comes_along)),
        accepted=tuple(dict.fromkeys(_token(text) for text in given.get("accept", ()))),
        chosen=(
            *((f"--{name}", value) for name in _CHOOSING for value in given.get(name, ())),
            *(("--fix", name) for name in gone),
        ),
    )


def _job(given: Mapping[str, Any]) -> Job | None:
    """Return what the options say that the job is started with. Raises UnhangError as ``job.read.job``."""
    files, settings = given.get("job") or (), given.get("setting") or ()
    if not files and not settings:
        return None
    from unhang.job.read import job  # most runs have no job

    found: Job = job(files, settings, sys.stdin)
    return found


def _even_if(given: Mapping[str, Any], fixes: Sequence[str]) -> tuple[str, ...]:
    """Return the conditions of ``--even-if``. Raises UnhangError ``bad-option`` for one that none of the fixes has."""
    conditions = tuple(given.get("even_if", ()))
    harms = {harm for name in (fixes if conditions else ()) for harm in unasked(catalog.fix(name))}
    for text in conditions:
        if not any(harm.is_meant(text) for harm in harms):
            there = ", or ".join(sorted(suggest.line("--even-if", harm.condition) for harm in harms))
            message = f"none of the chosen fixes is left out of a job with {text!r}"
            raise UnhangError("bad-option", message, hint=there or "`unhang check` prints such conditions")
    return conditions


def hinted(error: UnhangError, options: argparse.Namespace) -> UnhangError:
    """Return the error with the options in the commands of its hint, if the command works on an environment."""
    if hasattr(options, "script"):
        with suppress(UnhangError):  # an unknown fix: then the hint is about that
            suggest.hinted(error, request(options))
    return error


def fill_in(given: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Let ``UNHANG_SKIP``, ``UNHANG_REQUIRE``, ``UNHANG_ACCEPT`` stand for options that were not given, and say so.

    ``given`` are the options by name, which this changes. The variables hold ids or tokens, separated by spaces or
    commas. Raises UnhangError ``unknown-fix``, ``bad-token``.
    """
    for option, winners in ("require", ("skip",)), ("skip", ("fix", "require")), ("accept", ()):
        if given.get(option) != []:  # given, or None: the command has no such option
            continue
        variable = f"UNHANG_{option.upper()}"
        words = environ.get(variable, "").replace(",", " ").split()
        values = [str(_token(word, variable)) if option == "accept" else _fix(word, variable) for word in words]
        # the command line wins: a fix that it skips is not required, and one that it names is not skipped
        won = {value: winner for winner in winners for value in given.get(winner) or ()}
        given[option] = [value for value in values if value not in won]
        if option == "require":
            lost = dict.fromkeys(value for value in values if value in won)
            console.say_each(
                f"warning: {variable} requires {value}, but --skip {value} leaves it out" for value in lost
            )
        if given[option]:
            console.note(f"note: {variable} is set: --{option} {f' --{option} '.join(given[option])}")


def _known(code: str, given: Mapping[str, Any], option: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option. Raises UnhangError ``code`` for an unknown one, which argparse has refused."""
    values = tuple(given.get(option, ()))
    for name in values:
        if name not in names:
            near = closest(name, names)
            hint = f"{f'did you mean {near}? ' if near else ''}there are {', '.join(names)}"
            raise UnhangError(code, f"there is no {option} {name!r}", hint=hint)
    return values


def _fix(name: str, variable: str = "") -> str:
    try:
        return catalog.fix(name).id
    except UnhangError as error:
        if variable:
            raise UnhangError(error.code, f"{variable}: {error.message}", hint=error.hint) from None
        raise


def _token(text: str, variable: str = "--accept") -> Token:
    found = re.fullmatch(_FORM, text)
    token = Token(found[1], int(found[2]), found[3], found[4] is not None).mixed() if found else None
    if found is None or token is None or found[4] not in (None, f"-{token.mark}"):
        hint = Hint("a token is a shape, a generation and a shape, as ", Command("diff", ("--unknown",)), " prints it")
        raise UnhangError("bad-token", f"{variable}: {text!r} is not a token", hint=hint)
    return token
