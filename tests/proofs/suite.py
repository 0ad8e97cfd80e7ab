"""The releases that `nox -s proofs` runs each proof on, and one run of each."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from proofs.exceptions import LACKING, OTHERWISE
from proofs.others import AS_WRITTEN, OTHERS, Other, unreadable
from support import interpreters, wheels
from unhang.find import environment, locate
from unhang.judge.decide import NOT_AFFECTED
from unhang.judge.findings import judge
from unhang.prove import host
from unhang.prove.cases import Case
from unhang.prove.fixes.sft_packed_seq_broadcast import cases as sft
from unhang.records import Installation
from unhang.rewrite.plan import plan
from unhang.shapes import catalog

_PROJECTS = {"megatron-lm": "megatron-core"}
_CORE_LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
_EXPERT_LINES = (  # a release for each shape of the forward
    *("0.10.0", "0.11.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.0rc0", "0.15.0rc4", "0.15.3"),
    *("0.16.0rc0.dev100085", "0.16.1", "0.17.1", "0.18.2", "0.19.2"),
)
_ARMS = tuple(case for case in sft.CASES if case.topology.world <= 8)
_DEV = (*_ARMS, *sft.CASES_OF_TREES)
TREES = {
    "core_v0.16.1": (*sft.CASES_0_16, *sft.CASES_OF_0_16_TREES),
    "core_v0.17.1": _DEV,
    "cde56a469": (*_ARMS, *sft.CASES_OF_OLDER_TREES),
    "c0c4fdc45": _DEV,
    "0af570878": _DEV,
    "280d2440d": tuple(case for case in sft.CASES_OF_NEWEST_TREES if case.topology.world <= 8),
}
"""The releases that only trees have in full, and the first commit of each shape that only dev has had."""
_TREE_FILES = ("megatron", "pretrain_gpt.py", "gpt_builders.py", "model_provider.py")
CLONE = os.environ.get(wheels.CLONES["megatron-lm"])


class Proof(NamedTuple):
    """The proof of a fix on one release of one upstream.

    A wheel of megatron-core contains megatron-lm of its own version.
    """

    fix: str
    upstream: str
    version: str
    beside: tuple[tuple[str, str], ...] = ()
    """Project and version of the other upstreams that it imports, untouched."""
    core: bool = False
    """Whether its core cases belong to the core set."""
    is_tree: bool = False
    """Whether ``version`` is a commit or tag of Megatron-LM's source tree."""

    @property
    def name(self) -> str:
        """The fix, the upstreams and their versions."""
        releases = [(self.upstream, self.version), *self.beside]
        return f"{self.fix} {' with '.join(' '.join(release) for release in releases)}{' (tree)' * self.is_tree}"

    @property
    def lacking(self) -> dict[str, str]:
        """The cases and variants that this release does not have, and why."""
        return LACKING.get((self.fix, self.version), {})

    @property
    def variants(self) -> dict[str, Other]:
        """The variants that must fail on this release, with those of their cases that it has."""
        known = {case.name for case in self.cases()}
        return {
            name: other._replace(fails=tuple(case for case in other.fails if case in known))
            for name, other in OTHERS[self.fix, "tree" if self.is_tree else self.upstream].items()
            if name not in self.lacking and self.version in (other.only or (self.version,))
        }

    def cases(self) -> list[Case]:
        """Return its cases, or only the core ones unless all proofs are wanted."""
        if self.is_tree:
            return list(TREES[self.version])
        every = getattr(module(self.fix), "CASES_BY_UPSTREAM", {}).get(self.upstream, module(self.fix).CASES)
        otherwise = OTHERWISE.get((self.fix, self.version), {})
        return [
            case._replace(**dict(zip(("untouched", "at"), otherwise.get(case.name, ()))))
            for case in every
            if (case.core or everything()) and case.name not in self.lacking
        ]


def module(fix: str) -> Any:
    """Return the module of a fix's proof."""
    return importlib.import_module(f"unhang.prove.fixes.{fix.replace('-', '_')}")


def everything() -> bool:
    """Return whether all proofs are wanted, instead of the core set."""
    return os.environ.get("UNHANG_PROOFS") == "all"


