"""trl: after vLLM's sleep, generate with the weights of the policy, not with those of the checkpoint on disk.

https://github.com/huggingface/trl/pull/5313
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    Codemod,
    calls,
    expression,
    followed_by,
    instead,
    mentioned,
    once,
    preceded_by,
    refuse_own,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_FLAG, _RELOADS = "_llm_weights_sleeping", "reload_weights"
_IS_ASLEEP = f'getattr({{of}}, "{_FLAG}", True)'
_SYNCED = f"""\
# unhang sleep-stale-weights: sleep drops the weights, and {_RELOADS} would take those on disk
if {_IS_ASLEEP}:
    {{of}}.llm.wake_up(tags=["weights"])
    {{of}}.sync_weights()
"""
_CACHE = '{of}.llm.wake_up(tags=["kv_cache"])\n'
_RELOADED = f"""\
# unhang sleep-stale-weights: what no sync sends comes from disk; generate need not sync again
if {_IS_ASLEEP.format(of="self")}:
    try:
        self.llm.collective_rpc("{_RELOADS}")
    except NotImplementedError:
        pass
    self.{_FLAG} = False
"""
_WOKEN = f"""\
if self.mode == "colocate" and self.enable_sleep_mode:
    torch.cuda.empty_cache()
    self.llm.wake_up(tags=["weights"])
{"".join(f"    {row}" for row in _RELOADED.splitlines(keepends=True))}"""
_WAKES = "self.llm.wake_up(tags=['weights'])"
_FORGOTTEN = """\
# unhang sleep-stale-weights: sleep has dropped those of this step, too
self._last_loaded_step = -1
"""


class Generate(Codemod):
    """Sync the weights if they sleep, in the place of a reload, and note when they go to sleep.

    Before::

        def generate(self, prompts):
            if self.enable_sleep_mode:
                self.llm.wake_up(tags=["weights"])
                self.llm.collective_rpc("reload_weights")
            found = self.llm.generate(prompts)
            if self.enable_sleep_mode:
                self.llm.sleep(level=2)
            return found

    After::

        def generate(self, prompts):
            if self.enable_sleep_mode:
                # unhang sleep-stale-weights: sleep drops the weights, and reload_weights would take those on disk
                if getattr(self, "_llm_weights_sleeping", True):
                    self.llm.wake_up(tags=["weights"])
                    self.sync_weights()
            found = self.llm.generate(prompts)
            if self.enable_sleep_mode:
                self.llm.sleep(level=2)
                self._llm_weights_sleeping = True
            return found
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_FLAG])  # or upstream's own fix
        blocks = [it.body for it in ast.walk(function) if isinstance(it, ast.If)]
        pairs = [pair for block in blocks for pair in zip(block, block[1:]) if _reloads(pair[1])]
        wake, reload = once(pairs, f'...llm.wake_up(...), and then ...llm.collective_rpc("{_RELOADS}")')
        of = expression(wake).partition(".llm.wake_up(")[0]
        synced = (_SYNCED + _CACHE * ("kv_cache" in mentioned(wake))).format(of=of)
        sleep = once([it for it in _rows(function) if calls(it, f"{of}.llm.sleep")], f"{of}.llm.sleep(...)")
        slept = span(sleep, sleep, followed_by(f"{of}.{_FLAG} = True"))
        return [span(wake, reload, instead(synced)), slept]

    def fixed_upstream(self, function: Function) -> bool:
        return _FLAG in mentioned(function) and not any(_reloads(it) for it in ast.walk(function))


class SyncWeights(Codemod):
    """Wake the weights before a sync, reload what it does not send, and note that they are awake.

    Before::

        def sync_weights(self):
            if self.enable_sleep_mode:
                self.llm.wake_up(tags=["weights"])
            self.push()

    After::

        def sync_weights(self):
            if self.enable_sleep_mode:
                self.llm.wake_up(tags=["weights"])
                # unhang sleep-stale-weights: what no sync sends comes from disk; generate need not sync again
                if getattr(self, "_llm_weights_sleeping", True):
                    try:
                        self.llm.collective_rpc("reload_weights")
                    except NotImplementedError:
                        pass
                    self._llm_weights_sleeping = False
            self.push()
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_FLAG])  # or upstream's own fix
        wakes = [it for it in _rows(function) if calls(it, "self.llm.wake_up")]
        if wakes:
            return [span(once(wakes, "self.llm.wake_up(...)"), wakes[0], followed_by(_RELOADED))]
        first = function.body[ast.get_docstring(function) is not None]
        return [span(first, first, preceded_by(_WOKEN))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset() if calls(function, "self.llm.wake_up") else frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        return _FLAG in mentioned(function) and _RELOADS not in mentioned(function)


class SingleTurn(Codemod):
    """Forget at each waking that the weights of this step are loaded.

    Before::

        def turn(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])
            if self.state.global_step != self._last_loaded_step:
                self.push()

    After::

        def turn(self):
            if self.sleeps:
                self.llm.wake_up(tags=["weights"])
                # unhang sleep-stale-weights: sleep has dropped those of this step, too
                self._last_loaded_step = -1
            if self.state.global_step != self._last_loaded_step:
                self.push()
    """

    def plan(self, function: Function) -> list[Edit]:
        blocks = [it.body for it in ast.walk(function) if isinstance(it, ast.If)]
        wakes = [block for block in blocks if any(expression(row) == _WAKES for row in block)]
        block = once([it for it in wakes if "_last_loaded_step" not in mentioned(*it)], f"if ...: ... {_WAKES}")
        return [span(block[-1], block[-1], followed_by(_FORGOTTEN))]


def _rows(function: Function) -> list[ast.stmt]:
    """Return the statements of a function that are a mere expression."""
    return [it for it in ast.walk(function) if isinstance(it, ast.Expr)]


def _reloads(node: ast.AST) -> bool:
    """Return whether a statement reloads the weights from disk, and does nothing else but to catch an error of it."""
    return isinstance(node, (ast.Expr, ast.Try)) and f".llm.collective_rpc('{_RELOADS}')" in expression(node)


CODEMODS = {
    "VLLMGeneration.generate": Generate(),
    "VLLMGeneration.sync_weights": SyncWeights(),
    "_generate_rollout_completions_colocate": Generate(),
    "GRPOTrainer._generate_single_turn": SingleTurn(),
    "RLOOTrainer._generate_single_turn": SingleTurn(),
}
