"""megatron-core: make a stage without MoE layers size its tracker entries as the routers of the other stages do.

https://github.com/NVIDIA/Megatron-LM/pull/3401 (it also adds to the number of layers where no entry is made)
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, instead, matches, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_MTP = "mtp_num_layers"
_ENTRY = 'tracker[key]["values"] = torch.zeros(num_layers, device="cuda")'
_SIZED = f"""\
# unhang moe-aux-tracker-hang: as long as a router's, which counts MTP layers
tracker[key]["values"] = torch.zeros(
    num_layers + ({_MTP} or 0), device="cuda"
)
"""
# Upstream's fix up to 0.17, and the arguments of the call that replaced the function's code in 0.18.
_LONGER = f"""\
tracker_num_layers = num_layers
if {_MTP} is not None:
    tracker_num_layers += {_MTP}
"""
_LONGER_ENTRY = _ENTRY.replace("num_layers", "tracker_num_layers")
_REPORT = "get_moe_metrics_tracker().report"


class TrackMoeMetrics(Codemod):
    """Add the layers of multi-token prediction (MTP) to the size of an entry that no router has made.

    Before::

        def track_moe_metrics(tracker, track_names, num_layers, mtp_num_layers=None):
            for key in track_names:
                if key not in tracker:
                    tracker[key] = {}
                    tracker[key]["values"] = torch.zeros(num_layers, device="cuda")

    After::

        def track_moe_metrics(tracker, track_names, num_layers, mtp_num_layers=None):
            for key in track_names:
                if key not in tracker:
                    tracker[key] = {}
                    # unhang moe-aux-tracker-hang: as long as a router's, which counts MTP layers
                    tracker[key]["values"] = torch.zeros(
                        num_layers + (mtp_num_layers or 0), device="cuda"
                    )
    """

    def plan(self, function: Function) -> list[Edit]:
        if _MTP not in (argument.arg for argument in function.args.args):
            raise AnchorError(f"the argument {_MTP}")
        entry = once(_entries(function, _ENTRY), _ENTRY)
        return [span(entry, entry, instead(_SIZED))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"torch"})

    def fixed_upstream(self, function: Function) -> bool:
        last = function.body[-1]
        if isinstance(last, ast.Return) and isinstance(last.value, ast.Call):
            given = {(keyword.arg, expression(keyword.value)) for keyword in last.value.keywords}
            forwards = {(name, name) for name in ("force_initialize", "track_names", "num_layers", _MTP)}
            return expression(last.value.func) == _REPORT and forwards <= given
        pairs = zip(function.body, function.body[1:])
        return any(matches(pair, _LONGER) for pair in pairs) and len(_entries(function, _LONGER_ENTRY)) == 1


def _entries(function: Function, template: str) -> list[ast.Assign]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Assign) and matches([node], template)]


CODEMODS = {"track_moe_metrics": TrackMoeMetrics()}
