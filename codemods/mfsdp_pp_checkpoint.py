"""Megatron-FSDP checkpoints: name a layer by its place in the whole model, not by that in its pipeline stage.

https://github.com/NVIDIA/Megatron-LM/issues/7452 (finding 12)
"""

from __future__ import annotations

from unhang.codemods.base import AnchorError, Codemod, calls, once, operand, preceded_by, refuse_own, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_LAST, _OURS = "preprocess_state_dict_for_uneven_dtensor", "in_whole_model"
_RENAMED = """\
# unhang mfsdp-pp-checkpoint: a layer's name counts the layers of earlier stages, too
def in_whole_model(named):
    earlier, renamed = {}, {}
    for name, layer in model.named_modules():
        path, layers, place = name.replace("module.", "").partition("layers.")
        if place.isdigit() and isinstance(getattr(layer, "layer_number", None), int):
            earlier.setdefault(path, {})[place] = layer.layer_number - 1 - int(place)
    for name, it in named.items():
        path, layers, rest = str(name).partition("layers.")
        place, dot, rest = rest.partition(".")
        counts = earlier.get(path.replace("module.", ""), {place: 0})
        if place not in counts:  # somebody has renamed them
            return named
        if len({*counts.values()}) == 1 and counts[place] > 0:  # or the numbers say otherwise
            name = f"{path}{layers}{int(place) + counts[place]}{dot}{rest}"
        renamed[name] = it
    return renamed

STATE["model"] = in_whole_model(STATE["model"])
if isinstance(STATE.get("optimizer"), dict):
    STATE["optimizer"] = STATE["optimizer"] | {
        part: in_whole_model(STATE["optimizer"][part])
        for part in {"state", "param_to_group_meta"} & STATE["optimizer"].keys()
    }
"""


class Preprocess(Codemod):
    """Rename the layers of a stage, of the model and of the optimizer, once all else has looked them up.

    Before::

        def preprocess(args, state_dict, model):
            preprocess_state_dict_for_uneven_dtensor(state_dict)

    After::

        def preprocess(args, state_dict, model):
            ...

            state_dict["model"] = in_whole_model(state_dict["model"])
            ...

            preprocess_state_dict_for_uneven_dtensor(state_dict)
    """

    def plan(self, function: Function) -> list[Edit]:
        refuse_own(function, [_OURS])
        last = once(calls(function, _LAST), f"{_LAST}(...)")
        statement = once([it for it in function.body if getattr(it, "value", None) is last], f"{_LAST}(...) alone")
        if len(last.args) != 1 or "model" not in {it.arg for it in function.args.args}:
            raise AnchorError(f"{_LAST}(state_dict), with model")
        return [span(statement, statement, preceded_by(_RENAMED.replace("STATE", operand(last.args[0], _LAST))))]


CODEMODS = {name: Preprocess() for name in ("preprocess_fsdp_dtensor_state_dict", "_preprocess_state_dict")}
