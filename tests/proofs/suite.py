"""The releases that `nox -s proofs` runs each proof on, and one run of each."""

from __future__ import annotations

import importlib
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from proofs.others import AS_WRITTEN, Other, Proofs, Release, unreadable
from support import fixes, interpreters, wheels
from support.checkout import REPOSITORY
from unhang.compat.sweep import trees
from unhang.find import environment, locate
from unhang.judge.decide import FIXED_UPSTREAM, NOT_AFFECTED
from unhang.judge.findings import judge
from unhang.prove import host
from unhang.prove.cases import Case
from unhang.prove.ranks import tidy
from unhang.records import Installation
from unhang.rewrite.plan import plan
from unhang.shapes import catalog

_PROJECTS = {"megatron-lm": "megatron-core"}
_TREE_FILES = ("megatron", "pretrain_gpt.py", "gpt_builders.py", "model_provider.py")
CLONES = {upstream: os.environ.get(variable) for upstream, variable in wheels.CLONES.items()}


@dataclass(frozen=True, eq=False)
class Proof:
    """The proof of a fix on one release of one upstream.

    A wheel of megatron-core contains megatron-lm of its own version.
    """

    fix: str
    of: Proofs
    release: Release

    @property
    def upstream(self) -> str:
        """The upstream whose functions are rewritten."""
        return self.of.upstream

    @property
    def version(self) -> str:
        """The release's version, or the commit or tag of the source tree."""
        return self.release.version

    @property
    def is_tree(self) -> bool:
        """Whether it runs on a source tree, from a clone."""
        return bool(self.release.cases)

    @property
    def name(self) -> str:
        """The fix, the upstreams and their versions."""
        releases = [(self.upstream, self.version), *self.release.beside]
        return f"{self.fix} {' with '.join(' '.join(release) for release in releases)}{' (tree)' * self.is_tree}"

    @property
    def variants(self) -> dict[str, Other]:
        """The variants that must fail on this release, with those of their cases that it has."""
        known = {case.name for case in self.cases()}
        return {
            name: other._replace(fails=tuple(case for case in other.fails if case in known))
            for name, other in self.of.others.items()
            if name not in self.release.lacking and self.version in (other.only or (self.version,))
        }

    def cases(self) -> list[Case]:
        """Return its cases: where all proofs are wanted, all of them on the core release, and the core ones elsewhere.

        What a rewrite does to each other shape is shown by the sweep.
        """
        if self.is_tree:
            return list(self.release.cases)
        return [case for case in self.every_case() if case.core or (everything() and self.release.core)]

    def every_case(self) -> list[Case]:
        """Return the cases of a release that has no source tree, wanted or not."""
        every = getattr(module(self.fix), "CASES_BY_UPSTREAM", {}).get(self.upstream, module(self.fix).CASES)
        return [
            case._replace(**dict(zip(("untouched", "at"), self.release.otherwise.get(case.name, ()))))
            for case in every
            if case.name not in self.release.lacking
        ]


def module(fix: str) -> Any:
    """Return the module of a fix's proof."""
    return importlib.import_module(f"unhang.prove.fixes.{fix.replace('-', '_')}")


def everything() -> bool:
    """Return whether all proofs are wanted, instead of the core set."""
    return os.environ.get("UNHANG_PROOFS") == "all"


def in_turn(parameters: Sequence[Any], fix_of: Callable[[Any], str]) -> list[Any]:
    """Return the parameters of a test; unless all proofs are wanted, some are skipped.

    A day's commits run a quarter of the fixes, and of each the last function.
    """
    last = {fix_of(it.values[0]): it.id for it in parameters}
    today = {fix for at, fix in enumerate(sorted(last)) if at % 4 == _day() % 4}
    why = "a quarter of the fixes is run each day, and one function of each: UNHANG_PROOFS=all runs all"
    skipped = pytest.mark.skipif(not everything(), reason=why)
    return [
        it if fix in today and last[fix] == it.id else pytest.param(*it.values, id=it.id, marks=[*it.marks, skipped])
        for it in parameters
        for fix in [fix_of(it.values[0])]
    ]


