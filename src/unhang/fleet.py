"""A check before training: do all nodes of a Ray cluster have the same code? Ray is the job's own; unhang needs it not.

A job whose nodes are only partly patched can hang, since the rewrites change which collectives a rank issues.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang.errors import UnhangError
from unhang.shapes import catalog

if TYPE_CHECKING:
    from types import ModuleType

_HINT = "install and patch all nodes alike, see `unhang check` on each; or leave some out, with nodes="


class Seen(NamedTuple):
    """What one node has, as its own worker's interpreter imports it."""

    digest: str
    """As ``unhang check`` prints it."""
    unmet: tuple[str, ...]
    """Why a required fix is not in place there, a sentence each."""


def require_agreement(
    fixes: Sequence[str] = (), *, nodes: Collection[str] | None = None, timeout_s: float = 120
) -> str:
    """Return the digest that all alive nodes of the running Ray cluster share, after ``ray.init()``.

    One task looks on each node, pinned to it, in a worker of the job: its interpreter, its path, its runtime
    environment. ``fixes`` are ids that must be in place, or not needed, on each node; ``nodes`` are the ids (``NodeID``
    of ``ray.nodes()``) of those to ask, where some have no part in the training. Raises UnhangError ``nodes-differ``,
    which names each node and what it has, where they do not agree, lack a fix, or do not answer within ``timeout_s``
    seconds; ``no-nodes`` where there is none to ask; ``no-ray`` where Ray is not installed or not started;
    ``unknown-fix``.
    """
    for fix in fixes:
        catalog.fix(fix)
    ray = _started_ray()
    alive = {node["NodeID"]: _name(node) for node in ray.nodes() if node["Alive"]}
    if missing := sorted(set(nodes or ()) - set(alive)):
        raise UnhangError("no-nodes", f"not alive in this cluster: {', '.join(missing)}", hint="see ray.nodes()")
    chosen = [(name, node) for node, name in alive.items() if nodes is None or node in nodes]
    asked = {node: name for name, node in sorted(chosen)}
    if not asked:
        raise UnhangError("no-nodes", "there is no node to ask", hint="see ray.nodes()")
    answers = _ask(ray, list(asked), list(fixes), timeout_s)
    found = {f"{name} (node {node[:8]})": answers[node] for node, name in asked.items()}
    if trouble := disagreement(found):
        raise UnhangError("nodes-differ", "\n".join(trouble), hint=_HINT)
    return next(answer.digest for answer in found.values() if isinstance(answer, Seen))


def disagreement(found: dict[str, Seen | str]) -> list[str]:
    """Say what each node has, a line each, unless all agree and lack nothing: then there is no line. Pure.

    ``found`` has, by the node's name, what was seen there, or why nothing was.
    """
    digests = Counter(answer.digest for answer in found.values() if isinstance(answer, Seen))
    whole = all(isinstance(answer, Seen) and not answer.unmet for answer in found.values())
    if whole and len(digests) == 1:
        return []
    lines = [f"the {len(found)} nodes do not all have the code that this job asks for:"]
    for name, answer in found.items():
        if isinstance(answer, str):
            lines.append(f"  {name}: {answer}")
        else:
            lines.append(f"  {name}: digest {answer.digest}, as {digests[answer.digest]} of {len(found)} have it")
            lines += [f"    required fix not in place: {reason}" for reason in answer.unmet]
    return lines


def look(fixes: Sequence[str]) -> Seen | str:
    """What this very process would import: the task that runs on each node. Gives a sentence where it cannot be told.

    A string and no exception, since the driver's unhang may not be the one of the node.
    """
    from unhang.cli import scope
    from unhang.cli.arguments import parse
    from unhang.store import state
    from unhang.tell import console, report

    importlib.invalidate_caches()  # Ray uses a worker again, and what is installed may have changed meanwhile
    require = [word for fix in fixes for word in ("--require", fix)]
    try:
        here = scope.find(parse(["check", "--python", sys.executable, *require]))
        findings = scope.findings(here)
    except UnhangError as error:
        return f"{error.message}" + (f" ({error.path})" if error.path else "")
    except OSError as error:
        return f"cannot be read: {error}"
    if state.interrupted(here.environment.state_dir):
        return "an earlier run of unhang was killed halfway: run `unhang apply` there"
    return Seen(report.digest(findings), tuple(console.unmet(list(fixes), findings)))


def _started_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise UnhangError("no-ray", "Ray is not installed here", hint="run this in the job's environment") from None
    if not ray.is_initialized():  # to ask would start a cluster of one node, which always agrees with itself
        raise UnhangError("no-ray", "Ray is not started", hint="call ray.init() first, with the cluster's address")
    module: ModuleType = ray
    return module


def _ask(ray: Any, nodes: Sequence[str], fixes: list[str], timeout_s: float) -> dict[str, Seen | str]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # no CPU is asked for: the nodes may be full of actors already
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(fixes): node
        for node in nodes
    }
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
    answers: dict[str, Seen | str] = {}
    for reference in late:
        ray.cancel(reference, force=True)
        answers[asked[reference]] = f"no answer within {timeout_s:g} s"
    for reference in ready:
        answers[asked[reference]] = _answer(ray, reference)
    return answers


def _answer(ray: Any, reference: object) -> Seen | str:
    try:
        answer: Seen | str = ray.get(reference)
    except ray.exceptions.RayError as error:  # the node died, or its unhang cannot be imported
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"cannot be asked: {lines[-1] if lines else type(error).__name__}"
    return answer


def _name(node: dict[str, Any]) -> str:
    return str(node.get("NodeManagerHostname") or node.get("NodeName") or node["NodeManagerAddress"])
