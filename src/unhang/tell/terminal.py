"""How to print: the width of the terminal, wrapped text, colour, and what ``-q``, ``-v`` and ``--color`` ask for."""

# `unhang --help` imports this module, so it imports nothing slow.

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import TextIO

NARROW = 60
"""Below this width, text is not aligned under a column."""
_PROGRAM = (
    r"(?:unhang (?:apply|check|diagnose|diff|explain|list|matrix|overlay|prove|revert|wheel)|pip (?:install|--python)|"
    r"uv (?:pip|sync|run)|git (?:-C|checkout|clone|diff)|\S*python\S* -m)\b"
)
_LAUNCH = r"[A-Z_]+=\S+ \S|srun |kubectl |RUN "
# A command is to be copied, so it stays on one line: in backticks, or after a colon, up to the next clause.
_COMMAND = rf"`{_PROGRAM}[^`]*`|(?<=: ){_PROGRAM}.*?(?=[;,] | \(|$)"


class Settings:
    """What the options that every command has ask for."""

    color = "auto"
    quiet = False
    verbose = False


settings = Settings()


def columns(descriptor: int) -> int:
    """Return COLUMNS, else the width of the terminal that a file descriptor leads to; 0 if nobody knows."""
    given = os.environ.get("COLUMNS", "")
    try:
        return int(given) if given.isdecimal() and len(given) < 6 else os.get_terminal_size(descriptor).columns
    except OSError:  # closed, or no terminal
        return 0


def width(stream: TextIO) -> int:
    """Return the width at which to wrap text for a stream; 0, for not at all, unless it leads to a terminal."""
    return columns(stream.fileno()) if _is_terminal(stream) else 0


def rewrites(stream: TextIO) -> bool:
    """Return whether a stream leads to a terminal that can colour text and erase a line."""
    return _is_terminal(stream) and os.environ.get("TERM") != "dumb"


def colour(stream: TextIO) -> bool:
    """Return whether to colour a stream: ``--color`` decides, else NO_COLOR, else FORCE_COLOR, else the terminal."""
    if settings.color != "auto":
        return settings.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or rewrites(stream)


def painted(text: str, word: str, code: str) -> str:
    """Return a text with the first such word in a colour."""
    return text.replace(word, f"\x1b[{code}m{word}\x1b[0m", 1)


def wrapped(text: str, width: int) -> str:
    """Return a text with each line wrapped, and continued two columns further in."""
    lines = text.split("\n")
    return "\n".join(part for line in lines for part in folded(line, width, _margin(line) + "  "))


def refilled(page: str, width: int) -> str:
    """Return a page of Markdown, of headings, paragraphs, lists and tables, with its lines wrapped at this width."""
    if not width:
        return page
    blocks = [""]
    for line in page.split("\n"):
        # a line of an item is indented, one of a paragraph is not
        goes_on = line.startswith("  ") if blocks[-1].startswith("- ") else blocks[-1][:1] not in ("", "#", "|")
        if goes_on and line and not line.startswith(("#", "- ", "|")):
            blocks[-1] += f" {line.lstrip()}"
        else:
            blocks.append(line)
    return "\n".join(
        part for it in blocks[1:] for part in folded(it, width, "  " if it.startswith(("- ", "|")) else "")
    )


def folded(line: str, width: int, indent: str) -> list[str]:
    """Return a line as lines of this width, or less; what follows the first is indented.

    Words and commands stay whole, even those that are longer. Width 0 is no limit.
    """
    if not width or len(line.rstrip()) <= width:
        return [line]
    import re
    import textwrap  # here: most runs need neither

    if re.match(rf"\s+(?:{_PROGRAM}|{_LAUNCH})", line):  # all of it is a command
        return [line]
    whole = re.sub(_COMMAND, lambda command: command[0].replace(" ", "\0"), line.lstrip())
    lines = textwrap.wrap(
        whole, width, initial_indent=_margin(line), subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False, expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
    return [part.replace("\0", " ") for part in lines]


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
