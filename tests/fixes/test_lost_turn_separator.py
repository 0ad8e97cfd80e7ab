"""lost-turn-separator: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub, each
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "lost-turn-separator"
TOOLS, MERGE = "ToolAgentLoop._handle_processing_tools_state", "ContinuousTokenBuilder._merge_context_token_ids"
TURNS = sources.cases(FIX, {"verl": ["0.6.1", "0.8.0"]}, function=TOOLS)
MERGES = sources.cases(FIX, {"verl": ["0.9.1"]}, function=MERGE)
_ADDED, _MERGED = "agent_data.prompt_ids += response_ids", "list(runtime_token_ids) + list(appended_token_ids)"
_TURNS = [
    ("len(self.system_prompt):", "4:", "not found: ... = a turn without the system prompt"),
    (_ADDED, "agent_data.prompt_ids.extend(response_ids)", r"not found: ... \+= response_ids"),
    (_ADDED, f"response_ids = response_ids[:9]; {_ADDED}", "2 times.*: response_ids = ..., from then on"),
    ("tool_call_names = []", "tool_call_names = it = []", "without it, which is ours"),
]
_MERGES = [(_MERGED, f"{_MERGED} + []", r"not found: .*appended"), ("MergeResult(", "dict(", "not found: MergeResult")]
REFUSED = [*sources.edits(TURNS[0], _TURNS), *sources.edits(MERGES[0], _MERGES)]
UNLIKE_UPSTREAM = [
    *sources.edits(sources.case(FIX, "0.9.0", function=TOOLS), [("turn_separator + response_ids", "turn_separator")]),
    *sources.edits(sources.case(FIX, "0.9.1", function=TOOLS), [("ct_merge_context_msg", "apply_chat_template")]),
]

# -- for the sessions -------------------------------------------------------------------------------------------------

BY_HAND: ByHand = {
    "one token of it": Sub("end[start:stop]", "end[start:stop][:1]"),
    "after any answer": Sub("default=len(end)", "default=0"),
    "after the first that is alike": Sub("max((at", "min((at"),
    "after a user": Sub('"user", "assistant", "user"', '"user", "user", "user"'),
    "refusals end the job": Sub("except Exception:", "except ValueError:"),
    "twice": Sub("range(start, len(end) + 1)", "[len(end)]"),
    "all of it or nothing": Sub("range(start, len(end) + 1)", "(start, len(end))"),
    "after one of two tokens": Sub("[-1:]), default", "[-2:]), default"),
}
_PROCESSOR, _END = 'getattr(self, "processor", None) or ', "end[start:stop]"
_SHOWN = each({_PROCESSOR: [""], _END: [f"{_END} * (not images)"]})
_MUTATED = {("0.6.1", TOOLS): BY_HAND, ("0.8.0", TOOLS): {**BY_HAND, **_SHOWN}, ("0.9.1", MERGE): BY_HAND}
MUTANTS = [Mutants("verl", (version,), every, function=it) for (version, it), every in _MUTATED.items()]
_OTHERS = {
    "half: none after tools": Other(without(r"end\[start:stop\] \+", "[] +"), ("three-tools",)),
    "half: after any": Other(without("default=len", "default=0 * len", 0), ("cut-off",)),
    "half: twice": Other(without(r"range\(start, len\(end\) \+ 1\)", "[len(end)]", 0), ("own-newline",)),
}
_RELEASES = [Release(it, core=it == "0.7.1") for it in ("0.6.1", "0.7.1", "0.8.0", "0.9.1")]
PROOFS = [Proofs("verl", _RELEASES, _OTHERS)]
FUZZ = Fuzz([*TURNS, *MERGES], 2, "system_prompt|response_ids|prompt_ids|appended_token_ids|MergeResult", examples=40)
