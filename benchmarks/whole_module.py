"""Make unhang's edits with LibCST's own tool, which parses each file whole and writes it from its tree.

`python -m libcst.tool codemod -x whole_module.Fixes FILE...` runs it. It does less than `unhang apply`: it gives no
verdict, checks no result, and keeps no receipt to undo anything.
"""

from __future__ import annotations

import libcst as cst
from libcst.codemod import CodemodContext, VisitorBasedCodemodCommand
from libcst.metadata import PositionProvider

from unhang.codemods.edit import Edit
from unhang.judge.decide import codemod
from unhang.shapes import catalog, shape


class Fixes(VisitorBasedCodemodCommand):
    """Apply every fix that a function in the file needs."""

    DESCRIPTION = "Apply unhang's fixes."
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, context: CodemodContext) -> None:
        super().__init__(context)
        self._edits: list[Edit] = []

    def visit_Module(self, node: cst.Module) -> None:
        tree = shape.parse(node.bytes)
        for fix in catalog.fixes().values():
            for target in fix.targets:
                if str(self.context.filename).endswith(f"/{target.file}"):
                    for function in shape.find(tree, target.function):
                        key = target.fix, target.function, shape.digest(function)
                        if getattr(catalog.shape_table().shapes.get(key), "state", "") == "affected":
                            self._edits += codemod(target).plan(function)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        lines = [self.get_metadata(PositionProvider, node).start.line for node in original_node.body]
        body = list(updated_node.body)
        for edit in sorted(self._edits, key=lambda edit: edit.first, reverse=True):
            inside = [index for index, line in enumerate(lines) if edit.first <= line <= edit.last]
            if inside and lines[inside[0]] == edit.first:
                body[inside[0] : inside[-1] + 1] = edit.change(body[inside[0] : inside[-1] + 1])
        return updated_node.with_changes(body=body)
