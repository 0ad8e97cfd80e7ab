"""The verdicts that the rewritten files would get."""

from pathlib import Path

import pytest

from support import cli
from support.plans import plan_of
from unhang.records import Request
from unhang.shapes import catalog
from unhang.survey.preview import with_rewrites
from unhang.survey.verdicts import survey
from unhang.tell import report


@pytest.mark.slow
@pytest.mark.parametrize("release", [("megatron-core", "0.17.1"), ("ms-swift", "3.12.6")], ids=" ".join)
def test_it_is_what_check_says_after_apply(release: tuple[str, str], tmp_path: Path) -> None:
    """Their rewritten files hold other functions too: targets in one, one that a target depends on in the other."""
    cli.unpack(tmp_path, release)
    findings, plan = plan_of(tmp_path)
    preview = with_rewrites(findings, plan.files, "elsewhere")
    for before, after in zip(findings, preview, strict=True):
        if before.verdict.verdict == "needed":
            assert (after.verdict.verdict, after.verdict.detail) == ("applied", "elsewhere")
        else:
            assert after == before._replace(seen=after.seen, depends=after.depends)
    assert cli.installed("apply", "--target", tmp_path).code == 0
    then = survey(Request(target=str(tmp_path), fixes=tuple(catalog.fixes()))).findings
    for now, found in zip(preview, then, strict=True):
        assert (now.seen.sha256, now.seen.shape) == (found.seen.sha256, found.seen.shape)
        assert (now.depends and now.depends.sha256) == (found.depends and found.depends.sha256)
    assert [item.verdict.verdict for item in preview] == [item.verdict.verdict for item in then]
    assert report.digest(preview) == report.digest(then) != report.digest(findings)
