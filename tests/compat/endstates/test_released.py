"""Each fix on releases: the state and the figures on record, and what a part of its rewrite would do."""

import pytest

from support import sources
from support.endstates import row_of
from unhang.compat.endstates import scenes
from unhang.compat.endstates.endstate import Source
from unhang.judge import scene
from unhang.survey.classify import classify

EXPERTS, WARMUP, SFT = "empty-expert-hang", "expert-dp-warmup", "sft-packed-seq-broadcast"
RELEASES = {
    EXPERTS: [("megatron-core", it) for it in ("0.10.0", "0.15.3", "0.16.0rc0.dev132550", "0.18.2")],
    WARMUP: [("megatron-core", "0.10.0"), ("ms-swift", "4.6.0")],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fix", "upstream", "version"), [(fix, *release) for fix, releases in RELEASES.items() for release in releases]
)
def test_a_release_is_as_on_record(fix: str, upstream: str, version: str) -> None:
    source = sources.wheel(fix, version, upstream)
    found, known = classify(source.data, source.target), source.known
    assert (found.state, found.result, found.names) == (known.state, known.result, known.names)
    assert found.row == row_of(source)


@pytest.mark.torch
def test_a_function_that_is_taken_to_lack_the_feature_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the audit of 2026-11-21, H4: nothing objected to a predicate that found too little."""
    source = sources.wheel(SFT, "0.18.2")
    assert source.known.state == "fixed"
    monkeypatch.setattr(scene.of(SFT), "has_feature", lambda _: False)
    row = scenes.run(SFT, Source(source.data.decode(), source.target.function), None)
    assert "there is metadata, which the function does not name" in "\n".join(row.problems)
