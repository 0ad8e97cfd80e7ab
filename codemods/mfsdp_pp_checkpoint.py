"""Megatron-FSDP checkpoints: name a layer by its place in the whole model, not by that in its pipeline stage.

https://github.com/NVIDIA/Megatron-LM/issues/7452 (finding 12)
"""

from __future__ import annotations

from unhang.codemods.base import AnchorError, Codemod, calls, holder, once, operand, preceded_by, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_LAST, _OURS = "preprocess_state_dict_for_uneven_dtensor", "in_whole_model"
_RENAMED = """\
# unhang mfsdp-pp-checkpoint: a layer's name counts the layers of earlier stages, too
earlier = {}
for name, layer in model.named_modules():
    path, _, place = name.replace("module.", "").partition("layers.")
    if place.isdigit() and isinstance(getattr(layer, "layer_number", None), int):
        earlier.setdefault(path, set()).add(layer.layer_number - 1 - int(place))

def in_whole_model(name):
    path, layers, rest = name.partition("layers.")
    place, dot, rest = rest.partition(".")
    count, *others = earlier.get(path.replace("module.", ""), [0])
    if place.isdigit() and count > 0 and not others:  # or its numbers say something else
        place = int(place) + count
    return f"{path}{layers}{place}{dot}{rest}"

STATE["model"] = {in_whole_model(name): it for name, it in STATE["model"].items()}
if "optimizer" in STATE:
    optimizer = STATE["optimizer"] = STATE["optimizer"].copy()
    for part in {"state", "param_to_group_meta"} & optimizer.keys():
        optimizer[part] = {in_whole_model(name): it for name, it in optimizer[part].items()}
"""


class Preprocess(Codemod):
    """Rename the layers of a stage, of the model and of the optimizer, once all else has looked them up.

    Before::

        def preprocess(args, raw_state_dict, model):
            state_dict = raw_state_dict.copy()
            preprocess_state_dict_for_uneven_dtensor(state_dict)

    After::

        def preprocess(args, raw_state_dict, model):
            state_dict = raw_state_dict.copy()
            ...
            state_dict["model"] = {in_whole_model(name): it for name, it in state_dict["model"].items()}
            ...

            preprocess_state_dict_for_uneven_dtensor(state_dict)
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_OURS])
        last = once(calls(function, _LAST), f"{_LAST}(...)")
        statement = holder(function.body, last)
        if statement is None or len(last.args) != 1 or "model" not in {it.arg for it in function.args.args}:
            raise AnchorError(f"{_LAST}(state_dict), with model")
        state = operand(last.args[0], f"{_LAST}(state_dict)")
        return [span(statement, statement, preceded_by(_RENAMED.replace("STATE", state)))]


CODEMODS = {name: Preprocess() for name in ("preprocess_fsdp_dtensor_state_dict", "_preprocess_state_dict")}
