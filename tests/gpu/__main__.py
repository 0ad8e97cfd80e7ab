"""`nox -s gpu`: what one NVIDIA GPU shows of the fixes, on a machine without a network: docs/maintainers/gpu.md.

Exit codes: 0, all that ran is as it should be; 1, something is not, or could not run; 2, there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpu import blocks
from proofs import judging, suite
from support.wheels import WheelError
from unhang.errors import UnhangError
from unhang.prove import host
from unhang.prove.cases import BROKEN, DIFFERS, PASSED, Case, Topology

MINUTES = 9.0
"""The time for all of it. A lent machine ends a command after ten."""
_EACH_S = 120.0
_DEADLINE_S = 30.0  # a process needs some seconds for its first use of a GPU
ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",  # all ranks are on this machine, which may have no network
    "GLOO_SOCKET_IFNAME": "lo",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # equal sums of floats need it
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # otherwise to ask for a GPU keeps the forks from using it
}
_PROBE = """
import json, torch
found = {"torch": torch.__version__, "gpus": torch.cuda.device_count(), "name": "", "nccl": "", "engine": ""}
if found["gpus"]:
    found["name"] = torch.cuda.get_device_name(0)
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
try:
    import transformer_engine, transformer_engine.pytorch
    found["engine"] = getattr(transformer_engine, "__version__", "of an unknown version")
except Exception:  # missing, or built for another torch
    pass
print("\\n" + json.dumps(found))
"""
STARTS: dict[str, tuple[str | None, bool]] = {
    blocks.NCCL: (blocks.NCCL, False),
    blocks.COMPOSITE: (blocks.COMPOSITE, False),
    f"{blocks.NCCL} with device_id": (blocks.NCCL, True),
    "no backend": (None, False),
    "no backend with device_id": (None, True),
}
"""How torch.distributed is started: its backend, and whether it is told the device."""
PROOFS = (("sft-packed-seq-broadcast", "megatron-lm"), ("empty-expert-hang", "megatron-core"))
"""The proofs whose cases run with tensors on the GPU. That of expert-dp-warmup poses as a GPU itself."""
_RANKS = 4
_EXPERTS = {"dispatcher": "alltoall", "calls": ("no row", "one row", "an empty expert"), "te": True}
ENGINE_CASES = (
    Case("te-bf16", Topology(), DIFFERS, options=_EXPERTS),
    Case("te-fp8", Topology(), DIFFERS, options={**_EXPERTS, "fp8": True}),
)
"""The real TEGroupedMLP with Transformer Engine's own linears. How untouched source ends is told, and not judged."""
NOT_SHOWN = (
    "NCCL's stall itself: NCCL refuses two ranks on one GPU, so that communicators here have one rank",
    "mtp-cp-deadlock: verl needs more packages than such a machine has, and no device decides which ranks wait",
)
_WARMED = "one collective on each group, on the GPU, and it waits for them"
_NO_ENGINE = "the real TEGroupedMLP on zero rows: no Transformer Engine is here, so that nobody has seen that"


OK, WRONG, SEEN = "ok", "WRONG", "seen"


class Line(NamedTuple):
    """One thing that was seen. What is only ``SEEN`` is told, and not judged."""

    mark: str
    text: str


Part = tuple[str, Callable[[], Iterator[Line]]]
"""A title, and what yields the lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session with these command line arguments, and return the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s gpu --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the time for all of it ({MINUTES:g})")
    options = parser.parse_args(arguments)
    found = probe()
    if not found["gpus"]:
        print(f"no GPU here: {found['torch']}", file=sys.stderr)
        return 2
    print(f"{found['name']}, torch {found['torch']}, NCCL {found['nccl']}", flush=True)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.pop("UNHANG_PROOFS", None)  # the core set
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    try:
        wrong = _told(list(parts(found["engine"])))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for text in (*NOT_SHOWN, *([] if found["engine"] else [_NO_ENGINE])):
        print(f"not shown: {text}")
    print(f"{wrong} wrong" if wrong else "all that ran is as it should be")
    return 1 if wrong else 0


def probe() -> dict[str, Any]:
    """Return what our interpreter has: ``torch`` (its version, or why there is none), ``gpus`` (their number), the
    first one's ``name``, the versions of ``nccl`` and of Transformer Engine (``engine``), which may be empty."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"torch": lines[-1] if lines else f"exit status {done.returncode}", "gpus": 0}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not found["gpus"]:
        found["torch"] = f"torch {found['torch']} finds none"
    return found


def parts(engine: str) -> Iterator[Part]:
    """Yield the parts of the session. ``engine`` is Transformer Engine's version."""
    for start in STARTS:
        yield f"one rank, {start}", partial(one_rank, start)
    for fix, upstream in PROOFS:
        yield f"{fix}: CUDA tensors on gloo", partial(on_gloo, fix, upstream)
    if engine:
        yield f"empty-expert-hang: Transformer Engine {engine}", transformer_engine


def _told(every: Sequence[Part]) -> int:
    """Run the parts, print what they tell, and return how many lines are wrong. What cannot run is wrong too."""
    wrong, is_over = 0, False
    for title, part in every:
        print(f"\n{title}", flush=True)
        try:
            if is_over:
                raise Over
            for line in part():
                wrong += _print(line)
        except Over:
            is_over = True
            wrong += _print(Line(WRONG, "not run to its end: the session's time is over"))
        except (UnhangError, WheelError, OSError) as error:
            wrong += _print(Line(WRONG, f"it cannot run: {getattr(error, 'message', '') or error}"))
    print()
    return wrong


