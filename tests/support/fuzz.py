"""Mutates the real target functions of every fix, and demands of each mutant what `unhang` promises of any source.

1. A changed AST is never called needed or applied; where comments and white space alone changed, the verdict stays.
2. Under `--unverified`, what is written parses, compiles, is stable under a second pass, changes no line outside the
   function, and reverts exactly (on a sample: in real files, by the receipt).
3. Its end state is judged by running the function (see ``endstates``), not by the checker that allowed it; and so is
   the end state of a mutant that is left alone, because it is called fixed, or said to hold our post-condition.

``python tests/fuzz.py`` runs all of it and prints the counts; ``test_fuzz.py`` runs a bounded part.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import difflib
import gc
import hashlib
import io
import logging
import os
import random
import signal
import symtable
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st

from fixes import test_empty_expert_hang, test_expert_dp_warmup, test_mtp_cp_deadlock, test_sft_packed_seq_broadcast
from support import endstates, environments, mutations, sources, wheels
from support.sources import Source
from unhang.cli import main as command
from unhang.judge.decide import APPLIED, FIXED_UPSTREAM, NEEDED, codemod, decide
from unhang.judge.observe import observe_bytes
from unhang.records import Installation
from unhang.rewrite.plan import Finding, plan
from unhang.shapes import catalog, shape

MODULES = (test_mtp_cp_deadlock, test_sft_packed_seq_broadcast, test_empty_expert_hang, test_expert_dp_warmup)
FIXES = tuple(module.FIX for module in MODULES)
# The share of the mutations that each fix gets: the shorter its code, the sooner all has been tried.
SHARES = {"mtp-cp-deadlock": 5, "sft-packed-seq-broadcast": 7, "empty-expert-hang": 6, "expert-dp-warmup": 4}
# What stands near what the fix is about: every second mutation is made there.
FOCUS = {
    "mtp-cp-deadlock": r"mtp|losses_reduced|n_micro_batch|metrics|is_mp_src|is_pipeline",
    "sft-packed-seq-broadcast": r"seqlen|_broadcast|args\b|is_pipeline|batch\b",
    "empty-expert-hang": r"tokens_per_expert|permuted_|output|has_no_tokens|num_rows|skip_routed|grouped|linear_fc",
    "expert-dp-warmup": r"_set_global_memory|expert|EXPERT|warm|initialize_model_parallel|mpu\b|_OPTIMIZER_INSTANCE",
}
REAL_FILES = 25  # one in so many of what is written is written to real files, and reverted
SECONDS = 20  # longer than any run of a function takes; a mutant may well have made an endless loop

Step = tuple[str, int]
"""One mutation: an operator's name, and where its choices start."""


class Base(NamedTuple):
    """What is mutated: a source, the untouched one and our rewrite of it, and how it may come to a user."""

    name: str
    kind: str
    source: Source
    origin: Source
    rewritten: Source

    @property
    def verdict(self) -> str:
        return _verdict_of(self.source)

    @property
    def dump(self) -> str | None:
        return _dump_of(self.source)


@cache
def _verdict_of(source: Source) -> str:
    return finding_of(source, source.data).verdict.verdict


@cache
def _dump_of(source: Source) -> str | None:
    return dump(source.data, source.target)


class Violation(AssertionError):
    """An invariant does not hold."""


class Endless(BaseException):
    """A function runs on and on. No Exception: the harness takes those for what the function raised."""


def bases(fix: str) -> list[Base]:
    """The real functions of a fix, as they are and rewritten: from the wheels, and from the clones that are given."""
    (module,) = (module for module in MODULES if fix == module.FIX)
    found = []
    for parameter in [*module.CASES, *(sources.as_written(fix) if fix == "mtp-cp-deadlock" else [])]:
        case = parameter.values[0]
        if case.kind != "wheel" and not os.environ.get(wheels.CLONES[case.target.upstream]):
            continue
        source = case.load()
        if source.known.state == "fixed":
            found.append(Base(parameter.id, "upstream's own", source, source, source))
            continue
        kind = "as written" if source.known.note else "untouched"
        found.append(Base(parameter.id, kind, source, source, source.rewritten))
        if kind == "untouched":
            found.append(Base(f"{parameter.id}, rewritten", "ours", source.rewritten, source, source.rewritten))
    return found


