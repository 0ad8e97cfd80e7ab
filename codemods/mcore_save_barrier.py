"""ms-swift: load the model that is saved with the barriers of the loader off, because the master alone loads it.

https://github.com/modelscope/ms-swift/pull/9171, whose import is at the top of the file. Ours is where it is used.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, Codemod, argument, bound, calls, expression, holder, once, span
from unhang.codemods.edit import Edit
from unhang.shapes.shape import Function

if TYPE_CHECKING:
    from unhang.codemods.edit import Statements

_OFF = "disable_safe_ddp_context_use_barrier"


class PatchMcoreBridge(Codemod):
    """Add ms-swift's own switch to the `with` around the call that loads the model.

    Before::

        def save_weights(self, args):
            if is_master():
                with torch.device('meta'):
                    self.model = get_model_processor(args.model, return_dummy_model=True)[0]

    After::

        def save_weights(self, args):
            if is_master():
                # unhang mcore-save-barrier: the master alone loads here, so the loader must not wait for others
                from swift.utils import disable_safe_ddp_context_use_barrier
                with torch.device('meta'), disable_safe_ddp_context_use_barrier():
                    self.model = get_model_processor(args.model, return_dummy_model=True)[0]
    """

    def plan(self, function: Function) -> list[Edit]:
        block = _around(function)
        if _is_off(block):
            raise AnchorError(f"a with statement without {_OFF}")
        return [span(block, block, _off)]

    def names(self, function: Function) -> frozenset[str]:
        return frozenset({"get_model_processor", "torch"})

    def fixed_upstream(self, function: Function) -> bool:
        return _is_off(_around(function)) and _OFF not in bound(function)


def _around(function: Function) -> ast.With:
    """Return the innermost with statement around the call that loads a model without weights."""
    loads = [call for call in calls(function, "get_model_processor") if argument(call, "return_dummy_model")]
    load = once(loads, "get_model_processor(..., return_dummy_model=...)")
    found = [node for node in ast.walk(function) if isinstance(node, ast.With) and holder(node.body, load)]
    return once(found[-1:], "a with statement around get_model_processor")  # ast.walk goes from the outside in


def _is_off(block: ast.With) -> bool:
    return f"{_OFF}()" in [expression(item.context_expr) for item in block.items]


def _off(nodes: Statements) -> Statements:
    import libcst as cst

    from unhang.codemods import splice

    comment = "# unhang mcore-save-barrier: the master alone loads here, so the loader must not wait for others"
    block = cst.ensure_type(nodes[0], cst.With)
    own = splice.suite(f"{comment}\nfrom swift.utils import {_OFF}\n")
    return [*own, block.with_changes(items=[*block.items, cst.WithItem(cst.parse_expression(f"{_OFF}()"))])]


CODEMODS = {"_patch_mcore_bridge": PatchMcoreBridge()}