def _print(line: Line) -> bool:
    print(f"  {line.mark:<5}  {line.text}", flush=True)
    return line.mark == WRONG


def one_rank(start: str) -> Iterator[Line]:
    """Yield what one rank shows whose torch.distributed was started like this."""
    backend, with_device_id = STARTS[start]
    every = {block.name: block for block in blocks.blocks() if start == backend or not block.mutant}
    question = {
        "backend": backend,
        "with_device_id": with_device_id,
        "path": str(suite.unpacked("megatron-core", blocks.RELEASES["megatron-core"])),
        "blocks": {name: (block.upstream, block.code) for name, block in every.items()},
    }
    answers, why = _asked(question)
    for answer in answers:
        if "block" in answer:
            yield of_block(every.pop(answer["block"]), backend, answer)
        else:
            yield of_communicator(answer)
    if why:
        yield Line(WRONG, f"it ends early: {why}")
    if every:
        yield Line(WRONG, f"not run: {'; '.join(every)}")


def of_communicator(answer: dict[str, Any]) -> Line:
    """Return what torch says of its backends, and what a communicator of one rank takes."""
    made, first, second = (f"{taken / 2**20:.0f} MiB" for taken in answer["taken"])
    return Line(
        SEEN,
        f"get_backend returns {answer['backend']!r}, of a new group {answer['of a group']!r}; of the GPU's memory "
        f"new_group takes {made}, the group's first collective {first}, its second {second}",
    )


def of_block(block: blocks.Block, backend: str | None, answer: dict[str, Any]) -> Line:
    """Return what a block did, and whether it is wrong. Without a backend, what it does is told and not judged."""
    wrong = answer["wrong"]
    did = f"{answer['collectives']} collectives, {answer['taken'] / 2**20:.0f} MiB"
    if backend is None:
        return Line(SEEN, f"{block.name}: {wrong or _WARMED} ({did})")
    if block.mutant:
        if backend not in block.fails_on:
            return Line(SEEN, f"{block.name}: {wrong or 'no fault'}; with this backend it need not fail")
        return Line(OK if wrong else WRONG, f"{block.name}: {f'fails: {wrong}' if wrong else 'does NOT fail'}")
    return Line(WRONG if wrong else OK, f"{block.name}: {wrong or _WARMED} ({did})")


def _asked(question: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return the answers of ``gpu.one_rank``, and why there are no more; empty where it ended well."""
    command = [sys.executable, "-W", "ignore", "-m", "gpu.one_rank"]
    given = json.dumps(question).encode()
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=_EACH_S, check=False)
        out = done.stdout
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        why = lines[-1] if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        out, why = error.stdout or b"", f"no answer within {_EACH_S:.0f} s"
    answers = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
    return answers, why


def on_gloo(fix: str, upstream: str) -> Iterator[Line]:
    """Yield how a proof's core cases of few real ranks end with tensors on the GPU, and what half a patch does."""
    proof = next(one for one in suite.proofs() if (one.fix, one.upstream) == (fix, upstream))
    cases = {case.name: case for case in proof.cases() if is_small(case)}
    answer = suite.run(proof, list(cases.values()), device="cuda", deadline_s=_DEADLINE_S)
    sides = {name: answer.outcomes[name] for name in (host.UNTOUCHED, host.PATCHED)}
    for name, case in cases.items():
        wrong = judging.verdict(case, *(outcomes[name] for outcomes in sides.values()))
        ends = "; ".join(f"{side} {outcomes[name].status}" for side, outcomes in sides.items())
        yield Line(WRONG if wrong else OK, f"{proof.name} {name}, {case.topology.text()}: {wrong or ends}")
    for name in (name for name in answer.outcomes if name not in sides):
        wrong = judging.survivors(answer.outcomes[name], proof.variants[name].ends)
        yield Line(WRONG if wrong else OK, f"{proof.name}, {name}: {wrong or 'fails'}")


def is_small(case: Case) -> bool:
    """Return whether a case is run on the GPU, which its ranks share."""
    return case.core and case.topology.world <= _RANKS


def transformer_engine() -> Iterator[Line]:
    """Yield how the real TEGroupedMLP ends on zero rows and on some, untouched and patched."""
    proof = next(one for one in suite.proofs() if one.fix == "empty-expert-hang")
    answer = suite.run(proof, list(ENGINE_CASES), device="cuda", deadline_s=_DEADLINE_S)
    for case in ENGINE_CASES:
        untouched, patched = (answer.outcomes[side][case.name] for side in (host.UNTOUCHED, host.PATCHED))
        needs = "here it does not need the fix" if untouched.status == PASSED else untouched.detail
        text = f"{case.name}: untouched {untouched.status}: {needs}; patched {patched.status}: {patched.detail}"
        yield Line(OK if patched.status == PASSED and untouched.status != BROKEN else WRONG, text)


class Over(Exception):
    """The session's time is over."""


def _over(*_: object) -> None:
    raise Over


if __name__ == "__main__":
    sys.exit(main())
