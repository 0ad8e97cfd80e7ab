"""megatron-core: give each group of parameters its own learning rate back when a checkpoint is loaded.

https://github.com/NVIDIA/Megatron-LM/pull/4705
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, before, refuse_own
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = """\
# unhang resume-mixed-lr: several may have these keys: go by all that a step leaves, or by place
alike = [one for one in {saved} if {keys} == {key}]
if len(alike) > 1:
    own, place = {own}, {before}.count({key})
    names = {{name for one in (own, *alike) for name in one}}
    names -= {{"params", "lr", "weight_decay", "step"}}
    same = [one for one in alike if all(one.get(name) == own.get(name) for name in names)]
    {found}[{key}] = dict((same or alike[place:] or alike[-1:])[0])
"""
_KEYS = "param_group_identifier_keys"
_FILTER = "group = loaded_groups_map[key]", {
    "saved": "state_dict_groups",
    "keys": f'tuple(\n    one.get(name, one.get(f"pre_{{name}}")) for name in {_KEYS}\n)',
    "key": "key",
    "own": "current_groups[len(final_groups)]",
    "before": "needed_groups[: len(final_groups)]",
    "found": "loaded_groups_map",
}
_LOAD = "state_dict_param_groups.append({**param_groups_map[needed_groups], 'params': inner_param_group['params']})", {
    "saved": 'state_dict["optimizer"]["param_groups"]',
    "keys": "make_needed_groups(one)",
    "key": "needed_groups",
    "own": "inner_param_group",
    "before": "[*map(make_needed_groups, state_dict_param_groups)]",
    "found": "param_groups_map",
}


class OwnGroup(Codemod):
    """Of the saved groups that share their keys, take the one with the settings of the current group.

    Before::

        def load(current_groups, state_dict_groups, loaded_groups_map):
            for key in needed_groups:
                group = loaded_groups_map[key]
                final_groups.append(group)

    After::

        def load(current_groups, state_dict_groups, loaded_groups_map):
            for key in needed_groups:
                # unhang resume-mixed-lr: several may have these keys: go by all that a step leaves, or by place
                ...
                    loaded_groups_map[key] = dict((same or alike[place:] or alike[-1:])[0])

                group = loaded_groups_map[key]
                final_groups.append(group)
    """

    def plan(self, function: Function) -> list[Edit]:
        if self.fixed_upstream(function):
            raise AnchorError("groups that four keys alone tell apart")
        refuse_own(function, {"alike"})
        anchor, names = _LOAD if function.name == "load_state_dict" else _FILTER
        return [before(function, anchor, _OWN.format(**names))]

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
