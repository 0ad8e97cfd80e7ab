"""Which proofs are run on which releases: the data that `nox -s proofs` works through, and one run of each."""

from __future__ import annotations

import importlib
import os
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from proofs.exceptions import LACKING, OTHERWISE
from proofs.others import AS_WRITTEN, OTHERS
from support import interpreters, wheels
from unhang.find import environment, locate
from unhang.prove import host
from unhang.prove.cases import Case

_PROJECTS = {"megatron-lm": "megatron-core"}
_CORE_LINES = ("0.10.0", "0.11.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
_EXPERT_LINES = (  # a release for each shape of the forward
    *("0.10.0", "0.11.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.0rc0", "0.15.0rc4", "0.15.3"),
    *("0.16.0rc0.dev100085", "0.16.1", "0.17.1", "0.18.2", "0.19.2"),
)


class Proof(NamedTuple):
    """A fix, proved on one release of one upstream, with what else is needed to run it.

    A wheel of megatron-core brings megatron-lm of its own version.
    """

    fix: str
    upstream: str
    version: str
    beside: tuple[tuple[str, str], ...] = ()
    """The other upstreams that are imported, untouched: project and version."""
    core: bool = False
    """Whether its core cases belong to the core set."""

    @property
    def name(self) -> str:
        """Fix, upstream and versions."""
        releases = [(self.upstream, self.version), *self.beside]
        return f"{self.fix} {' with '.join(' '.join(release) for release in releases)}"

    @property
    def lacking(self) -> dict[str, str]:
        """Its cases and variants that this release does not have, and why."""
        return LACKING.get((self.fix, self.version), {})

    def cases(self) -> list[Case]:
        """Its cases: the core ones alone, where that is asked for."""
        every = getattr(module(self.fix), "CASES_BY_UPSTREAM", {}).get(self.upstream, module(self.fix).CASES)
        otherwise = OTHERWISE.get((self.fix, self.version), {})
        return [
            case._replace(**dict(zip(("untouched", "at"), otherwise.get(case.name, ()))))
            for case in every
            if (case.core or everything()) and case.name not in self.lacking
        ]


def module(fix: str) -> Any:
    """The proof of a fix."""
    return importlib.import_module(f"unhang.prove.fixes.{fix.replace('-', '_')}")


def everything() -> bool:
    """Whether all proofs are wanted, and not the core set alone."""
    return os.environ.get("UNHANG_PROOFS") == "all"


def proofs() -> list[Proof]:
    """The proofs to run."""
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
    return [proof for proof in found if everything() or proof.core]


@cache
def answer(proof: Proof) -> host.Answer:
    """Run a proof, once: all its cases, on all variants."""
    interpreter = interpreters.with_torch()
    releases = [(_PROJECTS.get(proof.upstream, proof.upstream), proof.version), *proof.beside]
    places = [environment.for_target(str(unpacked(*release))) for release in releases]
    found = [one for place in places for one in locate.search(place, cwd="/").installations]
    projects = {proof.upstream, *(project for project, _ in releases)}
    cases = proof.cases()
    return host.prove(
        interpreter,
        proof.fix,
        [proof.upstream],
        [one for one in found if one.upstream in projects],
        cases,
        others(proof),
    )


def others(proof: Proof) -> dict[str, host.Other]:
    """The variants that a proof is to fail on: those that need a clone only where one is named."""
    known = {case.name for case in proof.cases()}
    found = {}
    for name, other in OTHERS[proof.fix, proof.upstream].items():
        has_source = name != AS_WRITTEN or os.environ.get(wheels.CLONES[proof.upstream])
        if has_source and name not in proof.lacking:
            found[name] = other._replace(fails=tuple(case for case in other.fails if case in known))
    return found


@cache
def unpacked(project: str, version: str) -> Path:
    """A release's wheel, laid out in a folder beside the cached wheels that later runs find again."""
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
