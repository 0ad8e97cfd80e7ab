"""poetry.lock: what Poetry resolved, with the groups of each package."""

from __future__ import annotations

from collections.abc import Collection

from unhang.pins import origin, toml
from unhang.pins.values import DamagedError, Table, table, text, texts
from unhang.records import Pin, normal


def pins(content: str, document: Table, names: Collection[str]) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError."""
    return [_pin(package, line, document) for package, line in toml.packages(content, document, names)]


def _pin(package: Table, line: int, document: Table) -> Pin:
    name = normal(text(package, "name"))
    pin = Pin(name, text(package, "version"), line, when="; ".join(_when(package, name, document)))
    source = table(package, "source")
    kind, url = text(source, "type"), text(source, "url")
    if kind == "git":
        return origin.of_git(pin, url, text(source, "reference"), text(source, "resolved_reference"))
    return origin.of_url(pin, url) if kind in ("url", "file", "directory") else pin


def _when(package: Table, name: str, document: Table) -> list[str]:
    markers = package.get("markers")
    if isinstance(markers, dict):  # one for each group, if they differ
        when = [f"{group}: {marker}" for group, marker in markers.items()]
    elif isinstance(markers, (str, type(None))):
        when = [markers] if markers else []
    else:
        raise DamagedError("'markers' is neither a text nor a table")
    if not when and package.get("optional") is True:
        extras = table(document, "extras")
        when = [f"only with extra {extra}" for extra in extras if name in map(_name, texts(extras, extra))]
    groups = texts(package, "groups")
    return when if not groups or "main" in groups else [*when, f"only with group {' or '.join(groups)}"]


def _name(requirement: str) -> str:
    return normal(requirement.partition(" ")[0].partition("[")[0])
