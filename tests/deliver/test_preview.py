"""The verdicts that the rewritten files would get."""

from __future__ import annotations

from pathlib import Path

from support import cli
from support.plans import plan_of
from unhang.deliver.preview import with_rewrites
from unhang.tell import report


def test_it_is_what_check_says_after_apply(tmp_path: Path) -> None:
    cli.unpack(tmp_path, ("megatron-core", "0.17.1"))
    findings, plan = plan_of(tmp_path)
    preview = with_rewrites(findings, plan.files, "elsewhere")
    for before, after in zip(findings, preview, strict=True):
        if before.verdict.verdict == "needed":
            assert (after.verdict.verdict, after.verdict.detail) == ("applied", "elsewhere")
        else:
            assert after == before
    for file in plan.files:
        Path(file.path).write_bytes(file.after)
    then, _ = plan_of(tmp_path)
    assert [item.verdict.verdict for item in preview] == [item.verdict.verdict for item in then]
    assert report.digest(preview) == report.digest(then) != report.digest(findings)
