"""accelerate: no sample twice where there are fewer samples than processes.

https://github.com/huggingface/accelerate/pull/4052 (it also moves the padding to the device)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, guarded_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_BEHIND = "start_index >= len(inputs)"
_COMMENT = "# unhang split-few-samples: the last sample again only as padding"


class SplitBetweenProcesses(Codemod):
    """Give a process behind the last sample that sample only where padding is asked for.

    Before::

        def split(self, inputs, apply_padding=False):
            start_index = self.process_index
            if start_index >= len(inputs):
                return inputs[-1:]

    After::

        def split(self, inputs, apply_padding=False):
            start_index = self.process_index
            # unhang split-few-samples: the last sample again only as padding
            if start_index >= len(inputs) and apply_padding:
                return inputs[-1:]
    """

    def plan(self, function: Function) -> list[Edit]:
        found = [node.test for node in ast.walk(function) if isinstance(node, ast.If)]
        tests = [test for test in found if expression(test) == _BEHIND]
        if not tests or "apply_padding" not in {argument.arg for argument in function.args.args}:
            raise AnchorError(f"if {_BEHIND}, in a function with apply_padding")
        tests.sort(key=lambda test: test.lineno)
        return [guarded_by(function, test, "apply_padding", _COMMENT) for test in tests]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset()


CODEMODS = {"PartialState.split_between_processes": SplitBetweenProcesses()}
