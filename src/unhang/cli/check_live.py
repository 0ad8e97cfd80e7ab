"""``unhang check --live``: what each rank that runs here imports, and whether it was started before the rewrite.

All of it is read from /proc: nothing is attached, and no signal is sent.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from unhang import __version__, gate
from unhang.diagnose import collector
from unhang.diagnose.evidence import spoken
from unhang.errors import UnhangError
from unhang.judge.decide import APPLIED
from unhang.survey.verdicts import survey
from unhang.tell import console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from unhang.diagnose.collector import Process
    from unhang.records import Request
    from unhang.survey.verdicts import Survey

_TORCH = re.compile(r" (/\S+)/(lib(?:64)?/python3[.\d]*/(?:site|dist)-packages)/torch/\S*libtorch")


class _Job(NamedTuple):
    """How a rank was started, as far as that tells what it imports: the ranks of a node mostly have one."""

    python: str | None
    target: str | None
    """Its site-packages, where its interpreter is another user's, which is not run."""
    script: str | None
    python_path: str
    cwd: str


def run(options: argparse.Namespace, wanted: Request, told: Callable[[Request, Survey], int]) -> int:
    """Print what ranks here import; return 1 if something is left to do or a rank runs code from before a rewrite.

    ``told`` prints a survey, and returns the exit code. Raises UnhangError ``bad-option``, ``no-ranks``, and as
    ``survey``.
    """
    output_format = options.output_format
    others = [f"--{name}" for name in ("python", "target", "source", "script", "image") if getattr(options, name)]
    if others := others or [f"--output-format {output_format}"] * (output_format not in ("text", "json")):
        hint = "it looks at what the ranks here import, and tells of it as text or json"
        raise UnhangError("bad-option", f"--live does not go with {others[0]}", hint=hint)
    by_pid = {one.pid: one for one in collector.processes()}
    found = collector.ranks([*by_pid.values()])
    if not found:
        hint = "start it as the job's user, or as root, where the job runs (in its container)"
        raise UnhangError("no-ranks", "no process was found that has loaded torch and has a rank", hint=hint)
    jobs: dict[_Job | None, list[tuple[int, int]]] = {}
    for one in found:
        jobs.setdefault(_job(by_pid[one.pid]), []).append((one.rank, one.pid))
    code, rows, booted = 0, list[dict[str, object]](), collector.booted()
    for job, ranks in jobs.items():
        if job is None:
            console.note(f"{_called(ranks)}: in another container, or of another user: run this there, as that user")
            code = 1
            continue
        with _as(job):
            place = wanted._replace(python=job.python, target=job.target, script=job.script, allow_none=True)
            seen = survey(place)
            if output_format == "text":
                more = f", PYTHONPATH={job.python_path}" if job.python_path else ""
                console.show(f"{_called(ranks)}: started in {job.cwd}{more}")
                code |= told(place, seen)
            else:
                code |= any(it.left for it in seen.findings)
        written = _written(seen)
        for rank, pid in ranks:
            began = booted + by_pid[pid].began / os.sysconf("SC_CLK_TCK")
            stale = sorted({fix for fix, at in written.items() if began + 1 < at})  # the second of a start is not known
            verdicts = {it.target.fix: it.verdict.verdict for it in seen.findings}
            rows.append({
                "rank": rank, "pid": pid, "started": _time(began), "environment": seen.environment.told,
                "verdicts": verdicts, "stale": stale,
            })  # fmt: skip
            if stale:
                code = 1
                what = f"it was started at {_time(began)}, before the rewrite of {', '.join(stale)}"
                console.show(*[f"stale: rank {rank}, pid {pid}: {what}: start it again"] * (output_format == "text"))
    if output_format == "json":
        print(gate.document({"schema": 1, "unhang": __version__, "ranks": rows}))
    return code


def _job(process: Process) -> _Job | None:
    """Return how a process was started; None if that cannot be told from here."""
    proc = f"/proc/{process.pid}"
    with suppress(OSError, ValueError):
        if os.readlink(f"{proc}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return None
        cwd, python = os.readlink(f"{proc}/cwd"), os.readlink(f"{proc}/exe")
        with open(f"{proc}/maps", encoding="utf-8", errors="replace") as maps:
            found = _TORCH.search(maps.read())
        if found and os.path.exists(f"{found[1]}/bin/python"):
            python = f"{found[1]}/bin/python"
        with open(f"{proc}/cmdline", encoding="utf-8", errors="surrogateescape") as line:
            words = [word for word in line.read().split("\0")[1:] if not re.match(r"-(?![mc])", word)]
        is_script = words and words[0].endswith(".py") and os.path.exists(os.path.join(cwd, words[0]))
        is_trusted = os.stat(python).st_uid in (0, os.geteuid())  # another one's program is not to be run
        site = f"{found[1]}/{found[2]}" if found and not is_trusted else None
        script = words[0] if is_script else None
        return _Job(None if site else python, site, script, process.environment.get("PYTHONPATH", ""), cwd)
    return None


@contextmanager
def _as(job: _Job) -> Iterator[None]:
    """Look at what is imported from where the rank was started, and with its PYTHONPATH."""
    before, path = os.getcwd(), os.environ.get("PYTHONPATH", "")
    try:
        os.chdir(job.cwd)
        os.environ["PYTHONPATH"] = job.python_path
        yield
    finally:
        os.chdir(before)
        os.environ["PYTHONPATH"] = path


def _written(seen: Survey) -> Mapping[str, float]:
    """Return when the file of each fix that is in place was written; a change of its owner alone is no rewrite."""
    times: dict[str, float] = {}
    for one in seen.findings:
        with suppress(OSError):
            if one.verdict.verdict == APPLIED:
                status = os.stat(one.seen.path)
                at = min(status.st_mtime, status.st_ctime)
                times[one.target.fix] = max(at, times.get(one.target.fix, at))
    return times


def _called(ranks: list[tuple[int, int]]) -> str:
    return f"{spoken([rank for rank, _ in ranks])} (pid {', '.join(str(pid) for _, pid in ranks)})"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
