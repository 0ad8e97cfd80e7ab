"""The gate for text from outside: file names, versions, receipts, dumps, logs, diffs, mails, answers of interpreters.

Such a text may hold anything. Where it ends up, an encoder shows it and lets it do nothing: one for each such place.
The action runs this before unhang is installed, so this module needs no other one of ours.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import Any

LONGEST = 10_000
"""Characters of a text that a line shows: longer ones lose their middle."""
# A runner takes `::command::` at the start of a line, and `##[command]` (Azure: `##vso[`) anywhere in one. A terminal
# may wrap a line at any space. Compiled where a text needs them: most runs need none.
_COMMAND = r"(?<!\S)::|##(?=\w*\[)"
_DIFF_COMMAND = r"\A\s*::|##(?=\w*\[)"
_JSON_ESCAPE = r"\\(?:u(d[89ab]..)\\u(d[c-f]..)|u(d...)|.)"


def line(text: str) -> str:
    """Return a text as a part of one line for people, on a terminal or in the log of a CI runner.

    What is not printable (line ends, escape sequences, bidirectional controls, lone surrogates) becomes an escape of
    Python's, and so does the last character of the mark by which a runner knows a command.
    """
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
    text = _visible(text)
    return re.sub(_COMMAND, _broken, text) if "::" in text or "##" in text else text


def diff(data: bytes) -> bytes:
    """Return lines of a diff as ``line`` shows them. What it leaves alone stays a diff, also with CRLF and tabs."""
    rows = data.decode("utf-8", "surrogateescape").split("\n")
    return "\n".join(map(_diff_row, rows)).encode()


def command(kind: str, message: str, **properties: str) -> str:
    """Return the line that makes an annotation in GitHub's runner; the message may have several lines."""
    values = ((name, _data(value).replace(":", "%3A").replace(",", "%2C")) for name, value in properties.items())
    return f"::{kind} {','.join(f'{name}={value}' for name, value in values)}::{_data(message)}"


def markdown(text: str) -> str:
    """Return a text as Markdown that shows it, and is nothing else: no cell, link, image, HTML or emphasis."""
    shown = "\n".join(map(_visible, text.split("\n")))
    special = r"[^\w .,-]|_|(?<=www)\.|\A[ -]|(?<=\d)\.(?=\s|\Z)"
    return re.sub(special, lambda found: f"&#{ord(found[0])};", shown, flags=re.IGNORECASE)


def html(text: str) -> str:
    """Return a text as HTML that shows it, between tags or in the quotes of an attribute; lines stay lines."""
    shown = "\n".join(map(_visible, text.split("\n")))
    return shown.translate({ord(c): f"&#{ord(c)};" for c in "&<>\"'"})


def document(content: Any) -> str:
    """Return a JSON document. A lone surrogate in it becomes text; no line of it is a command of a runner."""
    text = json.dumps(content, indent=1)
    if "\\ud" in text:
        text = re.sub(_JSON_ESCAPE, lambda found: f"\\\\u{found[3]}" if found[3] else found[0], text)
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f")


def sarif(text: str) -> str:
    """Return a text as a message of SARIF, in which no part becomes a link."""
    return line(text).replace("](", "]\\x28")


def literal(text: str) -> str:
    """Return the Python literal of a text, in double quotes where it has none."""
    return repr(text) if '"' in text else '"' + repr(f"'{text}")[2:]


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _broken(found: re.Match[str]) -> str:
    """Return a runner's mark with an escape in the place of its last character."""
    return f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}"


def _data(text: str) -> str:
    return "%0A".join(line(row).replace("%", "%25") for row in text.split("\n"))


def _diff_row(row: str) -> str:
    code, end = (row[:-1], "\r") if row.endswith("\r") else (row, "")
    return re.sub(_DIFF_COMMAND, _broken, "\t".join(map(_visible, code.split("\t")))) + end
