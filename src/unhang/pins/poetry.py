"""poetry.lock: what Poetry resolved, with the groups of each package."""

from __future__ import annotations

from unhang.pins import origin, toml
from unhang.pins.values import DamagedError, Table, require, table, text, texts
from unhang.records import Names, Pin, normal


def pins(content: str, document: Table, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError."""
    require(text(table(document, "metadata"), "lock-version") or "1", 1, 2)
    found = toml.pins(content, document, names, _pin)
    return [pin._replace(when="; ".join(_when(package, document))) for package, pin in found]


def _pin(package: Table) -> Pin:
    pin = Pin(normal(text(package, "name")), text(package, "version"))
    source = table(package, "source")
    kind, url = text(source, "type"), text(source, "url")
    if kind == "git":
        commit = text(source, "resolved_reference")
        return origin.of_git(pin, url, text(source, "reference"), commit, text(source, "subdirectory"))
    return origin.of_url(pin, url) if kind in ("url", "file", "directory") else pin


def _when(package: Table, document: Table) -> list[str]:
    name = normal(text(package, "name"))
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
