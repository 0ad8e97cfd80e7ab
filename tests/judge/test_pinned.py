"""What a pin is: a release of the matrix, by version, tag or commit; or unlisted, with a reason and a command."""

from collections.abc import Iterable

import pytest

from support.lock_files import COMMIT
from unhang.judge import matrix, pinned
from unhang.judge.decide import URGENCY
from unhang.judge.findings import Finding
from unhang.records import Pin
from unhang.shapes import catalog

VERL = "https://github.com/verl-project/verl"
BRIDGE = "https://github.com/modelscope/mcore-bridge"
MTP = "mtp-cp-deadlock"


def judged(pin: Pin, *fixes: str, path: str = "uv.lock") -> list[Finding]:
    return pinned.judge(path, [pin], [catalog.fix(name) for name in fixes or (MTP,)])


def verdicts(findings: Iterable[Finding]) -> dict[str, str]:
    assert all(it.verdict.code in ("by-release", "no-rewrite") for it in findings)
    return {f"{it.installation.upstream} {it.installation.version}": it.verdict.verdict for it in findings}


@pytest.mark.parametrize(
    ("version", "release", "verdict"),
    [
        ("0.7.0", "0.7.0", "not-affected"),
        ("0.7.1", "0.7.1", "needed"),
        ("0.7.1.0", "0.7.1", "needed"),
        ("v0.7.1", "0.7.1", "needed"),
        ("0.8.0", "0.8.0", "fixed-upstream"),
        ("0.8.0.dev0", "0.8.0.dev0", "fixed-upstream"),
    ],
)
def test_a_version_is_a_release_in_any_form_of_it(version: str, release: str, verdict: str) -> None:
    (found,) = judged(Pin("verl", version, 7))
    assert (found.verdict.verdict, found.verdict.code) == (verdict, "by-release")
    assert pinned.release(Pin("verl", version)) == release
    assert (found.seen.line, found.seen.data, found.installation.root) == (7, None, "uv.lock")


@pytest.mark.parametrize("upstream", ["verl", "ms-swift", "mcore-bridge"])
def test_the_verdicts_are_those_of_the_matrix_for_every_release(upstream: str) -> None:
    fixes = [fix for fix in catalog.fixes().values() if any(it.upstream == upstream for it in fix.targets)]
    rows = matrix.rows(fixes, {upstream: catalog.releases()[upstream]}, catalog.shape_table())
    found: dict[tuple[str, str], str] = {}
    for version in catalog.versions(upstream):
        for it in pinned.judge("", [Pin(upstream, version)], fixes):
            both = it.verdict.verdict, found.get((version, it.target.fix), it.verdict.verdict)
            found[version, it.target.fix] = min(both, key=URGENCY.index)
    assert found == {(row.version, row.fix): row.verdict for row in rows}


@pytest.mark.parametrize(
    ("pin", "release"),
    [
        (Pin("verl", "0.8.0.dev0", repository="https://github.com/us/fork", commit=COMMIT), "0.7.1"),
        (Pin("verl", repository="git@a.example:us/verl", commit=COMMIT), "0.7.1"),
        (Pin("verl", repository="git@a.example:us/verl", commit=COMMIT[:7]), ""),
        (Pin("verl", repository="git@github.com:verl-project/verl.git", commit=COMMIT[:7]), "0.7.1"),
        (Pin("verl", repository=VERL, ref="v0.7.1"), "0.7.1"),
        (Pin("verl", repository="https://github.com/volcengine/verl.git", ref="v0.7.1"), "0.7.1"),
        (Pin("verl", repository="ssh://git@github.com/verl-project/verl", ref="v0.7.1"), "0.7.1"),
        (Pin("megatron-core", repository="https://github.com/NVIDIA/Megatron-LM", ref="core_v0.16.1"), "0.16.1"),
        (Pin("verl", "0.7.1", repository=VERL, ref="v0.7.1", commit="0" * 40), ""),
        (Pin("verl", "0.7.1", repository="https://github.com/us/verl", ref="v0.7.1"), ""),
        (Pin("verl", "0.7.1", repository="https://a.example/github.com/verl-project/verl", ref="v0.7.1"), ""),
        (Pin("verl", "0.7.1", repository="https://github.com.example/verl-project/verl", ref="v0.7.1"), ""),
        (Pin("verl", "0.7.1", repository=VERL, ref="main"), ""),
        (Pin("mcore-bridge", repository=BRIDGE, ref="v1.4.2", commit="0" * 40), "1.4.2"),
        (Pin("mcore-bridge", repository=BRIDGE.replace("modelscope", "us"), ref="v1.4.2", commit="0" * 40), ""),
        (Pin("verl", "0.7.1", repository=VERL), ""),
        (Pin("megatron-core", repository="https://github.com/NVIDIA/Megatron-LM", ref="v0.15.3"), ""),
    ],
)
def test_a_commit_counts_anywhere_and_a_tag_only_in_upstream_s_own_repository(pin: Pin, release: str) -> None:
    assert pinned.release(pin) == release


