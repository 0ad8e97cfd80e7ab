"""Record what the drawing of each fix shows, by its proof on real ranks: `nox -s drawings -- [FIX...]`.

`patches/FIX/drawing.json` says which case is drawn, and what of it. This runs that case on untouched and on patched
source, and writes what the ranks did, or the numbers that they had, below `recorded` in the same file.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from proofs import suite
from support.checkout import REPOSITORY
from unhang.prove import child, host
from unhang.prove.cases import Outcome
from unhang.prove.ranks import gloo, stacks
from unhang.shapes import catalog

_DEADLINE_S = 4.0
# by the name in torch.distributed: what is drawn, and the argument with the payload
_CALLS = {
    "broadcast": ("broadcast", "tensor"),
    "all_reduce": ("all_reduce", "tensor"),
    "all_reduce_coalesced": ("all_reduce_coalesced", "tensors"),
    "reduce": ("reduce", "tensor"),
    "all_gather": ("all_gather", "tensor"),
    "all_gather_single": ("all_gather_into_tensor", "input_tensor"),
    "all_gather_into_tensor": ("all_gather_into_tensor", "input_tensor"),
    "_all_gather_base": ("all_gather_into_tensor", "input_tensor"),
    "all_gather_coalesced": ("all_gather_coalesced", "input_tensor_list"),
    "gather": ("gather", "tensor"),
    "scatter": ("scatter", "tensor"),
    "reduce_scatter": ("reduce_scatter", "output"),
    "reduce_scatter_single": ("reduce_scatter_tensor", "output"),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", "output"),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "output"),
    "all_to_all_single": ("all_to_all", ""),
    "all_to_all": ("all_to_all", ""),
    "barrier": ("barrier", ""),
    "monitored_barrier": ("monitored_barrier", ""),
    "all_gather_object": ("all_gather_object", ""),
    "gather_object": ("gather_object", ""),
    "broadcast_object_list": ("broadcast_object_list", "object_list"),
    "scatter_object_list": ("scatter_object_list", ""),
    "send": ("send", "tensor"),
    "recv": ("recv", "tensor"),
    "isend": ("send", "tensor"),
    "irecv": ("recv", "tensor"),
    "send_object_list": ("send", "object_list"),
    "recv_object_list": ("recv", "object_list"),
}


def main(arguments: Sequence[str]) -> int:
    """Record the drawings of these fixes, or of all: each in a process of its own, which imports its upstream."""
    if arguments[:1] == ["--one"]:
        print(f"\n{json.dumps(_recorded(arguments[1]))}")
        return 0
    failed = []
    for fix in arguments or catalog.fixes():
        try:
            drawing = {**json.loads(file(fix).read_text(encoding="utf-8")), "recorded": recorded(fix)}
        except subprocess.CalledProcessError:
            failed.append(fix)
            continue
        file(fix).write_text(_text(drawing), encoding="utf-8")
    if failed:
        print(f"not recorded: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def recorded(fix: str) -> Any:
    """Return what is recorded of the case that a fix's drawing names. Raises CalledProcessError where it failed."""
    command = [sys.executable, "-W", "ignore", "-m", "proofs.drawn", "--one", fix]
    place = REPOSITORY / "tests"  # where python -m finds this module
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=place).stdout.splitlines()[-1])


def file(fix: str) -> Path:
    """Return the file of a fix's drawing."""
    return REPOSITORY / "patches" / fix / "drawing.json"


def proof_of(fix: str, drawing: Mapping[str, Any]) -> tuple[suite.Proof, Any]:
    """Return the proof and the case that a drawing names. Raises LookupError where no release has it."""
    for proof in sorted(suite.every_proof(), key=lambda one: not one.release.core):
        if proof.fix == fix and not proof.is_tree:
            for case in proof.every_case():
                if case.name == drawing["case"]:
                    return proof, case
    raise LookupError(f"no proof of {fix} has the case {drawing['case']!r}")


