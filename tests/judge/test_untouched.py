"""Which release is right after one that needs a fix; what each needs is in test_matrix.py."""

import pytest

from unhang.judge import untouched
from unhang.shapes import catalog


@pytest.mark.parametrize(
    ("fix", "upstream", "version", "right"),
    [
        ("mtp-cp-deadlock", "verl", "0.7.1", "0.8.0"),
        ("mtp-cp-deadlock", "verl", "0.8.0.dev0", "0.8.0"),
        ("grpo-window-scale", "trl", "1.9.0", "1.9.1"),
        ("mtp-zero-tokens", "megatron-core", "0.16.1", "0.17.0"),
        ("mtp-zero-tokens", "megatron-core", "0.16.0rc0.dev132550", "0.17.0rc0"),  # for whom takes pre-releases
        ("fsdp-size-one-no-sync", "verl", "0.7.1", ""),  # the newest needs it
        ("mtp-cp-deadlock", "verl", "0.7.1+ours", None),  # not on record
        ("mtp-cp-deadlock", "verl", "", None),
    ],
)
def test_a_fix_is_fixed_from_the_release_on_after_which_none_needs_it(
    fix: str, upstream: str, version: str, right: str | None
) -> None:
    assert untouched.fixed_in(catalog.fix(fix), upstream, version) == right