def proofs() -> list[Proof]:
    """Return the proofs to run."""
    found = [
        Proof("mtp-cp-deadlock", "verl", "0.7.1", (("megatron-core", "0.16.1"),), core=True),
        Proof("mtp-cp-deadlock", "verl", "0.7.1", (("megatron-core", "0.15.3"),)),
        *(Proof("expert-dp-warmup", "megatron-core", line, core=line == "0.16.1") for line in _CORE_LINES),
        *(Proof("empty-expert-hang", "megatron-core", line, core=line == "0.19.2") for line in _EXPERT_LINES),
        Proof("sft-packed-seq-broadcast", "megatron-lm", "0.17.1", core=True),
        Proof("sft-packed-seq-broadcast", "megatron-lm", "0.17.0"),
        Proof("expert-dp-warmup", "ms-swift", "4.6.0", (("megatron-core", "0.16.1"),), core=True),
        Proof("expert-dp-warmup", "ms-swift", "4.0.0", (("megatron-core", "0.13.1"),)),
        Proof("expert-dp-warmup", "ms-swift", "4.0.0", (("megatron-core", "0.16.1"),)),
        Proof("expert-dp-warmup", "ms-swift", "4.2.3", (("megatron-core", "0.15.3"),)),
    ]
    if CLONE:
        found += [Proof("sft-packed-seq-broadcast", "megatron-lm", version, is_tree=True) for version in TREES]
    return [proof for proof in found if everything() or proof.core]


@cache
def answer(proof: Proof) -> host.Answer:
    """Run all cases of a proof on all variants, once."""
    return run(proof, proof.cases())


def run(proof: Proof, cases: Sequence[Case], **options: Any) -> host.Answer:
    """Run cases of a proof on its variants, with these options of ``host.ask``."""
    interpreter = interpreters.with_torch()
    releases = [(_PROJECTS.get(proof.upstream, proof.upstream), proof.version), *proof.beside]
    with tempfile.TemporaryDirectory(prefix="unhang-tree-") as folder:
        roots = [_checked_out(proof.version, folder)] if proof.is_tree else [unpacked(*release) for release in releases]
        places = [environment.for_target(str(root)) for root in roots]
        found = [one for place in places for one in locate.search(place, cwd="/").installations]
        projects = {proof.upstream, *(project for project, _ in releases)}
        found = [one for one in found if one.upstream in projects]
        pairs = sources(proof.fix, proof.upstream, found)
        every = [case.name for case in cases]
        variants: dict[str, tuple[Mapping[str, bytes], Sequence[str]]] = {
            host.UNTOUCHED: ({path: before for path, (before, _) in pairs.items()}, every),
            host.PATCHED: ({path: after for path, (_, after) in pairs.items()}, every),
        }
        for name, other in proof.variants.items():
            fails = [case for case in other.fails if case in every]
            if not fails or (name == AS_WRITTEN and unreadable(proof.fix)):
                continue
            variants[name] = {path: other.change(*pair) for path, pair in pairs.items()}, fails
        path = list(dict.fromkeys(one.root for one in found))
        return host.ask(interpreter, proof.fix, path, variants, cases, **options)


def sources(fix: str, upstream: str, installations: Sequence[Installation]) -> dict[str, tuple[bytes, bytes]]:
    """Return the files of a fix in an upstream, untouched and patched, by their path below the import path."""
    findings = judge([one for one in installations if one.upstream == upstream], [catalog.fix(fix)], {})
    affected = [finding for finding in findings if finding.verdict.verdict != NOT_AFFECTED]
    assert affected
    files = {os.path.realpath(file.path): file for file in plan(findings, {}).files}
    pairs = {finding.target.file: files[os.path.realpath(finding.seen.path)] for finding in affected}
    return {path: (file.before, file.after) for path, file in pairs.items()}


def _checked_out(version: str, folder: str) -> Path:
    """Extract what the proof needs of a source tree of Megatron-LM."""
    command = ["git", "-C", str(CLONE), "archive", "--format=zip", version, *_TREE_FILES]
    done = subprocess.run(command, capture_output=True, check=True)
    with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return Path(folder)


@cache
def unpacked(project: str, version: str) -> Path:
    """Return the folder that a release's wheel is unpacked in, beside the cached wheels; later runs use it again."""
    wheel = wheels.fetch(project, version)
    folder = wheel.parent / "unpacked" / wheel.stem
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return folder
