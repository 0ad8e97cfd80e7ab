"""pdm.lock: what PDM resolved, with the groups of each package, and an entry of its own for its extras."""

from __future__ import annotations

from unhang.pins import origin, toml
from unhang.pins.values import Table, require, table, text, texts
from unhang.records import Names, Pin, normal


def pins(content: str, document: Table, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError."""
    require(text(table(document, "metadata"), "lock_version"), 3, 4)
    found = [pin for _, pin in toml.pins(content, document, names, _pin)]
    asked = {(pin.distribution, pin.version): pin.extras for pin in found if pin.extras}
    plain = [pin._replace(extras=asked.pop((pin.distribution, pin.version), ())) for pin in found if not pin.extras]
    return [*plain, *(pin for pin in found if (pin.distribution, pin.version) in asked)]


def _pin(package: Table) -> Pin:
    groups = texts(package, "groups")
    only = f"only with group {' or '.join(groups)}" if groups and "default" not in groups else ""
    when = "; ".join(filter(None, (only, text(package, "marker"))))
    name, version = normal(text(package, "name")), text(package, "version")
    pin = Pin(name, version, extras=tuple(texts(package, "extras")), when=when)
    if git := text(package, "git"):
        folder = text(package, "subdirectory")
        return origin.of_git(pin, git, text(package, "ref"), text(package, "revision"), folder)
    where = text(package, "url") or text(package, "path")
    return origin.of_url(pin, where) if where else pin
