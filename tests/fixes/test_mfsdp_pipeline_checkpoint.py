"""mfsdp-pipeline-checkpoint: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-pipeline-checkpoint"
RELEASES = {"megatron-lm": ["0.17.1", "0.19.2"], "megatron-bridge": ["0.3.0", "0.6.2"], "ms-swift": ["4.5.3", "4.6.0"]}
CASES = sources.cases(FIX, RELEASES, {"megatron-lm": ["0.16.1"]})
_LAST = "preprocess_state_dict_for_uneven_dtensor"
REFUSED = sources.edits(
    CASES[0],
    [
        (f"{_LAST}(state_dict)", "pass"),
        (f"{_LAST}(state_dict)", f"{_LAST}(state_dict, model)"),
        (f"{_LAST}(state_dict)", f"if args:\n        {_LAST}(state_dict)"),
        (f"{_LAST}(state_dict)", f"{_LAST}({{**state_dict}})"),
        ("raw_state_dict, model)", "raw_state_dict, chunk, model=None)"),
    ],
    f"not found: {_LAST}",
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_NUMBER, _NAME = "numbers[path, place] = number - 1", "numbers.get((path.replace('module.', ''), place), place)"
BY_HAND = {
    **{f"as {new}": Sub(_NUMBER, f"numbers[path, place] = {new}") for new in ("number", "number - 2", "place")},
    "by the place alone": Sub(_NAME, "{key[1]: it for key, it in numbers.items()}.get(place, place)"),
    "by the whole path": Sub(_NAME, "numbers.get((path, place), place)"),
    "MTP layers, too": Sub("'mtp' not in path", "True"),
    "not of the model": Sub(
        "in_whole_model(name): it for name, it in state_dict['model']", "name: it for name, it in state_dict['model']"
    ),
    "not of the optimizer": Sub("{'state', 'param_to_group_meta'}", "set()"),
    "not of its states": Sub("{'state', 'param_to_group_meta'}", "{'param_to_group_meta'}"),
    "not of its groups": Sub("{'state', 'param_to_group_meta'}", "{'state'}"),
    "in the place of the job's": Sub(
        "optimizer = state_dict['optimizer'] = state_dict['optimizer'].copy()", "optimizer = state_dict['optimizer']"
    ),
    "without the rest": Sub("{dot}{rest}", "{dot}"),
}
MUTANTS = [
    Mutants("megatron-lm", ("0.19.2",), BY_HAND),
    Mutants("megatron-bridge", ("0.6.2",), BY_HAND),
    Mutants("ms-swift", ("4.6.0",), BY_HAND),
]
_OF_MODEL = without(r"& optimizer\.keys\(\)", "& set()")
_HALVES = {"half: the model alone": Other(_OF_MODEL, ("pp2", "pp1-to-pp2"))}
PROOFS = [
    Proofs("megatron-lm", [Release("0.19.2", core=True), *map(Release, ("0.18.2", "0.17.1"))], _HALVES),
    Proofs("megatron-lm", [Release("core_v0.16.1")], _HALVES),
    Proofs("megatron-bridge", [Release("0.6.2", beside=(("megatron-core", "0.19.2"),), core=True)], _HALVES),
    Proofs("ms-swift", [Release("4.6.0", beside=(("megatron-core", "0.17.1"),))], _HALVES),
]
FUZZ = Fuzz(CASES, 3, f"{_LAST}|state_dict", examples=40)
