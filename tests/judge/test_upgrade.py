"""What each newer release changes, and which one is the best."""

from unhang.judge import upgrade
from unhang.judge.upgrade import Step
from unhang.shapes import catalog

FIXES = ("mtp-cp-deadlock", "fsdp-size-one-no-sync", "sft-packed-seq-broadcast", "hybrid-aux-tracker-hang")


def steps(distribution: str, version: str) -> list[Step]:
    return upgrade.steps(distribution, version, [catalog.fix(name) for name in FIXES])


def test_releases_are_final_ones_in_order_unless_the_pin_is_a_pre_release() -> None:
    assert [step.version for step in steps("verl", "0.7.1")] == ["0.8.0", "0.9.0", "0.9.1"]
    assert [step.version for step in steps("verl", "0.7.2.dev0")] == ["0.8.0.dev0", "0.8.0", "0.9.0", "0.9.1"]
    versions = [step.version for step in steps("megatron-core", "0.17.0")]
    assert "0.17.1" in versions
    assert not {"0.18.1", "0.19.1"} & {*versions}, "yanked"
    assert not any("dev" in version or "rc" in version for version in versions)


def test_what_a_release_drops_and_brings_in() -> None:
    assert steps("verl", "0.7.1")[0] == Step(
        "0.8.0", ("fsdp-size-one-no-sync",), ("mtp-cp-deadlock",), (), ()
    )  # fmt: skip
    (first, *_) = steps("megatron-core", "0.16.1")
    assert first.version == "0.17.0"
    assert set(first.brings) == {"sft-packed-seq-broadcast", "hybrid-aux-tracker-hang"}, "its wheel holds megatron-lm"


def test_the_best_is_the_newest_of_those_that_drop_the_most() -> None:
    def step(version: str, *drops: str) -> Step:
        return Step(version, (), drops, (), ())

    assert upgrade.best([step("1"), step("2", "a", "b"), step("3", "a", "c"), step("4", "a")]) == step("3", "a", "c")
    assert upgrade.best([step("1")]) is None
    assert upgrade.best([]) is None
