"""verl: restore no data loader that is used up, so that SFT resumes with the next epoch.

https://github.com/verl-project/verl/pull/7402
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, calls, expression, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_LOAD = "self.train_dataloader.load_state_dict"
_GUARDED = """\
# unhang sft-resume-epoch: a loader that is used up would leave out the next epoch
if extract_step({path}) % len(self.train_dataloader):
    {load}
"""


class LoadState(Codemod):
    """Restore the state of the data loader only inside of an epoch.

    Before::

        def load(self, folder):
            if os.path.exists(folder):
                state = torch.load(folder)
                self.train_dataloader.load_state_dict(state)

    After::

        def load(self, folder):
            if os.path.exists(folder):
                state = torch.load(folder)
                # unhang sft-resume-epoch: a loader that is used up would leave out the next epoch
                if extract_step(folder) % len(self.train_dataloader):
                    self.train_dataloader.load_state_dict(state)
    """

    def plan(self, function: Function) -> list[Edit]:
        if any(isinstance(node, ast.Mod) for node in ast.walk(function)):
            raise AnchorError(f"{_LOAD} wherever in an epoch it is")  # ours, or upstream's own fix
        call = once(calls(function, _LOAD), f"{_LOAD}(...)")
        rows = [row for row in ast.walk(function) if isinstance(row, ast.Expr) and row.value is call]
        row = once(rows, f"{_LOAD}(...) alone")
        path = once([each.arg for each in function.args.args[1:]], "one path")
        return [span(row, row, instead(_GUARDED.format(path=path, load=expression(call))))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"extract_step"})


CODEMODS = {f"{it}._load_dataloader_state": LoadState() for it in ("CheckpointHandler", "FSDPSFTTrainer")}
