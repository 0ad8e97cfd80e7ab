"""Builds an overlay in memory: the rewritten modules of a plan, and a start-up hook that imports them in place of the
originals.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from unhang import __version__
from unhang.find.overlays import MARK, identity, module_name, sha256
from unhang.rewrite.plan import FilePlan

_HERE = os.path.dirname(os.path.abspath(__file__))


class Overlay(NamedTuple):
    """The content of an overlay's folder."""

    identity: str
    """A digest of ``files``, which names their folder: files in such a folder never change."""
    hook: bytes
    """The bytes of ``sitecustomize.py``."""
    files: Mapping[str, bytes]
    """By name in the folder named by ``identity``: the manifest, the loader, the rewritten modules."""
    modules: tuple[str, ...]


def compose(files: Iterable[FilePlan]) -> Overlay:
    """Return the overlay of a plan's files. It does not depend on where the installations are."""
    by_name = {file.steps[0][0].file: file for file in sorted(files, key=lambda file: file.steps[0][0].file)}
    modules = {module_name(name): _described(name, file) for name, file in by_name.items()}
    body = _hook()
    manifest = {"schema": 1, "unhang": __version__, "hook": sha256(body), "modules": modules}
    content = {
        "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode("ascii"),
        "loader.py": _source("overlay_loader.py"),
        **{f"modules/{name}": file.after for name, file in by_name.items()},
    }
    named = identity((name, sha256(data)) for name, data in content.items())
    about = b": made by `unhang overlay`, which also replaces it; unhang's deliver/overlay_hook.py explains it\n"
    head = MARK + about + f"IDENTITY = {named!r}\nMODULES = {tuple(modules)!r}\n".encode()
    return Overlay(named, head + body, content, tuple(modules))


def _hook() -> bytes:
    """Return the hook's statements, reduced to what they execute: some jobs compile them in every process."""
    tree = ast.parse(_source("overlay_hook.py"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [statement for statement in node.body if not _is_dropped(statement)]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return f"{ast.unparse(tree)}\n".encode()


def _is_dropped(statement: ast.stmt) -> bool:
    """Return whether a statement of overlay_hook.py is a docstring, serves the type checker, or is a placeholder."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    names = {node.id for node in ast.iter_child_nodes(statement) if isinstance(node, ast.Name)}
    return isinstance(statement, ast.Assert) or not names.isdisjoint({"IDENTITY", "MODULES", "TYPE_CHECKING"})


def _described(name: str, file: FilePlan) -> dict[str, object]:
    """Return a module's entry in the manifest."""
    installation = file.installation
    return {
        "file": name,
        "upstream": installation.upstream,
        "version": installation.version,
        "fixes": sorted({target.fix for target, *_ in file.steps}),
        "original": sha256(file.before),
        "rewritten": sha256(file.after),
    }


def _source(name: str) -> bytes:
    with open(os.path.join(_HERE, name), "rb") as file:
        return file.read()
