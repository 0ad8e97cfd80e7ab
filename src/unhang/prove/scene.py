"""Plays a fix's scene: each of its settings on the real function, for every text of it that is asked about.

A scene is the module of a fix in ``fixes``. It has ``GRID`` (the settings, each a ``Case`` that says whether the
untouched function is right in it), ``prepare()``, ``on_rank(case, rank)`` (what one rank does, and returns) and
``wrong(case, values)`` (what is wrong with what all ranks returned; empty if nothing is). It may have ``HELD``: why
the settings leave a condition of the function as it is, by a pattern of its text, or by the name of an inner function
with all that it has; and ``has_feature(function)``: whether the function has what the fix is about, which a case's
option ``feature`` then says. A case with the option ``of`` is one of these functions alone. The options ``module`` and
``function`` name what has the text. A case with the option ``beyond`` asks for more than upstream's own fix does.

This module runs in the target's interpreter (see ``child``). The question comes on stdin, as JSON: ``fix``, ``path``,
``packs``, ``module`` and ``function``, ``texts`` (files that have the function, by name), ``features`` (by text),
``watched`` (the texts whose conditions are followed), ``first`` (stop at the first setting that fails), ``deadline_s``,
``limits`` and ``is_cut_off`` (from the network). The answer has a ``Played`` for each text.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import inspect
import io
import json
import linecache
import multiprocessing
import os
import sys
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from .cases import CRASHED, DIFFERS, PASSED, Case, Outcome
from .conditions import Conditions
from .ranks import gloo, meet, tidy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType

MARK = "unhang-scene:"
"""Precedes the answer, because other text may be printed too."""
_OUTSIDE = (
    *("os.fork", "os.kill", "os.remove", "os.rename", "os.rmdir", "os.system", "os.exec", "os.posix_spawn"),
    *("os.truncate", "os.chmod", "os.chown", "os.link", "os.symlink", "shutil.", "subprocess.", "socket.connect"),
)
"""How the names of the audit events begin that change what is outside of a process."""
_LOST = 3
"""After so many settings that hang or kill a rank, no more are looked for among those of as many ranks."""


class Played(NamedTuple):
    """What one text of a function did."""

    wrong: Mapping[str, str]
    """What is wrong, by the name of the setting."""
    ran: int
    """In how many settings it ran. Where many hang or kill a rank, the others of their kind do not run."""
    seen: str
    """A digest of all that the ranks returned; empty if some setting failed."""
    open: Sequence[str]
    """The conditions that no setting decided both ways, and that the scene does not hold."""


def main() -> None:
    """Answer the question on stdin. It ends with its parent."""
    tidy.end_with(os.getppid())
    question = json.load(sys.stdin)
    sys.path[:0] = question["path"]
    print(f"\n{MARK}{json.dumps(answer(question))}", flush=True)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Play the scene for each text; or return the ``problem`` if this interpreter cannot."""
    try:
        import torch
    except ImportError as error:
        return {"problem": f"no torch here: {error}"}
    limit(question["limits"])
    if question["is_cut_off"]:
        loopback()
    torch.set_num_threads(1)
    importlib.import_module(".fixes", __package__).__path__ += question["packs"]
    proof: Any = importlib.import_module(f".fixes.{question['fix'].replace('-', '_')}", __package__)
    warm(proof, "torch._dynamo")  # torch imports it at its first use
    proof.prepare()
    module = importlib.import_module(question["module"])
    gc.freeze()  # no fork looks through what is here
    return {
        name: play(
            proof, module, question["function"], text, feature=question["features"][name],
            watched=name in question["watched"], first=question["first"], deadline_s=question["deadline_s"],
        )._asdict()
        for name, text in question["texts"].items()
    }  # fmt: skip


def warm(proof: Any, *names: str) -> None:
    """Import what a proof wants, and these modules, once and not in each fork."""
    for name in (*getattr(proof, "WARM", ()), *names):
        with suppress(Exception):  # what needs it reports the error
            importlib.import_module(name)


def loopback() -> None:
    """Bring up the loopback device of a network of our own, over which the ranks talk."""
    import fcntl
    import socket
    import struct

    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def refuse(event: str, arguments: Sequence[Any]) -> None:
    """Raise PermissionError where a rank would change something outside of itself: by accident, in an edit."""
    if event.startswith(_OUTSIDE) or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        raise PermissionError(f"it reaches for the system ({event}), which a scene does not let it")


