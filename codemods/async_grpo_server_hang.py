"""trl: let a weight sync fail where the vLLM server fails, instead of waiting in NCCL for a server that never comes.

https://github.com/huggingface/trl/pull/6913, in 1.13.0, lets a thread wait for NCCL alone.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, argument, assignments, calls, expression, inside, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_THREAD, _NCCL = "threading.Thread", "NCCLWeightTransferEngine.trainer_send_weights"
_SERVERS = {"self.vllm.update_weights": "self.vllm.server_url", "requests.post": "self.vllm_server_url"}
_IMPORTS = """\
# unhang async-grpo-server-hang: without the server NCCL never ends, so let daemon threads wait for it
from multiprocessing.pool import ThreadPool
from requests import post
"""
_ASKS = """\
def asks():
    asked = {{"update_info": self._weight_update_info}}
    return post(f"{{{url}}}/update_weights", json=asked, timeout=1800)
"""
_SENDS = "def sends():\n    pass\n"
_WAITS = """\
with ThreadPool(2) as pool:
    for answer in pool.imap_unordered(lambda side: side(), [asks, sends]):
        if answer is not None and not answer.ok:
            raise RuntimeError(f"vLLM fails to take the weights: {answer.status_code}, {answer.text}")
"""


class SendWeights(Codemod):
    """Run both sides of a transfer in threads that may be left behind, and wait for the first that fails, or for both.

    Before::

        def send_weights(self, iterator):
            update = threading.Thread(target=self.vllm.update_weights, args=(self._weight_update_info,))
            update.start()
            NCCLWeightTransferEngine.trainer_send_weights(iterator=iterator)
            update.join()

    After::

        def send_weights(self, iterator):
            ...
            def sends():
                NCCLWeightTransferEngine.trainer_send_weights(iterator=iterator)
            with ThreadPool(2) as pool:
                for answer in pool.imap_unordered(lambda side: side(), [asks, sends]):
                    ...
    """

    def plan(self, function: Function) -> list[Edit]:
        threads = [it for it in assignments(function) if it[0] in function.body and _server(it[2])]
        made, name, thread = once(threads, f"... = {_THREAD}(target=...)")
        rows = function.body[function.body.index(made) :]
        begun = once([it for it in rows if expression(it) == f"{name}.start()"], f"{name}.start()")
        sends = once([it for it in rows if [*map(expression, calls(it, _NCCL))] == [expression(it)]], f"{_NCCL}(...)")
        waits = once([it for it in rows[rows.index(sends) :] if expression(it) == f"{name}.join()"], f"{name}.join()")
        asks = instead(_ASKS.format(url=_server(thread)))
        edits = span(begun, begun, asks), span(sends, sends, inside(_SENDS)), span(waits, waits, instead(_WAITS))
        return [span(made, made, instead(_IMPORTS)), *edits]

    def fixed_upstream(self, function: Function) -> bool:
        asks = [it for it in ast.walk(function) if isinstance(it, ast.Try) and calls(it, "self.vllm.update_weights")]
        return bool(asks) and "daemon=True" in "".join(map(expression, calls(function, _THREAD)))


def _server(node: ast.expr) -> str:
    """Return where the server is that a thread asks, as code; empty for all other nodes."""
    target = argument(node, "target") if isinstance(node, ast.Call) and calls(node, _THREAD) == [node] else None
    return _SERVERS.get(expression(target), "") if target else ""


CODEMODS = {"WeightTransferClient.send_weights": SendWeights()}
