"""Collects a line for each proof, prints the table at the end, and writes it to ``UNHANG_PROOFS_JSON`` as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from proofs import suite

LINES = pytest.StashKey[list[dict[str, Any]]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add a line to the table: proof, topology, case, outcomes, and what is wrong."""
    lines = request.config.stash.setdefault(LINES, [])
    return lambda **line: lines.append(line)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash.get(LINES, [])
    if not lines:
        return
    terminalreporter.section("proofs")
    for line in lines:
        control = " (control)" if line["control"] else ""
        parts = [line["proof"], line["topology"], f"{line['case']}{control}"]
        for variant, end in line["outcomes"].items():
            parts.append(f"{variant}: {end['status']}, {end['seconds']:.2f} s: {end['detail']}")
        if line["wrong"]:
            parts.append(f"WRONG: {line['wrong']}")
        terminalreporter.write_line(" | ".join(parts))
    for left_out in _left_out():
        terminalreporter.write_line("left out: {proof}: {name}: {why}".format(**left_out))
    terminalreporter.write_line(f"{len(lines)} lines, {sum(bool(line['wrong']) for line in lines)} of them wrong")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path, lines = os.environ.get("UNHANG_PROOFS_JSON"), session.config.stash.get(LINES, [])
    if path and lines:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "proofs": lines, "left-out": _left_out()}, file, indent=1)


def _left_out() -> list[dict[str, str]]:
    return [
        {"proof": proof.name, "name": name, "why": why}
        for proof in suite.proofs()
        for name, why in proof.release.lacking.items()
    ]
