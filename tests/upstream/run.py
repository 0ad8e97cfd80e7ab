"""`nox -s upstream -- UPSTREAM REF`: compares an upstream's own tests on its untouched tree and on the patched one.

Exit codes: 0, no regression or nothing to compare; 1, a regression or no test passed; 2, it could not run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.shapes import catalog
from upstream import compare, runner, selection, traced, trees, venvs
from upstream import report as reports
from upstream.runner import Conditions

RERUNS = 2
_SETTLED = ("fixed-upstream", "not-affected")
_ABOUT = "Run an upstream's own tests on its untouched tree and on the patched one, and compare them."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session with these command line arguments, and return the exit code."""
    options = parse(arguments)
    try:
        about = selection.upstream(options.upstream)
        with _trees(options, about) as both:
            return session(options, about, both)
    except UnhangError as error:
        where = f" ({error.path})" if error.path else ""
        print(f"error[{error.code}]: {error.message}{where}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, and make the folders that they name. Exits with 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="nox -s upstream --", description=_ABOUT)
    parser.add_argument("upstream", help="megatron-lm, verl or ms-swift")
    parser.add_argument("ref", help="a tag, a branch, a commit or a version")
    parser.add_argument("--all", action="store_true", help="run all tests, not only the selected files")
    parser.add_argument("--only", action="append", metavar="TEXT", help="run only files with TEXT in their path")
    parser.add_argument("--clone", metavar="PATH_OR_URL", help="where the ref is (default: the environment variable's)")
    parser.add_argument("--sdist", action="store_true", help="use the pinned sdist of the release")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="ranks (default: one for each GPU; on a CPU, as many as the data says)"
    )
    parser.add_argument("--deadline", type=float, default=300, metavar="S", help="for each file and side (300)")
    parser.add_argument("--tmp", type=trees.made, required=True, metavar="DIR", help="for environments and reports")
    parser.add_argument("--cache", type=trees.made, default=trees.CACHE, metavar="DIR", help="for clones and sdists")
    return parser.parse_args(arguments)


def session(options: argparse.Namespace, about: Mapping[str, Any], both: trees.Trees) -> int:
    """Apply, choose, run, compare and report; return the exit code. Raises UnhangError where it cannot run."""
    print(f"{options.upstream} {options.ref}: {both.origin}", flush=True)
    version, verdicts = applied(both.after)
    for fix, verdict in verdicts.items():
        print(f"  {fix}: {verdict}", flush=True)
    fixes = [fix for fix, verdict in verdicts.items() if verdict == "applied"]
    if not fixes:
        if any(verdict not in _SETTLED for verdict in verdicts.values()):
            raise UnhangError("not-applied", "no fix was applied, and some are blocked", hint="see the verdicts above")
        print("nothing to compare: no fix is needed here, so both trees are equal; no test was run")
        return 0
    chosen = choose(options, about, version, both.before, fixes)
    files = [one for one in chosen.files if any(text in one.file for text in options.only or [""])]
    wanted = " or ".join(options.only or [])
    if not files:
        raise UnhangError("no-tests", f"no chosen file has {wanted} in its path")
    narrowed = f"only files with {wanted} in their path, {len(files)} of {len(chosen.files)}" if wanted else ""
    entry = selection.environment(about, version)
    python = venvs.ready(entry, entry.get("torch", about["torch"]), options.tmp / "environments")
    shims = () if python.gpus else tuple(about["shims"])
    ranks = options.ranks or python.gpus or chosen.ranks
    variables = {**about.get("variables", {}), **entry.get("variables", {})}
    targets = [(to.fix, to.file, to.function) for fix in fixes for to in catalog.fix(fix).targets]
    rewritten = traced.lines(both.before, both.after, targets)
    watched = traced.by_file(both.after, rewritten)
    conditions = Conditions(python.python, ranks, python.gpus, options.deadline, bool(shims), variables, watched)
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        ran = tuple(compared(one, conditions, both, chosen.disputed, Path(folder)) for one in files)
        report = reports.Report(
            upstream=options.upstream,
            ref=options.ref,
            origin=both.origin,
            version=version,
            environment=python.versions,
            ranks=ranks,
            deadline=options.deadline,
            shims=shims,
            verdicts=verdicts,
            rewritten={fix: tuple(found) for fix, found in rewritten.items()},
            absent=chosen.absent,
            files=ran,
            notes=chosen.notes,
            causes=about.get("causes", {}),
            narrowed=narrowed,
        )
        print(f"\n{reports.table(report)}")
        print(f"written: {reports.write(report, options.tmp)}")
    return 1 if report.wrong() else 0


