"""The modules that run in the target's interpreter: what they may import, and a proof that does not run there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unhang.prove
from support.jobs import needs_torch
from unhang.prove import host
from unhang.prove.cases import Case, Topology

PROVE = Path(unhang.prove.__file__).parent
OURS = {"answers", "gpus", "host", "installed", "line", "sides", "table", "topology"}
"""These run in unhang's own interpreter."""
INSIDE = [path for path in sorted(PROVE.rglob("*.py")) if path.stem not in OURS]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: str(path.relative_to(PROVE)))
def test_only_what_the_target_has_is_imported(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [] if node.level else [(node.module or "").partition(".")[0]]
            assert not OURS & {node.module, *(alias.name for alias in node.names)} or node.level == 0
        else:
            continue
        assert not {"unhang", "libcst", "packaging"} & {*names}, "the target may have none of them"
        if set(names) - set(sys.stdlib_module_names):
            assert node not in tree.body, "torch, the upstreams and what these import are imported only by functions"


def test_the_cases_can_be_read_without_torch() -> None:
    names = [".".join(path.relative_to(PROVE).with_suffix("").parts).removesuffix(".__init__") for path in INSIDE]
    assert {"fixes.mtp_cp_deadlock", "fixes.expert_dp_warmup"} <= set(names)
    code = f"import sys; sys.modules['torch'] = None\nfor n in {names}: __import__('unhang.prove.' + n)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


@needs_torch
def test_a_proof_that_cannot_import_its_upstream_is_broken_not_hung() -> None:
    case = Case("any", Topology(), "hung")
    answer = host.ask(sys.executable, "mtp-cp-deadlock", [], {"untouched": ({}, ["any"])}, [case])
    status, detail, *_ = answer.outcomes["untouched"]["any"]
    assert status == "broken"
    assert "No module named" in detail
