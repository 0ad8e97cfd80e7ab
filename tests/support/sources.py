"""The upstream sources that a fix is tested on, and how to run one function of them."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from support import wheels
from support.checkout import COMPAT
from unhang.compat import upstreams
from unhang.compat.sweep import as_written as as_written_change
from unhang.compat.sweep import clones, frozen
from unhang.compat.sweep.as_written import Pull
from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.records import Installation
from unhang.rewrite.one_file import Step, rewrite
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Shape, Target

WIDTHS = {name: one.width for name, one in packs.upstreams().items()}
_ROWS: list[dict[str, Any]] = [
    {"fix": fix, **dict(zip(("function", "shape"), key.split())), **entry}
    for fix in catalog.fixes()
    for key, entry in catalog.facts(fix).get("shapes", {}).items()
    if entry["state"] != "ours"
]


class Source(NamedTuple):
    """One content of a target file."""

    target: Target
    data: bytes

    @property
    def function(self) -> shape.Function:
        return function_in(self.data, self.target)

    @property
    def digest(self) -> str:
        return _digest(self.function)

    @property
    def known(self) -> Shape:
        """Return the function's entry in the matrix; KeyError if it has none."""
        return catalog.shape_table().shapes[self.target.fix, self.target.function, self.digest]

    @property
    def rewritten(self) -> Source:
        return Source(self.target, rewritten(self.target, self.data, self.known.result, self.digest))


class Case(NamedTuple):
    """A source to load: from a wheel, a tag ("tree"), a commit ("shape"), or a pull request as written ("pull").

    Of a fix that was never swept ("unswept") there is none: to load it fails, and says what to run.
    """

    kind: str
    target: Target
    key: str

    def load(self) -> Source:
        return _load(self)


def cases(
    fix: str,
    releases: Mapping[str, Sequence[str]],
    trees: Mapping[str, Sequence[str]] | None = None,
    state: str = "affected",
    function: str = "",
) -> list[Any]:
    """Return the cases of a fix: these releases of each upstream, then every other shape in this state, from a clone.

    ``trees`` are releases that exist only as source trees. ``function`` chooses a target, of several in one upstream.
    """
    if all(row["fix"] != fix for row in _ROWS):
        return [pytest.param(Case("unswept", catalog.fix(fix).targets[0], ""), id="unswept")]
    found, covered = [], set()
    for kind, versions in ("wheel", releases), ("tree", trees or {}):
        for upstream, names in versions.items():
            covered |= {f"{upstream} {name}" for name in names}
            for name in names:
                targets = [item for item in _chosen(fix, upstream, function) if _has(item, [name])]
                (_,) = {item.function for item in targets}
                for target in targets:  # a release may have a function in two files
                    file = f"-{target.file}" if len(targets) > 1 else ""
                    marks = [pytest.mark.history(upstream)] if kind == "tree" else []
                    found.append(pytest.param(Case(kind, target, name), id=f"{upstream}-{name}{file}", marks=marks))
    for row in _ROWS:
        if (row["fix"], row["state"]) != (fix, state) or function not in ("", row["function"]):
            continue
        if not covered & {*_released(row)}:
            kind = "pull" if _is_pull(row) else "shape"
            is_released = kind == "shape" and row["first"].split()[0] in WIDTHS
            found.append(_of_shape(kind, _targets(row)[0], row["shape"], is_released))
    return found


def _of_shape(kind: str, target: Target, shape: str, is_released: bool) -> Any:
    """Return the parameter of a case that is named by its shape; if no release has that, only a clone does."""
    marks = [] if is_released else [pytest.mark.history(target.upstream)]
    return pytest.param(Case(kind, target, shape), id=f"{kind}-{shape}", marks=marks)


def first(parameters: Sequence[Any]) -> Source:
    found: Source = parameters[0].values[0].load()
    return found


def case(fix: str, version: str, upstream: str = "", function: str = "") -> Case:
    """Return a release's case, by default of the only upstream and the only function that the fix is about."""
    targets = [item for item in _chosen(fix, upstream, function) if _has(item, [version])]
    return Case("wheel", targets[0], version)


def wheel(fix: str, version: str, upstream: str = "", function: str = "") -> Source:
    """Load a release, chosen as ``case`` does."""
    return case(fix, version, upstream, function).load()


def installed(
    root: Path, fix: str, version: str, of: str, change: Mapping[str, Any] = MappingProxyType({})
) -> Installation:
    """Lay out what a release, ``of``, has of a fix with one upstream, as if it were installed as another ``version``.

    ``change`` says how some files differ: they are those of another release, or what a function makes of them.
    """
    functions = catalog.fix(fix).functions
    upstream = functions[0].upstream
    for file in {one.file for one in functions}:
        how = change.get(file, of)
        data = wheels.read(upstream, how if isinstance(how, str) else of, file)
        if data is not None:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data if isinstance(how, str) else how(data))
    package = root / upstreams.projects()[upstream]["import-name"].replace(".", "/")
    return Installation(upstream, version, str(root), str(root), str(package), "wheel", None, ())


