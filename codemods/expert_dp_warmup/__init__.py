"""megatron-core and ms-swift: bootstrap the expert data-parallel communicators while GPU memory is still free.

https://github.com/modelscope/ms-swift/pull/9486 (it warms up a group that ms-swift never creates)
"""

from __future__ import annotations

from unhang.codemods.expert_dp_warmup.backends import notes
from unhang.codemods.expert_dp_warmup.megatron_core import InitializeModelParallel
from unhang.codemods.expert_dp_warmup.ms_swift import InitializeMpu

CODEMODS = {"initialize_model_parallel": InitializeModelParallel(), "_initialize_mpu": InitializeMpu()}

__all__ = ["CODEMODS", "notes"]