def applied(tree: Path) -> tuple[str, dict[str, str]]:
    """Patch a tree with the real command; return the upstream's version, and each fix's verdict from `unhang check`.

    Raises UnhangError ``no-verdict``.
    """
    _unhang("apply", tree)
    results = _unhang("check", tree)["results"]
    verdicts: dict[str, str] = {}
    for result in results:
        fix, verdict, detail = result["fix"], result["verdict"], result["detail"]
        if verdict in _SETTLED:
            verdicts.setdefault(fix, verdict)
        elif verdicts.get(fix, "applied") in ("applied", *_SETTLED):  # of several targets, an unpatched one counts
            verdicts[fix] = f"{verdict}: {detail}" if detail and verdict != "applied" else verdict
    version = next((result["version"] for result in results if result["version"]), None)
    if version is None:
        raise UnhangError("no-verdict", "unhang finds no upstream with a version here", path=str(tree))
    return version, verdicts


def choose(
    options: argparse.Namespace, about: Mapping[str, Any], version: str, tree: Path, fixes: Sequence[str]
) -> selection.Selection:
    """Return the test files to run. Raises UnhangError ``no-tests``."""
    listed = None
    with suppress(UnhangError) if options.all else nullcontext():  # --all runs what the data does not list, too
        listed = selection.select(options.upstream, version, tree, fixes)
    return selection.every(about["tests"], tree, listed) if options.all or listed is None else listed


def compared(
    one: selection.Chosen, conditions: Conditions, both: trees.Trees, disputed: Mapping[str, str], place: Path
) -> reports.File:
    """Run one file on both sides, and up to twice more where the answers of a test differ."""
    runs: tuple[list[runner.Result], list[runner.Result]] = ([], [])
    for attempt in range(1 + RERUNS):
        for side, tree, results in zip(trees.SIDES, both[:2], runs):
            folder = place / f"{one.file.replace(os.sep, '_')}-{attempt}-{side}"
            results.append(runner.run(conditions, tree, one.file, folder))
        if not compare.differs(runs[0][-1].tests, runs[1][-1].tests):
            break
    before, after = ([result.tests for result in results] for results in runs)
    answers = compare.compare(before, after, disputed)
    results = [*runs[0], *runs[1]]
    seconds, cut = sum(result.seconds for result in results), any(result.was_cut for result in results)
    file = reports.File(one.file, one.covers, tuple(answers), seconds, cut, len(runs[0]))
    counted = Counter(line.category for line in answers)
    counts = ", ".join(f"{count} {category}" for category, count in counted.items()) or "no test"
    print(f"{one.file}: {counts}{'; cut at the deadline' * cut} ({seconds:.0f} s)", flush=True)
    return file


def _trees(options: argparse.Namespace, about: Mapping[str, Any]) -> AbstractContextManager[trees.Trees]:
    """Return both trees: of the pinned sdist, of the named clone, or of the public one."""
    if not options.sdist:
        where = options.clone or os.environ.get(about["clone"]) or about["url"]
        return trees.of_clone(where, trees.refs_of(options.ref, about), options.cache, about["clone"])
    version, sdists = options.ref.removeprefix(about["tag"]), about.get("sdists", {})
    if version not in sdists:
        known = ", ".join(sdists) or "none"
        raise UnhangError("no-sdist", f"no sdist of {options.upstream} {version} is pinned: {known}")
    return trees.of_sdist(about["sdist"], version, sdists[version], options.cache)


def _unhang(command: str, tree: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "unhang", command, "--source", str(tree), "--output-format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise UnhangError("unhang-failed", f"unhang {command} ended with {done.returncode}: {done.stderr}{done.stdout}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
