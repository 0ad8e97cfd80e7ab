"""verl: under FSDP2, read merged LoRA weights before the base weights come back.

https://github.com/verl-project/verl/pull/7014 returns early for that, and so skips the quantizer of QAT. It changes
FSDP1 too, whose state dict holds copies; here FSDP1 stays as it is.
"""

from __future__ import annotations

import ast

from unhang.codemods.base import (
    AnchorError,
    Codemod,
    assigned,
    calls,
    expression,
    followed_by,
    guarded_by,
    holder,
    inside,
    mentioned,
    once,
    replaced_by,
    span,
)
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

_CONTEXT, _NORMALIZED, _CONVERTED = "merged_lora_context", "normalize_peft_param_name", "convert_weight_keys"
_OFFLOAD, _UPSTREAMS = "offload_fsdp_model_to_cpu", "_merged_lora_per_tensor_param"
_LATE, _ABOVE = "is_read_late", "# unhang merged-lora-stale-sync: as above"
_READER = """\

# unhang merged-lora-stale-sync: FSDP2 gives the weights themselves, so read them before the context ends
def merged_weights():
    try:
        with {context}:
            merged = normalize_peft_param_name({module}.state_dict())
            merged = convert_weight_keys(merged, {model})
            for key, weight in merged.items():
                yield key, weight.detach().clone()
    finally:
        if {offloads}:
            {offload}

is_read_late = False
"""
_CHOICE = f"""\
{_ABOVE}
{_LATE} = fsdp_version({{module}}) == 2
{{params}} = {{{{}}}}
if not {_LATE}:
    pass
"""


class GetPerTensorParam(Codemod):
    """Collect the merged weights of FSDP2 when they are read, with the context open until all are; offload then.

    Each is copied before it is converted: of a single rank's weight, the whole tensor may be the weight itself.

    Before::

        def get_per_tensor_param(self):
            model = self.model
            if self.merges:
                with merged_lora_context(self.module):
                    params = self.module.state_dict()
                    params = normalize_peft_param_name(params)
            else:
                params = self.module.state_dict()
            params = convert_weight_keys(params, model)
            if self.offloads:
                offload_fsdp_model_to_cpu(self.module)
            read = ((name, it.full_tensor()) for name, it in params.items())
            return read

    After::

        def get_per_tensor_param(self):
            model = self.model

            # unhang merged-lora-stale-sync: FSDP2 gives the weights themselves, so read them before the context ends
            def merged_weights():
                try:
                    with merged_lora_context(self.module):
                        merged = normalize_peft_param_name(self.module.state_dict())
                        merged = convert_weight_keys(merged, model)
                        for key, weight in merged.items():
                            yield key, weight.detach().clone()
                finally:
                    if self.offloads:
                        offload_fsdp_model_to_cpu(self.module)

            is_read_late = False
            if self.merges:
                # unhang merged-lora-stale-sync: as above
                is_read_late = fsdp_version(self.module) == 2
                params = {}
                if not is_read_late:
                    with merged_lora_context(self.module):
                        params = self.module.state_dict()
                        params = normalize_peft_param_name(params)
            else:
                params = self.module.state_dict()
            params = convert_weight_keys(params, model)
            # unhang merged-lora-stale-sync: as above
            if self.offloads and not is_read_late:
                offload_fsdp_model_to_cpu(self.module)
            # unhang merged-lora-stale-sync: as above
            read = ((name, it.full_tensor()) for name, it in (merged_weights() if is_read_late else params.items()))
            return read
    """

    def plan(self, function: Function) -> list[Edit]:
        walked = [*ast.walk(function)]
        converted, offload = (once(calls(function, name), f"{name}(...)") for name in (_CONVERTED, _OFFLOAD))
        context = once(calls(function, _CONTEXT), f"{_CONTEXT}(...)")
        blocks = [it for it in walked if isinstance(it, ast.With) and it.items[0].context_expr is context]
        choices = [it for it in walked if isinstance(it, ast.If) and holder(it.body, offload)]
        block, choice = once(blocks, f"with {_CONTEXT}(...)"), once(choices[-1:], f"if ...: {_OFFLOAD}(...)")
        module, params = _collected(block)
        if len(converted.args) != 2 or expression(converted.args[0]) != params:
            raise AnchorError(f"{_CONVERTED}({params}, ...)")
        read = [it.generators[0].iter for it in walked if isinstance(it, ast.GeneratorExp)]
        items = once([it for it in read if expression(it) == f"{params}.items()"], f"(... for ... in {params}.items())")
        reader = _READER.format(
            context=expression(context),
            module=module,
            model=expression(converted.args[1]),
            offloads=expression(choice.test),
            offload=expression(offload),
        )
        above = _above(function, block)
        return [
            span(above, above, followed_by(reader)),
            span(block, block, inside(_CHOICE.format(module=module, params=params))),
            guarded_by(function, choice.test, f"not {_LATE}", _ABOVE),
            replaced_by(function, items, f"(merged_weights() if {_LATE} else {params}.items())", _ABOVE),
        ]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({_CONTEXT, _NORMALIZED, _CONVERTED, _OFFLOAD, "fsdp_version"})

    def fixed_upstream(self, function: Function) -> bool:
        return _UPSTREAMS in mentioned(function) and _CONTEXT not in mentioned(function)


def _collected(block: ast.With) -> tuple[str, str]:
    """Return the module whose weights a block collects and normalizes, and their name. It must do nothing else."""
    rows = [row for row in map(assigned, block.body) if row]
    state = once(
        [it for it in ast.walk(block) if isinstance(it, ast.Attribute) and it.attr == "state_dict"], "state_dict"
    )
    module, params = expression(state.value), rows[-1][0] if rows else ""
    wanted = [(params, f"{module}.state_dict()"), (params, f"{_NORMALIZED}({params})")]
    if [(name, expression(value)) for name, value in rows] != wanted:
        raise AnchorError("; ".join(f"{name} = {value}" for name, value in wanted))
    return module, params


def _above(function: Function, block: ast.With) -> ast.stmt:
    """Return the statement of the function above the one with the block."""
    place = next(at for at, row in enumerate(function.body) if holder([row], block))
    if not place:
        raise AnchorError(f"a statement above with {_CONTEXT}")
    return function.body[place - 1]


CODEMODS = {"FSDPEngine.get_per_tensor_param": GetPerTensorParam()}
