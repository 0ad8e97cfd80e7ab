"""resume-mixed-lr: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources

FIX = "resume-mixed-lr"
_RELEASES = {"megatron-core": ["0.14.0", "0.16.1", "0.18.2"]}
_FUNCTIONS = ("MegatronOptimizer._filter_and_reorder_param_groups", "DistributedOptimizer.load_state_dict")
CASES = [case for it in _FUNCTIONS for case in sources.cases(FIX, _RELEASES, function=it)]
_SOUGHT = ("loaded_groups_map[key]", "loaded_groups_map.get(key)", r"groups\[key\] in a loop")
REFUSED = sources.edits(CASES[0], [_SOUGHT])

# -- for the sessions -------------------------------------------------------------------------------------------------

_PICK, _NAMES = "max(alike[place:] + alike[:place], key=near)", '{"params", "lr", "weight_decay", "step", '
_OLD = "param_groups_map[needed_groups]"
BY_HAND: ByHand = {
    "the last, as before": Sub(_PICK, "alike[-1]"),
    "by place alone": Sub(_PICK, "[*alike[place:], alike[-1]][0]"),
    "by settings alone": Sub(_PICK, "max(alike, key=near)"),
    "only where no setting differs": Sub("sum(one", "all(one"),
    "with the rate of the moment": Sub(_NAMES, '{"params", "weight_decay", "step", '),
    "by the rates alone": Sub("own.keys() - ", '{"max_lr", "min_lr"} - '),
    "one and the same object": Sub(f"dict({_PICK})", _PICK),
    "by the flag of 0.15": Sub("flag or ", "True or "),
    "without the flag of 0.15": Sub("flag or ", ""),
    "by the place among all": Sub("[keys_of(one) for one in current[:index]].count(keys_of(own))", "index"),
    "with its own final rate": Sub(f"dict({_PICK})", f'{{**{_PICK}, "min_lr": own["min_lr"]}}'),
}
_TWICE = {"without states alone": Sub(f"dict({_PICK})", f"{_OLD} if self.optimizer.state else dict({_PICK})")}
_EACH = zip(_FUNCTIONS, (BY_HAND, {**BY_HAND, **_TWICE}))
MUTANTS = [Mutants("megatron-core", ("0.18.2",), by_hand, function=it) for it, by_hand in _EACH]
_BY_FLAG = dict.fromkeys(("decoupled-lr", "decoupled-lr-2", "decoupled-lr-whole"), ("passed", ""))
_HALF = Other(without(r"max\(.*near\)", "alike[-1]"), ("decoupled-lr",), only=("0.18.2", "0.16.1"))
_RUN = [Release("0.18.2", core=True), Release("0.16.1"), Release("0.14.0", otherwise=_BY_FLAG)]
PROOFS = [Proofs("megatron-core", _RUN, {"half: a copy of the last group": _HALF})]
FUZZ = Fuzz(CASES, 2, "needed_groups|loaded_groups_map|param_groups_map", examples=40)
