"""Rehearses the nightly run: `nox -s nightly`. Every job runs as in nightly.yml, on the real index and real clones.

The sessions of proofs and of upstream's own tests are narrowed, and a fake GitHub takes the place of the real one. So
that an issue is seen to be opened, updated and closed, three nights pass: the first runs every job, the others those
whose answer changes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from support import fake_github
from support.checkout import REPOSITORY

SCRIPTS = REPOSITORY / ".github" / "scripts"
WORKFLOW = REPOSITORY / ".github" / "workflows" / "nightly.yml"
EDITED, CANCELLED, LATER = "ms-swift-check-main", "verl-radar", "ms-swift-radar"
ONE_PROOF = "--fix expert-dp-warmup --ep 2 --world-size 4"
NARROW = {  # by the beginning of the job's name
    "megatron-core-upstream": "--only test_training.py",
    "verl-upstream": "--only tests/test_base_config",
    "ms-swift-upstream": "--only tests/loss_scale",
    "megatron-core-prove": ONE_PROOF,
    "ms-swift-prove": ONE_PROOF,
    "verl-prove": "--fix mtp-cp-deadlock",
    "proofs": "-k fsdp2-buffer-order",
}


def main() -> int:
    """Run three nights; return 1 if an issue was not kept as planned, or a job is in trouble that was not planned."""
    began = time.monotonic()
    env = dict(re.findall(r"(UNHANG_\w+_CLONE): (\S+)", WORKFLOW.read_text("utf-8"))) | os.environ
    env = {**env, "UNHANG_PROOFS": "core", "GITHUB_REPOSITORY": "them/unhang", "GITHUB_TOKEN": "none"}
    env.pop("PYTHONPATH", None)  # this module's
    names = json.loads(_script("nightly_plan.py", env=env).removeprefix("jobs="))
    with tempfile.TemporaryDirectory() as folder, fake_github.serve() as github:
        results, compat = Path(folder) / "results", Path(folder) / "compat"
        shutil.copytree(REPOSITORY / "compat", compat)  # for the sweep to write to
        narrow = NARROW | {"sweep": f"--out {compat}"}
        env |= {"GITHUB_API_URL": github.url, "GITHUB_SERVER_URL": "https://github.com"}
        edited = env | {"UNHANG_SWIFT_CLONE": _edited(env["UNHANG_SWIFT_CLONE"], Path(folder) / "ms-swift")}

        print(f"night 1: somebody edits ms-swift's main, and {CANCELLED} is cancelled", flush=True)
        _run([EDITED], edited, results, narrow)
        _run([name for name in names if name not in (EDITED, CANCELLED)], env, results, narrow)
        done = _issues(env, results, 1)
        wrong = _missing(done, ["opened .*ms-swift: .*" + EDITED, "opened .*verl: .*" + CANCELLED])
        for issue in github.issues:
            print(textwrap.indent(f"#{issue['number']} {issue['title']}\n{issue['body']}\n", " " * 4), flush=True)

        print(f"night 2: {CANCELLED} has a result, {LATER} is cancelled", flush=True)
        _run([CANCELLED], env, results, narrow)
        green = (results / f"{LATER}.json").rename(Path(folder) / "green.json")
        done = _issues(env, results, 2)
        wrong += _missing(done, [f"updated .*ms-swift: .*{EDITED}, {LATER}", "closed .*: verl is green"])

        print("night 3: the edit is undone, and no job is cancelled", flush=True)
        _run([EDITED], env, results, narrow)
        green.rename(results / f"{LATER}.json")
        wrong += _missing(_issues(env, results, 3), ["closed .*: ms-swift is green"])
        for number, text in github.comments:
            print(f"  comment on #{number}: {text}")
        wrong += [f"not planned: {title}" for title in github.open_titles() if title.startswith("Nightly trouble")]
    print(f"three nights, {len(names)} jobs, {(time.monotonic() - began) / 60:.0f} minutes")
    print("\n".join(wrong) or "each issue was opened, updated and closed as planned, and no other job is in trouble")
    return 1 if wrong else 0


def _run(names: Iterable[str], env: Mapping[str, str], results: Path, narrow: Mapping[str, str]) -> None:
    """Run these jobs one after the other, and print what each took and found."""
    for name in names:
        began = time.monotonic()
        arguments = next((given for start, given in narrow.items() if name.startswith(start)), "")
        said = _script("nightly_run.py", name, "--out", results / f"{name}.json", f"--narrow={arguments}", env=env)
        print(f"  {time.monotonic() - began:4.0f} s  {textwrap.indent(said.strip(), ' ' * 10).strip()}", flush=True)


def _issues(env: Mapping[str, str], results: Path, night: int) -> str:
    done = _script("nightly_issues.py", results, env={**env, "GITHUB_RUN_ID": str(night)})
    print(textwrap.indent(done, "  "), flush=True)
    return done


def _script(name: str, *arguments: str | Path, env: Mapping[str, str]) -> str:
    """Return what a script printed. A job in trouble ends with 1, which is no error here."""
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{name} ended with {done.returncode}")
    return done.stdout


def _missing(done: str, wanted: Iterable[str]) -> list[str]:
    return [f"not done: {pattern}" for pattern in wanted if not re.search(pattern, done)]


def _edited(source: str, folder: Path) -> str:
    """Clone a branch with a function that a fix knows, put a statement into it, and return the clone's path."""
    git = ["git", "-c", "user.name=somebody", "-c", "user.email=<>"]
    subprocess.run([*git, "clone", "--quiet", "--single-branch", "--branch", "main", source, str(folder)], check=True)
    path = folder / "swift" / "megatron" / "utils" / "megatron_lm_utils.py"
    text, count = re.subn(r"(def _initialize_mpu\(.*\n)", r"\1    number = 0\n", path.read_text("utf-8"))
    if count != 1:
        sys.exit("ms-swift's main has no _initialize_mpu any more: choose another function")
    path.write_text(text, "utf-8")
    subprocess.run([*git, "-C", str(folder), "commit", "--quiet", "--all", "--message", "Edit"], check=True)
    return str(folder)


if __name__ == "__main__":
    sys.exit(main())
