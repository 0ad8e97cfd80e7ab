"""What to do about what a lock file pins: the line for the image's build, or the release to pin instead. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang import gate
from unhang.judge import upgrade
from unhang.judge.decide import NEEDED
from unhang.judge.findings import Finding
from unhang.judge.pinned import BY_RELEASE, on_record
from unhang.judge.upgrade import Step
from unhang.records import Pin, Request
from unhang.shapes import catalog
from unhang.suggest import command
from unhang.tell import dockerfile, report
from unhang.tell.rows import counted


def after_lock(findings: Sequence[Finding], request: Request) -> list[str]:
    """Return the end of the report of ``check --lock``: what is left to do, and the two ways to do it."""
    if not findings:
        return ["nothing to judge: these fixes have no target in what is pinned"]
    copies = ", in untouched copies" * any(it.verdict.code == BY_RELEASE for it in findings)
    left = {(it.installation, it.target.fix, it.verdict.verdict) for it in findings if it.left}
    if not left:
        return [f"nothing left to do{copies}"]
    lines = [f"{counted(verdict for _, _, verdict in left)}{copies}"]
    if any(it.verdict.to_rewrite for it in findings):
        numbers = report.numbers_marked(findings, request)
        lines += [*filter(None, [numbers]), *dockerfile.build(command("apply", request)).split("\n")]
    return [*lines, *dict.fromkeys(_better(findings, request))]


def _better(findings: Sequence[Finding], request: Request) -> Iterator[str]:
    """Yield, for each pinned release that needs fixes, the newest release in which the most are fixed."""
    fixes = [catalog.fix(name) for name in request.fixes]
    extras: dict[tuple[str, str], set[str]] = {}
    for place in (it.installation for it in findings if it.verdict.verdict == NEEDED):
        version = on_record(place.upstream, place.version or "")
        if place.pin is not None and version:  # a wheel, which was read, may be of any version
            extras.setdefault((place.pin.distribution, version), set()).update(place.pin.extras)
    for (distribution, version), asked in extras.items():
        best = upgrade.best(upgrade.steps(distribution, version, fixes))
        if best is not None:
            have = upgrade.needs(distribution, version, fixes)[0]
            others = [other for name, other in extras if name == distribution and other != version]
            yield _instead(Pin(distribution, version * bool(others), extras=tuple(sorted(asked))), best, have)


def _instead(pin: Pin, best: Step, have: Sequence[str]) -> str:
    extras = gate.line(f"[{','.join(pin.extras)}]") if pin.extras else ""
    of = f" in place of {pin.version}" if pin.version else ""
    brings = f"brings in {', '.join(best.brings)}" if best.brings else "brings in none"
    unknown = f"; nobody knows whether it needs {', '.join(best.unknown)}" if best.unknown else ""
    return (
        f"or pin {pin.distribution}{extras}=={best.version}{of}, which drops {len(best.drops)} of {len(have)} "
        f"({', '.join(best.drops)}) and {brings}{unknown}"
    )