def _chosen(fix: str, upstream: str, function: str) -> list[Target]:
    found = (item for item in catalog.fix(fix).targets if upstream in ("", item.upstream))
    return [item for item in found if function in ("", item.function)]


def on_record(*states: str) -> list[Any]:
    """Return a case for each shape of a target that is in one of these states; one of each kind is quick."""
    found, seen = [], set()
    for row in _ROWS:
        targets = [target for target in _targets(row) if target in catalog.fix(row["fix"]).targets]
        if row["state"] in states and targets:
            kind, is_released = "pull" if _is_pull(row) else "shape", bool(_released(row))
            case = _of_shape(kind, targets[0], row["shape"], is_released)
            like = row["fix"], row["function"], row["state"], is_released
            marks = [*case.marks, *[pytest.mark.slow] * (like in seen)]
            found.append(pytest.param(*case.values, id=f"{row['fix']}-{case.id}", marks=marks))
            seen.add(like)
    return found


def as_written(fix: str) -> list[Any]:
    """Return a case for each shape of a target with a pull request as written, whatever its state in the matrix."""
    return [
        _of_shape("pull", target, row["shape"], False)
        for row in _ROWS
        if row["fix"] == fix and _is_pull(row)
        for target in _targets(row)[:1]
        if target in catalog.fix(fix).targets
    ]


def function_in(data: bytes, target: Target) -> shape.Function:
    """Return the target's function in a file, which must define it once."""
    (function,) = shape.find(parsed(data), target.function)
    return function


def bare(function: shape.Function) -> shape.Function:
    """Return a copy of a function without annotations and decorators, which need names that the tests lack."""
    (copy,) = ast.parse(ast.unparse(function)).body
    assert isinstance(copy, (ast.FunctionDef, ast.AsyncFunctionDef))
    for node in ast.walk(copy):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns, node.decorator_list = None, []
    return copy


@cache
def unparsed(function: shape.Function) -> str:
    """Return the function's code as ``ast.unparse`` spells it from Python 3.11 on: no parentheses around targets."""
    text = re.sub(r"(?m)^( *)\(([\w, .]+)\) = ", r"\1\2 = ", ast.unparse(function))
    return re.sub(r"\bfor \(([\w, ]+)\) in ", r"for \1 in ", text)


def mutated(function: shape.Function, old: str, new: str, count: int = 1) -> shape.Function:
    """Return the function with a part of its code (see ``unparsed``) replaced, which must occur ``count`` times."""
    text = unparsed(function)
    assert text.count(old) == count, f"{old!r} occurs {text.count(old)} times"
    (changed,) = ast.parse(text.replace(old, new)).body
    assert isinstance(changed, (ast.FunctionDef, ast.AsyncFunctionDef))
    return changed


class Edit(NamedTuple):
    """A part of a function's code, as ``mutated`` has it, and what stands there instead."""

    case: Case
    old: str
    new: str
    refusal: str = ""
    """What the codemod says of it."""
    times: int = 1

    @property
    def function(self) -> shape.Function:
        return mutated(self.case.load().function, self.old, self.new, self.times)


def edits(case: Any, rows: Sequence[Sequence[Any]], refusal: str = "{}") -> list[Any]:
    """Return a parameter for each edit of a case: an old text, a new one, and what ``refusal`` is to hold, and perhaps
    how often the old text stands there.
    """
    one, marks = (case, ()) if isinstance(case, Case) else (case.values[0], case.marks)
    made = (Edit(one, old, new, refusal.format(*said[:1] or [""]), *said[1:]) for old, new, *said in rows)
    return [pytest.param(edit, marks=marks) for edit in made]


def dump(node: object) -> object:
    """Return a dump of a node, of each node of a list, or another value itself."""
    if isinstance(node, list):
        return [dump(item) for item in node]
    return ast.dump(node) if isinstance(node, ast.AST) else node


@cache
def _digest(function: shape.Function) -> str:
    return shape.digest(function)


def forget() -> None:
    """Drop what is cached for each function: the fuzz runs tens of thousands of them."""
    unparsed.cache_clear()
    _digest.cache_clear()
    parsed.cache_clear()


def _is_pull(row: Mapping[str, Any]) -> bool:
    return str(row.get("note", "")).startswith("pull request")


def _targets(row: Mapping[str, Any]) -> list[Target]:
    return [item for item in catalog.fix(row["fix"]).functions if item.function == row["function"]]


