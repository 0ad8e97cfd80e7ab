"""conda-lock.yml: what conda-lock resolved, for each platform, of conda's packages and pip's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unhang.pins import origin
from unhang.pins.values import DamagedError, no_reader, require
from unhang.records import Names, Pin, normal


def pins(content: str, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError, and UnhangError ``no-lock-reader``."""
    top = _keys(_composed(content))
    if "package" not in top or "metadata" not in top:
        raise DamagedError("it has no packages of conda-lock's")
    require(getattr(top.get("version"), "value", 1), 1)
    platforms: dict[Pin, list[str]] = {}
    lines: dict[Pin, int] = {}
    every = set()
    for node in _items(top["package"]):
        row = {key: str(value.value) for key, value in _keys(node).items() if isinstance(value.value, str)}
        every.add(row.get("platform", ""))
        only = f"only in category {row['category']}" if row.get("category", "main") != "main" else ""
        pin = Pin(normal(row.get("name", "")), row.get("version", ""), when=only)
        pin = origin.of_git(pin, row["url"]) if row.get("url", "").startswith("git+") else pin
        if found := origin.known(pin, names):
            pin = found
            platforms.setdefault(pin, []).append(row.get("platform", ""))
            lines.setdefault(pin, node.start_mark.line + 1)
    return [
        pin._replace(line=lines[pin], when="; ".join(filter(None, (_on(found, every), pin.when))))
        for pin, found in platforms.items()
    ]


def _on(found: list[str], every: set[str]) -> str:
    return "" if {*found} == every else f"on {', '.join(dict.fromkeys(found))}"


def _composed(content: str) -> Any:
    """Return the tree of nodes, in which an alias is the node that it names: nothing is copied, or constructed."""
    try:
        import yaml
    except ImportError as error:
        raise no_reader("conda-lock.yml is read with PyYAML") from error
    try:
        return yaml.compose(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DamagedError(str(error).partition("\n")[0]) from error


def _keys(node: Any) -> dict[str, Any]:
    """Return the nodes of a mapping by key; nothing for another node."""
    pairs = node.value if node is not None and node.id == "mapping" else ()
    return {key.value: value for key, value in pairs if key.id == "scalar"}


def _items(node: Any) -> Iterator[Any]:
    if node.id != "sequence":
        raise DamagedError("'package' is no list")
    yield from node.value