def _recorded(fix: str) -> dict[str, Any]:
    """Run the case of a fix's drawing on both sides; return what was recorded. Raises ValueError where it failed."""
    drawing = json.loads(file(fix).read_text(encoding="utf-8"))
    proof, case = proof_of(fix, drawing)
    seen: dict[str, Any] = {}
    with suite.both_sides(proof) as (roots, pairs), tempfile.TemporaryDirectory() as folder:
        sys.path[:0] = roots
        _UPSTREAM.extend([*roots, folder])
        _listen(folder)
        for index, side in enumerate((host.UNTOUCHED, host.PATCHED)):
            files = host._lay_out(os.path.join(folder, side), {path: both[index] for path, both in pairs.items()})
            for stale in Path(folder).glob("*.rank"):
                stale.unlink()
            question = {
                "fix": fix, "packs": [], "path": roots, "variants": {side: (files, [case.name])}, "begun": os.devnull,
                "cases": [case._replace(options=dict(case.options))], "deadline_s": _DEADLINE_S, "device": "cpu",
                "keep": "",
            }  # fmt: skip
            outcome = Outcome(*child.answer(question)["outcomes"][side][case.name])
            due = case.untouched if side == host.UNTOUCHED else "passed"
            if outcome.status != due:
                raise ValueError(f"{side}: {outcome.status}, due {due}: {outcome.detail}")
            seen[side] = {"status": outcome.status, **_shown(drawing, side, outcome, Path(folder))}
    print(f"{fix}: {case.name} of {proof.name}", file=sys.stderr)
    return {"proof": proof.name, "topology": case.topology.text(), **seen}


