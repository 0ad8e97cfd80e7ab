"""An overlay: the rewritten modules of a plan, and a start-up hook that imports them in place of the originals. Pure,
but for reading the hook's own source.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from unhang import __version__
from unhang.judge.decide import APPLIED, Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import judge
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog
from unhang.store.receipt import sha256

MARK = b"# unhang overlay"
"""How the hook begins: what does not begin so is not ours to replace."""
_HERE = os.path.dirname(os.path.abspath(__file__))


class Overlay(NamedTuple):
    """All that an overlay's folder is to hold."""

    identity: str
    """The digest of ``files``: the name of their folder, so that no file there ever changes."""
    hook: bytes
    """Its ``sitecustomize.py``."""
    files: Mapping[str, bytes]
    """Below the folder named by ``identity``: the manifest, the loader, the rewritten modules."""
    modules: tuple[str, ...]


def compose(files: Iterable[FilePlan]) -> Overlay:
    """The overlay that a plan's files make. The same plan makes the same bytes, wherever its installations are."""
    planned = {file.steps[0][0].file: file for file in files}
    told = {_module(name): _told(name, planned[name]) for name in sorted(planned)}
    manifest = {"schema": 1, "unhang": __version__, "modules": told}
    content = {
        "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode("ascii"),
        "loader.py": _source("overlay_loader.py"),
        **{f"modules/{name}": planned[name].after for name in sorted(planned)},
    }
    digests = [(name, sha256(data)) for name, data in content.items()]
    identity = sha256(json.dumps(digests).encode())[:16]
    return Overlay(identity, _hook(identity, tuple(told)), content, tuple(told))


def seen_through(findings: Iterable[Finding], files: Sequence[FilePlan], where: str) -> list[Finding]:
    """The findings as they are where these files stand in for the originals; ``where`` says in words what that is."""
    rewritten = {(file.path, target): file.after for file in files for target, *_ in file.steps}
    known = catalog.shape_table().files
    through = []
    for finding in findings:
        path = finding.seen.path
        after = rewritten.get((os.path.realpath(path), finding.target))
        if after is not None:
            seen = judge(path, after, finding.target.function, known)
            finding = finding._replace(seen=seen, verdict=Verdict(APPLIED, None, where, ""))
        through.append(finding)
    return through


def _hook(identity: str, modules: tuple[str, ...]) -> bytes:
    """The hook of these modules, with nothing in it that only a reader needs: some jobs compile it in every process."""
    tree = ast.parse(_source("overlay_hook.py"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [statement for statement in node.body if not _is_for_readers(statement)]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    given = {"IDENTITY": identity, "MODULES": modules}
    code = "\n".join([f"{name} = {value!r}" for name, value in given.items()] + [ast.unparse(tree)])
    head = b": made by `unhang overlay`, which also replaces it; unhang's deliver/overlay_hook.py explains it\n"
    return MARK + head + code.encode() + b"\n"


def _is_for_readers(statement: ast.stmt) -> bool:
    """Whether it is a docstring, there for the type checker, or a value in whose place another is given."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    # but for these, its assignments and conditions hold for every overlay
    names = {node.id for node in ast.iter_child_nodes(statement) if isinstance(node, ast.Name)}
    return isinstance(statement, ast.Assert) or not names.isdisjoint({"IDENTITY", "MODULES", "TYPE_CHECKING"})


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _told(name: str, file: FilePlan) -> dict[str, object]:
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