def left_out() -> list[str]:
    """The clones that are not given: what only they have is not mutated."""
    return sorted({variable for variable in wheels.CLONES.values() if not os.environ.get(variable)})


def mutate(base: Base, steps: Sequence[Step]) -> bytes:
    """The base's file after these mutations; an operator that finds nothing to work on does nothing."""
    data = base.source.data
    for name, start in steps:
        with contextlib.suppress(SyntaxError, ValueError):  # what does not parse any more is not mutated further
            text = mutations.Text(data, base.source.target.function, FOCUS[base.source.target.fix])
            data = mutations.NAMED[name](text, random.Random(start)) or data
    return data


# -- one mutant -------------------------------------------------------------------------------------------------------


def examine(base: Base, steps: Sequence[Step], tally: Tally) -> None:
    """Make a mutant, and hold everything against it. Raises Violation."""
    data = mutate(base, steps)
    if data == base.source.data or not tally.is_new(base, data):
        tally.count["the same again"] += 1
        return
    try:
        _examine(base, data, tally)
    except Violation:
        tally.forget(base, data)  # hypothesis tries it again
        raise
    except Exception as error:
        tally.forget(base, data)
        raise _violation(f"unhang itself fails: {type(error).__name__}: {error}", base, data) from error


def _examine(base: Base, data: bytes, tally: Tally) -> None:
    tally.tried[base.source.target.fix] += 1
    tally.kinds[base.kind] += 1
    finding = finding_of(base.source, data)
    verdict = finding.verdict.verdict
    tally.verdicts[verdict] += 1
    told = dump(data, base.source.target)
    if told is not None and told == base.dump:
        tally.count["AST as it was"] += 1
        _demand(
            verdict == base.verdict, f"nothing but white space has changed, and the verdict is {verdict}", base, data
        )
        return _examine_same(base, data, finding, tally)
    tally.count["AST changed" if told is not None else "no program"] += 1
    if told in listed(base.source.target):
        tally.count["became another listed function"] += 1
        return None
    if verdict in (NEEDED, APPLIED) and finding.seen.shape not in at_hand(base.source.target) and left_out():
        tally.count["said to be a listed function that only a clone has, not judged"] += 1
        return None
    _demand(verdict not in (NEEDED, APPLIED), f"a changed function is called {verdict}", base, data)
    if verdict == FIXED_UPSTREAM:
        tally.count["called fixed upstream"] += 1
        return _judge(base, data, data, "called fixed upstream", tally)
    made = plan([finding], {}, unverified=True)
    if not made.files:
        _demand(bool(made.blocked and made.blocked[0].reason), "refused, and no reason given", base, data)
        tally.count["refused"] += 1
        if told is not None and codemod(base.source.target).holds(sources.function_in(data, base.source.target)):
            tally.count["refused, for our post-condition holds already"] += 1
            return _judge(base, data, data, "said to hold", tally)
        return None
    (file,) = made.files
    _demand(file.before == data, "the bytes kept for a revert are not those that were there", base, data)
    _demand(file.after != data, "written, and nothing has changed", base, data)
    tally.written[base.source.target.fix] += 1
    _examine_written(base, data, file.after, tally)
    return _judge(base, data, file.after, "written", tally)


def _examine_same(base: Base, data: bytes, finding: Finding, tally: Tally) -> None:
    """A file that differs in comments and white space alone: rewritten as the base is, or refused with a reason."""
    if finding.verdict.verdict != NEEDED:
        return
    made = plan([finding], {})
    if not made.files:
        _demand(bool(made.blocked and made.blocked[0].reason), "refused, and no reason given", base, data)
        tally.count["AST as it was: refused for its layout"] += 1
        return
    (file,) = made.files
    tally.count["AST as it was: rewritten"] += 1
    same = dump(file.after, base.source.target) == _dump_of(base.rewritten)
    _demand(same, "white space made the rewrite another one", base, data, file.after)
    _examine_written(base, data, file.after, tally)