def _shown(drawing: Mapping[str, Any], side: str, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Return the numbers that a drawing has as bars; else what each rank did."""
    if "bars" not in drawing:
        paths = sorted(folder.glob("*.rank"), key=lambda path: int(path.stem))
        ends = json.loads((folder / "ends.json").read_text(encoding="utf-8"))
        return {"ranks": [_windowed(drawing, end, _read(path)) for path, end in zip(paths, ends, strict=True)]}
    found = {"values": _values(drawing["bars"][side], outcome.detail)}
    right = drawing["bars"]["right"]
    if side == host.UNTOUCHED:
        found["right"] = _values(right, outcome.detail) if isinstance(right, str) else [right]
    return found


def _windowed(drawing: Mapping[str, Any], end: Mapping[str, str], did: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a rank did in the part that is drawn, the numbers of operations before and after it, and its end."""
    wanted = [one for one in did if one["kind"] not in drawing.get("without", ())]
    first, last = drawing.get("skip", 0), drawing.get("skip", 0) + drawing["show"]
    return {**end, "before": min(first, len(wanted)), "did": wanted[first:last], "after": max(0, len(wanted) - last)}


def _values(pattern: str, detail: str) -> list[float | str | None]:
    """Return the numbers that a pattern finds in what an outcome says; None and `NaN` for what is no number."""
    found = re.search(pattern, detail)
    if not found:
        raise ValueError(f"{pattern!r} is not in {detail}")
    words = [word for group in found.groups() for word in group.split(", ")]
    others = {"None": None, "nan": "NaN"}
    return [others[word] if word in others else float(word) for word in words]


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the operations of a rank, from the lines that it wrote: one as each began, one as it returned."""
    did: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        word = json.loads(line)
        if isinstance(word, int):
            did[word]["returned"] = True
        else:
            did.append({**word, "returned": False})
    return [one for one in did if len(one["ranks"]) > 1]  # alone, a rank waits for nobody


def _text(drawing: Mapping[str, Any]) -> str:
    """Return the JSON of a drawing: an operation of a rank is one line, so that a change of it is one too."""
    text = json.dumps(drawing, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^\[\]{}]*\]|\{[^{}]*\}", _on_one_line, re.sub(r"\[[^\[\]{}]*\]", _on_one_line, text)) + "\n"


def _on_one_line(part: re.Match[str]) -> str:
    inside = re.sub(r"\n *", " ", re.sub(r"^\n *|\n *$", "", part[0][1:-1]))  # a space within a text stays
    return f"{part[0][0]}{inside}{part[0][-1]}"


# --- in the ranks


def _listen(folder: str) -> None:
    """Have the ranks of `gloo.run` in later forks write what they issue into files of a folder, and how they ended."""
    import torch.distributed as dist

    told: list[Any] = []
    for name in _CALLS:
        for module in dist, dist.distributed_c10d:
            if hasattr(module, name):
                setattr(module, name, _told(getattr(module, name), name, told))
    run = gloo.run

    def recorded(world: int, body: Callable[[int], Any], **options: Any) -> gloo.World:
        def recording(rank: int) -> Any:
            told.append(open(os.path.join(folder, f"{rank}.rank"), "w", encoding="utf-8"))  # noqa: SIM115 - until it ends
            return body(rank)

        found = run(world, recording, **options)
        ends = [{"end": rank.state, "at": _place(rank), "error": _error(rank)} for rank in found.ranks]
        Path(folder, "ends.json").write_text(json.dumps(ends), encoding="utf-8")
        return found

    gloo.run = recorded


def _place(rank: gloo.Rank) -> str:
    """Return the function where a rank waits or raised; empty if it is done."""
    outside = [frame for frame in rank.stack if "proofs/drawn.py" not in frame]
    return "" if rank.state == "done" else stacks.place(outside).rpartition(" in ")[2]


def _error(rank: gloo.Rank) -> str:
    """Return what a rank raised, without its message; `lost peer` where its peer's end is all that it tells."""
    return "lost peer" if "onnection" in rank.error and "gloo" in rank.error else rank.error.partition(":")[0]


def _told(function: Callable[..., Any], name: str, told: list[Any]) -> Callable[..., Any]:
    """Return a function of torch that writes a line before and after; not where another that does has called it."""
    kind, payload = _CALLS[name]
    signature = inspect.signature(inspect.unwrap(function))
    state = {"inside": False, "count": 0}
    _STATES.append(state)

    def telling(*args: Any, **kwargs: Any) -> Any:
        if not told or any(one["inside"] for one in _STATES):
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        number = sum(one["count"] for one in _STATES)
        state["count"] += 1
        _write(told[-1], _about(kind, given.arguments, payload))
        state["inside"] = True
        try:
            found = function(*args, **kwargs)
        finally:
            state["inside"] = False
        _write(told[-1], number)
        return found

    return telling


_STATES: list[dict[str, Any]] = []
_UPSTREAM: list[str] = []
"""The folders of the upstream that runs."""


def _write(stream: Any, what: Any) -> None:
    stream.write(json.dumps(what) + "\n")
    stream.flush()


def _about(kind: str, given: Mapping[str, Any], payload: str) -> dict[str, Any]:
    """Return what is drawn of an operation: its kind, group and payload, and the function that issues it."""
    import torch.distributed as dist

    group = given.get("group") or dist.group.WORLD
    try:
        what = _elements(given[payload]) if payload else ""
    except Exception:  # objects have no elements
        what = ""
    ranks, name = dist.get_process_group_ranks(group), getattr(group, "group_desc", "")
    return {
        "kind": kind, "group": f"{dist.distributed_c10d._get_process_group_name(group)}", "of": name, "ranks": ranks,
        "what": what, "in": _function(),
    }  # fmt: skip


def _elements(payload: Any) -> str:
    """Return the number of elements and their dtype."""
    tensors = payload if isinstance(payload, (list, tuple)) else [payload]
    return f"{sum(tensor.numel() for tensor in tensors)} x {str(tensors[0].dtype).removeprefix('torch.')}"


def _function() -> str:
    """Return the function of the upstream that issues an operation; empty where the proof itself does."""
    found = [*_outside()]
    return next((name for name in found if not name.startswith("_")), found[0] if found else "")


def _outside() -> Iterator[str]:
    """Yield the functions on the stack that are the upstream's: none where the proof itself issues the operation."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(tuple(_UPSTREAM)):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # Python 3.11 has the first
            yield str(name).rpartition("<locals>.")[2]
        frame = frame.f_back


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
