"""What a diff does to a file, name by name: the edits of a fix that is unproved, and the changes that they leave. Pure.

Each edit is tried: applied one after the other to the file as it was, they bind every name as the diff does.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from unhang.codemods import exact
from unhang.codemods.base import AnchorError, bound
from unhang.codemods.exact import ADDED, AFTER, BEFORE, HEADER, IMPORT, REPLACED, WRAPPED, Exact, Swap
from unhang.draft import around, left_over, places, replacements, whole
from unhang.draft.patch import Patched
from unhang.draft.replacements import INSTEAD, Source
from unhang.rewrite import one_file
from unhang.rewrite.one_file import RewriteError
from unhang.shapes import binding, shape
from unhang.shapes.catalog import Target
from unhang.shapes.outline import header

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Bound(NamedTuple):
    """A name that the diff binds in another way."""

    target: Target
    before: str
    """Its shape in the release."""
    after: str
    swaps: tuple[Swap, ...]
    uses: tuple[str, ...]
    """The global names that the new text uses, and the file binds."""

    @property
    def codemod(self) -> Exact:
        """The edits, as a codemod."""
        return Exact(*self.swaps, uses=self.uses)


class Part(NamedTuple):
    """What becomes of one file's changes."""

    bound: tuple[Bound, ...]
    """In the order in which they are applied."""
    left: Mapping[str, str]
    """The hunks that are left to a person, each with the reason."""
    ignored: tuple[str, ...]
    """The hunks that change nothing but comments, docstrings and blank lines."""


def part(fix: str, upstream: str, patched: Patched) -> Part:
    """Return what becomes of a file's changes. Raises UnhangError ``bad-patch`` if it does not parse."""
    before, after = places.file_of(patched.before), places.file_of(patched.after)
    why: dict[str, str] = {}
    found: list[Bound] = []
    names = list(_differing(before.tree, after.tree, ""))
    data = patched.before.encode(patched.encoding)
    wanted = {name: _target(fix, upstream, patched.file, name, before, after) for name in names}
    for name, target in sorted(wanted.items(), key=lambda it: _order(after.tree, it[1])):
        try:
            swaps = _swaps(name, target, before, after)
            if swaps is None:  # the statements of another name bind it, too
                continue
            one = Bound(target, "", "", swaps, _uses(swaps, before, after, name))
            one, (data, old, new) = _edited(data, patched.encoding, one, after)
        except (AnchorError, RewriteError) as error:
            why[name] = str(error)
            continue
        found.append(one._replace(before=old, after=new))
    given = data.decode(patched.encoding)
    result = places.parsed(given)
    for name in wanted:
        there, here = (binding.statements(tree, name) for tree in (after.tree, result))
        if name not in why and _digest(there, name) != _digest(here, name):
            why[name] = "its edits do not give what the diff has"
        owner = name.rpartition(".")[0]
        if owner and name not in why and _in_order(after.tree, name) != _in_order(result, name):
            why[name] = f"its place in {owner}"  # the order of attributes may be that of arguments
    kept = _that_stand_alone([it for it in found if it.target.function not in why], why, before)
    left, ignored = left_over.accounted(patched, before, after, wanted, why)
    return _compared(patched, before, after, Part(kept, left, ignored), given)


def _compared(patched: Patched, before: places.File, after: places.File, part: Part, result: str) -> Part:
    """Leave what the edits together do not give; a fix that leaves something is not applied, and not looked at."""
    if part.left:
        return part
    names = whole.code_otherwise(patched.after, result)
    if names is None:
        texts = whole.texts_otherwise(whole.without(patched, part.ignored), result)
        return part._replace(ignored=(*part.ignored, *(f"{patched.file}, {name}" for name in texts)))
    for node in before.tree.body:  # with what was in one statement
        inside = {name for it in shape.statements([node]) for name in shape.names(it)}
        names += [] if inside.isdisjoint(names) else sorted(inside.difference(names))
    why = dict.fromkeys(names, "its edits do not give what the diff has")
    left, ignored = left_over.accounted(patched, before, after, names, why)
    if not left:  # what differs is beside what the diff changes
        reason = f"{', '.join(names) or 'code that binds no name'}: its edits do not give what the diff has"
        hunks = (f"{patched.file}, hunk {it.hunk}" for it in patched.changes)
        left = {hunk: reason for hunk in hunks if hunk not in ignored}
    kept = tuple(it for it in part.bound if it.target.function.partition(".")[0] not in names)
    return Part(kept, left, ignored)


