"""fsdp-dynamic-bsz's scene: what it shows of functions made up in place of the one that cuts."""

from __future__ import annotations

import pytest

from unhang.compat.endstates import scenes
from unhang.compat.endstates.endstate import Source

NAME = "rearrange_micro_batches"
AGREEING = f"""\
def {NAME}(batch, max_token_len, dp_group=None):
    lengths = batch["attention_mask"].sum(dim=1)
    number = torch.tensor([ceildiv(lengths.sum().item(), max_token_len)])
    if dist.is_initialized():
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=dp_group)
    parts = get_seqlen_balanced_partitions(lengths.tolist(), number.item(), equal_size=False)
    return [batch[part] for part in parts], parts
"""


@pytest.mark.torch
def test_what_cuts_is_right_or_wrong_by_what_it_does() -> None:
    texts = {
        "right": AGREEING,
        "wrong": AGREEING.replace("initialized()", "initialized() and dp_group is not None"),
        "fails": AGREEING.replace("initialized()", "initialized() and dp_group is None"),
        "loses": AGREEING.replace("equal_size=False)", "equal_size=False)[1:]"),
        "new": AGREEING.replace("dist.is_initialized()", "dist.is_nccl_available()"),
    }
    every = {name: Source(text, NAME) for name, text in texts.items()}
    played = scenes.played("fsdp-dynamic-bsz", every["right"], every, [*every])
    rows = {name: scenes.row("fsdp-dynamic-bsz", it, None, {"before": played[name]}) for name, it in every.items()}
    assert {name: bool(row.failed) for name, row in rows.items()} == {**dict.fromkeys(rows, True), "right": False}
    assert not rows["right"].problems
    assert not rows["wrong"].problems
    assert "'group': True" in rows["fails"].problems[0]
    assert "[3, 1] micro-batches" in rows["loses"].problems[0]
    assert rows["new"].problems[0] == "a new branch: if dist.is_nccl_available():"