def limit(limits: Mapping[str, int]) -> None:
    """Set limits of this process and its forks, by the names in ``resource``."""
    import resource

    for name, value in limits.items():
        _, most = resource.getrlimit(number := getattr(resource, name))
        least = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (least, least))


def play(
    proof: Any, module: ModuleType, function: str, text: str, *, feature: bool, watched: bool, first: bool,
    deadline_s: float,
) -> Played:  # fmt: skip
    """Put a text of the function into its module, and run it in every setting, or up to the first that fails."""
    code = place(module, function, text)
    conditions = Conditions(code, text, getattr(proof, "HELD", {})) if watched else None
    wrong: dict[str, str] = {}
    ran = 0
    seen = hashlib.sha256()
    more = {"feature": feature, "module": module.__name__, "function": function}
    grid = [
        case._replace(options={**case.options, **more})
        for case in proof.GRID
        if function in case.options.get("of", [function])
    ]
    # a wrong text mostly fails where a cure is due
    due = {_world(case) for case in grid if not (first and case.is_control)}
    grid.sort(key=lambda case: (_world(case) not in due, _world(case), first and case.is_control))
    for _, cases in groupby(grid, _world):
        lost, left = 0, [[*cases]]
        while left:
            if not (part := left.pop()):
                continue
            values = _batch(proof, part, first, deadline_s, conditions)
            if isinstance(values, tuple):
                last, ended = values
                before, part, rest = part[:last], part[last : last + 1], part[last + 1 :]
                if lost >= _LOST:
                    left.append(before)
                    continue
                left += rest, before
                # of several ranks, the others have not ended as they would have without a meeting
                ended = ended if len(ended.ranks) == 1 else _alone(proof, part[0], deadline_s)
                values, lost = [[*ended.ranks]], lost + 1
            for case, found in zip(part, values):
                seen.update(_bytes([rank.value for rank in found]))
                ran += 1
                if fault := _fault(proof, case, found):
                    wrong[case.name] = fault
            if first and wrong:
                return Played(wrong, ran, "", [])
    return Played(wrong, ran, "" if wrong else seen.hexdigest(), conditions.open() if conditions else [])


def alone(proof: Any, case: Case, deadline_s: float) -> Outcome:
    """Run one setting in ranks of its own, without a meeting: they hang or die as those of a job do."""
    world = _alone(proof, case, deadline_s)
    return world.outcome(lambda ranks: proof.wrong(case, ranks), lambda ranks: proof.right(case, ranks))


def _alone(proof: Any, case: Case, deadline_s: float) -> gloo.World:
    def body(rank: int) -> Any:
        sys.addaudithook(refuse)
        return proof.on_rank(case, rank)

    return gloo.run(case.topology.world, body, deadline_s=deadline_s)


def _world(case: Case) -> int:
    return case.topology.world


def _batch(
    proof: Any, cases: Sequence[Case], first: bool, deadline_s: float, conditions: Conditions | None
) -> list[list[gloo.Rank]] | tuple[int, gloo.World]:
    """Return how the ranks end in each of these settings, all run in one fork.

    A hang that is none of their meetings' ends the fork, and so does a rank that dies: then the answer is the index of
    the setting in which that was, and how the fork ended.

    With ``first``, the ranks stop at the first setting that fails.
    """
    world, judged, now = cases[0].topology.world, iter(cases), multiprocessing.RawValue("i", 0)

    def fails(packed: list[bytes]) -> bool:
        return bool(_fault(proof, next(judged), [_unpacked(it) for it in packed]))

    def body(rank: int) -> tuple[list[bytes], Any]:
        sys.addaudithook(refuse)
        gate = meet.Gate(pipes[rank])
        done = []
        for number, case in enumerate(cases):
            now.value = number
            with conditions or nullcontext():
                ended = gloo.ended(lambda: proof.on_rank(case, rank))  # noqa: B023
            done.append(_packed(ended))
            if gate.end(done[-1] if first else b""):
                break
        return done, conditions and conditions.steps

    with meet.Meetings(world, *[fails] * first) as pipes:
        ended = gloo.run(world, body, deadline_s=deadline_s)
    if ended.status != PASSED:
        return int(now.value), ended
    if conditions:
        conditions.steps.update(*(rank.value[1] for rank in ended.ranks))
    return [[_unpacked(it) for it in each] for each in zip(*(rank.value[0] for rank in ended.ranks))]


def _packed(value: Any) -> bytes:
    import torch

    torch.save(value, packed := io.BytesIO())
    return packed.getvalue()


