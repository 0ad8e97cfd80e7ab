"""Examine one mutant of a fix's target function, and demand what `unhang` promises of any source.

1. A changed AST is never called needed or applied. If only comments and white space changed, the verdict stays.
2. Under `--unverified`, what is written parses, compiles, is stable under a second pass, changes no line outside the
   function, and reverts exactly (on a sample: in real files, by the receipt).
3. Its end state is judged by running the function (see ``endstates``), not by the checker that allowed it. So is the
   end state of a mutant that is not rewritten because it is called fixed, or already holds our post-condition.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import hashlib
import io
import logging
import signal
import symtable
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from fuzz import endstates
from fuzz.bases import Base, Step, at_hand, dump, dump_of, finding_of, left_out, listed, mutate
from support import environments, sources
from support.sources import Source
from unhang.cli import main as command
from unhang.judge.decide import APPLIED, FIXED_UPSTREAM, NEEDED, codemod
from unhang.judge.findings import Finding
from unhang.rewrite.plan import plan
from unhang.shapes import catalog, shape

REAL_FILES = 25  # one in so many of the written mutants is written to real files, and reverted
SECONDS = 20  # longer than any run of a function takes: a mutant may contain an endless loop


class Violation(AssertionError):
    """An invariant does not hold."""


class Endless(BaseException):
    """A function does not end. It is no Exception, because the harness takes those for what the function raised."""


KINDS, VERDICTS, WRITTEN = "of functions that were", "verdicts", "written under --unverified"
JUDGED, BY_FIX, BESIDES = "end states judged by running", "of these, by fix", "besides"


class Tally:
    """Counts of what was tried, and of the results."""

    def __init__(self) -> None:
        self.counts = Counter[tuple[str, str]]()
        self.seen: set[bytes] = set()
        """The digests of the distinct mutants."""
        self.violations: list[str] = []

    def count(self, row: str, what: str) -> None:
        self.counts[row, what] += 1

    def total(self, row: str) -> int:
        return sum(number for (name, _), number in self.counts.items() if name == row)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.seen |= other.seen
        self.violations += other.violations

    def report(self) -> str:
        """Return the counts as text."""
        lines = [f"mutations tried (distinct): {len(self.seen)}"]
        for row in (KINDS, VERDICTS, WRITTEN, JUDGED, BY_FIX, BESIDES):
            lines.append(f"{row}: {self.total(row)}")
            lines += [f"    {number:6} {what}" for (name, what), number in sorted(self.counts.items()) if name == row]
        return "\n".join(lines)


def examine(base: Base, steps: Sequence[Step], tally: Tally) -> None:
    """Make a mutant and check all invariants. Raises Violation."""
    data = mutate(base, steps)
    digest = hashlib.sha256(f"{base.source.target}".encode() + data).digest()
    if data == base.source.data or digest in tally.seen:
        tally.count(BESIDES, "the same again")
        return
    tally.seen.add(digest)
    try:
        _examine(base, data, tally)
    except Violation:
        raise
    except Exception as error:
        raise _violation(f"unhang itself fails: {type(error).__name__}: {error}", base, data) from error


def _examine(base: Base, data: bytes, tally: Tally) -> None:
    tally.count(KINDS, base.kind)
    finding = finding_of(base.source, data)
    verdict = finding.verdict.verdict
    tally.count(VERDICTS, verdict)
    changed = dump(data, base.source.target)
    if changed is not None and changed == base.dump:
        tally.count(BESIDES, "AST unchanged")
        _demand(verdict == base.verdict, f"only white space has changed, but the verdict is {verdict}", base, data)
        return _examine_same(base, data, finding, tally)
    tally.count(BESIDES, "AST changed" if changed is not None else "no program")
    if changed in listed(base.source.target):
        tally.count(BESIDES, "became another listed function")
        return None
    if verdict in (NEEDED, APPLIED) and finding.seen.shape not in at_hand(base.source.target) and left_out():
        tally.count(BESIDES, "a listed function that only a clone has, not judged")
        return None
    _demand(verdict not in (NEEDED, APPLIED), f"a changed function is called {verdict}", base, data)
    if verdict == FIXED_UPSTREAM:
        tally.count(BESIDES, "called fixed upstream")
        return _judge(base, data, data, "called fixed upstream", tally)
    made = plan([finding], {}, unverified=True)
    if not made.files:
        _demand(bool(made.blocked and made.blocked[0].reason), "refused without a reason", base, data)
        tally.count(BESIDES, "refused")
        if changed is not None and codemod(base.source.target).holds(sources.function_in(data, base.source.target)):
            tally.count(BESIDES, "refused, because our post-condition holds already")
            return _judge(base, data, data, "holds our post-condition", tally)
        return None
    (file,) = made.files
    _demand(file.before == data, "the bytes kept for a revert are not the original ones", base, data)
    _demand(file.after != data, "written, but nothing has changed", base, data)
    tally.count(WRITTEN, base.source.target.fix)
    _examine_written(base, data, file.after, tally)
    return _judge(base, data, file.after, "written", tally)


def _examine_same(base: Base, data: bytes, finding: Finding, tally: Tally) -> None:
    """Check a file with changes only in comments and white space: rewritten as its base, or refused with a reason."""
    if finding.verdict.verdict != NEEDED:
        return
    made = plan([finding], {})
    if not made.files:
        _demand(bool(made.blocked and made.blocked[0].reason), "refused without a reason", base, data)
        tally.count(BESIDES, "AST unchanged: refused for its layout")
        return
    (file,) = made.files
    tally.count(BESIDES, "AST unchanged: rewritten")
    same = dump(file.after, base.source.target) == dump_of(base.rewritten)
    _demand(same, "white space changed the rewrite", base, data, file.after)
    _examine_written(base, data, file.after, tally)


def _examine_written(base: Base, data: bytes, after: bytes, tally: Tally) -> None:
    """Check what was written: it compiles, is stable, changes only the function, and is undone by a revert."""
    target = base.source.target
    try:
        compile(ast.parse(after), target.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _violation(f"what was written does not compile: {error}", base, data, after) from error
    old, new = Source(target, data), Source(target, after)
    (before, _, below), (new_before, _, new_below) = sources.around(old), sources.around(new)
    _demand((before, below) == (new_before, new_below), "a line outside the function has changed", base, data, after)
    for part in ("name", "args", "decorator_list", "returns"):
        same = sources.dump(getattr(old.function, part)) == sources.dump(getattr(new.function, part))
        _demand(same, f"the function's {part} changed", base, data, after)
    again = plan([finding_of(base.source, after)], {}, unverified=True)
    _demand(all(file.after == after for file in again.files), "a second pass changes it again", base, data, after)
    if tally.total(WRITTEN) % REAL_FILES == 1:
        _examine_revert(base, data, after)
        tally.count(BESIDES, "written to real files and reverted")


def _examine_revert(base: Base, data: bytes, after: bytes) -> None:
    """Apply and revert with the command itself, in a folder of real files."""
    target = base.source.target
    with tempfile.TemporaryDirectory(prefix="unhang-fuzz-") as folder, _no_output():
        root = Path(folder)
        if target.upstream in ("verl", "ms-swift"):
            {"verl": environments.verl, "ms-swift": environments.swift}[target.upstream](root)
        else:  # a development tree, so that no file of a release is missing
            environments.tree(root, "0.17.0rc9")
        path = root / target.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
        command.main(["apply", "--unverified", "--fix", target.fix, "--target", folder])
        _demand(path.read_bytes() == after, "the command did not write what was planned", base, data, after)
        code = command.main(["revert", "--target", folder])
        left = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
        _demand(code == 0 and left == before, "a revert does not restore the bytes", base, data, after)


def _judge(base: Base, data: bytes, after: bytes, what: str, tally: Tally) -> None:
    """Judge an end state by running it."""
    target = base.source.target
    try:
        with _alarm(), _no_output():
            wrongs, sound = judge_of(base).wrongs(Source(target, data), Source(target, after))
    except Endless:
        endstates.forget()
        tally.count(BESIDES, f"{what}: does not end, not judged")
        return
    if wrongs and nowhere_bound(data, target) - nowhere_bound(base.source.data, target):
        tally.count(BESIDES, f"{what}: raises for a name that the mutation left unbound")
        return
    tally.count(JUDGED, f"{what}, " + ("sound" if sound else "broken by the mutation"))
    tally.count(BY_FIX, target.fix)
    _demand(not wrongs, f"{what}, but the end state is wrong:\n  " + "\n  ".join(wrongs[:6]), base, data, after)


def nowhere_bound(data: bytes, target: catalog.Target) -> set[str]:
    """Return the global names that a function or a nested one uses, but neither its module nor the built-ins bind."""
    bound = shape.bound_names(shape.parse(data)) | set(dir(builtins))

    def missing(table: symtable.SymbolTable) -> set[str]:
        mine = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        return (mine - bound).union(*map(missing, table.get_children()))

    table = symtable.symtable(data.decode(), target.file, "exec")
    for name in target.function.split("."):
        (table,) = (child for child in table.get_children() if child.get_name() == name)
    return missing(table)


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    """Drop what upstream and the command print and log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@cache
def judge_of(base: Base) -> endstates.Judge:
    return endstates.judge_of(base.source, base.origin, base.rewritten)


def _demand(holds: bool, message: str, base: Base, data: bytes, after: bytes | None = None) -> None:
    if not holds:
        raise _violation(message, base, data, after)


def _violation(message: str, base: Base, data: bytes, after: bytes | None = None) -> Violation:
    parts = [f"{base.name}: {message}", _diff(base.source.data, data, "base", "mutant")]
    if after is not None and after != data:
        parts.append(_diff(data, after, "mutant", "written"))
    return Violation("\n".join(parts))


def _diff(old: bytes, new: bytes, old_name: str, new_name: str) -> str:
    before, after = (data.decode(errors="replace").splitlines() for data in (old, new))
    return "\n".join(difflib.unified_diff(before, after, old_name, new_name, lineterm="", n=2))
