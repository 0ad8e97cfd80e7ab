"""split-few-samples: what every process gets, and whether together they have each sample once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called, importing
from unhang.compat.endstates.standin import StandIn
from unhang.shapes.shape import Function


class Setting(NamedTuple):
    """What is split, and over how many processes."""

    samples: int = 8
    processes: int = 2
    kind: str = "list"
    padding: bool = False


class Rows(list[Any]):
    """Stands for a tensor, or for a data set, whose samples these are."""

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        return type(self)(found) if isinstance(item, slice) else found


class Data(Rows):
    """A data set."""

    def select(self, numbers: list[int]) -> Data:
        return Data(self[number] for number in numbers)


KINDS: dict[str, Any] = {"list": list, "tuple": tuple, "tensor": Rows, "dict": list, "data": Data}


class SplitBetweenProcesses(EndState):
    """The end state of split_between_processes."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("self.num_processes", "self.process_index", "num_extras"), "processes"),
        **dict.fromkeys(("len", "length", "start_index", "end_index"), "samples"),
        **dict.fromkeys(("inputs", "result", "isinstance", "list", "tuple", "dict", "torch.Tensor", "Dataset"), "kind"),
        "apply_padding": "padding",
    }
    held: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("all", "v", "inputs.values"), "refuse a dictionary whose values differ in length"),
        "is_datasets_available": "true, or there is no data set",
    }
    without: ClassVar[dict[str, Any]] = {"samples": 8}

    def configurations(self, function: Function) -> Iterator[Setting]:
        for samples, processes, kind, padding in itertools.product(range(9), (1, 2, 3, 5), KINDS, (False, True)):
            if not padding or (samples and kind != "tuple"):  # upstream cannot pad these
                yield Setting(samples, processes, kind, padding)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.samples < configuration.processes and not configuration.padding

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        parts = [self._part(source, configuration, process) for process in range(configuration.processes)]
        return Outcome(frozenset(self._faults(configuration, parts)), parts)

    def _part(self, source: Source, setting: Setting, process: int) -> list[int]:
        utils = StandIn(
            "accelerate.utils",
            send_to_device=lambda value, device: value,
            pad_across_processes=lambda value, pad_index: self._padded(setting, value, pad_index),
        )
        split = called(
            source,
            {
                "__builtins__": importing({"accelerate.utils": utils, "datasets": StandIn("datasets", Dataset=Data)}),
                "torch": StandIn("torch", Tensor=_TENSOR),
                "is_datasets_available": lambda: True,
            },
        )
        state = StandIn("state", num_processes=setting.processes, process_index=process, device="cpu")
        samples = KINDS[setting.kind](range(setting.samples))
        given = {"prompt": samples} if setting.kind == "dict" else samples
        found = next(split(state, given, setting.padding))
        return list(found["prompt"] if setting.kind == "dict" else found)

    def _padded(self, setting: Setting, value: Rows, last: int) -> Rows:
        longest = -(-setting.samples // setting.processes)
        return Rows([*value, *[last] * (longest - len(value))])

    def _faults(self, setting: Setting, parts: list[list[int]]) -> Iterator[str]:
        longest = -(-setting.samples // setting.processes)
        whole = list(range(setting.samples))
        if setting.padding and setting.processes > 1:
            if {len(part) for part in parts} != {longest}:
                yield "with padding, the processes differ in their numbers"
            if sorted({sample for part in parts for sample in part}) != whole:
                yield "a sample is lost"
        elif [sample for part in parts for sample in part] != whole:
            yield "the processes do not have each sample once, in order"


class _Tensor(type):
    """Makes ``isinstance`` true of the rows that stand for a tensor, and of no data set."""

    def __instancecheck__(cls, value: object) -> bool:
        return type(value) is Rows


class _TENSOR(metaclass=_Tensor):
    pass


END_STATES = {"PartialState.split_between_processes": SplitBetweenProcesses()}
