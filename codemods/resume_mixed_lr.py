"""megatron-core: give each group of parameters its own learning rate back when a checkpoint is loaded.

https://github.com/NVIDIA/Megatron-LM/pull/4705
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, after, refuse_own
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = """\
# unhang resume-mixed-lr: tell groups with these keys apart by settings, else by place
alike = [
    one
    for one in {saved}
    if {keys} == {key}
]
if len(alike) > 1:
    own = {own}
    place = {before}.count({key})
    names = {{*own}}.union(*alike) - {{"params", "lr", "weight_decay", "step"}}
    same = [one for one in alike if all(one.get(it) == own.get(it) for it in names)]
    {found}[{key}] = dict([*same, *alike[place:], alike[-1]][0])
"""
_KEYS = "param_group_identifier_keys"
_FILTER = (
    "if key not in loaded_groups_map: ...",
    {
        "saved": "state_dict_groups",
        "keys": f'tuple(\n        one.get(it, one.get(f"pre_{{it}}")) for it in {_KEYS}\n    )',
        "key": "key",
        "own": "current_groups[len(final_groups)]",
        "before": "needed_groups[: len(final_groups)]",
        "found": "loaded_groups_map",
    },
)
_LOAD = (
    "needed_groups = make_needed_groups(inner_param_group)",
    {
        "saved": 'state_dict["optimizer"]["param_groups"]',
        "keys": "make_needed_groups(one)",
        "key": "needed_groups",
        "own": "inner_param_group",
        "before": "[*map(make_needed_groups, state_dict_param_groups)]",
        "found": "param_groups_map",
    },
)


class OwnGroup(Codemod):
    """Of the saved groups that share their keys, take the one with the settings of the current group.

    Before::

        def load(current_groups, state_dict_groups, loaded_groups_map):
            for key in needed_groups:
                if key not in loaded_groups_map:
                    raise ValueError
                final_groups.append(loaded_groups_map[key])

    After::

        def load(current_groups, state_dict_groups, loaded_groups_map):
            for key in needed_groups:
                if key not in loaded_groups_map:
                    raise ValueError
                # unhang resume-mixed-lr: tell groups with these keys apart by settings, else by place
                ...
                    loaded_groups_map[key] = dict([*same, *alike[place:], alike[-1]][0])
                final_groups.append(loaded_groups_map[key])
    """

    def plan(self, function: Function) -> list[Edit]:
        if self.fixed_upstream(function):
            raise AnchorError("groups that four keys alone tell apart")
        refuse_own(function, {"alike"})
        anchor, names = _LOAD if function.name == "load_state_dict" else _FILTER
        return [after(function, anchor, _OWN.format(**names))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset() if function.name == "load_state_dict" else frozenset({_KEYS})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether a group may lack a key, as with the more keys of upstream's own fix."""
        inner = [it for it in ast.walk(function) if isinstance(it, ast.FunctionDef) and it is not function]
        return any(isinstance(it, ast.Constant) and it.value is None for made in inner for it in ast.walk(made))


CODEMODS = {
    "MegatronOptimizer._filter_and_reorder_param_groups": OwnGroup(),
    "DistributedOptimizer.load_state_dict": OwnGroup(),
}
