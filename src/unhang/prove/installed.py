"""Proves the fixes on what is installed: for each fix x installation, which cases to run, on which files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unhang.errors import UnhangError, joined
from unhang.find import environment, locate
from unhang.judge import scene
from unhang.judge.decide import DRIFTED, NO_REWRITE, UNLISTED, URGENCY
from unhang.judge.findings import Finding
from unhang.plugins import packs
from unhang.prove import answers, cases, host
from unhang.prove.cases import Case, Topology
from unhang.prove.gpus import Gpu
from unhang.prove.line import NOTHING, UNKNOWN, Line
from unhang.prove.sides import Sides, sides
from unhang.records import Environment, Installation
from unhang.rewrite.plan import Original
from unhang.shapes import catalog
from unhang.tell.progress import Step, silent

_VERSIONS = """
from importlib import metadata
path, _ = job_path("")
answer = [(name, found.version) for name in sys.argv[1:] for found in metadata.distributions(name=name, path=path)]
"""


class Job(NamedTuple):
    """What ``unhang prove`` was asked to prove."""

    environment: Environment
    installations: Sequence[Installation]
    findings: Sequence[Finding]
    originals: Mapping[str, Original]
    """What the receipt keeps of each file, by the file's real path."""
    python: str
    """The interpreter that runs the proofs."""
    topology: Topology | None
    """The user's own; None to run the proofs' own cases."""
    step: Step = silent
    """Is told which case runs."""
    case: str = ""
    """What the name of a proof's own case must contain; where it is empty, the core cases are run."""
    gpus: Sequence[Gpu] = ()
    """Where the ranks run, and speak NCCL; empty for a CPU, and gloo."""
    keep: str = ""
    """The folder for what ranks on GPUs leave that do not end well; empty if it is not to be kept."""


class Proved(NamedTuple):
    """The answers, and the versions of the interpreter that ran the proofs."""

    lines: Sequence[Line]
    versions: Mapping[str, str]
    """``python``, ``torch``, and on GPUs ``nccl``; empty where nothing was run."""
    pip: bool = True
    """Whether that interpreter has pip."""


def interpreter(place: Environment, python: str | None, cwd: str, environ: Mapping[str, str]) -> str:
    """Return the interpreter to run proofs in: the environment's, else the one that ``python`` names.

    Raises UnhangError ``no-interpreter`` where the environment is a folder and ``python`` is None, and as
    ``environment.choose`` and ``environment.program``.
    """
    if place.python is not None:
        return environment.program(place, "a proof runs in it")
    chosen = environment.choose(python, cwd, environ).python if python is not None else None
    if chosen is None:
        message = f"{place.found_by} names a folder, but a proof needs an interpreter to run in"
        raise UnhangError("no-interpreter", message, path=place.prefix, hint="name one that has torch: --python PY")
    return chosen


def prove(job: Job) -> Proved:
    """Run the proofs of a job.

    Raises UnhangError ``no-torch``, ``no-gpu``, ``broken-interpreter`` and ``no-case``.
    """
    lines: list[Line] = []
    versions: Mapping[str, str] = {}
    pip = True
    for group in _grouped(job.findings):
        proved = _prove(job, group)
        lines += proved.lines
        versions, pip = proved.versions or versions, pip and proved.pip
    if job.case and not any(line.case for line in lines):
        message = f"no proof that can run here has a case with {job.case!r} in its name"
        raise UnhangError("no-case", message, hint="docs/maintainers/proofs.md has the cases of every fix")
    return Proved(lines, versions, pip)


def _prove(job: Job, group: Sequence[Finding]) -> Proved:
    """Run the proof of the findings of one fix on one installation, where there is something to run."""
    first = min(group, key=lambda finding: URGENCY.index(finding.verdict.verdict))
    place, fix, verdict = first.installation, first.target.fix, first.verdict
    grade = catalog.fix(fix).grade
    line = Line(place.upstream, place.version, place.root, fix, verdict.verdict, UNKNOWN, "", grade=grade)
    if verdict.verdict in (DRIFTED, UNLISTED):
        hint = f"; hint: {verdict.hint}" if verdict.hint else ""
        return _only(line, UNKNOWN, f"no proof knows this source: {verdict.detail}{hint}")
    if none := [it.verdict for it in group if it.verdict.code == NO_REWRITE]:
        return _only(line, NOTHING, joined(none[0].detail, none[0].hint))
    both = sides(group, job.originals)
    if isinstance(both, str):
        return _only(line, UNKNOWN, both)
    if not both.patched:
        return _only(line, NOTHING, verdict.detail)
    with packs.Blamed(catalog.fix(fix).pack, scene.path_of(fix)):
        return _proved(job, line, group, both)


def _proved(job: Job, line: Line, group: Sequence[Finding], both: Sides) -> Proved:
    """Run the cases of a fix's proof on both sides, if it has one, and some of these."""
    proof = scene.proof(line.fix)
    if proof is None:
        return _only(line, UNKNOWN, "this unhang has no proof of it")
    if job.topology is not None and (why := cases.ruled_out(proof, job.topology)):
        return _only(line, NOTHING, why)
    chosen, why = _cases(job, proof, group)
    if not chosen and not why:  # narrowed to cases of other fixes
        return Proved([], {})
    line = line._replace(detail=joined(why or both.note, _left_out(job, proof), _about(job, proof)))
    return _only(line, UNKNOWN, line.detail) if why else _run(job, line, both, _beside(job, proof, group[0]), chosen)


