"""verl: put what a chat template writes after an answer between the model's own tokens and the next turn.

https://github.com/verl-project/verl/pull/6921, as merged, takes it from the end of a user's turn.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import Codemod, assignments, expression, followed_by, once, refuse_own, span, with_argument
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = {"at", "chat", "commonprefix", "end", "ends", "it", "said", "start", "stop", "template", "whole"}
_SEPARATOR = """\
# unhang lost-turn-separator: the model stops before what its template writes after an answer
from os.path import commonprefix

template, end = getattr(self, "processor", None) or self.tokenizer, []
for said in ("unhang", [{{"type": "text", "text": "unhang"}}]):
    chat, ends = [{{"role": it, "content": said}} for it in ("user", "assistant", "user")], []
    try:
        for it in (chat, chat[:2]):
            whole = template.apply_chat_template(it, tokenize=False, **self.{options})
            ends.append(self.tokenizer.encode(whole.split("unhang", 2)[2], add_special_tokens=False))
    except Exception:  # a template may refuse such a chat
        continue
    end = commonprefix(ends)
    break
start = max((at for at, it in enumerate(end, 1) if it in {before}[-1:]), default=len(end))
stop = next(at for at in range(start, len(end) + 1) if end[at:] == {turn}[: len(end) - at])
"""
_SYSTEM, _NO_SYSTEM = "[len(self.system_prompt):]", "remove_system_prompt=True"
_RUNTIME, _APPENDED = "list(runtime_token_ids)", "list(appended_token_ids)"


class Turn(Codemod):
    """Put in front of a turn what the template writes after an answer, and the turn does not begin with.

    Before::

        async def respond(self, data, messages):
            new_ids = await self.apply_chat_template(messages, remove_system_prompt=True)
            data.prompt_ids += new_ids

    After::

        async def respond(self, data, messages):
            new_ids = await self.apply_chat_template(messages, remove_system_prompt=True)
            # unhang lost-turn-separator: the model stops before what its template writes after an answer
            from os.path import commonprefix

            ...
            new_ids = end[start:stop] + new_ids
            data.prompt_ids += new_ids
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, ["turn_separator", "inserted_token_ids", *_OWN])
        given, nodes = assignments(function), [*ast.walk(function)]
        if function.name.startswith("_merge_"):
            sums = [it for it in given if expression(it[2]) == f"{_RUNTIME} + {_APPENDED}"]
            row, merged, _ = once(sums, f"... = {_RUNTIME} + {_APPENDED}")
            results = [it for it in nodes if isinstance(it, ast.Call) and expression(it.func) == "MergeResult"]
            told = "inserted_token_ids=end[start:stop]", "# unhang lost-turn-separator: as above"
            text = _SEPARATOR.format(options="chat_template_kwargs", before=_RUNTIME, turn=_APPENDED)
            new = followed_by(f"{text}{merged} = {_RUNTIME} + end[start:stop] + {_APPENDED}\n")
            return [span(row, row, new), with_argument(function, once(results, "MergeResult(...)"), *told)]
        turns = [it for it in given if any(one in expression(it[2]) for one in (_SYSTEM, _NO_SYSTEM))]
        row, turn, _ = once(turns, "... = a turn without the system prompt")
        names = [it for it in nodes if isinstance(it, ast.Name) and it.id == turn and isinstance(it.ctx, ast.Store)]
        once([it for it in names if it.lineno >= row.lineno], f"{turn} = ..., from then on")
        more = [(expression(it.target), expression(it.value)) for it in nodes if isinstance(it, ast.AugAssign)]
        before = once([target for target, value in more if value == turn], f"... += {turn}")
        once([target for target, _ in more if target == before], f"{before} += ...")
        text = _SEPARATOR.format(options="apply_chat_template_kwargs", before=before, turn=turn)
        return [span(row, row, followed_by(f"{text}{turn} = end[start:stop] + {turn}\n"))]

    def fixed_upstream(self, function: Function) -> bool:
        code, given = expression(function), assignments(function)
        is_left = "ct_merge_" in code and "apply_chat_template" not in code  # to a builder, a target of its own
        return is_left or any(expression(value) == f"self.turn_separator + {name}" for _, name, value in given)


CODEMODS = {
    **{f"ToolAgentLoop._handle_{it}_state": Turn() for it in ("processing_tools", "interacting")},
    **{f"ContinuousTokenBuilder._merge_{it}_token_ids": Turn() for it in ("non_assistant", "context")},
}