def _edited(data: bytes, encoding: str, one: Bound, after: places.File) -> tuple[Bound, tuple[bytes, str, str]]:
    """Return the edits of a name with what is around them in the diff, if it fits, and what they give."""
    plain = one_file.exactly(data, one.target, one.codemod)
    text = data.decode(encoding)
    swaps = around.widened(one.swaps, places.file_of(text).whole, one.target, after.whole)
    with suppress(RewriteError):
        wide = one._replace(swaps=swaps)
        if (found := one_file.exactly(data, one.target, wide.codemod))[1:] == plain[1:]:
            return wide, found
    return one, plain


def _that_stand_alone(found: Sequence[Bound], why: dict[str, str], before: places.File) -> tuple[Bound, ...]:
    """Return the edits that use no name which only a part that is left would bind; ``why`` gets the others."""
    kept, known = list(found), shape.bound_names(before.tree)
    while True:
        missing = {name for name in why if name not in known}
        if not (alone := {it.target.function: used for it in kept if (used := sorted(_loaded(it.swaps) & missing))}):
            return tuple(kept)
        why.update({name: f"it uses {', '.join(used)}, which is left" for name, used in alone.items()})
        kept = [it for it in kept if it.target.function not in alone]


def _in_order(tree: ast.Module, name: str) -> list[str]:
    """Return what the class of a name binds, in order."""
    body = binding.scope(tree, name) or []
    return [it for node in shape.statements(body) for it in sorted(shape.names(node))]


def _digest(nodes: Sequence[ast.stmt] | None, name: str) -> str | None:
    return binding.digest(nodes, name.rpartition(".")[2]) if nodes else None


def _differing(before: ast.Module, after: ast.Module, prefix: str) -> Iterator[str]:
    """Yield the names of a scope that the two files bind in different ways; of a class, those that it binds."""
    scopes = [binding.scope(tree, f"{prefix}x") or [] for tree in (before, after)]
    names = dict.fromkeys(it for body in scopes for node in shape.statements(body) for it in sorted(shape.names(node)))
    for tree in (before, after) if not prefix else ():
        names |= dict.fromkeys(it for node in shape.statements(tree.body) for it in places.attributes(tree, node))
    for name in names:
        full = f"{prefix}{name}"
        old, new = binding.statements(before, full) or [], binding.statements(after, full) or []
        if _digest(old, full) == _digest(new, full):
            continue
        if _are_one_class(old, new):
            yield from _differing(before, after, f"{full}.")
        else:
            yield full


