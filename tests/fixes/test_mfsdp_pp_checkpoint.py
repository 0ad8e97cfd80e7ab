"""mfsdp-pp-checkpoint: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "mfsdp-pp-checkpoint"
RELEASES = {"megatron-lm": ["0.17.1", "0.19.2"], "megatron-bridge": ["0.3.0", "0.6.2"], "ms-swift": ["4.5.3", "4.6.0"]}
CASES = sources.cases(FIX, RELEASES, {"megatron-lm": ["0.16.1"]})
_LAST, _MISSED = "preprocess_state_dict_for_uneven_dtensor", "not found: preprocess"
_EDITED = ("pass", f"{_LAST}(state_dict, model)", f"if args: {_LAST}(state_dict)", f"{_LAST}({{**state_dict}})")
REFUSED = sources.edits(CASES[0], [(f"{_LAST}(state_dict)", new) for new in _EDITED], _MISSED)

# -- for the sessions -------------------------------------------------------------------------------------------------

_PARTS, _WHERE = '{"state", "param_to_group_meta"}', "len({*counts.values()}) == 1 and counts[place] > 0"
BY_HAND = {
    **{f"where {new}": Sub(_WHERE, new) for new in (*_WHERE.split(" and "), "counts[place]", "True")},
    "by the whole path": Sub('path.replace("module.", "")', "path"),
    "named twice": Sub("            return named", "            pass"),
    "not of the model": Sub('in_whole_model(state_dict["model"])', 'state_dict["model"]'),
    **{f"of the optimizer {new}": Sub(_PARTS, new) for new in ("set()", '{"state"}', '{"param_to_group_meta"}')},
    **{f"where {it}": Sub("if place.", f"if {it} and place.") for it in ("len(place) == 1", '"decoder" in path')},
    "as if shards were even": Sub(f"{_LAST}(state_dict)", "state_dict"),
}
MUTANTS = [Mutants(name, (of[-1],), BY_HAND) for name, of in RELEASES.items()]
_HALVES = {"half: the model alone": Other(without(r"& .*\.keys\(\)", "& set()"), ("pp2", "pp1-to-pp2"))}
_CORE = (("megatron-core", "0.19.2"),)
PROOFS = [
    Proofs("megatron-lm", [Release("0.19.2", core=True), *map(Release, ("0.18.2", "0.17.1"))], _HALVES),
    Proofs("megatron-bridge", [Release("0.6.2", beside=_CORE, core=True)], _HALVES),
    Proofs("ms-swift", [Release("4.6.0", beside=_CORE)], _HALVES),
]
FUZZ = Fuzz(CASES, 3, f"{_LAST}|state_dict", examples=40)
