"""Each fix on releases: the state and the figures on record, and what a part of its rewrite would do."""

import pytest

from support import sources
from support.endstates import row_of
from unhang.compat.endstates import sandbox
from unhang.compat.endstates.compare import compare
from unhang.compat.endstates.endstate import Source
from unhang.survey.classify import classify

EXPERTS, SFT = "empty-expert-hang", "sft-packed-seq-broadcast"
RELEASES = {
    EXPERTS: [("megatron-core", it) for it in ("0.10.0", "0.15.3", "0.16.0rc0.dev132550", "0.18.2")],
    SFT: [("megatron-lm", "0.17.1"), ("megatron-core", "0.18.2"), ("megatron-core", "0.19.2")],
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


@pytest.mark.parametrize(("fix", "version"), [(SFT, "0.17.1"), (SFT, "0.18.2")])
def test_a_function_that_is_taken_to_lack_the_feature_does_not_pass(
    fix: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the audit of 2026-11-21, H4: nothing objected to a predicate that found too little."""
    source = sources.wheel(fix, version)
    endstate = sandbox.end_state(fix, source.target.function)
    assert endstate is not None
    monkeypatch.setattr(type(endstate), "has_feature", lambda *_: False)
    assert compare(endstate, Source(source.data.decode(), source.target.function), None).problems
