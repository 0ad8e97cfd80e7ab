"""fsdp-dynamic-bsz's scene: what it shows of functions made up in place of the one that cuts."""

from __future__ import annotations

import pytest

from unhang.compat.sweep import trees
from unhang.judge import rows
from unhang.judge.rows import Source

FIX, NAME = "fsdp-dynamic-bsz", "rearrange_micro_batches"
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
    played = rows.played(FIX, every, trees.closest(FIX, every["right"]), [*every])
    found = {name: rows.row(FIX, it, None, {rows.BEFORE: played[name]}) for name, it in every.items()}
    assert {name: bool(row.failed) for name, row in found.items()} == {**dict.fromkeys(found, True), "right": False}
    assert not found["right"].problems
    assert not found["wrong"].problems
    assert f"{NAME}, all ranks" in found["fails"].problems[0]
    assert "(3, 3) micro-batches, due 4" in found["loses"].problems[0]
    assert found["new"].problems[0].startswith("a new branch: if dist.is_nccl_available():")
    assert "goes on to line 6 alone" in found["new"].problems[0]
