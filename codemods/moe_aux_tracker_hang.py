"""megatron-core: make a stage without MoE layers size its tracker entries as the routers of the other stages do.

https://github.com/NVIDIA/Megatron-LM/pull/3401 (it also adds to the number of layers where no entry is made)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    bound,
    calls,
    changing,
    expression,
    holder,
    matches,
    mentioned,
    once,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    import libcst as cst

_MTP = "mtp_num_layers"
_COMMENT = "# unhang moe-aux-tracker-hang: as long as a router's, which counts MTP layers"
# Upstream's fix up to 0.17, and the arguments of the call that replaced the function's code in 0.18.
_LONGER = f"""\
tracker_num_layers = num_layers
if {_MTP} is not None:
    tracker_num_layers += {_MTP}
"""
_LONGER_ENTRY = 'tracker[key]["values"] = torch.zeros(tracker_num_layers, device="cuda")'
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
        if _MTP not in (argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)):
            raise AnchorError(f"the argument {_MTP}")
        for name in sorted(bound(*function.body) & {"num_layers", _MTP}):
            raise AnchorError(f"{function.name} that does not rebind {name}")
        zeros = [call for call in calls(function, "torch.zeros") if call.args]
        made = [call for call in zeros if expression(call.args[0]) == "num_layers"]
        made = [call for call in made if _MTP not in mentioned(*filter(None, [holder(function.body, call)]))]
        return [changing(function, once(made, f"torch.zeros(num_layers, ...), without {_MTP}"), _longer, _COMMENT)]

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


def _longer(old: cst.BaseExpression) -> cst.BaseExpression:
    import libcst as cst

    from unhang.codemods import splice

    call = cst.ensure_type(old, cst.Call)
    size = call.args[0].with_changes(value=cst.parse_expression(f"num_layers + ({_MTP} or 0)"))
    return splice.on_own_line(call.with_changes(args=[size, *call.args[1:]]))


def _entries(function: Function, template: str) -> list[ast.Assign]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Assign) and matches([node], template)]


CODEMODS = {"track_moe_metrics": TrackMoeMetrics()}
