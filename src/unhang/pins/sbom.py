"""SBOMs in JSON: CycloneDX, and SPDX 2 and 3."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import repeat
from urllib.parse import unquote

from unhang.pins import origin
from unhang.pins.values import MOST, DamagedError, Table, require, table, tables, text
from unhang.records import Names, Pin, normal


def pins(content: str, document: Table, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError if it is none of these formats.

    A component with a package URL of another ecosystem is none of them, whatever its name.
    """
    document = table(document, "sbom") or document  # as GitHub's REST API answers
    if document.get("bomFormat") == "CycloneDX":
        found = _cyclonedx(document)
    elif "spdxVersion" in document:
        found = _spdx_2(document)
    elif "@graph" in document:
        found = _spdx_3(document)
    else:
        raise DamagedError("it is neither CycloneDX nor SPDX")
    pins: dict[Pin, int] = {}
    places: dict[tuple[str, str], Iterator[int]] = {}
    for name, version, purls in found:
        if len(pins) <= MOST and (pin := _pin(name, version, purls.values(), names)):
            key, value = next(iter(purls.items()), ("name", name))
            at = next(places.setdefault((key, value), _lines(content, key, value)))
            pins.setdefault(pin, at)
    return [pin._replace(line=at) for pin, at in pins.items()]


def _lines(content: str, key: str, value: str) -> Iterator[int]:
    """Yield the lines on which a key has this value, and the last of them without end; 1 if there is none."""
    line, end = 1, 0
    for found in re.finditer(rf'"{re.escape(key)}"\s*:\s*"{re.escape(value)}"', content):
        line += content.count("\n", end, found.start())
        end = found.start()
        yield line
    yield from repeat(line)


_Found = tuple[str, str, dict[str, str]]
"""A component's name, its version and its package URLs, each by the key that it has."""


def _cyclonedx(document: Table) -> Iterator[_Found]:
    """Yield the components in the order in which they stand there."""
    require(document.get("specVersion", 1), 1)
    for key in document:
        if key == "components":
            yield from _below(document)
        elif key == "metadata":
            yield from _below({"components": [table(table(document, key), "component")]})


def _below(component: Table) -> Iterator[_Found]:
    left = [iter(tables(component, "components"))]
    while left:
        for one in left[-1]:
            purl = text(one, "purl")
            yield text(one, "name"), text(one, "version"), {"purl": purl} if purl else {}
            left.append(iter(tables(one, "components")))
            break
        else:
            left.pop()


def _spdx_2(document: Table) -> Iterator[_Found]:
    require(text(document, "spdxVersion").removeprefix("SPDX-"), 2)
    for package in tables(document, "packages"):
        purls = [
            text(ref, "referenceLocator")
            for ref in tables(package, "externalRefs")
            if text(ref, "referenceType") == "purl"
        ]
        yield text(package, "name"), text(package, "versionInfo"), {"referenceLocator": purls[0]} if purls else {}


def _spdx_3(document: Table) -> Iterator[_Found]:
    for element in tables(document, "@graph"):
        if text(element, "type") == "CreationInfo":
            require(text(element, "specVersion"), 3)
        elif text(element, "type") == "software_Package":
            purls = {"software_packageUrl": url} if (url := text(element, "software_packageUrl")) else {}
            for it in tables(element, "externalIdentifier"):
                if text(it, "externalIdentifierType") == "packageUrl":
                    purls["identifier"] = text(it, "identifier")
            yield text(element, "name"), text(element, "software_packageVersion"), purls


def _pin(name: str, version: str, purls: Collection[str], names: Names) -> Pin | None:
    if not purls:
        return origin.known(Pin(normal(name), version), names)
    kind, _, rest = next(iter(purls)).removeprefix("pkg:").lstrip("/").partition("/")
    rest, _, subpath = rest.partition("#")
    rest, _, qualifiers = rest.partition("?")
    path, _, of_purl = rest.rpartition("@") if "@" in rest else (rest, "", "")
    last = normal(unquote(path.rpartition("/")[2]))
    pin = Pin(last, unquote(of_purl) or version)
    asked = dict(part.partition("=")[::2] for part in qualifiers.split("&"))
    if kind.lower() == "github":
        repository = f"https://github.com/{unquote(path)}"
        return origin.known(origin.of_git(Pin(last), repository, pin.version, folder=unquote(subpath)), names)
    if vcs := unquote(asked.get("vcs_url", "")):
        pin = origin.of_git(pin, vcs)
    return origin.known(pin, names) if kind.lower() in ("pypi", "conda", "generic") else None
