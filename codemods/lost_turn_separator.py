"""verl: put what a chat template writes after an answer between the model's own tokens and the next turn.

https://github.com/verl-project/verl/pull/6921, as merged, takes it from the end of a user's turn.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    Codemod,
    assigned,
    assignments,
    calls,
    expression,
    followed_by,
    mentioned,
    once,
    preceded_by,
    refuse_own,
    span,
    with_argument,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_SEPARATOR = """\
# unhang lost-turn-separator: the model stops before what its template writes after an answer
from os.path import commonprefix

template, end = getattr(self, "processor", None) or self.tokenizer, []
for said in ("unhang", [{{"type": "text", "text": "unhang"}}]):
    chat, ends = [{{"role": it, "content": said}} for it in ("user", "assistant", "user")], []
    try:
        for it in (chat, chat[:2]):
            whole = template.apply_chat_template(it, tokenize=False, **{options})
            ends.append(self.tokenizer.encode(whole.split("unhang", 2)[2], add_special_tokens=False))
    except Exception:  # a template may refuse such a chat
        continue
    end = commonprefix(ends)
    break
last = {before}[-1]
separator = end[len(end) - end[::-1].index(last) :] if last in end else []
"""
_SYSTEM = "[len(self.system_prompt):]"
_INSERTED = """\
if [*appended_token_ids][: len(separator)] == separator:
    separator = []
runtime_token_ids = [*runtime_token_ids, *separator]
"""
_MERGED = "list(runtime_token_ids) + list(appended_token_ids)"
_OWN = {"separator", "commonprefix", "template", "end", "chat", "ends", "said", "whole", "last"}


class Turn(Codemod):
    """Let the tokens of a turn begin with those that the template writes after an answer.

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
            separator = end[len(end) - end[::-1].index(last) :] if last in end else []
            new_ids = separator + new_ids
            data.prompt_ids += new_ids
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, ["turn_separator", *_OWN])
        given = assignments(function)
        turns = [it for it in given if _SYSTEM in expression(it[2]) or "remove_system_prompt" in mentioned(it[2])]
        row, turn, _ = once(turns, "... = a turn without the system prompt")
        sums = [it for it in ast.walk(function) if isinstance(it, ast.AugAssign)]
        before = expression(once([it.target for it in sums if expression(it.value) == turn], f"... += {turn}"))
        text = _SEPARATOR.format(options="self.apply_chat_template_kwargs", before=before)
        return [span(row, row, followed_by(f"{text}{turn} = separator + {turn}\n"))]

    def fixed_upstream(self, function: Function) -> bool:
        names, given = mentioned(function), assignments(function)
        is_left = any(it.startswith("ct_merge_") for it in names)  # to a builder, which is a target of its own
        is_left &= "apply_chat_template" not in names
        return is_left or any(expression(value) == f"self.turn_separator + {name}" for _, name, value in given)


class Merge(Codemod):
    """Insert what the template writes after an answer, where a builder has no rule of its own.

    Before::

        def merge(self, runtime_token_ids, appended_token_ids):
            merged = list(runtime_token_ids) + list(appended_token_ids)
            return MergeResult(token_ids=merged)

    After::

        def merge(self, runtime_token_ids, appended_token_ids):
            # unhang lost-turn-separator: the model stops before what its template writes after an answer
            from os.path import commonprefix

            ...
            runtime_token_ids = [*runtime_token_ids, *separator]

            merged = list(runtime_token_ids) + list(appended_token_ids)
            # unhang lost-turn-separator: as above
            return MergeResult(token_ids=merged, inserted_token_ids=separator)
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, ["inserted_token_ids", *_OWN])
        rows = [it for it in function.body if (of := assigned(it)) and expression(of[1]) == _MERGED]
        row, result = once(rows, f"... = {_MERGED}"), once(calls(function, "MergeResult"), "MergeResult(...)")
        text = _SEPARATOR.format(options="self.chat_template_kwargs", before="[None, *runtime_token_ids]")
        return [
            span(row, row, preceded_by(f"{text}{_INSERTED}")),
            with_argument(function, result, "inserted_token_ids=separator", "# unhang lost-turn-separator: as above"),
        ]


CODEMODS = {
    **{f"ToolAgentLoop._handle_{it}_state": Turn() for it in ("processing_tools", "interacting")},
    **{f"ContinuousTokenBuilder._merge_{it}_token_ids": Merge() for it in ("non_assistant", "context")},
}
