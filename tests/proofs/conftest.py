"""Collects a line for each proof, prints the table at the end, and writes it to ``UNHANG_PROOFS_JSON`` as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from proofs import suite


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add a line to the table: proof, topology, case, outcomes, and what is wrong."""
    return lambda **line: request.node.user_properties.append(("proof", line))  # xdist brings these to the summary


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for ended in ("passed", "failed") for report in terminalreporter.stats.get(ended, [])]
    lines = [line for report in reports for name, line in report.user_properties if name == "proof"]
    if not lines:
        return
    lines.sort(key=lambda line: line["proof"])
    if path := os.environ.get("UNHANG_PROOFS_JSON"):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "proofs": lines, "left-out": _left_out()}, file, indent=1)
    terminalreporter.section("proofs")
    for line in lines:
        control = " (control)" if line["control"] else ""
        parts = [line["proof"], line["topology"], f"{line['case']}{control}"]
        for variant, end in line["outcomes"].items():
            parts.append(f"{variant}: {end['status']}, {end['seconds']:.2f} s: {end['detail']}")
        if line["wrong"]:
            parts.append(f"WRONG: {line['wrong']}")
        terminalreporter.write_line(" | ".join(parts))
    of = {line["proof"] for line in lines}
    for left_out in (one for one in _left_out() if one["proof"] in of):
        terminalreporter.write_line("left out: {proof}: {name}: {why}".format(**left_out))
    terminalreporter.write_line(f"{len(lines)} lines, {sum(bool(line['wrong']) for line in lines)} of them wrong")


def _left_out() -> list[dict[str, str]]:
    return [
        {"proof": proof.name, "name": name, "why": why}
        for proof in suite.proofs()
        for name, why in proof.release.lacking.items()
    ]
