"""Checks before training that all nodes of a Ray cluster have the same code.

A job on partly patched nodes can hang, since the rewrites change which collectives a rank issues. Ray comes from the
job; unhang does not depend on it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang.cli import requests
from unhang.errors import UnhangError
from unhang.plugins import packs
from unhang.records import Request

if TYPE_CHECKING:
    from types import ModuleType

_HINT = "install and patch all nodes alike (`unhang check` on each shows what it has), or leave some out with nodes="


class Seen(NamedTuple):
    """What a worker on one node would import."""

    digest: str
    """As ``unhang check`` prints it."""
    unmet: tuple[str, ...]
    """Why a required fix is not in place there, one sentence each."""


def require_agreement(
    *,
    require: str | Collection[str] = (),
    fix: str | Collection[str] = (),
    skip: str | Collection[str] = (),
    kind: str | Collection[str] = (),
    upstream: str | Collection[str] = (),
    accept: str | Collection[str] = (),
    nodes: Collection[str] | None = None,
    timeout_s: float = 120,
) -> str:
    """Return the digest that all alive nodes of the running Ray cluster share, after ``ray.init()``.

    One task is pinned to each node. It runs in a worker of the job, with that worker's interpreter, path and runtime
    environment. ``require``, ``fix``, ``skip``, ``kind``, ``upstream`` and ``accept`` mean what the options of
    ``unhang check`` mean, which prints the same digest with them: ``require`` are the fixes that must be in place, or
    not needed, on each node; ``accept`` are the tokens of accepted rewrites; the others narrow what is looked at.
    ``UNHANG_REQUIRE``,
    ``UNHANG_SKIP`` and ``UNHANG_ACCEPT`` of this process stand for their options if these are empty. Packs are those of
    ``UNHANG_PACKS``, and those installed beside unhang, on each node. ``nodes``: ids
    (``NodeID`` of ``ray.nodes()``) of the nodes to ask, if some have no part in the training. ``timeout_s``: seconds to
    wait.

    Raises UnhangError ``nodes-differ``, which lists each node and what it has, if the nodes do not agree, lack a fix or
    do not answer in time; ``no-nodes`` if there is no node to ask; ``no-ray`` if Ray is not installed or not started;
    ``unknown-fix``, ``unknown-kind``, ``unknown-upstream``, ``bad-token``, ``bad-pack``.
    """
    words = {"require": require, "fix": fix, "skip": skip, "kind": kind, "upstream": upstream, "accept": accept}
    given = {name: [value] if isinstance(value, str) else list(value) for name, value in words.items()}
    packs.use((), False, os.environ)
    packs.refuse_empty()
    requests.fill_in(given, os.environ)
    requests.selection(given)  # refuses an unknown name before any node is asked
    ray = _started_ray()
    alive = {node["NodeID"]: _name(node) for node in ray.nodes() if node["Alive"]}
    if missing := sorted(set(nodes or ()) - set(alive)):
        raise UnhangError("no-nodes", f"not alive in this cluster: {', '.join(missing)}", hint="see ray.nodes()")
    chosen = [(name, node) for node, name in alive.items() if nodes is None or node in nodes]
    asked = {node: name for name, node in sorted(chosen)}
    if not asked:
        raise UnhangError("no-nodes", "there is no node to ask", hint="see ray.nodes()")
    answers = _ask(ray, list(asked), given, timeout_s)
    found = {f"{name} (node {node[:8]})": answers[node] for node, name in asked.items()}
    if trouble := disagreement(found):
        raise UnhangError("nodes-differ", "\n".join(trouble), hint=_HINT)
    return next(answer.digest for answer in found.values() if isinstance(answer, Seen))


def disagreement(found: dict[str, Seen | str]) -> list[str]:
    """Return what each node has, one line each, or no line if all agree and lack nothing.

    ``found``: by the node's name, what a worker there would import, or why that is unknown.
    """
    digests = Counter(answer.digest for answer in found.values() if isinstance(answer, Seen))
    complete = all(isinstance(answer, Seen) and not answer.unmet for answer in found.values())
    if complete and len(digests) == 1:
        return []
    lines = [f"the {len(found)} nodes do not all have the code that this job requires:"]
    for name, answer in found.items():
        if isinstance(answer, str):
            lines.append(f"  {name}: {answer}")
        else:
            lines.append(f"  {name}: digest {answer.digest}, on {digests[answer.digest]} of {len(found)} nodes")
            lines += [f"    required fix not in place: {reason}" for reason in answer.unmet]
    return lines


def look(given: Mapping[str, Sequence[str]]) -> Seen | str:
    """Return what this process would import, or a sentence that says why that is unknown. Runs on each node.

    ``given`` are the options of ``unhang check`` that choose and require, by name.

    An error comes as a string, since the node may have another version of unhang than the driver.
    """
    importlib.invalidate_caches()  # Ray reuses workers, and the installed packages may have changed
    try:
        packs.use((), False, os.environ)  # those of this node
        packs.refuse_empty()
        return _seen(requests.selection(given))
    except UnhangError as error:
        return error.message + (f" ({error.path})" if error.path else "")
    except OSError as error:
        return f"cannot be read: {error}"


def _seen(wanted: Request) -> Seen | str:
    from unhang.suggest import command
    from unhang.survey.verdicts import survey
    from unhang.tell import console, report

    wanted = wanted._replace(python=sys.executable, as_imported=True)
    here = survey(wanted)
    if here.interrupted:
        return f"an earlier run of unhang was killed halfway: run `{command('apply', wanted)}` there"
    return Seen(report.digest(here.findings), tuple(console.unmet(wanted.required, here.findings)))


def _started_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise UnhangError("no-ray", "Ray is not installed here", hint="run this in the job's environment") from None
    if not ray.is_initialized():  # asking would start a cluster of one node, which always agrees with itself
        raise UnhangError("no-ray", "Ray is not started", hint="call ray.init() first, with the cluster's address")
    module: ModuleType = ray
    return module


def _ask(ray: Any, nodes: Sequence[str], given: Mapping[str, list[str]], timeout_s: float) -> dict[str, Seen | str]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # num_cpus=0: actors may already use all CPUs
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(given): node
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
    except ray.exceptions.RayError as error:  # the node died, or cannot import unhang
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"no answer: {lines[-1] if lines else type(error).__name__}"
    return answer


def _name(node: dict[str, Any]) -> str:
    return str(node.get("NodeManagerHostname") or node.get("NodeName") or node["NodeManagerAddress"])
