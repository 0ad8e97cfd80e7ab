"""Suggested commands: each repeats the options that led to it, quoted for the shell, so that it can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unhang.plugins import packs, parameters
from unhang.records import Request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unhang.errors import UnhangError


class Command(NamedTuple):
    """A command that a hint suggests, without what only the request knows: where to run it, and on which fixes."""

    name: str
    options: tuple[str, ...] = ()


class Line(str):
    """A command line that can be pasted, in a hint that has its options."""


class Hint(str):
    """What to do next: text and commands, in order. As a string, the commands are as they would be without options."""

    parts: tuple[str | Command, ...]
    """Texts, each command as a ``Line`` once the hint is ``complete``."""

    def __new__(cls, *parts: str | Command) -> Hint:
        """Make a hint of texts, commands and other hints."""
        flat = [part for given in parts for part in (given.parts if isinstance(given, Hint) else (given,))]
        hint = super().__new__(cls, _rendered(_completed(flat, Request())))
        hint.parts = tuple(flat)
        return hint


_NOT_TO_REVERT = ("--accept", "--job", "--setting")
"""The options that `revert` does not take; another command takes them with whatever fix."""
RECOVERY = ("run ", Command("apply"), " or ", Command("revert"))
"""The parts of a hint on a run that was killed: each of these first finishes it, or rolls it back."""


def command(name: str, request: Request, *more: str) -> str:
    """Return the line that runs `unhang NAME` where the request did and on what it chose, with more options.

    ``apply`` stands for the command that brings the fixes into place: in an overlay or a wheel if those were asked for.
    Fixes in ``more`` take the place of the chosen ones.
    """
    if request.writer[0] == "wheel":  # it has no installation: the next command can only be the same again
        words = [*request.writer]
    else:
        words = [*(request.writer if name == "apply" else name.split()), *_place(request)]
    chosen = _chosen(name, request, "--fix" in more)
    return line(
        "unhang",
        *words,
        *packs.words(),
        *parameters.words(),
        *(word for pair in chosen for word in _option(*pair)),
        *more,
    )


def explain(fix: str) -> str:
    """Return the line that prints the page of a fix, with the options that name the packs in effect."""
    return line("unhang", "explain", fix, *packs.words())


def line(*words: str) -> str:
    """Return a command line, quoted for the shell."""
    from shlex import quote  # most runs suggest nothing

    return " ".join(map(quote, words))


def complete(hint: str, request: Request) -> str:
    """Return a hint with the request's options in its commands, as a ``Hint`` whose commands are lines."""
    return Hint(*_completed(hint.parts, request)) if isinstance(hint, Hint) else hint


def first_line(hint: str) -> str:
    """Return the first command of a complete hint; empty if it has none."""
    return next((part for part in hint.parts if isinstance(part, Line)), "") if isinstance(hint, Hint) else ""


def _rendered(parts: Sequence[str]) -> str:
    """Return a hint's text. A command in a sentence is in backticks, one that is all of the hint is not."""
    quote = "`" if len(parts) > 1 else ""
    return "".join(f"{quote}{part}{quote}" if isinstance(part, Line) else part for part in parts)


def _completed(parts: Sequence[str | Command], request: Request) -> list[str]:
    """Return the parts with each command as a line."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif request.writer[0] == "wheel" and part.name == "diff":  # the user has to make that folder
            words = ("unhang", part.name, *part.options, "--target", "DIR")
            texts.append(f"unpack the wheel into a folder DIR, then {line(*words)}")
        else:
            texts.append(Line(command(part.name, request, *part.options)))
    return texts


def hinted(error: UnhangError, request: Request) -> UnhangError:
    """Return the error, with the request's options in the commands of its hint."""
    if error.hint:
        error.hint = complete(error.hint, request)
    return error


def undo(request: Request, done: Collection[tuple[str, str, str]], known: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the commands that revert what a run wrote, and nothing that an earlier one did.

    ``done`` is what it wrote, ``known`` what the receipts now list: root, upstream and fix of each.
    """
    known = set(known)
    fixes, upstreams = ({key[part] for key in done} for part in (2, 1))
    narrower = _only(request, upstreams, fixes)
    # with a required fix, its own line would name what was chosen, and not what was written
    for wanted in (narrower,) if _is_named(request) else (request, narrower):
        if {key for key in known if wanted.is_about(key[1]) and key[2] in wanted.fixes} == set(done):
            return [command("revert", wanted)]
    groups: dict[tuple[str, str], set[str]] = {}
    for root, upstream, fix in done:
        groups.setdefault((root, upstream), set()).add(fix)
    return [
        command("revert", _only(Request(target=root), {upstream}, fixes))
        for (root, upstream), fixes in sorted(groups.items())
    ]


def _only(request: Request, upstreams: Collection[str], fixes: Collection[str]) -> Request:
    words = [("--upstream", upstream) for upstream in sorted(upstreams)] + [("--fix", fix) for fix in sorted(fixes)]
    return request._replace(chosen=tuple(words), upstreams=tuple(upstreams), fixes=tuple(fixes), required=())


def _place(request: Request) -> list[str]:
    folder = request.target or request.source
    names = ("target", "source", "script") if folder else ("python", "script")  # `prove` takes an interpreter with both
    given = {name: getattr(request, name) for name in names}
    return [word for name, value in given.items() if value for word in _option(f"--{name}", value)]


def _option(option: str, value: str) -> list[str]:
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def _chosen(name: str, request: Request, named: bool) -> Iterable[tuple[str, str]]:
    if name == "pack sweep":  # it is about fixes alone
        return []
    pairs = [pair for pair in request.chosen if name != "revert" or pair[0] not in _NOT_TO_REVERT]
    if named:
        return [pair for pair in pairs if pair[0] in ("--upstream", *_NOT_TO_REVERT)]
    if name != "revert" or not request.required:
        return pairs
    # `revert` requires nothing, but a required fix was among the chosen ones; none is skipped
    fixes = [("--fix", fix) for fix in request.fixes] if _is_named(request) else []
    kept = ("--upstream",) if fixes else ("--upstream", "--skip")
    return [*fixes, *(pair for pair in pairs if pair[0] in kept)]


def _is_named(request: Request) -> bool:
    """Return whether a run without its required fixes would be about fewer fixes than the request."""
    return bool(request.required) and any(option in ("--fix", "--kind") for option, _ in request.chosen)
