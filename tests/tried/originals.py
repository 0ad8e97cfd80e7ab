"""The patches that are tried: where each is, what it changes, and how its owner applies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GIT = "git apply"
"""How a diff is applied; all else is a call in the module of the patch."""
VLLM, SGLANG = "nemo_rl/models/generation/vllm", "nemo_rl/models/generation/sglang"
_LOG = "logging.getLogger('patch')"


class Upstream(NamedTuple):
    """A release on the index that a patch is for."""

    project: str
    version: str
    imports: str
    """Its import name."""


class Original(NamedTuple):
    """One patch."""

    name: str
    source: str
    """Its file in the repository."""
    upstream: Upstream
    call: str
    """How it is applied: ``git apply``, or a call in its module."""
    fix: str
    """The id of the fix that it becomes."""
    values: Mapping[str, str] = {}
    """What it takes of the environment: names, and the values given here."""


_PATCHES = f"{VLLM}/patches.py"
_COMPAT = f"{SGLANG}/utils/patches.py"
_VLLM = Upstream("vllm", "0.25.1", "vllm")
_SGLANG = Upstream("sglang", "0.5.12.post1", "sglang")
_MEGATRON = Upstream("megatron-core", "0.19.2", "megatron.core")
_TRITON = "apply_transformer_engine_patch"
_EXECUTABLE = "/opt/ray/bin/python"
NEMO_RL = [
    Original(
        "_patch_vllm_init_workers_ray", _PATCHES, _VLLM, f"_patch_vllm_init_workers_ray({_EXECUTABLE!r}, None)",
        "ray-py-executable", {"PY_EXECUTABLE": _EXECUTABLE},
    ),
    *(
        Original(name, _PATCHES, _VLLM, f"{name}({_LOG})", fix)
        for name, fix in {
            "_patch_vllm_llama_eagle3_own_lm_head": "eagle3-own-lm-head",
            "_patch_vllm_tool_parser_namespace_tool": "namespace-tool",
            "_patch_vllm_ray_executor_v2_tcpstore_port": "tcpstore-port",
            "_patch_vllm_shm_broadcast_bind_retry": "bind-retry",
            "_patch_vllm_radio_layerscale_loader": "radio-layerscale",
        }.items()
    ),
    Original(
        "vllm-0.23.0-layerwise-reload-composed-loader",
        "docker/dynamo/patches/vllm-0.23.0-layerwise-reload-composed-loader.patch",
        Upstream("vllm", "0.23.0", "vllm"), GIT, "layerwise-reload",
    ),
    *(
        Original(name, _COMPAT, upstream, f"{name}()", fix)
        for name, upstream, fix in (
            ("_patch_sglang_safe_unpickler", _SGLANG, "safe-unpickler"),
            ("_patch_sglang_custom_all_reduce_v2_tms_cudagraph", _SGLANG, "all-reduce-tms"),
            ("_patch_megatron_dynamic_context_hook_mode", _MEGATRON, "hook-mode-context"),
            ("_patch_megatron_training_hook_mode", _MEGATRON, "hook-mode-training"),
        )
    ),
    *(
        Original(_TRITON, "nemo_rl/models/policy/workers/patches.py", release, f"{_TRITON}()", fix)
        for release, fix in (
            (Upstream("transformer-engine", "2.8.0", "transformer_engine"), "triton-int-dtype"),
            (Upstream("transformer-engine", "2.14.1", "transformer_engine"), "triton-int-dtype-2"),
        )
    ),
]  # fmt: skip
"""Those of NeMo-RL that change a file of an upstream on the index."""
AT_RUN_TIME = {
    f"{VLLM}/vllm_worker.py: _patch_vllm_nsight_config": "vllm",
    f"{VLLM}/quantization/fp8.py: apply_fp8_patches": "vllm",
    "nemo_rl/modelopt/models/generation/vllm_quant_patch.py": "vllm, nvidia-modelopt",
}
"""Those that replace functions in memory, and so change no file: these can become no fix."""
SLIME_PATCH, SLIME_DOCKERFILE = "docker/patch/latest/megatron.patch", "docker/Dockerfile"
