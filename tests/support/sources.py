"""The upstream sources that a fix is tried on, what must hold of every rewrite of them, and how to run one function."""

from __future__ import annotations

import ast
import codecs
import difflib
import hashlib
import io
import re
import shutil
import subprocess
import tokenize
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import pytest

from support import wheels
from unhang.compat import upstreams
from unhang.compat.sweep import as_written as as_written_change
from unhang.judge.decide import codemod
from unhang.rewrite.one_file import Step, rewrite
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Shape, Target

WIDTHS = {"megatron-core": 100, "megatron-lm": 100, "verl": 120, "ms-swift": 120}
_ROWS: list[dict[str, Any]] = catalog._data("shapes.json")["shapes"]


class Source(NamedTuple):
    """One content of a target file."""

    target: Target
    data: bytes

    @property
    def function(self) -> shape.Function:
        return function_in(self.data, self.target)

    @property
    def digest(self) -> str:
        return shape.digest(self.function)

    @property
    def known(self) -> Shape:
        """What the matrix says of it; KeyError where it is not on record."""
        return catalog.shape_table().shapes[self.target.fix, self.target.function, self.digest]

    @property
    def rewritten(self) -> Source:
        return Source(self.target, _rewritten(self.target, self.data, self.known.result))


class Case(NamedTuple):
    """A source that a test is to have, still to be loaded: from a wheel, a tag, a commit, or a pull request."""

    kind: str
    target: Target
    key: str

    def load(self) -> Source:
        return _load(self)


def cases(
    fix: str, releases: Mapping[str, Sequence[str]], trees: Mapping[str, Sequence[str]] | None = None
) -> list[Any]:
    """The cases of a fix: these releases of each upstream, then every other affected shape that a clone has.

    ``trees`` are releases that exist only as source trees.
    """
    found, covered = [], set()
    for kind, versions in ("wheel", releases), ("tree", trees or {}):
        for upstream, names in versions.items():
            (target,) = (item for item in catalog.fix(fix).targets if item.upstream == upstream and _has(item, names))
            covered |= {f"{upstream} {name}" for name in names}
            found += [pytest.param(Case(kind, target, name), id=f"{upstream}-{name}") for name in names]
    for row in _ROWS:
        if row["fix"] == fix and row["state"] == "affected" and not covered & {*_released(row)}:
            kind = "pull" if _is_pull(row) else "shape"
            found.append(pytest.param(Case(kind, _targets(row)[0], row["shape"]), id=f"{kind}-{row['shape']}"))
    return found


def first(parameters: Sequence[Any], upstream: str) -> Source:
    """The source of the first case of an upstream."""
    return next(item.values[0] for item in parameters if item.values[0].target.upstream == upstream).load()


def as_written(fix: str) -> list[Any]:
    """A case for each shape of a pull request as written, whatever the matrix says of it."""
    return [
        pytest.param(Case("pull", _targets(row)[0], row["shape"]), id=f"pull-{row['shape']}")
        for row in _ROWS
        if row["fix"] == fix and _is_pull(row)
    ]


def function_in(data: bytes, target: Target) -> shape.Function:
    """The target's function in a file; there must be one."""
    (function,) = shape.find(_parsed(data), target.function)
    return function


def check(source: Source) -> None:
    """What must hold of the rewrite of any source, whichever the fix."""
    target, known = source.target, source.known
    assert known.state == "affected"
    new = source.rewritten
    compile(new.data, target.file, "exec", dont_inherit=True)
    assert new.digest == known.result
    (before, body, after), (new_before, new_body, new_after) = _around(source), _around(new)
    assert (new_before, new_after) == (before, after)
    assert body != new_body
    assert _dump_without(new) == _dump_without(source)
    signature, new_signature = source.function, new.function
    for part in ("name", "args", "decorator_list", "returns"):
        assert _dump(getattr(new_signature, part)) == _dump(getattr(signature, part))
    assert ast.get_docstring(new_signature) == ast.get_docstring(signature)
    added = [line[2:] for line in difflib.ndiff(_text(body), _text(new_body)) if line.startswith("+ ")]
    too_wide = [line for line in added if len(line) > WIDTHS[target.upstream]]
    assert not too_wide
    assert [line for line in added if line != line.rstrip()] == []
    comments = [line for line in added if re.fullmatch(rf"\s*# unhang {target.fix}: \S.*", line)]
    assert comments
    assert f"# unhang {target.fix}".encode() not in b"".join([*before, *after])
    assert not any(_imports_unhang(node) for node in ast.walk(_parsed(new.data)))
    assert "unhang" not in "\n".join(line for line in added if line not in comments)
    assert rewrite(new.data, [Step(target, None)]).data == new.data
    assert codemod(target).edits(new.function) == []
    assert not codemod(target).holds(source.function)


