"""Collects the best answer to each input of each job, and writes them to ``UNHANG_HANGS_JSON``, for ``hangs.page``."""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for ended in ("passed", "failed") for report in terminalreporter.stats.get(ended, [])]
    lines = [line for report in reports for name, line in report.user_properties if name == "hang"]
    if lines and (path := os.environ.get("UNHANG_HANGS_JSON")):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "hangs": sorted(lines, key=lambda line: line["job"])}, file, indent=1)
