"""`unhang revert`: the original bytes, unless an edit prevents it."""

from __future__ import annotations

from pathlib import Path

from support import cli

ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def test_nothing_to_revert(pristine: Path) -> None:
    ran = cli.unhang("revert", "--target", pristine, "--output-format", "json")
    assert (ran.code, {item["changed"] for item in ran.json["results"]}) == (1, {False})
    assert "nothing to revert: there is no receipt in" in ran.err


def test_revert_of_one_fix_keeps_the_others(site: Path) -> None:
    cli.unhang("apply", "--target", site)
    assert cli.unhang("revert", "--target", site, "--fix", "expert-dp-warmup").code == 0
    verdicts = cli.verdicts(cli.unhang("check", "--target", site, "--output-format", "json"))
    assert {fix for (_, fix, _), verdict in verdicts.items() if verdict == "needed"} == {"expert-dp-warmup"}
    assert {fix for (_, fix, _), verdict in verdicts.items() if verdict == "applied"} == {
        "empty-expert-hang",
        "mtp-cp-deadlock",
        "sft-packed-seq-broadcast",
    }


def test_a_file_that_the_user_edited_is_not_reverted(site: Path) -> None:
    cli.unhang("apply", "--target", site, "--upstream", "verl")
    (site / ENGINE).write_bytes(b"# ours\n" + (site / ENGINE).read_bytes())
    before = cli.tree(site)
    ran = cli.unhang("revert", "--target", site)
    assert ran.code == 1
    assert "error[edited]" in ran.err
    assert ENGINE in ran.err
    assert "hint: " in ran.err
    assert cli.tree(site) == before
