"""megatron-core: give each group of parameters its own learning rate back when a checkpoint is loaded.

https://github.com/NVIDIA/Megatron-LM/pull/4705
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, followed_by, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = """\
# unhang resume-mixed-lr: tell groups with these keys apart by settings, else by place
saved, keys = {saved}, param_group_identifier_keys
keys_of = lambda one: tuple(one.get(it, one.get(f"pre_{{it}}")) for it in keys)
alike = [one for one in saved if keys_of(one) == {key}]
if len(alike) > 1:
    before = {current}[: len({done})]
    own = {current}[len(before)]
    place = [keys_of(one) for one in before].count({key})
    names = {{*own}}.union(*alike) - {{"params", "lr", "weight_decay", "step"}}
    same = [one for one in alike if all(one.get(it) == own.get(it) for it in names)]
    {groups}[{key}] = dict([*same, *alike[place:], alike[-1]][0])
"""


class OwnGroup(Codemod):
    """Of the saved groups that share their keys, take the one with the settings of the current group.

    Before::

        def load(current_groups, saved_groups):
            for key in needed_groups:
                assert key in groups
                final_groups.append(groups[key])

    After::

        def load(current_groups, saved_groups):
            for key in needed_groups:
                assert key in groups
                # unhang resume-mixed-lr: tell groups with these keys apart by settings, else by place
                ...
                    groups[key] = dict([*same, *alike[place:], alike[-1]][0])
                final_groups.append(groups[key])
    """

    def plan(self, function: Function) -> list[Edit]:
        if self.fixed_upstream(function):
            raise AnchorError("groups that four keys alone tell apart")
        refuse_own(function, {"alike"})
        found = [(loop, it) for loop in function.body if isinstance(loop, ast.For) for it in ast.walk(loop)]
        read = [(loop, it) for loop, it in found if isinstance(it, ast.Subscript) and isinstance(it.ctx, ast.Load)]
        loop, group = once([(loop, it) for loop, it in read if isinstance(it.slice, ast.Name)], "groups[key] in a loop")
        appended = [it.value for it in ast.walk(loop) if isinstance(it, ast.Attribute) and it.attr == "append"]
        done = once(appended, "append(...) in a loop")
        names = {"groups": expression(group.value), "key": expression(group.slice), "done": expression(done)}
        if function.name == "load_state_dict":
            names |= {"current": expression(loop.iter), "saved": 'state_dict["optimizer"]["param_groups"]'}
        else:
            names |= zip(("current", "saved"), (it.arg for it in function.args.args))
        earlier = [it for it in loop.body if (it.end_lineno or 0) < group.lineno]
        row = once(earlier[-1:], "groups[key] after a statement of its loop")
        return [span(row, row, followed_by(_OWN.format_map(names)))]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"param_group_identifier_keys"})

    def fixed_upstream(self, function: Function) -> bool:
        """Return whether a group may lack a key, as with the more keys of upstream's own fix."""
        inner = [it for it in ast.walk(function) if isinstance(it, ast.FunctionDef) and it is not function]
        return any(isinstance(it, ast.Constant) and it.value is None for made in inner for it in ast.walk(made))


CODEMODS = {
    "MegatronOptimizer._filter_and_reorder_param_groups": OwnGroup(),
    "DistributedOptimizer.load_state_dict": OwnGroup(),
}
