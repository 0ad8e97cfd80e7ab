"""Where a diff comes from: the title, the authors and the links of a mail patch, or of a commit."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from typing import NamedTuple

from unhang import gate
from unhang.errors import UnhangError

_LONGEST = 200  # characters of a title or a name
_TOO_LONG = 16 * 1024 * 1024  # bytes of a diff


class Origin(NamedTuple):
    """What is known of a change; what is empty is not."""

    title: str = ""
    authors: tuple[str, ...] = ()
    """Their names, without addresses."""
    revision: str = ""
    pull: str = ""
    """The number of the pull request, by the end of the title."""
    issue: str = ""
    """The number of the issue that it closes."""
    source: str = ""
    """The address that the diff was read from, or its file."""


class Commit(NamedTuple):
    """A commit of a clone."""

    head: str
    """Its mail's head, for ``of``."""
    diff: str
    """What it changes; what a merge brings."""
    read: Callable[[str], str | None]
    """Returns a file of it; None if it has no such file."""
    base: Callable[[str], str | None]
    """Returns a file as it was before."""


def of(text: str) -> Origin:
    """Return what a mail patch, or what `git show` prints, tells above its diff. Pure."""
    head = re.split(r"^(?:diff --git |--- \S)", text, maxsplit=1, flags=re.MULTILINE)[0]
    subject = _field(head, "Subject") or _first(r"^commit .*\n(?:\w+: .*\n)+\n +(.+)", head)
    title = re.sub(r"^\[PATCH[^\]]*\] *", "", subject)
    pull = _first(r" *\(#(\d+)\)$", title)
    names = [_field(head, "From"), _field(head, "Author"), *re.findall(r"(?im)^ *co-authored-by: (.+)", head)]
    authors = dict.fromkeys(gate.line(re.sub(r" *<[^>]*>?", "", name).strip())[:_LONGEST] for name in names if name)
    return Origin(
        gate.line(re.sub(r" *\(#\d+\)$", "", title))[:_LONGEST],
        tuple(filter(None, authors)),
        _first(r"^(?:From|commit) ([0-9a-f]{40})\b", head),
        pull,
        _first(r"(?i)\b(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?):? #(\d+)\b", head),
    )


def notice(text: str) -> str:
    """Return whose a file is, and under which licence, by its head; empty if that does not say both. Pure."""
    head = [" ".join(row.strip("# ").split()) for row in text.split("\n")[:20] if row.startswith("#")]
    owners = [gate.line(row.rstrip(".")) for row in head if row.startswith("Copyright")]
    apache = any("Apache License, Version 2.0" in row for row in head)
    return f"{'; '.join(owners)}; Apache-2.0 by its header" if owners and apache else ""


def _field(head: str, name: str) -> str:
    """Return a header of a mail, on one line and decoded."""
    value = " ".join(_first(rf"^{name}: *(.+(?:\n[ \t].+)*)", head).split())
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, LookupError, ValueError):  # an encoding that nobody knows, or that its text does not have
        return value


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def commit(clone: str, revision: str) -> Commit:
    """Read a commit of a clone. Raises UnhangError ``no-commit`` if there is none, or no git; ``bad-patch``."""
    form = "--format=From %H%nFrom: %an%nSubject: %s%n%n%b"
    head = _git(clone, "log", "-1", form, "--no-show-signature", "--end-of-options", revision)
    # of a merge, what it brings to the first parent
    words = ["--format=", "--patch", "-m", "--first-parent", "--no-ext-diff", "--no-textconv", "--no-renames"]
    words += ["--unified=3", "--src-prefix=a/", "--dst-prefix=b/", "--end-of-options", revision]
    diff = _git(clone, "log", "-1", *words)
    if len(diff) > _TOO_LONG:
        raise UnhangError("bad-patch", f"{gate.line(revision)} changes too much for a fix", hint="name another commit")
    sha = of(head).revision

    def read(path: str, at: str = sha) -> str | None:
        try:
            return _git(clone, "cat-file", "blob", f"{at}:{path}")
        except UnhangError:
            return None

    return Commit(head, diff, read, lambda path: read(path, f"{sha}^"))


def _git(clone: str, *words: str) -> str:
    """Run git in a clone, without its pager, prompts and programs of the clone's; return what it prints."""
    options = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "color.ui=never"]
    command = ["git", "--no-pager", *options, "-C", clone, *words]
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, check=False, env=env, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UnhangError("no-commit", f"git cannot be started: {error}", hint="install git") from error
    if done.returncode != 0:
        why = gate.line(done.stderr.decode("utf-8", "replace").strip().partition("\n")[0])
        hint = "name a folder with a clone, and a commit that it has"
        raise UnhangError("no-commit", f"this clone gives no such commit: {why}", path=clone, hint=hint)
    return done.stdout.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