def check_variants(source: Source) -> None:
    """The rewrite of the same file as others may have it: line ends, byte-order mark, last line, indentation."""
    new, result = source.rewritten, source.known.result
    variants: dict[str, Callable[[bytes], bytes]] = {
        "crlf": lambda data: data.replace(b"\n", b"\r\n"),
        "bom": lambda data: codecs.BOM_UTF8 + data,
        "bom, crlf, no last line end": lambda data: codecs.BOM_UTF8 + data.rstrip(b"\n").replace(b"\n", b"\r\n"),
        "no last line end": lambda data: data.rstrip(b"\n"),
    }
    assert b"\r" not in source.data
    assert not source.data.startswith(codecs.BOM_UTF8)
    for name, variant in variants.items():
        assert (name, _rewritten(source.target, variant(source.data), result)) == (name, variant(new.data))
    # Up to the end of the function alone: then the function is the end of the file, and there may be no last line end.
    last = source.function.end_lineno
    cut = b"".join(source.data.splitlines(keepends=True)[:last]).rstrip(b"\n")
    new_cut = b"".join(new.data.splitlines(keepends=True)[: new.function.end_lineno]).rstrip(b"\n")
    assert _rewritten(source.target, cut, result) == new_cut
    tabs = Source(source.target, _tabs(source.data))
    done = Source(source.target, _rewritten(tabs.target, tabs.data, result))
    assert [line.replace(b"\t", b"    ") for line in done.data.splitlines()] == [
        line.replace(b"\t", b"    ") for line in _tabs(new.data).splitlines()
    ]
    (before, _, after), (new_before, body, new_after) = _around(tabs), _around(done)
    assert (new_before, new_after) == (before, after)
    comment = next(line for line in body if b"# unhang" in line)
    assert comment.startswith(b"\t")


def bare(function: shape.Function) -> shape.Function:
    """A copy of a function without what only says something about it: annotations, decorators, docstring."""
    (copy,) = ast.parse(ast.unparse(function)).body
    assert isinstance(copy, (ast.FunctionDef, ast.AsyncFunctionDef))
    for node in ast.walk(copy):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns, node.decorator_list = None, []
    return copy


def compiled(nodes: Sequence[ast.stmt]) -> CodeType:
    """These statements, to be executed with ``exec``."""
    module = ast.fix_missing_locations(ast.Module(list(nodes), []))
    return compile(module, "<upstream>", "exec", dont_inherit=True)


