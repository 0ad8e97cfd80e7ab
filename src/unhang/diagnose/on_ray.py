"""Run a command on each node of a Ray cluster, with a label before each line. The job's own Python runs this file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def main(address: str, limit: float, command: list[str]) -> None:
    """Print what the command prints on each node, as soon as it has ended there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def take(words: list[str], seconds: float) -> bytes:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        ended = subprocess.run(
            words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds,
            env={**os.environ, "PATH": path},
        )  # fmt: skip
        return ended.stdout + ended.stderr[-2_000:]

    try:
        ray.init(address, log_to_driver=False, logging_level=40)
    except Exception as error:
        why = error.__cause__ or error  # such as a token that is missing
        sys.exit(" ".join(f"{type(why).__name__}: {why}".split())[:400])
    remote = ray.remote(num_cpus=0, max_retries=0)(take)
    waiting: dict[Any, str] = {}
    nodes = 0
    for node in ray.nodes():  # type: ignore[no-untyped-call,unused-ignore]
        name = f"{node['NodeManagerAddress']}-{node['NodeID'][:8]}"
        if node["Alive"]:
            nodes += 1
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            waiting[remote.options(scheduling_strategy=where).remote(command, limit)] = name
        else:
            _print(name, b"@unhang note Ray says that this node is gone")
    print(f"@unhang nodes {nodes}", flush=True)
    while waiting:
        for done in ray.wait(list(waiting))[0]:
            name = waiting.pop(done)
            try:
                _print(name, ray.get(done))
            except Exception as error:
                _print(name, f"@unhang note {type(error).__name__}: {error}".partition("\n")[0].encode())


def _print(name: str, text: bytes) -> None:
    for line in text.splitlines():
        sys.stdout.buffer.write(f"{name}: ".encode() + line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
