"""lost-turn-separator: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "lost-turn-separator"
TOOLS, MERGE = "ToolAgentLoop._handle_processing_tools_state", "ContinuousTokenBuilder._merge_context_token_ids"
TURNS = sources.cases(FIX, {"verl": ["0.6.1", "0.8.0"]}, function=TOOLS)
MERGES = sources.cases(FIX, {"verl": ["0.9.1"]}, function=MERGE)


REFUSED = sources.edits(
    TURNS[0],
    [
        ("len(self.system_prompt):", "4:", "not found: ... = a turn without the system prompt"),
        ("prompt_ids += response_ids", "prompt_ids.extend(response_ids)", r"not found: ... \+= response_ids"),
        ("tool_call_names = []", "tool_call_names = end = []", "without end, which is ours"),
    ],
)
UNLIKE_UPSTREAM = [
    *sources.edits(
        sources.case(FIX, "0.9.0", function=TOOLS),
        [
            ("turn_separator + response_ids", "turn_separator"),
            ("turn_separator + response_ids", "separator + response_ids"),
        ],
    ),
    *sources.edits(sources.case(FIX, "0.9.1", function=TOOLS), [("ct_merge_context_msg", "apply_chat_template")]),
]


# -- for the sessions -------------------------------------------------------------------------------------------------

BY_HAND: ByHand = {
    "no separator": Sub("if last in end else []", "if False else []"),
    "one token of it": Sub("index(last) :]", "index(last) :][:1]"),
    "with the end itself": Sub("len(end) - end[::-1]", "len(end) - 1 - end[::-1]"),
    "after any answer": Sub("if last in end else []", "if last in end else end[1:]"),
    "after the first that is alike": Sub("len(end) - end[::-1].index(last)", "1 + end.index(last)"),
    "all that follows": Sub("(chat, chat[:2])", "(chat, chat)"),
    "after a user": Sub('split("unhang", 2)', 'split("unhang", 1)'),
    "no parts": Sub('("unhang", [{"type": "text", "text": "unhang"}])', '("unhang",)'),
    "refusals end the job": Sub("except Exception:", "except ValueError:"),
}
MUTANTS = [
    Mutants("verl", ("0.6.1", "0.8.0"), BY_HAND, function=TOOLS),
    Mutants("verl", ("0.9.1",), BY_HAND, function=MERGE),
]
_OTHERS = {
    "half: none after tools": Other(without(r"response_ids = separator \+ response_ids", "pass"), ("three-tools",)),
    "half: after any": Other(without(r"if last in end else \[\]", "if last in end else end[1:]", 0), ("cut-off",)),
}
_RELEASES = [Release(it, core=it == "0.7.1") for it in ("0.6.1", "0.7.1", "0.8.0")]
PROOFS = [Proofs("verl", _RELEASES, _OTHERS), Proofs("verl", [Release("0.9.1")], {})]
FUZZ = Fuzz([*TURNS, *MERGES], 2, "system_prompt|response_ids|prompt_ids|appended_token_ids|MergeResult", examples=40)
