"""accelerate: the real ``split_between_processes`` on real processes, which split samples and say what they got.

The state of a process is as ``PartialState()`` leaves it, but nothing is asked of the machine. The data set is a
stand-in: the real one wants Arrow files.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..cases import DIFFERS, PASSED, Case, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WARM = ("torch", "transformers")


def _case(name: str, samples: int, processes: int, kind: str, padding: bool, core: bool = False) -> Case:
    shows = DIFFERS if 0 < samples < processes and not padding else PASSED
    options = {"samples": samples, "kind": kind, "padding": padding}
    return Case(name, Topology(dp=processes), shows, "more than once" * (shows == DIFFERS), options, core)


CASES = (
    _case("two-prompts", 2, 3, "list", False, core=True),
    _case("five-prompts", 5, 3, "list", False, core=True),
    _case("two-prompts-padded", 2, 3, "list", True, core=True),
)
YOURS = _case("yours", 2, 3, "list", False)
GRID = [
    _case(f"{samples} in a {kind} on {processes}{', padded' * padding}", samples, processes, kind, padding)
    for samples, processes, kind, padding in itertools.product(
        range(9), (1, 2, 3, 5), ("list", "tuple", "tensor", "dict", "data set"), (False, True)
    )
    if not padding or (samples and kind != "tuple")  # upstream cannot pad these
]
HELD = {
    r"all\(": "refuses a dictionary whose values differ in length",
    r"end_index > len\(inputs\)": "no part ends behind the last sample",
    r"is_datasets_available": "true, or there is no data set",
    r"isinstance\(inputs, Dataset\)": "anything else is no series, and given to every process whole",
}


class Data:
    """A data set."""

    def __init__(self, samples: Sequence[int]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)

    def select(self, numbers: Sequence[int]) -> Data:
        """Return the samples at these places."""
        return Data([self.samples[number] for number in numbers])


def prepare() -> None:
    """Import the real module; a stand-in for data sets."""
    state = importlib.import_module("accelerate.state")
    datasets: Any = ModuleType("datasets")
    datasets.Dataset = Data
    sys.modules["datasets"], state.is_datasets_available = datasets, lambda: True  # type: ignore[attr-defined]


def on_rank(case: Case, rank: int) -> tuple[str, list[int]]:
    """Split the samples; return the type of this process's part, and the samples in it."""
    import torch

    module: Any = importlib.import_module("accelerate.state")
    module.PartialState._shared_state = {
        **{"num_processes": case.topology.world, "process_index": rank, "local_process_index": rank},
        **{"device": torch.device("cpu"), "backend": "gloo", "debug": False, "_cpu": True, "fork_launched": False},
        "distributed_type": module.DistributedType.MULTI_CPU,
    }
    kinds: dict[str, Any] = {"tuple": tuple, "tensor": torch.tensor, "data set": Data}
    samples = kinds.get(case.options["kind"], list)([*range(case.options["samples"])])
    given = {"prompt": samples} if case.options["kind"] == "dict" else samples
    with module.PartialState().split_between_processes(given, apply_padding=case.options["padding"]) as found:
        part = found["prompt"] if case.options["kind"] == "dict" else found
        return type(part).__name__, [int(sample) for sample in part]


def wrong(case: Case, values: Sequence[Any]) -> str:
    """Return what is wrong: together, in order, the processes must have each sample once, and as many if padded."""
    whole, parts = [*range(case.options["samples"])], [part for _, part in values]
    found = [sample for part in parts for sample in part]
    if len({kind for kind, _ in values}) > 1:
        return f"parts of several types: {values}"
    if case.options["padding"]:
        each, more = divmod(len(whole), case.topology.world)
        starts = [rank * each + min(rank, more) for rank in range(case.topology.world + 1)]
        own = [whole[start:end] for start, end in itertools.pairwise(starts)]
        # up to 1.4.0 it pads by one where all have as many
        is_right = {*map(len, parts)} in ({each + bool(more)}, {each + 1})
        begins = all(part[: len(mine)] == mine for part, mine in zip(parts, own))
        return "" if is_right and begins and {*found} == {*whole} else f"with padding {parts}"
    twice = sorted({sample for sample in found if found.count(sample) > 1})
    if twice:
        return f"sample {', '.join(map(str, twice))} more than once: {parts}"
    return "" if found == whole else f"a sample is lost, or out of order: {parts}"


def right(case: Case, values: Sequence[Any]) -> str:
    """Return what to say of it if nothing is wrong."""
    return "each sample is there once"
