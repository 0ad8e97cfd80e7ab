"""uv.lock: what uv resolved, with the versions of each fork."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unhang.pins import origin, toml
from unhang.pins.values import Table, require, table, tables, text, texts
from unhang.records import Names, Pin, normal

_Node = tuple[str, str, str]
"""A package, its version, and one of its extras or groups; empty for the package itself."""


def pins(content: str, document: Table, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError."""
    require(document.get("version"), 1)
    found = list(toml.pins(content, document, names, _pin))
    if not found:
        return []
    packages = tables(document, "package")
    needs = {(text(it, "name"), text(it, "version"), part): rows for it in packages for part, rows in _parts(it)}
    only = _only(packages, needs)
    return [_asked(pin, it, needs, only.get((text(it, "name"), text(it, "version")), "")) for it, pin in found]


def _pin(package: Table) -> Pin:
    pin, source = Pin(normal(text(package, "name")), text(package, "version")), table(package, "source")
    if git := text(source, "git"):
        return origin.of_git(pin, git)
    for key in ("url", "path", "directory", "editable", "virtual"):
        if where := text(source, key):
            return origin.of_url(pin, where)
    return pin


def _asked(pin: Pin, package: Table, needs: Mapping[_Node, list[Table]], only: str) -> Pin:
    """Return the pin with the extras that others ask of it, and with when it is installed."""
    rows = [
        row
        for below in needs.values()
        for row in below
        if text(row, "name") == text(package, "name") and text(row, "version") in ("", pin.version)
    ]
    markers = dict.fromkeys(text(row, "marker") for row in rows)
    if not all(markers):  # somebody always needs it, in its fork
        markers = {}
    forks = texts(package, "resolution-markers")
    when = (only, " or ".join(markers or forks))
    extras = {extra for row in rows for extra in texts(row, "extra")}
    return pin._replace(extras=tuple(sorted(extras)), when="; ".join(filter(None, when)))


def _parts(package: Table) -> Iterator[tuple[str, list[Table]]]:
    """Yield what a package needs by itself, and with each of its extras and groups."""
    yield "", tables(package, "dependencies")
    for kind, noun in ("optional-dependencies", ""), ("dev-dependencies", "group "):
        for part in table(package, kind):
            yield f"{noun}{part}", tables(table(package, kind), part)


def _only(packages: list[Table], needs: Mapping[_Node, list[Table]]) -> dict[tuple[str, str], str]:
    """Return, for what the project does not always need, the extras and groups with which it does."""
    own = [text(it, "name") for it in packages if {*table(it, "source")} & {"editable", "virtual", "directory"}]
    always = _reached([node for node in needs if node[0] in own and not node[2]], needs)
    only: dict[tuple[str, str], list[str]] = {}
    for name, version, part in needs:
        if name in own and part:
            for other in _reached([(name, version, part)], needs) - always:
                only.setdefault(other, []).append(part if part.startswith("group ") else f"extra {part}")
    return {other: f"only with {' or '.join(parts)}" for other, parts in only.items()}


def _reached(start: list[_Node], needs: Mapping[_Node, list[Table]]) -> set[tuple[str, str]]:
    versions: dict[str, set[str]] = {}
    for name, version, _ in needs:
        versions.setdefault(name, set()).add(version)
    seen, left = set(start), list(start)
    while left:
        for row in needs.get(left.pop(), ()):
            name, asked = text(row, "name"), text(row, "version")
            for version in [asked] if asked else versions.get(name, ()):
                for part in ("", *texts(row, "extra")):
                    node = name, version, part
                    if node not in seen:
                        seen.add(node)
                        left.append(node)
    return {(name, version) for name, version, _ in seen}
