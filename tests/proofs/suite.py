"""The releases that `nox -s proofs` runs each proof on, and one run of each."""

from __future__ import annotations

import importlib
import os
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from proofs.exceptions import LACKING, OTHERWISE
from proofs.others import AS_WRITTEN, OTHERS, unreadable
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

    @property
    def name(self) -> str:
        """The fix, the upstreams and their versions."""
        releases = [(self.upstream, self.version), *self.beside]
        return f"{self.fix} {' with '.join(' '.join(release) for release in releases)}"

    @property
    def lacking(self) -> dict[str, str]:
        """The cases and variants that this release does not have, and why."""
        return LACKING.get((self.fix, self.version), {})

    def cases(self) -> list[Case]:
        """Return its cases, or only the core ones unless all proofs are wanted."""
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
    return [proof for proof in found if everything() or proof.core]


@cache
def answer(proof: Proof) -> host.Answer:
    """Run all cases of a proof on all variants, once."""
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
    """Return the variants that a proof must fail on, without the pull request where it cannot be read."""
    known = {case.name for case in proof.cases()}
    found = {}
    for name, other in OTHERS[proof.fix, proof.upstream].items():
        if name not in proof.lacking and not (name == AS_WRITTEN and unreadable(proof.fix)):
            found[name] = other._replace(fails=tuple(case for case in other.fails if case in known))
    return found


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
