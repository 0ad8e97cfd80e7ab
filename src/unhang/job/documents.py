"""Settings in YAML and JSON, read as data: no tag of YAML makes anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from unhang.errors import UnhangError
from unhang.job.settings import Setting, Value

MOST = 50_000
"""Nodes of a document."""
_DEEPEST = 50


class BadDocumentError(ValueError):
    """A file that is no YAML or JSON with settings; the message says why."""


def yaml(text: str) -> Any:
    """Return what a YAML file has, as plain values. Raises BadDocumentError, and UnhangError ``no-job-reader``."""
    try:
        import yaml
    except ImportError:
        raise UnhangError("no-job-reader", "YAML is read with PyYAML", hint="pip install 'unhang[job]'") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if _is_deep(text):
        raise BadDocumentError("it is nested too deeply")
    try:
        root = yaml.compose(text, Loader=loader)
        return None if root is None else _plain(root, [0], 0)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadDocumentError(" ".join(str(error).split())) from None


def _is_deep(text: str) -> bool:
    """Return whether brackets or dashes are nested so deeply that a parser in C would end this process."""
    depth = deepest = 0
    for one in re.findall(r"[][{}]", text):
        depth = max(depth + (1 if one in "[{" else -1), 0)
        deepest = max(deepest, depth)
    return deepest > 1_000 or bool(re.search(r"(?:[-?:]\s+){1000}", text))


def _plain(node: Any, count: list[int], depth: int) -> Any:
    """Return the value of a node; an alias is its node again, and counts as often as it is used."""
    count[0] += 1
    if count[0] > MOST or depth > _DEEPEST:
        raise BadDocumentError("it has too much in it, or is nested too deeply")
    if node.id == "mapping":
        found: dict[str, Any] = {}
        for key, value in node.value:
            inner = _plain(value, count, depth + 1)
            if key.id != "scalar":
                continue
            if key.tag.endswith(":merge"):
                for each in inner if isinstance(inner, list) else [inner]:
                    found = {**each, **found} if isinstance(each, dict) else found
            else:
                found[key.value] = inner
        return found
    if node.id == "sequence":
        return [_plain(value, count, depth + 1) for value in node.value]
    return _scalar(node)


def _scalar(node: Any) -> Value:
    kind = node.tag.rpartition(":")[2]
    text: str = node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if not node.style and kind in ("int", "float", "str"):  # 1e-3 is a text to YAML 1.1, and a number to its user
        for read in (lambda it: int(it.replace("_", ""), 0), float):
            try:
                return read(text)
            except ValueError:
                continue
    return text


def of_json(text: str) -> Any:
    """Return what a JSON file has. Raises BadDocumentError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocumentError(str(error) or "it is nested too deeply") from None


def flat(document: Any, source: str) -> dict[str, Setting]:
    """Return the settings of a document: its values by their keys with dots; a list is a text. Raises BadDocumentError.

    An empty mapping is no setting.
    """
    if not isinstance(document, Mapping):
        raise BadDocumentError("it has no keys")
    return {key: Setting(value, source) for key, value in _flat(document, "", 0)}


def _flat(document: Mapping[str, Any], above: str, depth: int) -> Iterator[tuple[str, Value]]:
    if depth > _DEEPEST:
        raise BadDocumentError("it is nested too deeply")
    for key, value in document.items():
        name = f"{above}{key}" if above else key.lstrip("-").replace("-", "_") if key.startswith("--") else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.", depth + 1)
        else:
            yield name, json.dumps(value) if isinstance(value, list) else value
