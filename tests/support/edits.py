"""Edits of real functions: some change nothing that matters, some break the cure, some break what worked."""

import ast
import copy
import textwrap
from collections.abc import Callable, Mapping, Sequence

from support.sources import Source
from unhang.shapes.shape import Function

Edit = Callable[[Function], None]


def code(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def edited(source: Source, edit: Edit) -> bytes | None:
    """The source with its function edited, which loses its comments; None if the edit changes nothing."""
    function = copy.deepcopy(source.function)
    edit(function)
    if ast.dump(function) == ast.dump(source.function):
        return None
    rows, old = source.data.decode().split("\n"), source.function
    first = min(node.lineno for node in (old, *old.decorator_list)) - 1
    margin = rows[first][: len(rows[first]) - len(rows[first].lstrip())]
    new = textwrap.indent(ast.unparse(ast.fix_missing_locations(function)), margin)
    return "\n".join([*rows[:first], new, *rows[old.end_lineno :]]).encode()


def replaced(source: Source, old: str, new: str) -> bytes | None:
    """The source with this text of its function replaced, wherever it stands; None if it does not."""
    rows = source.data.decode().split("\n")
    first, last = source.function.lineno - 1, source.function.end_lineno
    text = "\n".join(rows[first:last])
    return "\n".join([*rows[:first], text.replace(old, new), *rows[last:]]).encode() if old in text else None


def _first(function: Function) -> int:
    return int(ast.get_docstring(function) is not None)


def _wrapped(text: str) -> Edit:
    def wraps(function: Function) -> None:
        (block,) = code(text)
        start = _first(function)
        block.body, function.body[start:] = function.body[start:], [block]  # type: ignore[attr-defined]

    return wraps


def _begun(text: str) -> Edit:
    def begins(function: Function) -> None:
        function.body[_first(function) : _first(function)] = code(text)

    return begins


def _renames(which: int) -> Edit:
    """Rename the first or the last local variable."""

    def renames(function: Function) -> None:
        taken = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        for node in ast.walk(function):
            taken |= {*node.names} if isinstance(node, (ast.Global, ast.Nonlocal)) else set()
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id not in taken]
        stored = [node.id for node in names if isinstance(node.ctx, ast.Store)]
        old = stored[which] if stored else ""
        for name in names:
            if name.id == old:
                name.id = f"{old}_here"

    return renames


def negates_twice(function: Function) -> None:
    test = next((node for node in ast.walk(function) if isinstance(node, ast.If)), None)
    if test is not None:
        test.test = ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), test.test))


def swaps_the_arms(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.If) and node.orelse and not isinstance(node.orelse[0], ast.If):
            node.test, node.body, node.orelse = ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body
            return


class _Names(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> list[ast.stmt] | ast.stmt:
        if node.value is None or isinstance(node.value, ast.Constant):
            return node
        given = ast.Assign([ast.Name("given_back", ast.Store())], node.value)
        return [given, ast.Return(ast.Name("given_back", ast.Load()))]


def names_what_it_returns(function: Function) -> None:
    _Names().generic_visit(function)


HARMLESS: Mapping[str, Edit] = {
    "prints": _begun("print('here')"),
    "names what nothing reads": _begun("unused = 1"),
    "logs": _begun("import logging\nlogging.getLogger('here').info('here')"),
    "ends in finally": _wrapped("try:\n    pass\nfinally:\n    pass"),
    "raises again": _wrapped("try:\n    pass\nexcept RuntimeError:\n    raise"),
    "negates a condition twice": negates_twice,
    "swaps the arms of a condition": swaps_the_arms,
    "names what it returns": names_what_it_returns,
    "renames its first variable": _renames(0),
    "renames its last variable": _renames(-1),
}


# -- what breaks any function, or does so in most ------------------------------------------------------------------


def returns_at_once(function: Function) -> None:
    function.body[:0] = code("return None")


def returns_on_most_ranks(function: Function) -> None:
    function.body[:0] = code("if int(__import__('os').environ.get('RANK', 0)) > 0:\n    return None")


def forgets_its_last_argument(function: Function) -> None:
    args = function.args
    function.body[:0] = code(f"{[*args.args, *args.kwonlyargs][-1].arg} = None")


def forgets_its_first_argument(function: Function) -> None:
    function.body[:0] = code(f"{function.args.args[0].arg} = None")


def fails_in_silence(function: Function) -> None:
    (attempt,) = code("try:\n    pass\nexcept Exception:\n    pass")
    assert isinstance(attempt, ast.Try)
    attempt.body, function.body = function.body, [attempt]


def runs_on_the_first_rank_alone(function: Function) -> None:
    (gate,) = code("if torch.distributed.get_rank() == 0:\n    pass")
    assert isinstance(gate, ast.If)
    gate.body, function.body = function.body, [gate]


def runs_twice(function: Function) -> None:
    function.body += copy.deepcopy(function.body)


def loses_its_end(function: Function) -> None:
    function.body[-1:] = code("pass")


def turns_each_condition(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.IfExp)):
            node.test = ast.UnaryOp(ast.Not(), node.test)


