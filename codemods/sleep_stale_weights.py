"""trl: after vLLM's sleep, generate with the weights of the policy, not with those of the checkpoint on disk.

https://github.com/huggingface/trl/pull/5313
"""

from __future__ import annotations

import ast
import re
from textwrap import indent

from unhang.codemods import base
from unhang.codemods.base import Codemod, calls, expression, followed_by, mentioned, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_FLAG, _RELOADS, _STEP = "_llm_weights_sleeping", "reload_weights", "_last_loaded_step"
_SYNCED = f"""\
# unhang sleep-stale-weights: sleep drops the weights, and {_RELOADS} would take those on disk
if getattr({{of}}, "{_FLAG}", True):
    {{of}}.sync_weights()
"""
_RELOADED = f"""\
# unhang sleep-stale-weights: what no sync sends comes from disk; generate need not sync again
try:
    self.llm.collective_rpc("{_RELOADS}")
except NotImplementedError:
    pass
self.{_FLAG} = False
"""
_WAKES = """\
if self.mode == "colocate" and self.enable_sleep_mode:
    torch.cuda.empty_cache()
    self.llm.wake_up(tags=["weights"])
"""
_FORGOTTEN = f"""\
# unhang sleep-stale-weights: sleep has dropped those of this step, too
self.{_STEP} = -1
"""


class Generate(Codemod):
    """Sync the weights if they sleep, in the place of a reload, and note when they go to sleep.

    Before::

        def generate(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])
                self.llm.collective_rpc("reload_weights")
            self.run()
            self.llm.sleep(level=2)

    After::

        def generate(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])
                # unhang sleep-stale-weights: sleep drops the weights, and reload_weights would take those on disk
                if getattr(self, "_llm_weights_sleeping", True):
                    self.sync_weights()
            self.run()
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_FLAG, "sync_weights"])  # or upstream's own fix
        rows = [row for it in ast.walk(function) if isinstance(it, ast.If) for row in it.body]
        reload = once([row for row in rows if _reloads(row)], f'...llm.collective_rpc("{_RELOADS}")')
        of = re.findall(r"([\w.]+)\.llm\.", expression(reload))[0]
        sleep = once(_rows(function, f"{of}.llm.sleep"), f"{of}.llm.sleep(...)")
        noted = span(sleep, sleep, followed_by(f"{of}.{_FLAG} = True"))
        return [span(reload, reload, base.instead(_SYNCED.format(of=of))), noted]

    def fixed_upstream(self, function: Function) -> bool:
        names = mentioned(function)
        return _FLAG in names and not names & {"getattr", _RELOADS}


class SyncWeights(Generate):
    """Reload what a sync does not send, once the weights wake, and note that they are awake.

    Before::

        def sync_weights(self):
            self.llm.wake_up(tags=["weights"])

    After::

        def sync_weights(self):
            self.llm.wake_up(tags=["weights"])
            # unhang sleep-stale-weights: what no sync sends comes from disk; generate need not sync again
            ...
            self._llm_weights_sleeping = False
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_FLAG])
        for row in _rows(function, "self.llm.wake_up"):
            return [span(row, row, followed_by(_RELOADED))]
        first = function.body[ast.get_docstring(function) is not None]
        return [span(first, first, base.preceded_by(_WAKES + indent(_RELOADED, "    ")))]  # 0.28 does not wake them

    def names(self, function: Function) -> frozenset[str]:
        return frozenset() if _rows(function, "self.llm.wake_up") else frozenset({"torch"})


class SingleTurn(Codemod):
    """Forget at each waking that the weights of this step are loaded.

    Before::

        def turn(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])

    After::

        def turn(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])
                # unhang sleep-stale-weights: sleep has dropped those of this step, too
                self._last_loaded_step = -1
    """

    def plan(self, function: Function) -> list[Edit]:
        bodies = [it.body for it in ast.walk(function) if isinstance(it, ast.If)]
        wakes = [body for body in bodies if any("wake_up(tags=['weights'])" in expression(row) for row in body)]
        body = once([it for it in wakes if _STEP not in mentioned(*it)], 'if ...: ... wake_up(tags=["weights"])')
        return [span(body[-1], body[-1], followed_by(_FORGOTTEN))]


def _rows(function: Function, called: str) -> list[ast.Expr]:
    """Return the statements of a function that are a call of this."""
    return [it for it in ast.walk(function) if isinstance(it, ast.Expr) and calls(it, called)]


def _reloads(node: ast.AST) -> bool:
    """Return whether a statement reloads the weights from disk, and does nothing else but pass over an error of it."""
    if isinstance(node, ast.Try):
        caught = [row for handler in node.handlers for row in handler.body if not isinstance(row, ast.Pass)]
        return len(node.body) == 1 and _reloads(node.body[0]) and not (caught or node.orelse or node.finalbody)
    return isinstance(node, ast.Expr) and expression(node).endswith(f".llm.collective_rpc('{_RELOADS}')")


CODEMODS = {
    "VLLMGeneration.generate": Generate(),
    "VLLMGeneration.sync_weights": SyncWeights(),
    "_generate_rollout_completions_colocate": Generate(),
    "GRPOTrainer._generate_single_turn": SingleTurn(),
    "RLOOTrainer._generate_single_turn": SingleTurn(),
}
