"""accelerate: the real ``PartialState`` on real processes, which split a list and gather what they got."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ..cases import DIFFERS, PASSED, Case, Outcome, Topology
from ..ranks import gloo

WARM = ("torch", "transformers")
_THREE = Topology(dp=3)
CASES = (
    Case("two-prompts", _THREE, "ranks", DIFFERS, "more than once", {"prompts": 2}, core=True),
    Case("five-prompts", _THREE, "ranks", PASSED, options={"prompts": 5}, core=True),
    Case("two-prompts-padded", _THREE, "ranks", PASSED, options={"prompts": 2, "padding": True}, core=True),
)
YOURS = Case("yours", _THREE, "ranks", DIFFERS, "more than once", {"prompts": 2})


def prepare() -> None:
    """Import the real module."""
    importlib.import_module("accelerate.state")


def run(case: Case, deadline_s: float) -> Outcome:
    """Split on every process, and gather."""
    world = gloo.run(case.topology.world, lambda rank: _gathered(case), deadline_s=deadline_s)
    return world.outcome(lambda ranks: _wrong(case, ranks[0]), lambda _: "each prompt is there once")


def _gathered(case: Case) -> list[str]:
    import torch.distributed as dist

    # the ranks are a group already; accelerate wants to read where they would meet all the same
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    state: Any = importlib.import_module("accelerate.state").PartialState(cpu=True)
    prompts = [f"prompt {number}" for number in range(case.options["prompts"])]
    with state.split_between_processes(prompts, apply_padding=case.options.get("padding", False)) as mine:
        found: list[Any] = [None] * state.num_processes
        dist.all_gather_object(found, mine)
    return [prompt for part in found for prompt in part]


def _wrong(case: Case, gathered: list[str]) -> str:
    if case.options.get("padding"):
        return "" if len(gathered) == case.topology.world else f"{len(gathered)} prompts with padding"
    twice = sorted({prompt for prompt in gathered if gathered.count(prompt) > 1})
    return f"{', '.join(twice)} more than once: {gathered}" if twice else ""
