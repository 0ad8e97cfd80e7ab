"""Megatron-LM, Megatron-Bridge: log the MoE losses of a hybrid model with entries as long as those of its routers.

https://github.com/NVIDIA/Megatron-LM/pull/6748 (it adds an argument to megatron-core, which releases do not have)
https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4592 (open; the same two arguments, and more that is not needed)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unhang.codemods.base import AnchorError, Codemod, argument, assigned, calls, expression, once, replaced_by
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from typing import TypeGuard

_MOE = (".count('E')", "Symbols.MOE")
"""What a number of MoE layers is counted by."""
_ARMS = "if a hybrid model: layers = the number of MoE layers; else: layers = args.num_layers"
_LONGEST = 80
_TRACKERS = ("track_moe_metrics", "get_moe_metrics_tracker().report")
_CALL = f"{' or '.join(_TRACKERS)}(num_layers=layers, moe_layer_freq=args.moe_layer_freq, ...)"
_COMMENTS = (
    "# unhang hybrid-aux-tracker-hang: entries for all layers, as those of the routers,",
    "# unhang hybrid-aux-tracker-hang: and averages over the MoE layers",
)
# Upstream's own fix, on main and on dev: a statement, and arguments of the call.
_FIXED = {
    "layers = args.num_layers + (args.mtp_num_layers or 0)": {
        "num_layers": "layers",
        "num_moe_layers": "num_moe_layers",
    },
    "layers = len(main_pattern) + parsed_hybrid_pattern.mtp_num_depths": {
        "num_layers": "layers",
        "moe_layer_freq": "moe_layer_freq",
        "mtp_num_layers": "mtp_num_layers",
    },
}


class TrainingLog(Codemod):
    """Give the tracker the number of all layers, and for a hybrid model a list with a 1 for each MoE layer.

    Of the list the tracker takes the sum, so it divides by the same number as before.

    Before::

        def training_log(iteration):
            args = get_args()
            if args.is_hybrid_model:
                layers = args.hybrid_override_pattern.count('E')
            else:
                layers = args.num_layers
            track_moe_metrics(
                num_layers=layers,
                moe_layer_freq=args.moe_layer_freq,
            )

    After::

        def training_log(iteration):
            args = get_args()
            if args.is_hybrid_model:
                layers = args.hybrid_override_pattern.count('E')
            else:
                layers = args.num_layers
            # unhang hybrid-aux-tracker-hang: entries for all layers, as those of the routers,
            # unhang hybrid-aux-tracker-hang: and averages over the MoE layers
            track_moe_metrics(
                num_layers=args.num_layers,
                moe_layer_freq=[1] * layers if args.is_hybrid_model else args.moe_layer_freq,
            )
    """

    def plan(self, function: Function) -> list[Edit]:
        call = once([call for tracker in _TRACKERS for call in calls(function, tracker)], _CALL)
        layers, frequency = argument(call, "num_layers"), argument(call, "moe_layer_freq")
        if not isinstance(layers, ast.Name) or not _is_setting(frequency):
            raise AnchorError(_CALL)
        every = expression(frequency).replace("moe_layer_freq", "num_layers")
        arms = once(_arms(function, layers.id, every), _ARMS)
        listed = _fitting(f"[1] * {layers.id}", f"if {expression(arms.test)}", f"else {expression(frequency)}")
        size = replaced_by(function, layers, every, _COMMENTS[0])
        count = replaced_by(function, frequency, listed, _COMMENTS[1])
        return [size._replace(change=lambda nodes: count.change(size.change(nodes)))]

    def names(self, function: Function) -> frozenset[str]:
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        return frozenset({"track_moe_metrics", "get_moe_metrics_tracker"} & used)

    def fixed_upstream(self, function: Function) -> bool:
        sized = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and expression(node) in _FIXED]
        return len(sized) == 1 and len(_tracking(function, _FIXED[expression(sized[0])])) == 1


def _fitting(*parts: str) -> str:
    """Return an expression on one line; where that would be too long, on as many as it has parts."""
    line = " ".join(parts)
    if len(line) <= _LONGEST:
        return line
    # below the statement, as upstream's
    return "\n".join(("(", *(f"{' ' * 8}{part}" for part in parts), f"{' ' * 4})"))


def _is_setting(node: ast.expr | None) -> TypeGuard[ast.expr]:
    """Return whether this reads ``moe_layer_freq``: of ``args``, or as ``getattr(config.model, "it", None)``."""
    if isinstance(node, ast.Call) and expression(node.func) == "getattr" and len(node.args) > 1:
        return expression(node.args[1]) == "'moe_layer_freq'"
    return isinstance(node, ast.Attribute) and node.attr == "moe_layer_freq"


def _arms(function: Function, name: str, every: str) -> list[ast.If]:
    """Return each choice between the number of MoE layers, for a hybrid model, and that of ``every`` layer.

    Nothing else may bind the name of that number.
    """
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    if sum(node.id == name for node in stores) != 2:
        return []
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If)
        and any(moe in value for value in _values(node.body, name) for moe in _MOE)
        and _values(node.orelse, name) == [every]
    ]


def _values(block: Sequence[ast.stmt], name: str) -> list[str]:
    return [expression(found[1]) for found in map(assigned, block) if found and found[0] == name]


def _tracking(function: Function, given: Mapping[str, str]) -> list[Any]:
    """Return each statement that calls the tracker with these arguments."""
    found = []
    for node in ast.walk(function):
        if not isinstance(node, (ast.Assign, ast.Expr)) or not isinstance(node.value, ast.Call):
            continue
        if expression(node.value.func) in _TRACKERS:
            arguments = {keyword.arg: expression(keyword.value) for keyword in node.value.keywords}
            if given.items() <= arguments.items():
                found.append(node)
    return found


CODEMODS = {"training_log": TrainingLog()}
