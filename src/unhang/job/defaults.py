"""The defaults of an installed release: its YAML, its parsers of arguments and its dataclasses, read as data.

Nothing of it is imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from unhang.errors import UnhangError
from unhang.job import documents, hydra, source
from unhang.job.settings import Job, Value
from unhang.job.source import UNSET, Class, Unset
from unhang.records import Installation


class Known(NamedTuple):
    """What is known of the settings of a release."""

    values: Mapping[str, Value | Unset] = MappingProxyType({})
    """The default of each; ``UNSET`` for one that its code works out."""
    source: str = ""
    """``default of verl 0.8.0``."""
    is_whole: bool = False
    """Whether these are all settings that it has."""
    options: Mapping[str, tuple[str, Value]] = MappingProxyType({})
    """The options of another name than their setting, each with that and what it sets it to."""
    why: str = ""
    """Why a default is not known."""


def known(how: Mapping[str, Any], installation: Installation | None, job: Job) -> Known:
    """Return the defaults of a release for a job, as its upstream's file says that they are to be read."""
    if not how:
        return Known(why="a recipe or the code says it")
    if installation is None or installation.pin is not None:
        return Known(why="no release of it is installed here")
    name = f"{installation.upstream} {installation.version or ''}".strip()
    root = installation.real_root
    if "hydra" in how:
        return _of_hydra(root, name, job, how["hydra"])
    places = tuple(how.get("places", ()))
    if "parser" in how:
        return _of_parser(root, how["parser"], places, name)
    command = re.split(r"[ ./]", job.program.removesuffix(".py"))[-1]
    of = how["classes"].get(command, ())
    return _of_classes(root, tuple(of), places, name)


def _of_hydra(root: str, name: str, job: Job, usual: str) -> Known:
    lists = [name for name, config in job.configs.items() if "defaults" in config]
    program = job.program or (usual if lists else "")
    found = hydra.entry(root, program) if program else None
    if found is None:
        return Known(why=f"the config of {job.program or 'the program'} is not one of {name}")
    folder, config = found
    for key in ("config_path", "config_dir", "config_name"):
        if key in job.unknown:
            return Known(why=job.unknown[key])
    settings = {key: str(job.settings[key].value) for key in ("config_path", "config_name") if key in job.settings}
    config = settings.get("config_name", config if job.program else lists[0]).removesuffix(".yaml")
    path = os.path.normpath(settings.get("config_path", ""))
    if path != "." and config not in job.configs and not path.endswith(os.path.relpath(folder, root)):
        folder = os.path.normpath(os.path.join(folder, "..", path))

    def choice(group: str) -> str | None:
        if group in job.unknown:
            raise hydra.NotComposedError(job.unknown[group])
        return str(job.settings[group].value) if group in job.settings else None

    try:
        document = hydra.composed(folder, config, root, choice, job.configs)
        values = {key: it.value for key, it in documents.flat(document, "").items()}
    except UnhangError as error:
        return Known(why=f"{error.message}: {error.hint}")
    except (ValueError, OSError, RecursionError) as error:
        return Known(why=f"the config {config} is not read: {error}")
    return Known(values, f"default of {name}", True)


@cache
def _of_parser(root: str, parser: str, places: tuple[str, ...], name: str) -> Known:
    tree = source.parsed(os.path.join(root, parser))
    if tree is None:
        return Known(why=f"{name} has no {parser}")
    values: dict[str, Value | Unset] = {}
    options: dict[str, tuple[str, Value]] = {}
    classes = source.classes(tuple(os.path.join(root, place) for place in places))
    excluded = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "add_argument":
            _add(node, values, options)
        elif called.endswith("Factory") and node.args and isinstance(node.args[0], ast.Name):
            words = {it.arg: it.value for it in node.keywords}
            out = words.get("exclude")
            out = excluded.get(out.id) if isinstance(out, ast.Name) else out
            skipped = (
                {it.value for it in out.elts if isinstance(it, ast.Constant)} if isinstance(out, ast.List) else set()
            )
            _generate(node.args[0].id, skipped, classes, values, options)
    changed = source.worked_out(tree, "args")
    values = {key: UNSET if value is None and key in changed else value for key, value in values.items()}
    return Known(values, f"default of {name}", True, options)


def _add(node: ast.Call, values: dict[str, Value | Unset], options: dict[str, tuple[str, Value]]) -> None:
    names = [it.value.lstrip("-").replace("-", "_") for it in node.args if isinstance(it, ast.Constant)
             and isinstance(it.value, str) and it.value.startswith("--")]  # fmt: skip
    words = {it.arg: it.value for it in node.keywords}
    if not names:
        return
    dest = source.constant(words["dest"]) if "dest" in words else names[0]
    action = ast.unparse(words["action"]).strip("'") if "action" in words else ""
    flag = {"store_true": True, "store_false": False}.get(action)
    if not isinstance(dest, str):
        return
    if "default" in words:
        values[dest] = source.constant(words["default"])
    else:
        values.setdefault(dest, None if flag is None else not flag)
    for name in names:
        if name != dest or flag is False:
            options[name] = (dest, flag)
        if action.endswith("BooleanOptionalAction"):
            options[f"no_{name}"] = (dest, False)


def _generate(
    name: str, skipped: set[Any], classes: Mapping[str, Class], values: dict[str, Value | Unset],
    options: dict[str, tuple[str, Value]],
) -> None:  # fmt: skip
    """Add the arguments that are made from a dataclass."""
    found, _ = source.fields(name, classes)
    for field, value in found.items():
        if field not in skipped:
            values.setdefault(field, value)
    for each in source.above(name, classes):
        options.update({key: it for key, it in each.options.items() if it[0] not in skipped})


@cache
def _of_classes(root: str, names: tuple[str, ...], places: tuple[str, ...], name: str) -> Known:
    classes = source.classes(tuple(os.path.join(root, place) for place in places))
    for each in names:
        if each in classes:
            values, is_whole = source.fields(each, classes)
            return Known(values, f"default of {name}", is_whole)
    return Known()
