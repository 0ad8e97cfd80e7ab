"""ms-swift: resume in the order of the epoch, not in that of the first.

https://github.com/modelscope/ms-swift/issues/10050, mended in 4.5.3 without sequence parallelism.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, assigned, calls, expression, followed_by, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_REBUILT = "self.get_train_dataloader"
_SHARED = """\
# unhang resume-data-order: keep the epoch's order; transformers 4 tells it before this, 5 after
for name in ('batch_sampler', 'sampler'):
    rest = getattr({rebuilt}, name, None)
    if hasattr(rest, 'skip_batches'):
        rest.batch_sampler = getattr({given}, name)
        {rebuilt}.set_epoch = {given}.set_epoch
"""


class SkipFirstBatches(Codemod):
    """Let the loader that is built anew take the sampler of the one that it replaces, and tell it the epoch.

    Before::

        def patch(self):
            def skip(loader, count):
                return self.get_train_dataloader(skip=count)
            trainer.skip = skip

    After::

        def patch(self):
            def skip(loader, count):
                resumed = self.get_train_dataloader(skip=count)
                # unhang resume-data-order: keep the epoch's order; transformers 4 tells it before this, 5 after
                for name in ('batch_sampler', 'sampler'):
                    rest = getattr(resumed, name, None)
                    if hasattr(rest, 'skip_batches'):
                        rest.batch_sampler = getattr(loader, name)
                        resumed.set_epoch = loader.set_epoch
                return resumed
            trainer.skip = skip
    """

    def plan(self, function: Function) -> list[Edit]:
        call = once(calls(function, _REBUILT), f"{_REBUILT}(...)")
        rows = [it for it in ast.walk(function) if isinstance(it, (ast.Assign, ast.Return)) and it.value is call]
        row = once(rows, f"{_REBUILT}(...) alone")
        inner = [
            it for it in function.body if isinstance(it, ast.FunctionDef) and any(row is one for one in ast.walk(it))
        ]
        given = once(inner, "the function that skips").args.args[0].arg
        if any(isinstance(node, ast.For) for node in ast.walk(function)):
            raise AnchorError(f"{_REBUILT}(...) whose sampler is left as it is")  # ours
        if found := assigned(row):
            return [span(row, row, followed_by(_SHARED.format(rebuilt=found[0], given=given)))]
        shared = _SHARED.format(rebuilt="resumed", given=given)
        return [span(row, row, instead(f"resumed = {expression(call)}\n{shared}return resumed\n"))]


CODEMODS = {"SwiftMixin._patch_skip_first_batches": SkipFirstBatches()}