@cache
def _day() -> int:
    """Return the day of the checkout's commit, so that a commit always runs the same; 0 outside of a checkout."""
    told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=REPOSITORY, capture_output=True, check=False)
    return int(told.stdout or 0) // 86400


@cache
def every_proof() -> list[Proof]:
    """Return the proofs of all fixes, on all their releases."""
    return [
        Proof(fix, one, release)
        for fix, found in fixes.of_each("PROOFS").items()
        for one in found
        for release in one.releases
    ]


def proofs() -> list[Proof]:
    """Return the proofs to run: those on source trees only where a clone is given."""
    found = [proof for proof in every_proof() if CLONES[proof.upstream] or not proof.is_tree]
    return [proof for proof in found if everything() or proof.release.core]


@cache
def answer(proof: Proof) -> host.Answer:
    """Run all cases of a proof on all variants, once."""
    return run(proof, proof.cases())


def run(proof: Proof, cases: Sequence[Case], **options: Any) -> host.Answer:
    """Run cases of a proof on its variants, with these options of ``host.ask``."""
    interpreter = interpreters.with_torch()
    with both_sides(proof) as (roots, pairs):
        every = [case.name for case in cases]
        variants: dict[str, tuple[Mapping[str, bytes], Sequence[str]]] = {
            host.UNTOUCHED: ({path: before for path, (before, _) in pairs.items()}, every),
            host.PATCHED: ({path: after for path, (_, after) in pairs.items()}, every),
        }
        for name, other in proof.variants.items():
            fails = [case for case in other.fails if case in every]
            if not fails or (name == AS_WRITTEN and unreadable(proof.fix)):
                continue
            variants[name] = {path: other.change(path, *pair) for path, pair in pairs.items()}, fails
        return host.ask(interpreter, proof.fix, roots, variants, cases, **options)


@contextmanager
def both_sides(proof: Proof) -> Iterator[tuple[list[str], dict[str, tuple[bytes, bytes]]]]:
    """Give the folders of a proof's upstreams, and the files of its fix, untouched and patched, by their path there."""
    releases = [(_PROJECTS.get(proof.upstream, proof.upstream), proof.version), *proof.release.beside]
    with tidy.folder("unhang-tree-") as (folder, _):
        roots = [_checked_out(proof, folder)] if proof.is_tree else [trees.unpacked(*release) for release in releases]
        places = [environment.for_target(str(root)) for root in roots]
        found = [one for place in places for one in locate.search(place, cwd="/").installations]
        projects = {proof.upstream, *(project for project, _ in releases)}
        found = [one for one in found if one.upstream in projects]
        yield list(dict.fromkeys(one.root for one in found)), sources(proof.fix, proof.upstream, found)


def sources(fix: str, upstream: str, installations: Sequence[Installation]) -> dict[str, tuple[bytes, bytes]]:
    """Return the files of a fix in an upstream, untouched and patched, by their path below the import path."""
    findings = judge([one for one in installations if one.upstream == upstream], [catalog.fix(fix)], {})
    affected = [finding for finding in findings if finding.verdict.verdict not in (NOT_AFFECTED, FIXED_UPSTREAM)]
    assert affected
    files = {os.path.realpath(file.path): file for file in plan(findings, {}).files}
    pairs = {finding.target.file: files[os.path.realpath(finding.seen.path)] for finding in affected}
    return {path: (file.before, file.after) for path, file in pairs.items()}


def _checked_out(proof: Proof, folder: str) -> Path:
    """Extract what the proof needs of a source tree of Megatron-LM."""
    clone = str(CLONES[proof.upstream])
    command = ["git", "-C", clone, "archive", "--format=zip", proof.version, *_TREE_FILES]
    done = subprocess.run(command, capture_output=True, check=True)
    with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return Path(folder)
