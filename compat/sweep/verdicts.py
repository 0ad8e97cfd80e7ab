"""Judges every commit and tag that the sweep reads: ``python -m unhang.compat.sweep.verdicts``.

The code that judges is that of ``unhang check``. Prints a line for each verdict that leaves a user without an answer,
and for which no person gave a reason in the manifest.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from unhang.compat import upstreams
from unhang.compat.sweep import clones, commits, gather, sources
from unhang.compat.sweep.cache import Cache, default_folder
from unhang.compat.sweep.clones import Clone
from unhang.compat.sweep.commits import History, Tree
from unhang.compat.sweep.sources import Content
from unhang.errors import UnhangError
from unhang.judge import findings
from unhang.judge.decide import DRIFTED, GONE, NEEDED, NO_REWRITE, SETTLED, Verdict
from unhang.judge.observe import Observation, observe_bytes
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix, Target
from unhang.tell import progress, report


class Judgement(NamedTuple):
    """The verdict on a target, and the commits that have it."""

    target: Target
    version: str
    seen: Observation
    verdict: Verdict
    commits: Sequence[str]
    """Their ids, the newest first."""

    @property
    def key(self) -> tuple[str, str]:
        """The fix, and the function's shape; for a file without one shape, its digest."""
        return self.target.fix, self.seen.shape or self.seen.sha256

    @property
    def answered(self) -> bool:
        """Whether the verdict says what to do, and rests on a shape on record."""
        return self.verdict.verdict in {NEEDED, *SETTLED} and self.verdict.code in (None, NO_REWRITE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the history in the clones.

    Return 1 if a verdict has no answer and no reason, or a reason is not needed; 2 if it could not run; else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m unhang.compat.sweep.verdicts", description=__doc__)
    parser.add_argument("--clone", action="append", default=[], metavar="UPSTREAM=PATH_OR_URL", help="as for the sweep")
    parser.add_argument("--compat", type=Path, default=sources.HERE, help="the folder with swept.json")
    options = parser.parse_args(arguments)
    reasons = {(row["fix"], row["shape"]): row["why"] for row in sources.decisions() if row["state"] == DRIFTED}
    used: set[tuple[str, str]] = set()
    problems = 0
    cache = Cache(default_folder())
    try:
        places = gather.clone_places(options.clone)
        for project, variable in clones.variables().items():
            if project not in places:
                print(f"{project}: history not judged, for no clone is given ({variable})")
                continue
            with progress.shown() as step:
                step(f"judging the history of {project}")
                clone = gather.open_clones({project: places[project]}, cache, options.compat)[project]
                history = commits.of_upstream(project, clone)
                found = list(judged(history.trees, upstreams.of_project(project)))
            print(_summary(project, clone, history, found))
            left: dict[tuple[str, str], list[Judgement]] = {}
            for item in found:
                if not item.answered:
                    left.setdefault(item.key, []).append(item)
            for key, same in left.items():
                reason = reasons.get(key) or ("it came later" if _came_later(clone, same, found) else None)
                print(f"  {_line(same, reason)}")
                used.add(key)
                problems += reason is None
    except UnhangError as error:
        print(report.text_error(error), file=sys.stderr)
        return 2
    if len(places) == len(clones.variables()):
        for fix, shape in sorted(reasons.keys() - used):
            print(f"patches/{fix}/manifest.json: {shape}: no commit is drifted for this reason; delete it")
            problems += 1
    return 1 if problems else 0


def _summary(project: str, clone: Clone, history: History, found: Iterable[Judgement]) -> str:
    counts, judgements = Counter[str](), 0
    for item in found:
        counts[item.verdict.verdict] += len(item.commits)
        judgements += 1
    tags = sum(ref.startswith("refs/tags/") for ref in clone.refs)
    read = f"{len(clone.refs) - tags} branches and {tags} tags, {history.commits:,} commits"
    left_out = f"{history.older:,} below the floor left out"
    judged = f"{len(history.trees)} distinct trees, {judgements:,} judgements"
    verdicts = ", ".join(f"{number:,} {verdict}" for verdict, number in counts.most_common())
    return f"{project}: {read} ({left_out}), {judged}: {verdicts}"


def _came_later(clone: Clone, same: Sequence[Judgement], found: Iterable[Judgement]) -> bool:
    """Return whether a function is missing where no commit before had it: a tree has the number of its next release."""
    if any(item.verdict.code != GONE for item in same):
        return False
    target = same[0].target
    having = {commit for item in found if item.target == target and item.seen.shape for commit in item.commits}
    before = clone.repo.git.rev_list(*(commit for item in same for commit in item.commits)).split()
    return having.isdisjoint(before)


def _line(same: Sequence[Judgement], reason: str | None) -> str:
    """Return what to say of the unanswered verdicts on one shape, with a person's reason if there is one."""
    ids, first = [commit for item in same for commit in item.commits], same[0]
    what = f"{first.verdict.verdict}/{first.verdict.code} {' '.join(first.key)} in {first.target.file}"
    where = f"at {ids[-1]} (commits: {len(ids)}), version {first.version}"
    return f"{what} {where}: {reason or f'no reason is on record: {first.verdict.detail}'}"


def judged(trees: Iterable[Tree], upstreams: Iterable[str]) -> Iterator[Judgement]:
    """Yield the verdict of every fix on these trees, for each target in one of the upstreams. Pure.

    Trees of one version that have the same files of a fix are judged once.
    """
    for fix in catalog.fixes().values():
        for target in fix.targets:
            if target.upstream not in upstreams:
                continue
            alike: dict[tuple[str, ...], list[Tree]] = {}
            for tree in trees:
                digests = (content.sha256 if (content := tree.files.get(other.file)) else "" for other in fix.functions)
                alike.setdefault((tree.version, *digests), []).append(tree)
            for same in alike.values():
                seen, verdict = _judged(same[0], fix, target)
                ids = [commit for tree in same for commit in tree.commits]
                yield Judgement(target, same[0].version, seen, verdict, ids)


def _judged(tree: Tree, fix: Fix, target: Target) -> tuple[Observation, Verdict]:
    installation = Installation(target.upstream, tree.version, "", "", "", "source", None, ())

    def look(_: Installation, other: Target) -> Observation:
        return _observed(tree.files.get(other.file), other)

    seen = look(installation, target)
    return seen, findings.verdict(installation, fix, target, None, seen, look)


@cache  # most trees share most of their files
def _observed(found: Content | None, target: Target) -> Observation:
    if found is None:
        return Observation(target.file, None)
    return observe_bytes(target.file, found.data, target.function, catalog.shape_table().of_files(target.fix))


if __name__ == "__main__":
    raise SystemExit(main())
