"""0.17 and dev: with ``args.sft``, the arms of the last and the middle stages broadcast the metadata too."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from unhang.codemods.base import AnchorError, assigned, expression, matches, mentioned, once, span
from unhang.codemods.edit import Edit
from unhang.codemods.sft_packed_seq_broadcast.halves import NO_MAX_SEQLEN, Half, buffer

if TYPE_CHECKING:
    import libcst as cst

    from unhang.codemods.edit import Statements

_COMMENT = "# unhang sft-packed-seq-broadcast: this stage attends over packed sequences too\n"
_DROP_BATCH = "batch['cu_seqlens'] = None\nbatch['max_seqlen'] = None\n"


def plan(sender: Half, receiver: Half) -> list[Edit]:
    """Return the edits. Raises AnchorError."""
    buffer(receiver)
    return [
        _edit(sender, last="", middle=_DROP_BATCH, nothing="", mask="_broadcast(batch['attention_mask'])\n"),
        _edit(receiver, NO_MAX_SEQLEN, NO_MAX_SEQLEN, _nothing_else(receiver), "_broadcast(attention_mask)\n"),
    ]


def _edit(half: Half, last: str, middle: str, nothing: str, mask: str) -> Edit:
    """Return the edit of one half.

    ``last`` and ``middle`` are statements of these arms that are to run without ``args.sft`` only. A new arm of the
    middle stages begins with ``nothing``; it replaces that of pull request 4150, which broadcasts the ``mask`` too.
    """
    if "_broadcast_cu_seqlens" in mentioned(*half.arms[2]):
        raise AnchorError("an arm of the last stage without the packed-sequence metadata")
    _check_each(half.arms[2], last)
    in_place = half.arms[3] if len(half.arms) > 3 else []
    events = [node for node in in_place if "_broadcast" in expression(node)]
    extends = bool(in_place) and not matches(events, mask + half.metadata)
    if extends:
        _check_each(in_place, middle)

    def gated(arm: cst.BaseSuite, otherwise: str, dropped: str) -> cst.BaseSuite:
        """Return an arm with the broadcasts at its end, if ``args.sft``, and without what it has no more."""
        from unhang.codemods import splice

        ours = f"if args.sft:\n{_indented(half.metadata)}" + (otherwise and f"else:\n{_indented(otherwise)}")
        kept = splice.without(splice.body_of(arm), half.spelled(dropped))
        return splice.block([*kept, *splice.suite(_COMMENT + half.spelled(ours))], arm)

    def change(nodes: Statements) -> Statements:
        import libcst as cst

        from unhang.codemods import splice

        chain = cst.ensure_type(nodes[0], cst.If)
        arm = cst.ensure_type(cst.ensure_type(chain.orelse, cst.If).orelse, cst.If)
        # only the pull request sets local_cp_size to None on the last stage
        body = gated(arm.body, last, f"{last}local_cp_size = None\n")
        if extends:
            other = cst.ensure_type(arm.orelse, cst.Else)
            orelse: cst.If | cst.Else = other.with_changes(body=gated(other.body, middle, middle))
        else:
            orelse = splice.elif_(half.spelled("args.sft"), _COMMENT + half.spelled(nothing + half.metadata))
        return [cst.ensure_type(chain.with_deep_changes(arm, body=body, orelse=orelse), cst.If)]

    return span(half.chain, half.chain, change)


def _indented(template: str) -> str:
    return "".join(f"    {line}\n" for line in template.splitlines())


def _check_each(arm: list[ast.stmt], template: str) -> None:
    for line in template.splitlines():
        once([node for node in arm if matches([node], line)], line)


def _nothing_else(receiver: Half) -> str:
    """Return statements that set to None all that the receiver returns, except the metadata."""
    made = [found for found in map(assigned, receiver.after()) if found and isinstance(found[1], ast.Dict)]
    batch = once([value for name, value in made if name == "batch"], "batch = {...}")
    names = [node.id for node in ast.walk(batch) if isinstance(node, ast.Name)]
    return "".join(f"{name} = None\n" for name in names if name not in ("cu_seqlens", "max_seqlen")) + "\n"
