"""requirements.txt, as pip reads it: pins, hashes, markers, URLs. Each requirement is parsed by `packaging`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from unhang.pins import origin
from unhang.pins.values import LONGEST, MOST, DamagedError
from unhang.records import Names, Pin, normal

_NAMED = r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\]\s*)?(?=$|[@;(<>]|[=!~]=)"
_OTHER = r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s*)(\S+)"
_EXTRAS = r"\[([\w., -]+)\](?=$|&)"
_BUILT = r"@\s*(?:git|hg|svn|bzr)\+|/archive/"
_VARIABLE = r"\$\{[A-Z0-9_]+\}"  # pip puts its value there
_EDITABLE = r"(?:-e|--editable)(?:\s*=\s*|\s+)(.+)"


def pins(content: str, names: Names) -> list[Pin]:
    """Return the pins of these distributions, and what names one without a pin. Raises DamagedError.

    A line that is a URL or a path alone, and may be any package, is a pin of no distribution.
    """
    found = (pin for line, row in _rows(content) if (pin := _pin(row, line, names)) is not None)
    return list(islice(found, MOST + 1))


def included(content: str) -> list[str]:
    """Return the files of requirements and constraints that it names, which are not read."""
    return [found[1] for _, row in _rows(content) if (found := re.match(_OTHER, row))]


def _rows(content: str) -> Iterator[tuple[int, str]]:
    """Yield each requirement or option, joined where it goes on after a backslash, with the line that it begins on."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(content.split("\n"), 1):
        comment = re.search(r"(?:^|\s)#", line)
        text = (line[: comment.start()] if comment else line).rstrip()
        begun = begun or number
        parts.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            if row := "".join(parts).strip():
                yield begun, row
            begun, parts = 0, []
    if row := "".join(parts).strip():
        yield begun, row


def _pin(row: str, line: int, names: Names) -> Pin | None:
    text = re.split(r"\s--?[A-Za-z]", row, maxsplit=1)[0].strip()  # without its options, such as --hash
    if len(text) > LONGEST:
        raise DamagedError(f"line {line} has {len(text)} characters")
    if row.startswith("-"):
        editable = re.fullmatch(_EDITABLE, row)
        return _placed(editable[1].strip("\"'"), line, names) if editable else None
    named = re.match(_NAMED, text)
    if named is None or (text.lower().endswith((".whl", ".zip", ".tar.gz")) and "@" not in text):
        if not text.startswith((".", "$")) and "/" not in text and not origin.distribution(text):
            raise DamagedError(f"line {line} is no requirement")
        return _placed(text, line, names)
    if normal(named[1]) in names.distributions:
        return _required(text, line)
    return origin.known(_required(text, line), names) if re.search(_BUILT, text) else None


def _placed(where: str, line: int, names: Names) -> Pin | None:
    """Return the pin of a path or a URL: its name is in it, or that of a checkout is; else it may be any package."""
    where, _, marker = where.partition(" ;")
    egg, asked = re.search(r"[#&]egg=([\w.-]+)", where), re.search(_EXTRAS, where)
    extras = tuple(part.strip() for part in asked[1].split(",")) if asked else ()
    where = re.sub(_EXTRAS, "", where)
    pin = origin.of_url(Pin("", line=line, extras=extras, when=marker.strip()), where)
    name = normal(egg[1]) if egg else origin.distribution(where.partition("#")[0])
    if name not in names.distributions:
        name = origin.of_checkout(pin, names) or name or origin.of_checkout(pin._replace(source=""), names)
    return pin._replace(distribution=name) if name in names.distributions or not name else None


def _required(text: str, line: int) -> Pin:
    from packaging.requirements import InvalidRequirement, Requirement  # slow, and most lines are of other packages

    unset = re.findall(_VARIABLE, text.partition(";")[0])
    try:
        found = Requirement(re.sub(_VARIABLE, "0", text) if unset and "@" not in text else text)
    except InvalidRequirement as error:
        raise DamagedError(f"line {line} is no requirement: {str(error).partition(chr(10))[0]}") from error
    marker = str(found.marker or "")
    pin = Pin(normal(found.name), line=line, extras=tuple(sorted(found.extras)), when=marker)
    if found.url:
        return origin.of_url(pin, found.url)
    if unset:
        return pin._replace(ref=", ".join(unset))
    exact = [it.version for it in found.specifier if it.operator in ("==", "===") and "*" not in it.version]
    return pin._replace(version=exact[0]) if len({*exact}) == 1 else pin._replace(ref=str(found.specifier))
