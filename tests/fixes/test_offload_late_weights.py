"""offload-late-weights: TODO: what only these tests show, and what the sessions need."""

from __future__ import annotations

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants
from proofs.others import Proofs, Release
from support import sources
from support.rewrites import EveryRewrite

FIX = "offload-late-weights"
CASES = sources.cases(FIX, {"megatron-core": ["0.19.2"]})


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    """What the function does is the scene's to show."""


# TODO: `by_hand`, what a person may write instead: {"the name": Sub("old", "new")}; with those that rules make, at
# least as many as compat/schemas/manifest.json says
MUTANTS = [
    Mutants("megatron-core", ("0.19.2",)),
]
PROOFS = [
    # TODO: the other releases, and half patches that must fail
    Proofs("megatron-core", [Release("0.19.2", core=True)]),
]
FUZZ = Fuzz(CASES, 1, "FP32|HybridDeviceOptimizer|Seeding|With|Without|_copy_model_params_to_shard_main_params|also|aware|before|below|branch|checkpoint|ckpt|config|consuming|copies|detached|discarding|explicitly|given|held|here|inside|limitation|live|load|masters|non|offload|optimizer_cpu_offload|optimizers|path|precision|rather|real|refresh|reject|reload_model_params|returns|seeded|seeding|seeds|silently|step|sub|supported|than|them|those|use_precision_aware_optimizer_no_fp8_or_ds_fp8|when|whole|without", examples=40)
