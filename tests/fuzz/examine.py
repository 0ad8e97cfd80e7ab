"""Examine one mutant of a fix's target function, and demand what `unhang` promises of any source.

1. A changed AST is never called needed or applied. If only comments and white space changed, the verdict stays.
2. Without a token nothing is written to it. What is written for one parses, compiles, is stable under a second pass,
   changes no line outside the function, and reverts exactly (on a sample: in real files, by the receipt).

That such a rewrite is right is not promised, and not examined: a person has to read the diff.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz.bases import Base, Step, at_hand, dump, dump_of, finding_of, left_out, listed, mutate
from support import environments, sources, wheels
from support.sources import Source
from unhang.cli import main as command
from unhang.judge.decide import APPLIED, FIXED_UPSTREAM, NEEDED, WRONG
from unhang.judge.findings import Finding
from unhang.records import Token, paired
from unhang.rewrite.plan import Plan, plan
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

REAL_FILES = 25  # one in so many of the written mutants is written to real files, and reverted


class Violation(AssertionError):
    """An invariant does not hold."""


KINDS, VERDICTS, WRITTEN, BESIDES = "of functions that were", "verdicts", "written for a token", "besides"


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
        for row in (KINDS, VERDICTS, WRITTEN, BESIDES):
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
        why = f"only white space has changed, but the verdict is {verdict}: {finding.verdict.detail}"
        _demand(verdict == base.verdict, why, base, data)
        _examine_same(base, data, finding, tally)
        return
    tally.count(BESIDES, "AST changed" if changed is not None else "no program")
    if changed in listed(base.source.target):
        tally.count(BESIDES, "became another listed function")
        return
    if verdict in (NEEDED, APPLIED) and finding.seen.shape not in at_hand(base.source.target) and left_out():
        tally.count(BESIDES, "a listed function that only a clone has, not judged")
        return
    _demand(verdict not in (NEEDED, APPLIED, FIXED_UPSTREAM), f"a changed function is called {verdict}", base, data)
    _demand(not plan([finding], {}).files, "written without a token", base, data)
    made = shown(finding)
    if not made.files:
        _demand(bool(made.blocked and made.blocked[0].reason), "refused without a reason", base, data)
        tally.count(BESIDES, "refused")
        return
    (file,) = made.files
    _demand(file.before == data, "the bytes kept for a revert are not the original ones", base, data)
    _demand(file.after != data, "written, but nothing has changed", base, data)
    tally.count(WRITTEN, base.source.target.fix)
    _examine_written(base, data, file.after, tally)


def shown(finding: Finding) -> Plan:
    """Return the plan of the rewrite of an unknown shape, as if a person had accepted its result."""
    return plan([finding._replace(result="", accepted=True) if finding.verdict.triable else finding], {})


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
    _demand(not shown(finding_of(base.source, after)).files, "a second pass changes it again", base, data, after)
    every = (one for one in catalog.fix(target.fix).targets if one.upstream == target.upstream)
    others = any(one.function != target.function for one in every)
    # a fix of several functions goes in whole: its command writes more than this one
    if tally.total(WRITTEN) % REAL_FILES == 1 and not others:
        _examine_revert(base, Source(target, data), Source(target, after))
        tally.count(BESIDES, "written to real files and reverted")


def _wrong(other: Target) -> bytes:
    """Return a released file in which a function that targets depend on is wrong."""
    shapes = catalog.shape_table().shapes
    for version, release in catalog.releases()[other.upstream].items():
        known = shapes.get((other.fix, other.function, release.shapes.get(other.place) or ""))
        if known is not None and known.state == WRONG:
            data = wheels.read(other.upstream, version, other.file)
            assert data is not None
            return data
    raise LookupError(f"no release has a wrong {other.function}")


def _examine_revert(base: Base, old: Source, new: Source) -> None:
    """Apply and revert with the command itself, in a folder of real files."""
    target, data, after = old.target, old.data, new.data
    with tempfile.TemporaryDirectory(prefix="unhang-fuzz-") as folder, _no_output():
        root = Path(folder)
        own = {
            "verl": environments.verl,
            "ms-swift": environments.swift,
            "megatron-bridge": environments.bridge,
            "mcore-bridge": environments.mcore_bridge,
            "trl": environments.trl,
        }
        if target.upstream in own:
            own[target.upstream](root)
        else:  # a development tree, so that no file of a release is missing
            environments.tree(root, "0.17.0rc9")
        path = root / target.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        for other in target.only_with[:1]:
            *owners, name = other.function.split(".")
            rows = [*(f"class {owner}:" for owner in owners), f"def {name}(): pass"]
            (root / other.file).parent.mkdir(parents=True, exist_ok=True)
            (root / other.file).write_text("".join(f"{depth * ' '}{row}\n" for depth, row in enumerate(rows)))
        if target.depends_on is not None and target.depends_on.file != target.file:
            there = root / target.depends_on.file
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(_wrong(target.depends_on))
        beside = target.depends_on and Source(target.depends_on, (root / target.depends_on.file).read_bytes()).digest
        if target.upstream == "verl":  # a fix that must come along is there to be written, as in the release
            _write_companions(root, target)
        before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
        token = Token(paired(old.digest, beside), catalog.generation(), paired(new.digest, beside))
        command.main(["apply", "--accept", str(token), "--fix", target.fix, "--target", folder])
        _demand(path.read_bytes() == after, "the command did not write what was planned", base, data, after)
        code = command.main(["revert", "--target", folder])
        left = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
        _demand(code == 0 and left == before, "a revert does not restore the bytes", base, data, after)


def _write_companions(root: Path, target: Target) -> None:
    """Write what the companions of the target's fix rewrite, as the stand-in's release has it."""
    names = {one.fix for one in catalog.fix(target.fix).companions}
    for other in (function for name in names for function in catalog.fix(name).functions):
        data = wheels.read("verl", "0.7.1", other.file)
        if data is not None and not (root / other.file).exists():
            (root / other.file).parent.mkdir(parents=True, exist_ok=True)
            (root / other.file).write_bytes(data)


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
