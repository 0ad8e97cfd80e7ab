"""Where a diff comes from: what mails and commits say of themselves, and what a clone gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fake_clone import git
from unhang.draft import origin
from unhang.draft.origin import Origin
from unhang.errors import UnhangError

SHA = "0123456789abcdef0123456789abcdef01234567"
MAIL = f"""\
From {SHA} Mon Sep 17 00:00:00 2001
From: =?utf-8?q?J=C3=BCrgen?= <j@example.com>
Subject: [PATCH 1/2] [fsdp] fix: let all ranks
 join (#12)

Fixes #7.

Co-authored-by: Li <li@example.com>
---
"""
SHOWN = f"""\
commit {SHA}
Author: Li <li@example.com>
Date:   Mon Sep 17 00:00:00 2001

    Let all ranks join

    Closes: #7
"""
DIFF = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+Subject: b\n+From: c\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MAIL, Origin("[fsdp] fix: let all ranks join", ("Jürgen", "Li"), SHA, "12", "7")),
        (SHOWN, Origin("Let all ranks join", ("Li",), SHA, "", "7")),
        ("", Origin()),
        ("Subject: =?nothing?q?x?= \x1b[31m\n", Origin("=?nothing?q?x?= \\x1b[31m")),
        ("Subject: " + "t" * 999 + "\n", Origin("t" * 200)),
        ("From: <a@b>\nFrom: \n", Origin()),
    ],
    ids=["mail", "shown", "bare", "odd", "long", "nobody"],
)
def test_what_is_above_the_diff_is_told(text: str, told: Origin) -> None:
    assert origin.of(text + DIFF) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "# Copyright (c) 2025, NVIDIA.  All rights reserved.\n# Licensed under the Apache License, Version 2.0\n",
            "Copyright (c) 2025, NVIDIA. All rights reserved; Apache-2.0 by its header",
        ),
        ("# Copyright (c) 2025, NVIDIA.\n", ""),
        ("x = 1\n" * 30 + "# Copyright Apache License, Version 2.0\n", ""),
    ],
)
def test_whose_a_file_is_stands_in_its_head(text: str, told: str) -> None:
    assert origin.notice(text) == told


def test_a_commit_and_what_a_merge_brings(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    file = tmp_path / "x.py"
    for name, text in ("first", "a\n"), ("second", "b\n"):
        file.write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", f"{name} (#3)")
    git(tmp_path, "checkout", "-qb", "side", "HEAD^")
    (tmp_path / "y.py").write_text("c\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "third")
    git(tmp_path, "checkout", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merged", "side")
    for setting in "diff.noprefix=true", "diff.context=0", "diff.external=false", "log.showSignature=true":
        git(tmp_path, "config", *setting.split("="))
    second, merge = origin.commit(str(tmp_path), "HEAD^"), origin.commit(str(tmp_path), "main")
    of = origin.of(second.head)
    assert (of.title, of.pull, len(of.revision), len(of.authors)) == ("second", "3", 40, 1)
    assert (second.read("x.py"), second.base("x.py"), second.read("z.py")) == ("b\n", "a\n", None)
    assert "+b" in second.diff
    assert "+c" in merge.diff
    assert "+b" not in merge.diff


@pytest.mark.parametrize("revision", ["nothing", "--output=evil", "-p", ""])
def test_no_such_commit_is_an_error(tmp_path: Path, revision: str) -> None:
    git(tmp_path, "init", "-q")
    for clone in tmp_path, tmp_path / "missing":
        with pytest.raises(UnhangError) as caught:
            origin.commit(str(clone), revision)
        assert caught.value.code == "no-commit"
    assert [path.name for path in tmp_path.iterdir()] == [".git"]
