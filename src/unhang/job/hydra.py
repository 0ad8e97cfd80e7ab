"""Hydra's configs, composed from YAML files by their defaults lists. Nothing is imported, and no resolver runs."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from unhang.job import documents, source

_MOST = 300
"""Files of a config."""
_DEEPEST = 30
Choice = Callable[[str], "str | None"]
"""Gives what a job chooses for a group, as it writes it: ``model_engine``, ``actor@actor_rollout_ref.actor``."""


class NotComposedError(ValueError):
    """A config that cannot be put together from the files; the message says why."""


class _Entry(NamedTuple):
    group: str
    package: str | None
    choices: list[Any]
    overrides: bool


def entry(root: str, program: str) -> tuple[str, str] | None:
    """Return the folder and the name of the config of a program, which its ``hydra.main`` names; None without one."""
    path = program if program.endswith(".py") else f"{program.replace('.', '/')}.py"
    file = os.path.normpath(os.path.join(root, path))
    tree = source.parsed(file) if file.startswith(os.path.join(root, "")) else None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hydra.main":
            words = {it.arg: it.value.value for it in node.keywords if isinstance(it.value, ast.Constant)}
            if isinstance(words.get("config_name"), str):
                folder = os.path.join(os.path.dirname(file), str(words.get("config_path") or "."))
                return os.path.normpath(folder), str(words["config_name"])
    return None


def composed(folder: str, name: str, root: str, choice: Choice) -> dict[str, Any]:
    """Return a config. ``root`` is what the search path of configs is relative to.

    Raises NotComposedError, ``documents.BadDocumentError``, OSError, and UnhangError ``no-job-reader``.
    """
    composer = _Composer([folder], root, choice)
    document = composer.document(name)
    for place in _list(document.get("hydra"), "searchpath"):
        kind, _, where = str(place).partition("://")
        where = where.replace(".", "/") if kind == "pkg" else where
        composer.folders.append(os.path.normpath(os.path.join(root, where)))
    composer.choose(document, 0)
    found: dict[str, Any] = {}
    composer.add(found, name, "", "", 0)
    found.pop("hydra", None)
    return found


class _Composer:
    def __init__(self, folders: list[str], root: str, choice: Choice) -> None:
        self.folders, self._choice = folders, choice
        self._chosen: dict[str, Any] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self._packages: dict[str, str] = {}

    def document(self, name: str) -> dict[str, Any]:
        """Return the YAML file of a config."""
        name = os.path.normpath(name).lstrip("/")
        if name not in self._documents:
            if len(self._documents) >= _MOST or name.startswith(".."):
                raise NotComposedError(f"it has no config {name}")
            for folder in self.folders:
                if (text := source.text(os.path.join(folder, f"{name}.yaml"))) is not None:
                    break
            else:
                raise NotComposedError(f"there is no config {name}")
            read = documents.yaml(text)
            header = re.match(r"(?:\s*#.*\n|\s*\n)*?#\s*@package\s+(\S+)", text)
            self._packages[name] = header[1] if header else ""
            self._documents[name] = read if isinstance(read, dict) else {}
        return self._documents[name]

    def choose(self, document: Mapping[str, Any], depth: int) -> None:
        """Keep what the lists of defaults choose for groups, the outermost first."""
        if depth > _DEEPEST:
            raise NotComposedError("it is nested too deeply")
        entries = [_entry(it) for it in _list(document, "defaults")]
        for it in entries:
            if it.overrides:
                self._chosen.setdefault(it.group, it.choices[0])
        for it in entries:
            if not it.group:
                for name in it.choices:
                    if name != "_self_":
                        self.choose(self.document(str(name)), depth + 1)
            elif not it.overrides and len(it.choices) == 1:
                mine = self._choice(it.group) or it.choices[0]
                self._chosen.setdefault(it.group, mine)

    def add(self, found: dict[str, Any], name: str, group: str, package: str, depth: int) -> None:
        """Add a config and those that its defaults list names."""
        if depth > _DEEPEST:
            raise NotComposedError("it is nested too deeply")
        path = os.path.normpath(os.path.join(group, name)) if group else name
        document = self.document(path)
        header = self._packages[os.path.normpath(path).lstrip("/")]
        package = "" if header == "_global_" else package if header in ("", "_group_") else header
        entries = [_entry(it) for it in _list(document, "defaults")]
        if not any("_self_" in it.choices for it in entries if not it.group):
            entries.append(_Entry("", None, ["_self_"], False))
        for it in entries:
            if it.overrides:
                continue
            if it.choices == ["_self_"] and not it.group:
                _merge(found, package, {key: value for key, value in document.items() if key != "defaults"})
                continue
            below = os.path.normpath(os.path.join("/", group, it.group)).lstrip("/") if it.group else group
            inner = package
            if it.package is not None:
                inner = (
                    it.package.removeprefix("_global_").lstrip(".")
                    if it.package.startswith("_global_")
                    else (".".join(filter(None, (package, it.package))))
                )
            elif it.group:
                inner = ".".join(filter(None, (package, it.group.lstrip("/").replace("/", "."))))
            for choice in self._of(it, below, inner):
                if choice is not None:
                    self.add(found, self._filled(str(choice)), below, inner, depth + 1)

    def _of(self, it: _Entry, below: str, package: str) -> list[Any]:
        if not it.group or len(it.choices) != 1:
            return it.choices
        mine = self._choice(f"{below}@{package}")
        if mine is None and package in ("", below.replace("/", ".")):
            mine = self._choice(below)
        return [mine] if mine is not None else [self._chosen.get(it.group, it.choices[0])]

    def _filled(self, choice: str) -> str:
        return re.sub(r"\$\{([\w./@]+)\}", lambda it: str(self._chosen.get(it[1], it[0])), choice)


def _list(document: Any, key: str) -> list[Any]:
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, list) else []


def _entry(row: Any) -> _Entry:
    if not isinstance(row, Mapping):
        name, at, package = str(row).partition("@")
        return _Entry("", package if at else None, [name], False)
    (key, value), *_ = row.items()
    words = str(key).split()
    group, at, package = words[-1].partition("@")
    return _Entry(
        group, package if at else None, value if isinstance(value, list) else [value], "override" in words[:-1]
    )


def _merge(found: dict[str, Any], package: str, more: Mapping[str, Any]) -> None:
    for part in filter(None, package.split(".")):
        inner = found.get(part)
        if not isinstance(inner, dict):
            inner = found[part] = {}
        found = inner
    for key, value in more.items():
        if isinstance(value, Mapping):
            if not isinstance(found.get(key), dict):
                found[key] = {}
            _merge(found[key], "", value)
        else:
            found[key] = value
