"""``unhang prove``: find, lay out both sides, ask the target's interpreter, tell."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unhang.cli.scope import Scope, find
from unhang.cli.scope import findings as judge
from unhang.errors import UnhangError
from unhang.find import environment
from unhang.judge.decide import DRIFTED, UNLISTED, URGENCY
from unhang.judge.findings import Finding
from unhang.prove import answers, host
from unhang.prove.answers import NOTHING, UNKNOWN, Line, Told
from unhang.prove.cases import Case, Topology
from unhang.prove.fixes.empty_expert_hang import transformer_engine
from unhang.prove.sides import Sides, sides
from unhang.rewrite.plan import Original
from unhang.store import history, receipt
from unhang.store.state import interrupted
from unhang.tell import console

if TYPE_CHECKING:
    import argparse

_DEADLINE_S = 20.0  # a rank that has come to no end by then counts as hung: a busy machine needs half a second
_SIZES = ("tp", "pp", "cp", "ep", "etp", "dp", "world_size")
_VERSIONS = """
import sys
from importlib import metadata
answer = {}
for name in sys.argv[1:]:
    try:
        answer[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
"""


def run(options: argparse.Namespace) -> int:
    """``unhang prove``: 0, 1 or 2 as ``answers.exit_code`` has it.

    Raises UnhangError ``bad-topology``, ``no-interpreter``, ``no-torch``, ``broken-interpreter``, ``interrupted``,
    and what ``check`` does.
    """
    sizes = {name: value for name in _SIZES if (value := getattr(options, name)) is not None}
    topology = answers.topology(**sizes) if sizes else None
    scope = find(options)
    python = _interpreter(options, scope)
    if interrupted(scope.environment.state_dir):
        hint = "run `unhang apply` or `unhang revert` first"
        raise UnhangError("interrupted", "an earlier run was killed halfway", path=scope.environment.prefix, hint=hint)
    findings = judge(scope)
    paths = [os.path.realpath(finding.seen.path) for finding in findings]
    kept = receipt.load(scope.environment.state_dir)
    original = history.originals(scope.environment.state_dir, kept, paths)
    asked = _Asked(scope, python, topology, findings, original)
    lines = [line for group in _grouped(findings) for line in asked.lines(group)]
    told = Told(scope.environment, python, asked.versions, topology, lines, scope.search.warnings)
    if options.output_format == "json":
        print(answers.document(told))
    else:
        print(answers.text(told, colour=console.colour()))
        console.warnings(scope.search)
    return answers.exit_code(lines)


class _Asked:
    """What all questions of a run share, and the versions that were answered."""

    def __init__(
        self,
        scope: Scope,
        python: str,
        topology: Topology | None,
        findings: Sequence[Finding],
        original: Mapping[str, Original],
    ) -> None:
        self._scope, self._python, self._topology = scope, python, topology
        self._findings, self._original = findings, original
        self.versions: Mapping[str, str] = {}

    def lines(self, group: Sequence[Finding]) -> list[Line]:
        """The answers for the findings of one fix on one installation."""
        first = min(group, key=lambda finding: URGENCY.index(finding.verdict.verdict))
        place, fix, verdict = first.installation, first.target.fix, first.verdict
        line = Line(place.upstream, place.version, place.root, fix, verdict.verdict, UNKNOWN, "")
        if verdict.verdict in (DRIFTED, UNLISTED):
            why = f"no proof knows this source: {verdict.detail}"
            return [line._replace(detail=f"{why}; hint: {verdict.hint}" if verdict.hint else why)]
        try:
            both = sides(group, self._original)
        except UnhangError as error:
            if error.code != "not-provable":
                raise
            return [line._replace(detail=error.message)]
        if not both.patched:
            return [line._replace(answer=NOTHING, detail=verdict.detail)]
        proof = _proof(fix)
        if self._topology is not None and (why := getattr(proof, "ruled_out", lambda _: "")(self._topology)):
            return [line._replace(answer=NOTHING, detail=why)]
        about = self._about(fix)
        cases, why = self._cases(proof, group)
        if why:
            return [line._replace(detail="; ".join(filter(None, (why, about))))]
        line = line._replace(detail="; ".join(filter(None, (both.note, about))))
        beside = self._beside(fix, getattr(proof, "BESIDE", {}).get(place.upstream, ()))
        return self._ask(line, both, beside, cases)

    def _ask(self, line: Line, both: Sides, beside: Mapping[str, bytes], cases: Sequence[Case]) -> list[Line]:
        names = [case.name for case in cases]
        variants = {host.PATCHED: ({**beside, **both.patched}, names)}
        if both.untouched is not None:
            variants[host.UNTOUCHED] = {**beside, **both.untouched}, names
        answer = host.ask(self._python, line.fix, self._path(), variants, cases, deadline_s=_DEADLINE_S)
        self.versions = {"python": answer.python, "torch": answer.torch}
        untouched = answer.outcomes.get(host.UNTOUCHED, {})
        patched = answer.outcomes[host.PATCHED]
        return [answers.judged(line, case, untouched.get(case.name), patched[case.name]) for case in cases]

    def _cases(self, proof: Any, group: Sequence[Finding]) -> tuple[Sequence[Case], str]:
        """The cases to run for the findings of one fix on one installation, or why there are none."""
        place, shapes = group[0].installation, {finding.seen.shape for finding in group if finding.seen.shape}
        if proof is None:
            return (), "this unhang has no proof of it"
        installed = {place.upstream for place in self._scope.search.installations}
        missing = [name for name in getattr(proof, "BESIDE", {}).get(place.upstream, ()) if name not in installed]
        if missing:
            return (), f"the proof needs {', '.join(missing)} as well, which is not installed here"
        if self._topology is None:
            if hasattr(proof, "cases_for"):
                every = proof.cases_for(place.upstream, shapes)
            else:
                every = getattr(proof, "CASES_BY_UPSTREAM", {}).get(place.upstream, proof.CASES)
            return [case for case in every if case.core], ""
        case_for = getattr(proof, "case_for", None)
        case = case_for(self._topology, place.upstream, shapes) if case_for else None
        if case is None:
            return (), f"its proof knows no job of this topology: {self._topology.text()}; without one, it runs its own"
        return [case], ""

    def _beside(self, fix: str, upstreams: Sequence[str]) -> dict[str, bytes]:
        """The untouched files of the same fix in upstreams below, whose cure is not to be taken for this one's."""
        files: dict[str, bytes] = {}
        for group in _grouped(self._findings):
            if group[0].target.fix == fix and group[0].installation.upstream in upstreams:
                try:
                    files.update(sides(group, self._original).untouched or {})
                except UnhangError as error:
                    if error.code != "not-provable":
                        raise  # what is drifted is used as it is
        return files

    def _path(self) -> list[str]:
        """What goes first on the import path: what the interpreter would not find, or not first, by itself."""
        place = self._scope.environment
        found = self._scope.search.installations
        if place.python is not None:
            found = tuple(
                one for one in found
                if one.kind == "source" and os.path.basename(one.root) not in ("site-packages", "dist-packages")
            )  # fmt: skip
        return list(dict.fromkeys(one.root for one in found))

    def _about(self, fix: str) -> str:
        if fix != "empty-expert-hang":
            return ""
        installed = environment.ask(self._python, _VERSIONS, *transformer_engine.DISTRIBUTIONS, cwd=os.getcwd())
        return transformer_engine.about(installed)


def _interpreter(options: argparse.Namespace, scope: Scope) -> str:
    place = scope.environment
    if place.python is None and options.python is not None:
        place = environment.choose(options.python, os.getcwd(), os.environ)
    if place.python is None:
        message = f"{scope.environment.found_by} names a folder, and a proof has to be run by an interpreter"
        raise UnhangError("no-interpreter", message, path=place.prefix, hint="give one that has torch: --python PY")
    return place.python


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings of each fix on each installation."""
    groups: dict[Any, list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.installation, finding.target.fix), []).append(finding)
    return list(groups.values())


def _proof(fix: str) -> Any:
    """The proof's module; None where there is none. It imports no torch."""
    name = f"unhang.prove.fixes.{fix.replace('-', '_')}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
