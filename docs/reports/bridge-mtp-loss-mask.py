"""megatron-bridge: gpt_step trains multi-token prediction on prompt and padding.

python bridge-mtp-loss-mask.py, where megatron-bridge, megatron-core and torch are: one process, on a CPU.
"""

import ast
import builtins
import importlib.util
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import gpt_layer_specs as specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.transformer_config import TransformerConfig

TOKENS, WORDS, HIDDEN = 8, 16, 8
MASK = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0]])  # a prompt, an answer, and padding
CudaRNGStatesTracker.fork = lambda *_: nullcontext()  # there is no dropout
torch.cuda.current_device = lambda: "cpu"


def step_of(batch):
    """Return the real _forward_step_common, alone: all else in its module is left out, and this batch is read."""
    (folder,) = importlib.util.find_spec("megatron.bridge").submodule_search_locations
    tree = ast.parse(Path(folder, "training", "gpt_step.py").read_text())
    function = next(node for node in tree.body if getattr(node, "name", "") == "_forward_step_common")
    read = max((it.elts for it in ast.walk(function) if isinstance(it, ast.Tuple)), key=len)
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} - {*dir(builtins)}
    space = {name: MagicMock() for name in names}
    space |= {"get_batch": lambda *_, **__: [batch.get(it.id) for it in read], "get_model_config": lambda it: it.config}
    exec(compile(ast.Module([function], []), "gpt_step.py", "exec"), space)  # noqa: S102
    return lambda model: space["_forward_step_common"](MagicMock(), None, model)[0]


def gradient(step):
    """Return the norm of the gradient of the MTP layers after a step of a new model."""
    torch.manual_seed(0)
    others = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "masked_softmax_fusion": False, "mtp_num_layers": 1}
    sizes = {"num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 2, "use_cpu_initialization": True}
    config = TransformerConfig(**sizes, **others, mtp_loss_scaling_factor=0.5)
    layer = specs.get_gpt_layer_local_spec()
    block = specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
    model = GPTModel(config, layer, WORDS, TOKENS, mtp_block_spec=block)
    ((step(model) * MASK).sum() / MASK.sum()).backward()
    return round(float(torch.cat([it.grad.flatten() for it in model.mtp.parameters()]).norm()), 4)


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    tokens, labels = torch.arange(TOKENS)[None], torch.arange(3, 3 + TOKENS)[None]
    given = {"labels": labels, "loss_mask": MASK, "position_ids": tokens}
    given["attention_mask"] = torch.ones(TOKENS, TOKENS).triu(1).bool()[None, None]
    print("wrong:", gradient(step_of({"tokens": tokens, **given})))
    print("right:", gradient(lambda model: model(input_ids=tokens, **given)))
