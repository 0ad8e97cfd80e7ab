"""SBOMs in JSON: CycloneDX, and SPDX 2 and 3."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from urllib.parse import unquote

from unhang.pins import origin
from unhang.pins.values import MOST, DamagedError, Table, table, tables, text
from unhang.records import Pin, normal


def pins(content: str, document: Table, names: Collection[str]) -> list[Pin]:
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
    keys: dict[Pin, str] = {}
    for name, version, purls in found:
        if len(keys) <= MOST and (pin := _pin(name, version, purls, names)):
            keys.setdefault(pin, f'"{purls[0]}"' if purls else f'"{name}"')
    return [pin._replace(line=content.count("\n", 0, max(content.find(key), 0)) + 1) for pin, key in keys.items()]


_Found = tuple[str, str, list[str]]
"""A component's name, its version and its package URLs."""


def _cyclonedx(document: Table) -> Iterator[_Found]:
    left: list[Iterable[Table]] = [tables(document, "components"), [table(table(document, "metadata"), "component")]]
    while left:
        for component in left.pop():
            left.append(tables(component, "components"))
            yield text(component, "name"), text(component, "version"), [*filter(None, [text(component, "purl")])]


def _spdx_2(document: Table) -> Iterator[_Found]:
    for package in tables(document, "packages"):
        purls = [
            text(ref, "referenceLocator")
            for ref in tables(package, "externalRefs")
            if text(ref, "referenceType") == "purl"
        ]
        yield text(package, "name"), text(package, "versionInfo"), purls


def _spdx_3(document: Table) -> Iterator[_Found]:
    for element in tables(document, "@graph"):
        if text(element, "type") == "software_Package":
            purls = [
                text(it, "identifier")
                for it in tables(element, "externalIdentifier")
                if text(it, "externalIdentifierType") == "packageUrl"
            ]
            purls += [url] if (url := text(element, "software_packageUrl")) else []
            yield text(element, "name"), text(element, "software_packageVersion"), purls


def _pin(name: str, version: str, purls: list[str], names: Collection[str]) -> Pin | None:
    if not purls:
        return Pin(normal(name), version) if normal(name) in names else None
    kind, _, rest = purls[0].removeprefix("pkg:").lstrip("/").partition("/")
    rest, _, _subpath = rest.partition("#")
    rest, _, qualifiers = rest.partition("?")
    path, _, of_purl = rest.rpartition("@") if "@" in rest else (rest, "", "")
    last = normal(unquote(path.rpartition("/")[2]))
    if kind.lower() not in ("pypi", "conda") or last not in names:
        return None
    pin = Pin(last, unquote(of_purl) or version)
    asked = dict(part.partition("=")[::2] for part in qualifiers.split("&"))
    vcs = unquote(asked.get("vcs_url", ""))
    return origin.of_git(pin, vcs) if vcs else pin