@pytest.mark.parametrize(
    ("pin", "why", "hint"),
    [
        (Pin("verl", "99"), "newer than every release", "install it, then `unhang check`"),
        (Pin("verl", "0.1"), "older than every release", "install it"),
        (Pin("verl", "0.7.5"), "no release that the matrix has", "install it"),
        (Pin("verl", "0.7.1+cu12"), "somebody's build of 0.7.1", "install it"),
        (Pin("verl", "0.7.1", source="third party/verl"), "a folder", "unhang check --source 'below/third party/verl'"),
        (Pin("verl", ref=">=0.7"), "no version is pinned, >=0.7 is allowed", "uv lock"),
        (Pin("verl", "1" * 5000), "no version of PEP 440", "install it"),
        (Pin("verl", "latest"), "no version of PEP 440", "install it"),
        (
            Pin("verl", repository=VERL, commit="0" * 40),
            "commit 000000000 is not known as that of a release's tag",
            f"`git clone -- {VERL} verl && git -C verl checkout --detach {'0' * 40}`, then `unhang check --source v",
        ),
        (
            Pin("verl", repository=VERL, ref="-b;rm"),
            "may be any code",
            f"git clone '--branch=-b;rm' -- {VERL} verl`, then",
        ),
        (
            Pin("verl", repository="https://a.example/$(rm)", ref="x"),
            "may be",
            " -- 'https://a.example/$(rm)' verl`",
        ),
        (Pin("verl", repository="ext::sh -c rm", ref="x"), "may be", "check that commit out, then `unhang check"),
    ],
)
def test_what_no_release_is_is_unlisted_with_the_reason_and_what_reads_that_code(pin: Pin, why: str, hint: str) -> None:
    (found,) = judged(pin, path="below/uv.lock")
    assert (found.verdict.verdict, found.verdict.code) == ("unlisted", "by-release")
    assert why in found.verdict.detail
    assert hint in found.verdict.hint


def test_the_wheel_of_megatron_core_holds_megatron_lm_from_0_17_on() -> None:
    fixes = ("expert-grad-norm", "sft-packed-seq-broadcast", "hybrid-aux-tracker-hang")
    assert verdicts(judged(Pin("megatron-core", "0.16.1"), *fixes)).keys() == {"megatron-core 0.16.1"}
    assert verdicts(judged(Pin("megatron-core", "0.17.1"), *fixes)) == {
        "megatron-core 0.17.1": "not-affected",
        "megatron-lm 0.17.1": "needed",
    }


def test_a_release_without_a_rewrite_says_what_else_to_do() -> None:
    found = judged(Pin("megatron-core", "0.10.0"), "router-token-scale")
    (verdict,) = {it.verdict for it in found if not it.settled}
    assert (verdict.verdict, verdict.code, verdict.to_rewrite) == ("needed", "no-rewrite", False)
    assert verdict.hint.startswith("upgrade to megatron-core 0.12")


def test_every_distribution_of_an_upstream_is_looked_for() -> None:
    mine = {"mcore-bridge", "megatron-bridge", "megatron-core", "ms-swift", "trl", "verl"}
    assert pinned.names().distributions == mine


def test_a_checkout_is_known_by_the_name_of_its_repository() -> None:
    distributions, found = pinned.names()
    assert (found["megatron-lm"], found["megatron-core"], found["verl"]) == ("megatron-core", "megatron-core", "verl")
    assert {*found.values()} == distributions


def test_a_copy_of_the_function_elsewhere_in_a_release_has_no_rewrite() -> None:
    (found,) = judged(Pin("verl", "0.6.1"), "critic-microbatch-scale")
    assert found.verdict[:2] == ("needed", "no-rewrite")
    assert "use_legacy_worker_impl=disable" in found.verdict.detail
    (older,) = judged(Pin("verl", "0.6.0"), "critic-microbatch-scale")
    assert older.verdict.verdict == "not-affected"