def _only(line: Line, answer: str, detail: str) -> Proved:
    return Proved([line._replace(answer=answer, detail=detail)], {})


def _run(job: Job, line: Line, both: Sides, beside: Mapping[str, bytes], chosen: Sequence[Case]) -> Proved:
    """Run the cases on both sides, and return a line for each."""
    names = [case.name for case in chosen]
    variants = {host.PATCHED: ({**beside, **both.patched}, names)}
    if both.untouched is not None:
        variants[host.UNTOUCHED] = {**beside, **both.untouched}, names
    gpus = [gpu.uuid for gpu in job.gpus]
    keep = job.keep and os.path.join(job.keep, line.upstream)
    answer = host.ask(job.python, line.fix, _path(job), variants, chosen, step=job.step, gpus=gpus, keep=keep)
    untouched, patched = answer.outcomes.get(host.UNTOUCHED, {}), answer.outcomes[host.PATCHED]
    caveat = getattr(scene.proof(line.fix), "caveat", lambda _: "")
    lines = [
        answers.judged(
            line._replace(detail=joined(line.detail, _smaller(job, case), caveat(case))),
            cases.as_on_gpu(case, untouched.get(case.name), patched[case.name]) if job.gpus else case,
            untouched.get(case.name),
            patched[case.name],
        )
        for case in chosen
    ]
    return Proved(lines, answer.versions, answer.pip)


def _cases(job: Job, proof: Any, group: Sequence[Finding]) -> tuple[Sequence[Case], str]:
    """Return the cases to run for the findings of one fix on one installation, or why there are none."""
    upstream, shapes = group[0].installation.upstream, {finding.seen.shape for finding in group if finding.seen.shape}
    installed = {place.upstream for place in job.installations}
    missing = [name for name in _needs(proof, upstream) if name not in installed]
    if missing:
        return (), f"the proof also needs {', '.join(missing)}, which is not installed here"
    if job.topology is None:
        if hasattr(proof, "cases_for"):
            every = proof.cases_for(upstream, shapes)
        else:
            every = getattr(proof, "CASES_BY_UPSTREAM", {}).get(upstream, proof.CASES)
        chosen = [case for case in every if (job.case in case.name if job.case else case.core)]
        return _here(job, proof, chosen), ""
    case = cases.yours(proof, _known(job.topology, proof), upstream, shapes)
    if case is None:
        return (), f"its proof has no case of this topology: {job.topology.text()}; without sizes it runs its own"
    return _here(job, proof, [case]), ""


def _here(job: Job, proof: Any, chosen: Sequence[Case]) -> Sequence[Case]:
    """Return the cases as they are where the job's ranks run."""
    return [it for case in chosen if (it := cases.on_gpu(proof, case))] if job.gpus else chosen


def _known(topology: Topology, proof: Any) -> Topology:
    """Return what a proof can lay out of a topology."""
    return topology if getattr(proof, "CHUNKS", False) else topology._replace(vpp=1)


def _left_out(job: Job, proof: Any) -> str:
    """Return what a proof leaves out of the user's topology; empty where that is nothing."""
    left_out = job.topology is not None and _known(job.topology, proof) != job.topology
    return "virtual chunks are left out, which this proof does not know" if left_out else ""


def _smaller(job: Job, case: Case) -> str:
    """Return that a case has fewer ranks than the user's job; empty where it has as many."""
    if job.topology is None or case.topology.world >= job.topology.world:
        return ""
    return f"{case.topology.text()} in place of your {job.topology.world}"


def _beside(job: Job, proof: Any, finding: Finding) -> dict[str, bytes]:
    """Return the untouched files of the same fix in the other upstreams that the proof imports.

    Otherwise a fix applied there would count as the fix of this installation.
    """
    files: dict[str, bytes] = {}
    for group in _grouped(one for one in job.findings if one.target.fix == finding.target.fix):
        if group[0].installation.upstream in _needs(proof, finding.installation.upstream):
            both = sides(group, job.originals)
            if isinstance(both, Sides):  # else it has drifted, and is used as it is
                files.update(both.untouched or {})
    return files


def _needs(proof: Any, upstream: str) -> Sequence[str]:
    """Return the other upstreams that the proof of an upstream imports."""
    needs: Sequence[str] = getattr(proof, "BESIDE", {}).get(upstream, ())
    return needs


def _path(job: Job) -> list[str]:
    """Return what goes first on the import path: roots that the interpreter does not find first by itself."""
    found = job.installations
    if job.environment.python is not None:
        found = [
            one for one in found
            if one.kind == "source" and os.path.basename(one.root) not in ("site-packages", "dist-packages")
        ]  # fmt: skip
    return list(dict.fromkeys(one.root for one in found))


def _about(job: Job, proof: Any) -> str:
    """Return what the proof says of the versions that the interpreter has."""
    if not hasattr(proof, "about"):
        return ""
    names = proof.DISTRIBUTIONS
    versions = locate.ask_probe(job.python, _VERSIONS, *names, cwd=os.getcwd(), form=[(str, str)])
    return str(proof.about(dict(reversed(versions))))  # the first on the path is the one that counts


def _grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings of each fix on each installation."""
    groups: dict[tuple[Installation, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.installation, finding.target.fix), []).append(finding)
    return list(groups.values())