def callable_of(function: shape.Function, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """The function, defined in a namespace of stand-ins."""
    made = dict(namespace)
    exec(_compiled(function), made)
    found: Callable[..., Any] = made[function.name]
    return found


@cache
def _compiled(function: shape.Function) -> CodeType:
    return compiled([bare(function)])


@cache
def unparsed(function: shape.Function) -> str:
    """The function's code in Python's own spelling, which a mutation may look for."""
    return ast.unparse(function)


def mutated(function: shape.Function, old: str, new: str, count: int = 1) -> shape.Function:
    """The function with a part of its code (in Python's own spelling) replaced; it must stand there ``count`` times."""
    text = unparsed(function)
    assert text.count(old) == count, f"{old!r} stands there {text.count(old)} times"
    (changed,) = ast.parse(text.replace(old, new)).body
    assert isinstance(changed, (ast.FunctionDef, ast.AsyncFunctionDef))
    return changed


def _is_pull(row: Mapping[str, Any]) -> bool:
    return str(row.get("note", "")).startswith("pull request")


def _targets(row: Mapping[str, Any]) -> list[Target]:
    return [item for item in catalog.fix(row["fix"]).targets if item.function == row["function"]]


@cache
def _by_shape() -> Mapping[tuple[str, str, str], list[str]]:
    """The releases that have a shape, by fix, function and shape: ``megatron-core 0.17.1``."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for target in (target for fix in catalog.fixes().values() for target in fix.targets):
        for version, release in catalog.releases()[target.upstream].items():
            if shape_here := release.shapes[f"{target.file}::{target.function}"]:
                found.setdefault((target.fix, target.function, shape_here), []).append(f"{target.upstream} {version}")
    return found


def _released(row: Mapping[str, Any]) -> list[str]:
    return _by_shape().get((row["fix"], row["function"], row["shape"]), [])


def _only_in_wheels(row: Mapping[str, Any]) -> bool:
    return row.get("first", "").partition(" ")[0] in WIDTHS


def _has(target: Target, versions: Sequence[str]) -> bool:
    """Whether this is the target (of several in one upstream) that these releases have."""
    known = catalog.releases()[target.upstream]
    return all(known[version].shapes.get(f"{target.file}::{target.function}") for version in versions)


@cache
def _load(case: Case) -> Source:
    if case.kind == "wheel":
        project = "megatron-core" if case.target.upstream == "megatron-lm" else case.target.upstream
        data = wheels.read(project, case.key, case.target.file)
        assert data is not None, f"{project} {case.key} has no {case.target.file}"
        return Source(case.target, data)
    if case.kind == "tree":
        prefix = upstreams.load()["upstreams"]["megatron-core"]["tree-tags"]
        return Source(case.target, _show(case.target, f"refs/tags/{prefix}{case.key}", case.target.file) or b"")
    if case.kind == "pull":
        found = _pulls(case.target.fix)
        assert case.key in found, f"the pull request applied to no shape gives {case.key}"
        return found[case.key]
    (row,) = (row for row in _ROWS if (row["fix"], row["shape"]) == (case.target.fix, case.key))
    if _only_in_wheels(row):
        upstream, version = row["first"].split()
        (target,) = (item for item in _targets(row) if item.upstream == upstream and _has(item, [version]))
        return _load(Case("wheel", target, version))
    for target in _targets(row):
        data = _show(target, row["first"].split()[1], target.file)
        if data is not None:
            found_here = shape.find(_parsed(data), target.function)
            if len(found_here) == 1 and shape.digest(found_here[0]) == case.key:
                return Source(target, data)
    raise AssertionError(f"no file of commit {row['first']} has the shape {case.key}")


def _show(target: Target, revision: str, path: str) -> bytes | None:
    """A file at a commit of the clone; None where it has none."""
    command = ["git", "-C", str(wheels.clone(target.upstream)), "show", f"{revision}:{path}"]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


@cache
def _pulls(fix: str) -> Mapping[str, Source]:
    """The pull request of a fix, as written, applied to every shape of its target: shape -> source."""
    (item,) = (item for item in upstreams.load()["as-written"] if item["fix"] == fix)
    folder = wheels.clone(item["upstream"])
    git = pytest.importorskip("git", reason="gitpython is needed to apply a pull request")
    if shutil.which("patch") is None:
        pytest.skip("GNU patch is needed to apply a pull request")
    repo = git.Repo(folder)
    diff = as_written_change.hunks(repo, item["ref"], item["file"], item["function"])
    found: dict[str, Source] = {}
    for row in _ROWS:
        if row["fix"] != fix or row["function"] != item["function"]:
            continue
        for base in _bases(row):
            data = as_written_change.applied(diff, base.data)
            if data is None or not _parses(data):
                continue
            source = Source(base.target, data)
            if len(shape.find(_parsed(data), base.target.function)) == 1:
                found.setdefault(source.digest, source)
    return found


def _bases(row: Mapping[str, Any]) -> list[Source]:
    """What may have been patched: the first release, and the first commit, of a shape."""
    bases = []
    released = [name.split() for name in _released(row)][:1]
    for upstream, version in released:
        data = wheels.read(upstream, version, _targets(row)[0].file) if upstream != "megatron-lm" else None
        bases += [Source(_targets(row)[0], data)] if data is not None else []
    if row.get("first") and not _only_in_wheels(row):
        bases.append(_load(Case("shape", _targets(row)[0], row["shape"])))
    return bases


def _parses(data: bytes) -> bool:
    try:
        _parsed(data)
    except SyntaxError:
        return False
    return True


_TREES: dict[str, ast.Module] = {}


def _parsed(data: bytes) -> ast.Module:
    """A file's AST; each content is parsed once."""
    key = hashlib.sha256(data).hexdigest()
    if key not in _TREES:
        _TREES[key] = ast.parse(data)
    return _TREES[key]


@cache
def _rewritten(target: Target, data: bytes, result: str | None) -> bytes:
    return rewrite(data, [Step(target, result)]).data


def _around(source: Source) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The lines before the function, its own, and those after it."""
    function = source.function
    start = min([function.lineno, *(node.lineno for node in function.decorator_list)]) - 1
    lines = source.data.splitlines(keepends=True)
    return lines[:start], lines[start : function.end_lineno], lines[function.end_lineno :]


def _text(lines: Sequence[bytes]) -> list[str]:
    return [line.decode().rstrip("\r\n") for line in lines]


def _dump(node: object) -> object:
    if isinstance(node, list):
        return [_dump(item) for item in node]
    return ast.dump(node) if isinstance(node, ast.AST) else node


def _dump_without(source: Source) -> str:
    """The whole file's AST, but for the body of the function."""
    tree = ast.parse(source.data)
    (function,) = shape.find(tree, source.target.function)
    function.body = []
    return ast.dump(tree)


def _imports_unhang(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
    module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] == "unhang" for name in [*names, *module])


def _tabs(data: bytes) -> bytes:
    """The file, indented with tabs; the lines within a string stay as they are."""
    within: set[int] = set()
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type not in (tokenize.NEWLINE, tokenize.NL):
            within.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = data.splitlines(keepends=True)
    return b"".join(line if number in within else _tabbed(line) for number, line in enumerate(lines, 1))


def _tabbed(line: bytes) -> bytes:
    return re.sub(rb"^(?:    )+", lambda found: b"\t" * (len(found.group()) // 4), line)
