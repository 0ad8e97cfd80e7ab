"""Plans of rewrites: made up, and of a folder."""

from pathlib import Path

from unhang.find import environment, locate
from unhang.judge.findings import Finding, judge
from unhang.records import Installation
from unhang.rewrite.plan import FilePlan, Plan, Rewritten, plan
from unhang.shapes import catalog
from unhang.shapes.catalog import Target

VERL = Installation("verl", "0.7.1", "/site", "/site", "/site/verl", "wheel", None, ())


def file_plan(name: str) -> FilePlan:
    """Return a made-up plan for one file of verl."""
    target = Target("mtp-cp-deadlock", "verl", name, "f")
    before, after = (f"{when} {name}".encode() for when in ("before", "after"))
    return FilePlan(VERL, f"/site/{name}", before, after, (Rewritten(target, "old", "new", True),))


def plan_of(folder: Path, *fixes: str) -> tuple[list[Finding], Plan]:
    """Return the findings in a folder, and the plan of these fixes, or of all."""
    found = locate.search(environment.for_target(str(folder)), cwd="/").installations
    findings = judge(found, [catalog.fix(name) for name in fixes or catalog.fixes()], {})
    return findings, plan(findings, {})
