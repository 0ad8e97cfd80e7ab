"""What both rewrites share: the two halves of the function, their arms, and how each half broadcasts the metadata."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from unhang.codemods.base import AnchorError, assigned, expression, matches, once
from unhang.shapes.shape import Function

RANK = "mpu.get_tensor_model_parallel_rank() == 0"
WHOLE = "args.pipeline_model_parallel_size == 1 or mtp_on_this_rank"
ARMS = (WHOLE, "mpu.is_pipeline_first_stage()", "mpu.is_pipeline_last_stage()")
SENT = "_broadcast_cu_seqlens(batch['cu_seqlens'])\n_broadcast(batch['max_seqlen'])\n"
RECEIVED = "cu_seqlens = _broadcast_cu_seqlens()\n_broadcast(max_seqlen)\n"
NO_MAX_SEQLEN = "max_seqlen = None\n"


class Half(NamedTuple):
    """The sending (TP rank 0) or the receiving half of the function."""

    body: list[ast.stmt]
    chain: ast.If
    """The ``if`` whose arms serve the pipeline stages."""
    arms: list[list[ast.stmt]]
    """Of the whole batch, the first stage, the last stage, and, in some shapes, the middle stages."""
    metadata: str
    """The two statements by which this half broadcasts the packed-sequence metadata."""
    names: Mapping[str, str] = {}
    """What the function itself calls the variables that go by another name here."""

    def spelled(self, template: str) -> str:
        """Return a template with the names of the function itself."""
        return re.sub(r"(?<!['\w])[a-z_]+(?!['\w])", lambda found: self.names.get(found[0], found[0]), template)

    def after(self) -> list[ast.stmt]:
        return self.body[self.body.index(self.chain) + 1 :]


def named_as_here(function: Function) -> tuple[Function, Mapping[str, str]]:
    """Return the function with the names that the templates have, and what it calls those itself.

    Only what the two halves share is renamed: the arguments of the job, the batch, and its packed-sequence metadata.
    Raises AnchorError if the function has another variable of such a name.
    """
    own: dict[str, str] = {}
    for name, value in filter(None, map(assigned, ast.walk(function))):
        if expression(value) == "get_args()":
            own.setdefault("args", name)
        elif isinstance(value, ast.Dict):
            entries = {expression(key): entry for key, entry in zip(value.keys, value.values) if key is not None}
            for key in ("cu_seqlens", "max_seqlen"):
                entry = entries.get(repr(key))
                if entry is not None:
                    own.setdefault("batch", name)
                if isinstance(entry, ast.Name):
                    own.setdefault(key, entry.id)
    names = {here: name for here, name in own.items() if here != name}
    if not names:
        return function, names
    for name in sorted(names.keys() & _outside_of_helpers(function.body)):
        raise AnchorError(f"{names[name]} alone, without {name}")
    copy, here = deepcopy(function), {name: here for here, name in names.items()}
    for node in ast.walk(copy):
        if isinstance(node, ast.Name):
            node.id = here.get(node.id, node.id)
    return copy, names


def _outside_of_helpers(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of variables in these nodes, but not those of nested functions."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif not isinstance(node, ast.FunctionDef):
            found |= _outside_of_helpers(ast.iter_child_nodes(node))
    return found


def halves(function: Function, rank: str = RANK, arms: Sequence[str] = ARMS) -> tuple[Half, Half]:
    """Return the two halves. Raises AnchorError unless each of them, and its chain of arms, occurs once."""
    split = once(_ifs(function.body, rank), f"if {rank}")
    return _half(split.body, arms, SENT), _half(split.orelse, arms, RECEIVED)


def _half(body: list[ast.stmt], wanted: Sequence[str], metadata: str) -> Half:
    chain = once(_ifs(body, wanted[0]), f"if {wanted[0]}")
    rest: list[ast.stmt] = [chain]
    tests, arms = [], []
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        tests.append(expression(rest[0].test))
        arms.append(rest[0].body)
        rest = rest[0].orelse
    if tests != [*wanted]:  # our rewrite may have one more
        raise AnchorError(f"{' / '.join(wanted)}, and no other arm but else")
    return Half(body, chain, [*arms, rest] if rest else arms, metadata)


def _ifs(nodes: list[ast.stmt], test: str) -> list[ast.If]:
    return [node for node in nodes if isinstance(node, ast.If) and expression(node.test) == test]


def listed(nodes: list[ast.stmt], template: str) -> list[ast.stmt]:
    """Return the statements that are those of a template, in order, with any others between them.

    Raises AnchorError unless each occurs once.
    """
    found = [once([node for node in nodes if matches([node], line)], line) for line in template.splitlines()]
    if found != sorted(found, key=nodes.index):
        raise AnchorError(template)
    return found


def places(nodes: list[ast.stmt], template: str) -> list[list[ast.stmt]]:
    """Return the statements, next to each other, that are those of a template, for each place that has them."""
    size = template.count("\n")
    found = (nodes[start : start + size] for start in range(len(nodes)))
    return [some for some in found if matches(some, template)]


def buffer(receiver: Half) -> ast.If:
    """Return the ``if`` that makes the receiver's buffer for ``max_seqlen``."""
    ifs = [node for node in receiver.body if isinstance(node, ast.If) and "args.sft" in expression(node.test)]
    made = [node for node in ifs if any(matches([other], NO_MAX_SEQLEN) for other in node.orelse)]
    return once(made, "if args.sft: max_seqlen = ...")