def _examine_written(base: Base, data: bytes, after: bytes, tally: Tally) -> None:
    """What was written: a program, stable, the same outside the function, and gone again after a revert."""
    target = base.source.target
    try:
        compile(ast.parse(after), target.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _violation(f"what was written is no program: {error}", base, data, after) from error
    old, new = Source(target, data), Source(target, after)
    (before, _, behind), (new_before, _, new_behind) = sources._around(old), sources._around(new)
    outside = (before, behind) == (new_before, new_behind)
    _demand(outside, "a line outside the function has changed", base, data, after)
    for part in ("name", "args", "decorator_list", "returns"):
        parts = (ast.dump(ast.Tuple([*_parts(each.function, part)])) for each in (old, new))
        _demand(len(set(parts)) == 1, f"the function's {part} changed", base, data, after)
    again = plan([finding_of(base.source, after)], {}, unverified=True)
    _demand(all(file.after == after for file in again.files), "a second pass changes it again", base, data, after)
    if sum(tally.written.values()) % REAL_FILES == 1:
        _examine_revert(base, data, after)
        tally.count["written to real files and reverted"] += 1


def _parts(function: shape.Function, part: str) -> list[ast.expr]:
    """A part of a function's head, as expressions that can be dumped."""
    node = getattr(function, part)
    items = node if isinstance(node, list) else [node]
    return [ast.Constant(ast.dump(item) if isinstance(item, ast.AST) else repr(item)) for item in items]


def _examine_revert(base: Base, data: bytes, after: bytes) -> None:
    """Apply and revert in a folder of real files: by the receipt, through the command itself."""
    target = base.source.target
    with tempfile.TemporaryDirectory(prefix="unhang-fuzz-") as folder:
        root = Path(folder)
        if target.upstream == "verl":
            environments.verl(root)
        elif target.upstream == "ms-swift":
            environments.swift(root)
        else:  # as a development tree, so that no other file of a release is missed
            environments.tree(root, "0.17.0rc9")
        path = root / target.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        before = _tree(root)
        run("apply", "--unverified", "--fix", target.fix, "--target", folder)
        _demand(path.read_bytes() == after, "the command wrote something else than was planned", base, data, after)
        code = run("revert", "--target", folder)
        _demand(code == 0 and _tree(root) == before, "a revert does not restore the bytes", base, data, after)


def run(*arguments: str) -> int:
    """Run the command in this process, silently."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return command.main(arguments)


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _judge(base: Base, data: bytes, after: bytes, what: str, tally: Tally) -> None:
    """Judge an end state by running it."""
    target = base.source.target
    try:
        with _alarm(), _no_output():
            wrongs, sound = judge_of(base).wrongs(Source(target, data), Source(target, after))
    except Endless:
        endstates.forget()
        tally.count[f"{what}: runs without end, not judged"] += 1
        return
    if wrongs and nowhere_bound(data, target) - nowhere_bound(base.source.data, target):
        tally.count[f"{what}: uses a name that the mutation left bound nowhere, and raises for it"] += 1
        return
    tally.judged[f"{what}, " + ("sound" if sound else "broken by the mutation")] += 1
    tally.fix_judged[target.fix] += 1
    _demand(not wrongs, f"{what}, and the end state is wrong:\n  " + "\n  ".join(wrongs[:6]), base, data, after)


def nowhere_bound(data: bytes, target: catalog.Target) -> set[str]:
    """The names that a function, or one nested in it, looks for in its module and in the built-ins, where none is."""
    there = shape.bound_names(shape.parse(data)) | set(dir(builtins))

    def missing(table: symtable.SymbolTable) -> set[str]:
        mine = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        return (mine - there).union(*map(missing, table.get_children()))

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
    """Without what upstream prints and logs, thousands of times."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def finding_of(source: Source, data: bytes) -> Finding:
    """The verdict on a file of these bytes, as `check` comes to it, without a receipt; no file is read."""
    target = source.target
    where = Installation(target.upstream, None, "/fuzz", "/fuzz/package", "source", None, ())
    seen = observe_bytes(f"/fuzz/{target.file}", data, target.function, catalog.shape_table().files)
    return Finding(where, target, seen, decide(target, where, seen, catalog.shape_table(), {}, None))


def dump(data: bytes, target: catalog.Target) -> str | None:
    """The function's AST by Python's own dump, without docstrings: not by our digest. None where there is no one."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return None
    found = shape.find(tree, target.function)
    if len(found) != 1:
        return None
    for node in ast.walk(found[0]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        elif isinstance(node, ast.Constant):
            node.kind = None
    return ast.dump(found[0])


@cache
def listed(target: catalog.Target) -> frozenset[str | None]:
    """The dumps of all the sources at hand: what a mutation may by chance turn one into."""
    found = [source for base in bases(target.fix) for source in (base.source, base.rewritten)]
    return frozenset(_dump_of(source) for source in found if source.target.function == target.function)


@cache
def at_hand(target: catalog.Target) -> frozenset[str]:
    """The shapes of all the sources at hand."""
    found = [source for base in bases(target.fix) for source in (base.source, base.rewritten)]
    return frozenset(source.digest for source in found if source.target.function == target.function)


_judges: dict[tuple[str, str], endstates.Judge] = {}


def judge_of(base: Base) -> endstates.Judge:
    key = base.source.target.fix, base.name
    if key not in _judges:
        _judges[key] = endstates.judge_of(base.source, base.origin, base.rewritten)
    return _judges[key]


def _demand(holds: bool, message: str, base: Base, data: bytes, after: bytes | None = None) -> None:
    if not holds:
        raise _violation(message, base, data, after)


def _violation(message: str, base: Base, data: bytes, after: bytes | None = None) -> Violation:
    parts = [f"{base.name}: {message}", _diff(base.source.data, data, "as it was", "mutant")]
    if after is not None and after != data:
        parts.append(_diff(data, after, "mutant", "written"))
    return Violation("\n".join(parts))


def _diff(old: bytes, new: bytes, old_name: str, new_name: str) -> str:
    lines = (data.decode(errors="replace").splitlines() for data in (old, new))
    return "\n".join(difflib.unified_diff(*lines, old_name, new_name, lineterm="", n=2))


# -- many -------------------------------------------------------------------------------------------------------------


class Tally:
    """What was tried, and what came of it."""

    def __init__(self) -> None:
        self.tried, self.written, self.fix_judged = Counter[str](), Counter[str](), Counter[str]()
        self.kinds, self.verdicts, self.judged = Counter[str](), Counter[str](), Counter[str]()
        self.count, self.violations = Counter[str](), list[str]()
        self._seen: set[bytes] = set()

    def is_new(self, base: Base, data: bytes) -> bool:
        """Whether no mutant was like this one; it is remembered."""
        before = len(self._seen)
        self._seen.add(self._key(base, data))
        return len(self._seen) > before

    def forget(self, base: Base, data: bytes) -> None:
        self._seen.discard(self._key(base, data))

    @staticmethod
    def _key(base: Base, data: bytes) -> bytes:
        return hashlib.sha256(f"{base.source.target}".encode() + data).digest()

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if name == "_seen":
                self._seen |= value
            elif isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                self.violations += value

    def report(self) -> str:
        """The counts, for people."""
        rows = [("mutations tried (distinct)", sum(self.tried.values()), self.tried)]
        rows += [("of functions that were", sum(self.kinds.values()), self.kinds)]
        rows += [("verdicts", sum(self.verdicts.values()), self.verdicts)]
        rows += [("written under --unverified", sum(self.written.values()), self.written)]
        rows += [("end states judged by running", sum(self.judged.values()), self.judged + self.fix_judged)]
        lines = []
        for name, total, counts in rows:
            lines.append(f"{name}: {total}")
            lines += [f"    {counts[key]:6} {key}" for key in sorted(counts)]
        return "\n".join([*lines, "besides:", *(f"    {self.count[key]:6} {key}" for key in sorted(self.count))])


def steps() -> st.SearchStrategy[list[Step]]:
    """One to three mutations; in one case of eight of comments and white space alone."""
    changing = [operator.__name__ for operator in mutations.CHANGING]
    # what is inert is what a rewrite may be carried out on
    changing += ["insert_inert"] * 8 + ["rename_everywhere"] * 2
    formatting = [operator.__name__ for operator in mutations.FORMATTING]

    def some(names: list[str], least: int, most: int) -> st.SearchStrategy[list[Step]]:
        step = st.tuples(st.sampled_from(names), st.integers(0, 2**32 - 1))
        return st.lists(step, min_size=least, max_size=most)

    layout = some(formatting, 1, 3)
    change = some(changing, 1, 2)
    both = st.tuples(change, layout).map(lambda two: two[0] + two[1])
    return st.one_of(layout, *[change] * 6, both)


def campaign(fix: str, examples: int, seed: int, *, keep_going: bool = False, every: int = 1) -> Tally:
    """So many examples of a fix. Raises what hypothesis makes of a violation, unless told to keep going.

    ``every``: mutate one in so many of the functions there are; each costs some time before the first mutant.
    """
    tally, candidates = Tally(), bases(fix)[::every]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate] if keep_going else [hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(st.integers(0, len(candidates) - 1), steps())
    def each(number: int, made: list[Step]) -> None:
        if sum(tally.tried.values()) % 100 == 0:
            gc.collect()
        try:
            examine(candidates[number], made, tally)
        except Violation as error:
            if not keep_going:
                raise
            tally.violations.append(f"{error}\n{made}")

    with _no_collections():
        each()
    return tally


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Without the cyclic garbage collector, which would walk all the trees that are kept while others are parsed."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def main() -> int:
    """Run all of it, in as many processes as told, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = lambda name, default: int(os.environ.get(name, default))  # noqa: E731
    parser.add_argument("--examples", type=int, default=number("UNHANG_FUZZ_EXAMPLES", 13_000))
    parser.add_argument("--seed", type=int, default=number("UNHANG_FUZZ_SEED", 20_260_101))
    parser.add_argument("--processes", type=int, default=number("UNHANG_FUZZ_PROCESSES", 2))
    parser.add_argument("--fix", action="append", choices=FIXES)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation; no shrinking")
    parser.add_argument("--least", type=int, nargs=2, default=(10_000, 500), help="tried and judged, else exit 1")
    options = parser.parse_args()
    began, tally = time.monotonic(), Tally()
    for variable in left_out():
        print(f"left out: {variable} names no clone, so what only the history of that upstream has is not mutated")
    fixes = options.fix or FIXES
    shares = sum(SHARES[fix] for fix in fixes)
    parts = 2 * options.processes
    jobs = [
        (fix, -(-options.examples * SHARES[fix] // (shares * parts)), options.seed + part)
        for part in range(parts)
        for fix in fixes
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        running = [pool.submit(campaign, *job, keep_going=options.keep_going) for job in jobs]
        for one in running:
            tally.add(one.result())
    for violation in tally.violations:
        print(violation, end="\n\n")
    print(tally.report())
    print(f"seed {options.seed}, {options.processes} processes, {time.monotonic() - began:.0f} seconds")
    few = sum(tally.tried.values()) < options.least[0] or sum(tally.judged.values()) < options.least[1]
    if few:
        print(f"too few: at least {options.least[0]} mutations and {options.least[1]} judged by running are wanted")
    return 1 if few or tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
