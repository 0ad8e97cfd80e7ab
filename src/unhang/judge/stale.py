"""Bytecode that an import runs in place of a source, although it was compiled from other code.

An import runs an unchecked-hash `.pyc` (PEP 552) without a look at the source. The two other kinds it first compares
with the source: with its time and size, or with its content. That comparison is not repeated here.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError
from unhang.find.bytecode import UNCHECKED, Pyc, caches, compiler, header, pycs
from unhang.find.environment import ask
from unhang.find.metadata import names
from unhang.judge.decide import ACCEPTED, APPLIED, DRIFTED, FIXED_UPSTREAM, STALE, Verdict
from unhang.judge.findings import Finding, StaleCode
from unhang.records import Search
from unhang.suggest import Command, Hint

if TYPE_CHECKING:
    from unhang.find.overlays import Overlay

# Runs in an interpreter, on files that may be hostile: whatever the bytecode does to it, there is no answer at worst.
# Line numbers and paths are left out of the comparison, since they change nothing that runs.
_COMPARE = """\
import importlib.util, marshal, os, sys
MOST = 16 << 20
FIELDS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags", "co_code",
    "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_name", "co_qualname", "co_exceptiontable", "co_consts")
def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, type(same.__code__)):
        return all(same(getattr(one, field, None), getattr(other, field, None)) for field in FIELDS)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return repr(one) == repr(other)
def read(path):
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return file.read(MOST + 1)
def is_stale(source, path, level):
    try:
        found = read(path)
    except OSError:
        return False
    if found[:8] != importlib.util.MAGIC_NUMBER + b"\\1\\0\\0\\0":
        return False
    try:
        compiled = compile(read(source), source, "exec", dont_inherit=True, optimize=min(int(level), 2))
        return len(found) > MOST or not same(compiled, marshal.loads(found[16:]))
    except Exception:
        return True
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), resource.getrlimit(resource.RLIMIT_AS)[1]))
except (ImportError, ValueError, OSError):
    pass
words = iter(sys.argv[1:])
answer = "".join("01"[is_stale(*one)] for one in zip(words, words, words))
"""


class _Candidate(NamedTuple):
    """An unchecked `.pyc` of a source."""

    source: str
    pyc: Pyc


def judged(findings: Sequence[Finding], search: Search) -> list[Finding]:
    """Return the findings, each with the stale bytecode of the files that its verdict rests on.

    What is in place by its source alone has drifted then. What an overlay replaces is left out. Raises nothing.
    """
    sources = {
        seen.path: seen.data
        for finding in findings
        for seen in (finding.seen, finding.depends)
        if seen is not None and seen.data is not None and seen.problem is None and finding.overlay is None
    }
    found = stale(sources, search)
    return [_judged(finding, found) for finding in findings] if found else list(findings)


def of_overlay(overlay: Overlay, search: Search) -> Overlay:
    """Return the overlay, damaged if stale bytecode runs in place of its own files. Its loader guards its modules."""
    from unhang.find.overlays import read

    paths = [code.path for code in stale({path: read(path) or b"" for path in overlay.own}, search)]
    why = f"stale bytecode runs in place of its start-up hook or loader: {', '.join(paths)}"
    return overlay._replace(damage=why) if paths else overlay


def stale(sources: Mapping[str, bytes], search: Search) -> tuple[StaleCode, ...]:
    """Return the bytecode that an import of these sources, by path, runs although their code is another.

    Of an interpreter only its own bytecode counts. Without one, that of every interpreter does; then our own is asked
    about its own, and the others count as stale unless they have the hash of the source. Raises nothing.
    """
    where, list_names = caches(search), cache(names)
    unchecked = [
        _Candidate(source, pyc)
        for source in sources
        for pyc in pycs(source, where, list_names)
        if search.cache_tag in (None, pyc.tag) and not pyc.is_pytests and f"0{pyc.optimize}".isdigit()
        if header(pyc.path)[4:8] == UNCHECKED
    ]
    if not unchecked:  # nearly always
        return ()
    python = compiler(search)
    tag = sys.implementation.cache_tag if search.cache_tag is None else search.cache_tag
    asked = [it for it in unchecked if python and it.pyc.tag == tag]
    others = [it for it in unchecked if it not in asked and _has_other_hash(it.pyc.path, sources[it.source])]
    found = [*_of_other_code(python, asked), *others]
    return tuple(StaleCode(it.source, it.pyc.path, _digest(it.pyc.path)) for it in found)


def _of_other_code(python: str | None, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Return those whose code is not what this interpreter compiles from their source, or that nobody can compare."""
    if python is None or not candidates:
        return []
    words = [word for source, pyc in candidates for word in (source, pyc.path, pyc.optimize or "0")]
    try:
        answer = ask(python, _COMPARE, *words, cwd=os.sep, form=str)
    except UnhangError:  # one of them ended the process
        if len(candidates) == 1:
            return list(candidates)
        return [it for candidate in candidates for it in _of_other_code(python, [candidate])]
    return [it for it, is_stale in zip(candidates, answer.ljust(len(candidates), "1")) if is_stale != "0"]


def _has_other_hash(path: str, source: bytes) -> bool:
    """Return whether unchecked bytecode has the hash of another source, or one that our Python cannot compute."""
    import _imp

    head = header(path)
    return head[8:] != _imp.source_hash(int.from_bytes(head[:4], "little"), source)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            digest.update(file.read(16 << 20))
    except OSError:
        pass
    return digest.hexdigest()


def _judged(finding: Finding, found: Iterable[StaleCode]) -> Finding:
    paths = {seen.path for seen in (finding.seen, finding.depends) if seen is not None}
    mine = tuple(code for code in found if code.source in paths and finding.overlay is None)
    if not mine:
        return finding
    verdict, finding = finding.verdict, finding._replace(stale=mine)
    is_in_place = verdict.verdict in (APPLIED, FIXED_UPSTREAM) or (finding.accepted and finding.result is None)
    if not is_in_place:
        return finding
    word = ACCEPTED if finding.accepted else verdict.verdict
    detail = f"the source is {word}, but {finding.runs_instead}"
    return finding._replace(
        verdict=Verdict(DRIFTED, STALE, detail, Hint(Command("apply"))), source=verdict, accepted=False
    )
