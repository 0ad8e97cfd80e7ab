"""Runs one nightly job and writes its result: `nightly_run.py JOB --out FILE`. Needs no permission."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import nightly_judge as judge
from nightly_judge import Ran, Result
from nightly_plan import CHECK, PRE_RELEASE, RADAR, REPOSITORY, SWEEP, TESTS, UPSTREAMS, Job, jobs
from packaging.version import InvalidVersion, Version

_MEGATRON = "megatron-core"
_LIMIT_S = 100 * 60  # less than the workflow's limit, so that a job that runs too long is reported with its log


def run(job: Job, nox: Sequence[str], narrow: Sequence[str]) -> Result:
    """Run a job with this nox command, and these arguments more for its session. A failing job raises nothing."""
    names = [job.subject, "megatron-lm"] if job.subject == _MEGATRON else [job.subject]  # a clone has both
    if job.what == RADAR:
        chosen = [word for name in names for word in ("--upstream", name)]
        ran = _unhang("matrix", "--against-index", "--output-format", "json", *chosen)
        return judge.by_verdicts(ran, "", _newest())
    if job.ref is None:
        newest = ["--newest"] if job.what == SWEEP else []  # not the frozen commits: what upstream has today
        return judge.by_code(_run([*nox, "-s", job.what, "--", *newest, *narrow]))
    try:
        ref = _newest_pre_release(job.subject) if job.ref == PRE_RELEASE else job.ref
        if ref is None:
            return Result(True, "not run: no tag of a pre-release is newer than the newest release's")
        if job.what == TESTS:  # the session clones the source itself; Megatron-LM is tested as a whole
            return judge.by_code(_run([*nox, "-s", TESTS, "--", names[-1], ref, *narrow]))
        with tempfile.TemporaryDirectory() as folder:
            tree = _clone(job.subject, ref, Path(folder) / "tree")
            if job.what == CHECK:
                source = tree / UPSTREAMS[job.subject].get("folder", "")
                ran = _unhang("check", "--source", str(source), "--output-format", "json")
                return judge.by_verdicts(ran, f"branch {ref}", _newest())
            if not (tree / "megatron").exists():  # some proofs need Megatron-LM too
                shutil.move(_clone(_MEGATRON, "main", Path(folder) / "other") / "megatron", tree)
            ran = _run([*nox, "-s", job.what, "--", "--source", str(tree), "--output-format", "json", *narrow])
            return judge.by_answers(ran, names)
    except subprocess.CalledProcessError as error:
        return Result(False, "the source could not be fetched", f"{shlex.join(error.cmd)}: {error.stderr.strip()}")


def _newest() -> dict[tuple[str, str], str]:
    """Return the verdicts on each upstream's newest final release, by upstream and fix."""
    rows = json.loads(_unhang("matrix", "--output-format", "json").out)["rows"]
    final = [row for row in rows if not row["yanked"] and not Version(row["version"]).is_prerelease]
    final.sort(key=lambda row: Version(row["version"]))
    return {(row["upstream"], row["fix"]): row["verdict"] for row in final}  # of a key's values, the last stays


def _newest_pre_release(upstream: str) -> str | None:
    """Return the tag of the newest pre-release, if no release is newer. Raises CalledProcessError."""
    prefix = UPSTREAMS[upstream].get("tree-tags", "v")
    listed = _git("ls-remote", "--tags", "--refs", _source(upstream), f"refs/tags/{prefix}*")
    tags: dict[Version, str] = {}
    for tag in (line.rpartition("refs/tags/")[2] for line in listed.splitlines()):
        with suppress(InvalidVersion):
            tags[Version(tag.removeprefix(prefix))] = tag
    newest = max(tags, default=None)
    return tags[newest] if newest is not None and newest.is_prerelease else None


def _source(upstream: str) -> str:
    return os.environ.get(UPSTREAMS[upstream]["clone"]) or f"https://github.com/{UPSTREAMS[upstream]['repository']}"


def _clone(upstream: str, ref: str, folder: Path) -> Path:
    """Clone a branch or a tag into a new folder, and return it. Raises CalledProcessError."""
    _git("clone", "--quiet", "--depth", "1", "--branch", ref, _source(upstream), str(folder))
    return folder


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, errors="replace", check=True).stdout


def _unhang(*arguments: str) -> Ran:
    return _run([sys.executable, "-m", "unhang", *arguments])


def _run(command: Sequence[str]) -> Ran:
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        # bytes in spite of text=True
        out = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return Ran(124, out, f"stopped after {_LIMIT_S} s")
    return Ran(done.returncode, done.stdout, done.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and write its result; return 0 if it is green, else 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=[job.name for job in jobs()])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--nox", default=str(REPOSITORY / ".ci" / "nox"), metavar="SCRIPT")
    parser.add_argument("--narrow", default="", metavar="ARGUMENTS", help="more arguments for the nox session")
    options = parser.parse_args(arguments)
    (job,) = (job for job in jobs() if job.name == options.job)
    result = run(job, [sys.executable, options.nox], shlex.split(options.narrow))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result._asdict()), encoding="utf-8")
    print(f"{job.name}: {'green' if result.green else 'trouble'}: {result.detail}\n{result.log}".strip())
    return 0 if result.green else 1


if __name__ == "__main__":
    raise SystemExit(main())
