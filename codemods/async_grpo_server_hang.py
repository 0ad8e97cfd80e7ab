"""trl: let a weight sync fail where the vLLM server fails, instead of waiting in NCCL for a server that never comes.

https://github.com/huggingface/trl/pull/6913, in 1.13.0, lets a thread wait for NCCL alone, on the first device.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods import base
from unhang.codemods.base import Codemod, argument, assignments, calls, expression, inside, instead, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_THREAD, _NCCL = "threading.Thread", "NCCLWeightTransferEngine.trainer_send_weights"
_TARGETS = "requests.post", "self.vllm.update_weights"
_WHY = "# unhang async-grpo-server-hang: without its server NCCL never ends"
_FAILS = "raise RuntimeError(f\"vLLM fails to take the weights: {answer}, {getattr(answer, 'text', None)}\")"
_WATCHED = f"""\
{_WHY}, so daemon threads wait for both
errors, sent = [], threading.Event()
def watched(side, done=threading.Event()):
    import torch
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1
    def runs(*args, **kwargs):
        try:
            torch.cuda.set_device(device)
            answer = side(*args, **kwargs)
            if getattr(answer, "ok", True) is False:
                {_FAILS}
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()
    return runs
def waits_for(thread):
    try:
        while thread.is_alive():
            thread.join(0.1)
            if errors:
                break
    finally:  # Python aborts if it ends while NCCL sends
        sent.wait(10)
    if errors:
        raise errors[0]
"""
_SENDING = """\
sending = threading.Thread(target=watched(sends, sent), daemon=True)
sending.start()
waits_for(sending)
"""


class SendWeights(Codemod):
    """Send in a thread that may be left behind, as the request is, and wait for it, or for an error of either.

    Before::

        def send_weights(self, iterator):
            update = threading.Thread(target=self.vllm.update_weights, args=(self._weight_update_info,))
            update.start()
            NCCLWeightTransferEngine.trainer_send_weights(iterator=iterator)
            update.join()

    After::

        def send_weights(self, iterator):
            ...

            update = threading.Thread(target=watched(self.vllm.update_weights), args=(self._weight_update_info,))
            ...
            waits_for(sending)
            waits_for(update)
    """

    def plan(self, function: Function) -> list[Edit]:
        base.refuse_own(function, ["errors", "sent", "watched", "waits_for", "sends", "sending"])
        threads = [(row, name, asks) for row, name, value in assignments(function) if (asks := _asks(value))]
        made, name, asks = once([it for it in threads if it[0] in function.body], f"... = {_THREAD}(target=...)")
        rows = function.body[function.body.index(made) :]
        sends = once([it for it in rows if _is_call(it, _NCCL)], f"{_NCCL}(...)")
        at = rows.index(sends)
        begun = once([it for it in rows[:at] if expression(it) == f"{name}.start()"], f"{name}.start()")
        waits = once([it for it in rows[at:] if expression(it) == f"{name}.join()"], f"{name}.join()")
        if [it.id for it in ast.walk(function) if isinstance(it, ast.Name)].count(name) > 3:
            raise base.AnchorError(f"{name} in no other row")
        heard = base.replaced_by(function, asks, f"watched({expression(asks)})", _WHY)  # the comment goes
        return [
            span(made, made, lambda nodes: base.preceded_by(_WATCHED)(heard.change(nodes))),
            span(begun, begun, instead(f"{name}.daemon = True\n{name}.start()")),
            span(sends, sends, lambda nodes: base.followed_by(_SENDING)(inside("def sends():\n    pass\n")(nodes))),
            span(waits, waits, instead(f"waits_for({name})")),
        ]

    def fixed_upstream(self, function: Function) -> bool:
        tries = [it for it in ast.walk(function) if isinstance(it, ast.Try) and calls(it, "self.vllm.update_weights")]
        asks = [it for it in tries if any(isinstance(row, ast.Raise) for one in it.handlers for row in one.body)]
        return bool(asks) and "daemon=True" in "".join(map(expression, calls(function, _THREAD)))


class UpdateWeights(Codemod):
    """Raise what the server answers, if that is an error.

    Before::

        def update_weights(self, update_info):
            requests.post(f"{self.server_url}/update_weights", json=update_info)

    After::

        def update_weights(self, update_info):
            # unhang async-grpo-server-hang: without its server NCCL never ends
            answer = requests.post(f"{self.server_url}/update_weights", json=update_info)
            if not answer.ok:
                ...
    """

    def plan(self, function: Function) -> list[Edit]:
        base.refuse_own(function, ["answer"])
        post = once([it for it in function.body if _is_call(it, "requests.post")], "requests.post(...)")
        return [span(post, post, _heard)]

    def fixed_upstream(self, function: Function) -> bool:
        raised = [it for it in ast.walk(function) if isinstance(it, ast.If) and isinstance(it.body[0], ast.Raise)]
        return any(expression(it.test) == "response.status_code != 200" for it in raised)


def _is_call(node: ast.stmt, function: str) -> bool:
    """Return whether a statement is a call that means the same in an inner function: it binds no name, for one."""
    own = [
        it for it in ast.walk(node) if isinstance(it, (ast.Yield, ast.YieldFrom)) or getattr(it, "id", "") == "super"
    ]
    return isinstance(node, ast.Expr) and calls(node, function) == [node.value] and not (own or base.bound(node))


def _asks(node: ast.expr) -> ast.expr | None:
    """Return what a thread calls that asks the server; None for all other nodes."""
    target = argument(node, "target") if isinstance(node, ast.Call) and not node.args else None
    is_asked = target is not None and expression(target) in _TARGETS and calls(node, _THREAD) == [node]
    return target if is_asked else None


def _heard(nodes: Statements) -> Statements:
    """Name what a statement returns, and raise it if it is an error."""
    import libcst as cst

    line = cst.ensure_type(nodes[0], cst.SimpleStatementLine)
    named = cst.Assign([cst.AssignTarget(cst.Name("answer"))], cst.ensure_type(line.body[0], cst.Expr).value)
    above = [*line.leading_lines, cst.EmptyLine(comment=cst.Comment(_WHY))]
    return base.followed_by(f"if not answer.ok:\n    {_FAILS}")([line.with_changes(body=[named], leading_lines=above)])


CODEMODS = {"WeightTransferClient.send_weights": SendWeights(), "VLLMClient.update_weights": UpdateWeights()}
