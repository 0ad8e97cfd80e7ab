"""verl: mRoPE position ids of samples of one length are nested along the wrong axis.

python mrope-ragged-axis.py, where verl and torch are: on a CPU.
"""

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.utils import padding

SAMPLES, AXES, LENGTH = 2, 4, 6


def unpad(hidden, mask):
    """Do what flash-attn's function of this name does, on a CPU."""
    kept = mask.flatten().nonzero().flatten()
    ends = torch.cat([torch.zeros(1, dtype=torch.long), mask.sum(1).cumsum(0)])
    return hidden.flatten(0, 1)[kept], kept, ends, LENGTH


padding.unpad_input = unpad
given = {
    "input_ids": torch.ones(SAMPLES, LENGTH, dtype=torch.long),
    "attention_mask": torch.ones(SAMPLES, LENGTH, dtype=torch.long),
    "response_mask": torch.ones(SAMPLES, 2, dtype=torch.long),
    "position_ids": torch.arange(LENGTH).expand(SAMPLES, AXES, LENGTH),
}
data = padding.left_right_2_no_padding(TensorDict(given, SAMPLES))
tensordict_utils.maybe_fix_3d_position_ids(data)
ids = data["position_ids"]
print(f"wrong: values {[*ids.values().shape]}, offsets {ids.offsets().tolist()}")
print(f"right: values {[AXES, SAMPLES * LENGTH]}, offsets {[it * LENGTH for it in range(SAMPLES + 1)]}")