def _are_one_class(old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> bool:
    """Return whether only what a class binds differs: neither its header nor its other statements."""
    one, other = ([it for it in nodes if isinstance(it, ast.ClassDef)] for nodes in (old, new))
    rest = [[shape.digest(it) for it in nodes if not isinstance(it, ast.ClassDef)] for nodes in (old, new)]
    if not (len(one) == len(other) == 1 and rest[0] == rest[1]):
        return False
    return shape.digest(header(one[0])) == shape.digest(header(other[0])) and _loose(one[0]) == _loose(other[0])


def _loose(node: ast.ClassDef) -> list[str]:
    """Return what a class does besides binding names."""
    rest = (it for it in shape.statements(node.body) if not shape.names(it) and not binding.is_text(it))
    return [shape.digest(header(it)) for it in rest]


def _order(tree: ast.Module, target: Target) -> tuple[bool, int]:
    """Return a key for the order of the edits: additions first, those after one neighbour from the last one on."""
    nodes = binding.statements(tree, target.function)
    if target.beside is None or not nodes:
        return True, 0
    return False, -nodes[0].lineno if target.beside[0] == AFTER else nodes[0].lineno


def _target(fix: str, upstream: str, file: str, name: str, before: places.File, after: places.File) -> Target:
    beside = None
    if not binding.statements(before.tree, name):
        nodes = binding.statements(after.tree, name) or []
        owner = name.rpartition(".")[0]
        beside = places.beside(nodes[0], owner, before.tree, after.tree) if nodes else None
    return Target(fix, upstream, file, name, binding=True, beside=beside)


def _swaps(name: str, target: Target, before: places.File, after: places.File) -> tuple[Swap, ...] | None:
    """Return the edits of one name; None if those of another one are enough. Raises AnchorError if there are none."""
    short, owner = name.rpartition(".")[2], name.rpartition(".")[0]
    old, new = (binding.statements(file.tree, name) or [] for file in (before, after))
    if not old:
        if target.beside is None:
            raise AnchorError(f"a name beside which {name} could go")
        body = binding.scope(after.tree, name) or []
        block, at = places.outermost(body, new[0], before.tree, owner)
        inner = [block[at], *shape.statements([block[at]])]
        if any(not any(it is one for it in inner) for one in new):
            raise AnchorError(f"{name} in one place")
        if isinstance(block[at], (ast.Import, ast.ImportFrom)):
            return (Swap(ADDED, "", f"{ast.unparse(binding.reduced(block[at], short))}\n"),)
        lead = next(it for node in inner for it in sorted(shape.names(node)))
        return (Swap(ADDED, "", replacements.text(after.source(new), [block[at]])),) if lead == short else None
    imports = (ast.Import, ast.ImportFrom)
    if len(old) == 1 and isinstance(old[0], imports) and (not new or (len(new) == 1 and isinstance(new[0], imports))):
        lines = [f"{ast.unparse(binding.reduced(nodes[0], short))}\n" if nodes else "" for nodes in (old, new)]
        return (Swap(IMPORT, *lines),)
    if not new:
        if len(old) > 1 or shape.names(old[0]) | binding.attributes(old[0]) not in ({short}, {name}):
            raise AnchorError(f"{name} alone in one statement")
        return (Swap(REPLACED, replacements.text(before.source(old), old), ""),)
    if len(old) == 1 < len(new):
        mine = sorted(shape.names(old[0]))
        block, at = places.outermost(binding.scope(after.tree, name) or [], new[0], before.tree, owner, mine)
        inner = [block[at], *shape.statements([block[at]])]
        if len(inner) > 1 and all(any(it is one for it in inner) for one in new):  # it is in an `if` or a `try` now
            texts = replacements.text(before.source(old), old), replacements.text(after.source(new), [block[at]])
            return (Swap(WRAPPED, *texts),) if short == mine[0] else None
    return tuple(_changed(old, new, before, after))


def _changed(old: list[ast.stmt], new: list[ast.stmt], before: places.File, after: places.File) -> Iterator[Swap]:
    """Yield the edits of statements that stay: a definition's header, and what changes in its body."""
    one, other = before.source(old), after.source(new)
    if len(old) == len(new) == 1 and isinstance(old[0], _DEFINITIONS) and isinstance(new[0], _DEFINITIONS):
        heads = [shape.digest(header(node)) for node in (old[0], new[0])]
        if heads[0] != heads[1]:
            yield Swap(HEADER, *(_header(file, nodes[0]) for file, nodes in ((before, old), (after, new))))
        try:
            found = replacements.between(one, replacements.body(old[0]), other, replacements.body(new[0]))
            yield from (Swap(_HOW[edit], was, now) for was, now, edit in found)
            return
        except AnchorError:
            if heads[0] != heads[1]:
                raise
    if len(old) == len(new):
        pairs = [([was], [now]) for was, now in zip(old, new) if shape.digest(was) != shape.digest(now)]
    elif _are_together(old, before) and _are_together(new, after):
        pairs = [(old, new)]
    else:
        raise AnchorError("a name that is bound in as many places as before")
    for was, now in pairs:
        found = replacements.between(one, was, other, now)
        yield from (Swap(_HOW[edit], text, there) for text, there, edit in found)


def _are_together(nodes: Sequence[ast.stmt], file: places.File) -> bool:
    """Return whether nothing else is between these statements."""
    for block in (it for node in ast.walk(file.tree) for it in vars(node).values() if isinstance(it, list)):
        if nodes[0] in block:
            at = block.index(nodes[0])
            return list(nodes) == block[at : at + len(nodes)]
    return False


_HOW = {INSTEAD: REPLACED, replacements.BEFORE: BEFORE, replacements.AFTER: AFTER}


def _header(file: places.File, node: ast.stmt) -> str:
    last = exact.header_end(node, file.rows)
    return replacements.lines(Source(ast.Module([node], []), file.rows), exact.above(node), last, node.col_offset)


def _uses(swaps: Iterable[Swap], before: places.File, after: places.File, name: str) -> tuple[str, ...]:
    inner = [it for node in binding.statements(after.tree, name) or () for it in getattr(node, "body", ())]
    arguments = {it.arg for node in inner for it in ast.walk(node) if isinstance(it, ast.arg)}
    return tuple(
        sorted((_loaded(swaps) - bound(*inner) - arguments - set(dir(builtins))) & shape.bound_names(before.tree))
    )


def _loaded(swaps: Iterable[Swap]) -> set[str]:
    """Return the names that the new text of edits reads."""
    loaded: set[str] = set()
    for swap in swaps:
        text = f"{swap.new.rstrip()}\n    ...\n" if swap.how == HEADER else swap.new
        nodes = (node for it in ast.parse(text).body for node in ast.walk(it))
        loaded |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return loaded
