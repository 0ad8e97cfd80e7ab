"""A made-up repository of an upstream, and the data of upstreams that goes with it."""

import os
import subprocess
from pathlib import Path
from typing import Any

from support.fake_index import CLEAN, ENGINE, UNCLEAR

_REFS = ["refs/heads/main", "refs/heads/dev", "refs/tags/v*"]
_COMMON = {"version": {"file": "version"}, "refs": _REFS}
UPSTREAMS: dict[str, Any] = {
    "megatron-core": {
        "floor": "0.10",
        "tips": ["main", "dev"],
        "tree-tags": "core_v",
        "repository": "a/core",
        "clone": "UNHANG_MEGATRON_CLONE",
        **_COMMON,
    },
    "verl": {"floor": "0.4", "tips": ["main"], "repository": "a/verl", "clone": "UNHANG_VERL_CLONE", **_COMMON},
    "ms-swift": {"floor": "3.0", "tips": ["main"], "repository": "a/swift", "clone": "UNHANG_SWIFT_CLONE", **_COMMON},
}
BROKEN = "def broken(:\n    def forward_backward_batch"


def git(folder: Path, *arguments: str, day: str = "2026-01-01") -> str:
    """Run git in a folder, on this day; return what it prints."""
    config = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
    when = f"{day}T12:00:00Z"
    env = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "PATH": os.environ["PATH"]}
    done = subprocess.run(["git", *config, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """Make a verl with three shapes of its target and, for a day, a syntax error on main, and another shape on dev."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    steps = [
        ("2026-01-01", "0.3.0", UNCLEAR),
        ("2026-01-02", "0.4.0", CLEAN),
        ("2026-01-03", "0.4.0", BROKEN),
        ("2026-01-04", "0.7.0", CLEAN.replace("0", "2")),
        ("2026-01-05", "0.7.0", CLEAN),
    ]
    for day, version, text in steps:
        (folder / ENGINE).parent.mkdir(parents=True, exist_ok=True)
        (folder / ENGINE).write_text(text)
        (folder / "version").write_text(version + "\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", day, day=day)
    git(folder, "checkout", "-qb", "dev")
    (folder / ENGINE).write_text(CLEAN.replace("0", "3"))
    git(folder, "commit", "-qam", "on dev", day="2026-01-06")
    git(folder, "checkout", "-q", "main")
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder
