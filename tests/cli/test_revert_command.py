"""`unhang revert`: the original bytes, and of the named fixes alone."""

from __future__ import annotations

from pathlib import Path

from support import cli


def test_nothing_to_revert(pristine: Path) -> None:
    ran = cli.unhang("revert", "--target", pristine, "--output-format", "json")
    assert (ran.code, {item["changed"] for item in ran.json["results"]}) == (1, {False})
    assert "nothing to revert: there is no receipt in" in ran.err


def test_revert_of_one_fix_keeps_the_others(site: Path) -> None:
    cli.unhang("apply", "--target", site)
    assert cli.unhang("revert", "--target", site, "--fix", "expert-dp-warmup").code == 0
    verdicts = cli.verdicts(cli.unhang("check", "--target", site, "--output-format", "json"))
    assert {fix for (_, fix, _), verdict in verdicts.items() if verdict == "needed"} == {"expert-dp-warmup"}
    applied = {fix for (_, fix, _), verdict in verdicts.items() if verdict == "applied"}
    assert applied == {"empty-expert-hang", "mtp-cp-deadlock", "sft-packed-seq-broadcast"}