@cache
def _by_shape() -> Mapping[tuple[str, str, str], list[str]]:
    """Return the releases that have a shape, such as ``megatron-core 0.17.1``, by fix, function and shape."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for target in (target for fix in catalog.fixes().values() for target in fix.functions):
        for version, release in catalog.releases()[target.upstream].items():
            if shape_here := release.shapes[f"{target.file}::{target.function}"]:
                found.setdefault((target.fix, target.function, shape_here), []).append(f"{target.upstream} {version}")
    return found


def _released(row: Mapping[str, Any]) -> list[str]:
    return _by_shape().get((row["fix"], row["function"], row["shape"]), [])


def _has(target: Target, versions: Sequence[str]) -> bool:
    """Return whether these releases have this target."""
    known, place = catalog.releases()[target.upstream], f"{target.file}::{target.function}"
    return all(version in known and known[version].shapes.get(place) for version in versions)


@cache
def _load(case: Case) -> Source:
    if case.kind == "unswept":
        fix = case.target.fix
        pytest.fail(f"the matrix has no shape of {fix}: run nox -s sweep -- --fix {fix}", pytrace=False)
    if case.kind == "wheel":
        project = "megatron-core" if case.target.upstream == "megatron-lm" else case.target.upstream
        data = wheels.read(project, case.key, case.target.file)
        assert data is not None, f"{project} {case.key} has no {case.target.file}"
        return Source(case.target, data)
    if case.kind == "tree":
        prefix = upstreams.projects()["megatron-core"]["tree-tags"]
        data = _show(case.target, f"refs/tags/{prefix}{case.key}", case.target.file)
        if data is None:
            pytest.fail(f"{wheels.clone(case.target.upstream)} has no {prefix}{case.key}", pytrace=False)
        return Source(case.target, data)
    if case.kind == "pull":
        found = _pulls(case.target.fix)
        assert case.key in found, f"the pull request applied to no shape gives {case.key}"
        return found[case.key]
    (row,) = (row for row in _ROWS if (row["fix"], row["shape"]) == (case.target.fix, case.key))
    upstream, revision = row["first"].split()[:2]
    if upstream in WIDTHS:
        return wheel(row["fix"], revision, upstream, row["function"])
    for target in _targets(row):
        data = _show(target, revision, target.file)
        functions = shape.find(parsed(data), target.function) if data else []
        if data and [shape.digest(function) for function in functions] == [case.key]:
            return Source(target, data)
    pytest.fail(f"no file of commit {row['first']} has the shape {case.key}", pytrace=False)


def _show(target: Target, revision: str, path: str) -> bytes | None:
    """Return a file at a commit of the clone; None if the commit lacks it."""
    inside = upstreams.projects().get(target.upstream, {}).get("folder", "")
    command = ["git", "-C", str(wheels.clone(target.upstream)), "show", f"{revision}:{os.path.join(inside, path)}"]
    return subprocess.run(command, capture_output=True, check=False).stdout or None


def pull_requests(fix: str) -> list[Pull]:
    """Return what the fix's manifest says of its pull requests: one entry for each function that they change."""
    return [pull for pull in as_written_change.pulls() if pull.target.fix == fix]


@cache
def pull_request_diff(pull: Pull) -> str:
    """Return the change that a pull request makes to the target.

    Skips the test where no clone is named. Raises UnhangError ``clone-failed`` where it cannot be read from the clone.
    """
    git = pytest.importorskip("git", reason="gitpython is needed to read a pull request")
    where = wheels.clone(pull.project)
    try:
        with clones.opened(str(where)) as repo:
            clone = clones.at(repo, frozen.read(COMPAT)[pull.project])
            return as_written_change.hunks(clone, pull.ref, pull.target.file, pull.target.function)
    except (git.GitError, OSError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines() or [type(error).__name__]
        raise UnhangError("clone-failed", f"{where} gives no {pull.ref}: {lines[-1]}") from error


@cache
def _pulls(fix: str) -> Mapping[str, Source]:
    """Apply the pull requests of a fix as written to every shape of their targets. Return the sources by new shape."""
    if shutil.which("patch") is None:
        pytest.skip("GNU patch is needed to apply a pull request")
    found: dict[str, Source] = {}
    for pull in pull_requests(fix):
        try:
            diff = pull_request_diff(pull)
        except UnhangError as error:
            pytest.fail(error.message, pytrace=False)
        rows = (row for row in _ROWS if (row["fix"], row["function"]) == (fix, pull.target.function))
        for base in (base for row in rows for base in _bases(row)):
            data = as_written_change.applied(diff, base.data)
            # the diff may apply to a source that it does not fit: the result does not parse
            with contextlib.suppress(SyntaxError):
                if data is not None and len(shape.find(parsed(data), base.target.function)) == 1:
                    source = Source(base.target, data)
                    found.setdefault(source.digest, source)
    return found


def _bases(row: Mapping[str, Any]) -> list[Source]:
    """Return the sources of a shape that a user may have patched: its first release and its first commit."""
    bases, target = [], _targets(row)[0]
    for upstream, version in [name.split() for name in _released(row)][:1]:
        data = wheels.read(upstream, version, target.file) if upstream != "megatron-lm" else None
        bases += [Source(target, data)] if data is not None else []
    if row.get("first") and row["first"].split()[0] not in WIDTHS:
        bases.append(_load(Case("shape", target, row["shape"])))
    return bases


@cache
def parsed(data: bytes) -> ast.Module:
    return ast.parse(data)


@cache
def rewritten(target: Target, data: bytes, result: str | None, known: str | None = None) -> bytes:
    return rewrite(data, [Step(target, result, known)]).data


def around(source: Source) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the lines before the function, those of the function, and those after it."""
    function = source.function
    start = min([function.lineno, *(node.lineno for node in function.decorator_list)]) - 1
    lines = source.data.splitlines(keepends=True)
    return lines[:start], lines[start : function.end_lineno], lines[function.end_lineno :]
