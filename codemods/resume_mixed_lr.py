"""megatron-core: give each group of parameters its own learning rate back when a checkpoint is loaded.

https://github.com/NVIDIA/Megatron-LM/pull/4705
"""

from __future__ import annotations

import ast

from unhang.codemods.base import AnchorError, Codemod, expression, followed_by, once, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_OWN = """\
# unhang resume-mixed-lr: take the saved group most like this; of equals, by place
saved = {saved}
current, index = {current}, len({done})
own = current[index]
flag = any(one.get("is_decoupled_lr") for one in current)  # none has it from 0.16 on
keys = [it for it in param_group_identifier_keys if flag or it != "is_decoupled_lr"]
keys_of = lambda one: [one.get(it, one.get(f"pre_{{it}}")) for it in keys]
alike = [one for one in saved if keys_of(one) == keys_of(own)]
place = [keys_of(one) for one in current[:index]].count(keys_of(own))
names = own.keys() - {{"params", "lr", "weight_decay", "step", "is_decoupled_lr"}}
near = lambda one: sum(one.get(it) == own.get(it) for it in names)
{groups}[{key}] = dict(max(alike[place:] + alike[:place], key=near))
"""


class OwnGroup(Codemod):
    """Of the saved groups that share their keys, take the one with most settings of the current group.

    Before::

        def load(current_groups, saved_groups):
            for key in needed_groups:
                assert key in groups
                final_groups.append(groups[key])

    After::

        def load(current_groups, saved_groups):
            for key in needed_groups:
                assert key in groups
                # unhang resume-mixed-lr: take the saved group most like this; of equals, by place
                ...
                groups[key] = dict(max(alike[place:] + alike[:place], key=near))
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
            given = [it.arg for it in function.args.args]
            if len(given) != 2:
                raise AnchorError("two parameters, the current and the saved groups")
            names |= {"current": given[0], "saved": given[1]}
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