def skips_the_first_of_each_loop(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.comprehension)):
            node.iter = ast.Subscript(ast.Call(ast.Name("list"), [node.iter], []), ast.Slice(ast.Constant(1)))


def drops_each_last_keyword(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.keywords:
            del node.keywords[-1]


def casts_what_it_assigns(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            node.value = ast.Call(ast.Name("cast"), [node.value], [])


def returns_nothing(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = ast.Constant(None)


def counts_from_one(function: Function) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value += 1


BREAKING: Sequence[Edit] = (
    returns_at_once,
    returns_on_most_ranks,
    forgets_its_last_argument,
    forgets_its_first_argument,
    fails_in_silence,
    runs_on_the_first_rank_alone,
    runs_twice,
    loses_its_end,
    turns_each_condition,
    skips_the_first_of_each_loop,
    drops_each_last_keyword,
    casts_what_it_assigns,
    returns_nothing,
    counts_from_one,
)


# -- what undoes a fix and deceives a short check: audit V1 ---------------------------------------------------------


def each_rank_counts_alone(function: Function) -> None:
    """The group is given, and not used."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "prepare_dynamic_batch":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "dp_group"]
            node.keywords += [
                ast.keyword("dp_group", code("torch.distributed.group.WORLD")[0].value),  # type: ignore[attr-defined]
                ast.keyword("same_micro_num_in_dp", ast.Constant(False)),
            ]


def leaves_above_the_gate(function: Function) -> None:
    at = next(at for at, node in enumerate(function.body) if "get_megatron_mtp_loss" in ast.unparse(node))
    function.body[at:at] = code("if not self.is_mp_src_rank_with_outputs():\n    return {}")


def casts_after_the_tensor(function: Function) -> None:
    block, at = after(function, "torch.tensor(")
    name = ast.unparse(block[at - 1]).partition(" = ")[0]
    block[at:at] = code(f"{name} = {name}.to(torch.float64)")


def filters_after_the_sort(function: Function) -> None:
    block, at = after(function, "sorted(")
    name = ast.unparse(block[at - 1]).partition(" = ")[0]
    block[at:at] = code(f"{name} = [item for item in {name} if item[1].is_cuda]")


def forgets_the_layers(function: Function) -> None:
    function.body[-1:-1] = code("mtp_num_layers = None")


def after(function: Function, call: str) -> tuple[list[ast.stmt], int]:
    """The block with the only assignment that has this call, and the place after it."""
    blocks = [getattr(node, name, None) for node in ast.walk(function) for name in ("body", "orelse")]
    ((block, at),) = [
        (block, at + 1)
        for block in blocks
        if isinstance(block, list)
        for at, node in enumerate(block)
        if isinstance(node, ast.Assign) and call in ast.unparse(node.value)
    ]
    return block, at


UNDOING = {
    "fsdp-dynamic-bsz": each_rank_counts_alone,
    "mtp-cp-deadlock": leaves_above_the_gate,
    "mean-metric-dtype": casts_after_the_tensor,
    "fsdp2-buffer-order": filters_after_the_sort,
    "moe-aux-tracker-hang": forgets_the_layers,
}
