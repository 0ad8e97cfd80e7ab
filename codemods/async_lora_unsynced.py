"""verl: merge unmerged LoRA into the weights while they are sent to a rollout on other GPUs.

https://github.com/verl-project/verl/pull/7496, open, sends the adapter, and changes the receiver too.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, calls, inside, mentioned, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_READ, _SEND = "self.actor.engine.get_per_tensor_param", "self.checkpoint_engine.send_weights"
_MERGED = """\
# unhang async-lora-unsynced: the receiver takes no adapter, so merge it while the weights are sent
from contextlib import ExitStack

from verl.utils import device, fsdp_utils

engine, merged = self.actor.engine, ExitStack()
model = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
if hasattr(model, "peft_config") and not engine.model_config.lora.get("merge", False):
    if engine._is_offload_param:
        fsdp_utils.load_fsdp_model_to_gpu(engine.module)
    merged.enter_context(fsdp_utils.merged_lora_context(engine.module, backup_adapters=True))
    # an offload may still copy to the CPU: wait, then put back the weights
    merged.callback(device.get_torch_device().synchronize)
with merged:
    pass
"""


class UpdateWeights(Codemod):
    """Read and send the weights while adapters that nobody merges are merged into them.

    Before::

        async def update_weights(self):
            if self.backend != "naive":
                weights, _ = self.actor.engine.get_per_tensor_param()
                await self.checkpoint_engine.send_weights(weights)

    After::

        async def update_weights(self):
            if self.backend != "naive":
                # unhang async-lora-unsynced: the receiver takes no adapter, so merge it while the weights are sent
                from contextlib import ExitStack

                from verl.utils import device, fsdp_utils

                ...
                with merged:
                    weights, _ = self.actor.engine.get_per_tensor_param()
                    await self.checkpoint_engine.send_weights(weights)
    """

    def plan(self, function: Function) -> list[Edit]:
        read = once([it for it in calls(function, _READ) if not (it.args or it.keywords)], f"{_READ}()")
        blocks = [it.body for it in ast.walk(function) if isinstance(it, ast.If)]
        ends = [it[at:] for it in blocks for at, row in enumerate(it) if getattr(row, "value", None) is read]
        last = once([row for end in ends for row in end if calls(row, _SEND)], f"{_SEND}(...) after {_READ}()")
        return [span(ends[0][0], last, inside(_MERGED))]

    def fixed_upstream(self, function: Function) -> bool:
        return "ckpt_base_sync_done" in mentioned(function)


CODEMODS = {"ActorRolloutRefWorker.update_weights": UpdateWeights()}