def _unpacked(packed: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(packed), weights_only=False)


def _fault(proof: Any, case: Case, ranks: Sequence[gloo.Rank]) -> str:
    """Return what is wrong with how the ranks ended, or with what they returned."""
    try:
        outcome = gloo.World(tuple(ranks), 0.0).outcome(lambda values: proof.wrong(case, values), lambda _: "")
    except Exception as error:  # they returned another kind of value than the scene knows
        return f"{CRASHED}: what the ranks return cannot be judged: {type(error).__name__}: {error}"
    return outcome.detail if outcome.status in (PASSED, DIFFERS) else f"{outcome.status}: {outcome.detail}"


def _bytes(value: Any) -> bytes:
    """Return all bits of a value, which may have tensors in it."""
    import torch

    if torch.is_tensor(value) and type(value.detach()) is not torch.Tensor:
        return _packed(value)  # a DTensor, say, of which no single array has all
    if torch.is_tensor(value):
        bits = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return f"{value.dtype} {tuple(value.shape)} ".encode() + bits
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (list, tuple)):
        return b"[" + b", ".join(map(_bytes, value)) + b"]"
    return repr(value).encode()


def place(module: ModuleType, name: str, text: str) -> CodeType:
    """Replace a function of a module by that of a text, and return its code.

    ``name`` is qualified by the function's class. It is compiled as if it stood there: with its decorators, in the
    module's namespace, with ``super()`` and the names of its class. What it uses of the text that its class or module
    lacks goes there too. A plain function is replaced wherever it was imported to.
    """
    *outer, own = name.split(".")
    tree = ast.parse(text)
    body: Any = tree.body
    owner: Any = module
    for part in outer:
        body, owner = _defined(body, part)[0].body, getattr(owner, part)
    nodes: list[Any] = _with_used(body, own, owner)
    names = [node.name for node in nodes]
    for part in reversed(outer):
        nodes = [ast.copy_location(ast.fix_missing_locations(_class(part, nodes)), nodes[-1])]
    future = [it for it in tree.body if isinstance(it, ast.ImportFrom) and it.module == "__future__"]
    file = f"<scene {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for those who read the source
    found: dict[str, Any] = {}
    code = compile(ast.Module([*future, *nodes], []), file, "exec", dont_inherit=True)
    exec(code, vars(module), found)  # noqa: S102 - upstream's code, where it belongs
    if not outer:
        _everywhere(vars(module).get(own), found[own])
        vars(module).update({each: found[each] for each in names})
        return code
    made: Any = None
    for part in outer:
        made = found[part] if made is None else vars(made)[part]
    for each in names:
        for cell in _cells(vars(made)[each]):
            if cell.cell_contents is made:
                cell.cell_contents = owner
        setattr(owner, each, vars(made)[each])
    return code


def _with_used(body: Sequence[ast.AST], name: str, owner: Any) -> list[Any]:
    """Return a function of a body, after the functions of it that it uses and that the owner lacks."""
    node = _defined(body, name)[-1]
    used = {getattr(it, "attr", getattr(it, "id", "")) for it in ast.walk(node)}
    lacking = [one for one in sorted(used) if inspect.getattr_static(owner, one, None) is None]
    return [*(it for one in lacking for it in _defined(body, one)[-1:]), node]


def _defined(body: Sequence[ast.AST], name: str) -> list[Any]:
    """Return the definitions of a name in a body, also those under a condition."""
    found = []
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found += [node] if node.name == name else []
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            found += _defined([*ast.iter_child_nodes(node)], name)
    return found


def _class(name: str, body: list[ast.stmt]) -> ast.ClassDef:
    given: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}
    return ast.ClassDef(name=name, bases=[], keywords=[], body=body, decorator_list=[], **given)


def _everywhere(old: Any, new: Any) -> None:
    """Give every module that has imported a function the new one."""
    for module in [*sys.modules.values()] if old is not None else []:
        for name, value in [*(getattr(module, "__dict__", None) or {}).items()]:
            if value is old:
                setattr(module, name, new)


def _cells(function: Any) -> list[Any]:
    """Return the cells of a function, and of those that its decorators wrap."""
    found = []
    while function is not None:
        for inner in (function, getattr(function, "fget", None), getattr(function, "__func__", None)):
            found += [cell for cell in getattr(inner, "__closure__", None) or () if _is_full(cell)]
        function = getattr(function, "__wrapped__", None)
    return found


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
