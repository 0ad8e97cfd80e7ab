"""A checkout's commit, tag and dirtiness, where git and GitPython are there to tell: no verdict rests on it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from unhang.records import Installation


def commits(installations: Iterable[Installation]) -> dict[str, str]:
    """What to say of each root that is the top of a checkout, such as ``git 1a2b3c4d5 (v0.7.1), edited``."""
    tops = {found.root for found in installations if os.path.exists(os.path.join(found.root, ".git"))}
    told = {root: _told(root) for root in sorted(tops)}
    return {root: text for root, text in told.items() if text}


def _told(root: str) -> str | None:
    try:
        import git  # here: it is optional, and slow; and its import fails where there is no git to run
    except ImportError:
        return None
    try:
        with git.Repo(root) as repo:
            described = repo.git.describe("--tags", "--exact-match", with_exceptions=False)
            tag = f" ({described})" if described else ""
            edited = ", edited" if repo.is_dirty() else ""
            return f"git {repo.head.commit.hexsha[:9]}{tag}{edited}"
    except (git.GitError, OSError, ValueError):
        return None  # no commit yet, a damaged checkout, one that git refuses to read: nothing rests on it
