"""pytest plugin (``-p unhang_reports``): writes the outcome of each test as a line of JSON, immediately.

It runs in the upstream's environment, beside its own plugins, and changes no test. The lines go to the file that
``UNHANG_REPORTS`` names, with the rank as suffix, so that a killed process leaves those up to then. On SIGUSR1 the
stacks of all threads go to the same name with ``.stack``. It also measures which rewritten lines each test executes,
and traces the functions that have one, and no other. ``UNHANG_REWRITTEN`` has the names of these lines, by file and
number.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import json
import os
import random
import signal
import sys
import threading
from typing import Any

import pytest

_OUTPUT = 6000  # characters of a failure to keep: its end names the cause
_RANK = int(os.environ.get("RANK", "0"))
_PATH = f"{os.environ['UNHANG_REPORTS']}.{_RANK}"
_LINES = open(_PATH, "a", encoding="utf-8", buffering=1)  # noqa: SIM115, for as long as the process lives
_STACK = open(f"{_PATH}.stack", "w", encoding="utf-8")  # noqa: SIM115
_REWRITTEN = json.loads(os.environ.get("UNHANG_REWRITTEN", "{}"))
_OF_FILE: dict[str, dict[int, str]] = {}  # by a code object's file name
_executed: set[str] = set()
_phases: dict[str, list[Any]] = {}


def _tell(kind: str, **line: Any) -> None:
    _LINES.write(json.dumps({"kind": kind, **line}) + "\n")


faulthandler.register(signal.SIGUSR1, file=_STACK, all_threads=True)
_tell("process", pid=os.getpid())


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _tell("collected", id=item.nodeid)


def pytest_collectreport(report: Any) -> None:
    if not report.passed:
        _tell("collector", id=report.nodeid, outcome=report.outcome, output=_output(report))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Any:
    if not _REWRITTEN or sys.gettrace():
        return (yield)
    threading.settrace(_watch)
    sys.settrace(_watch)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set the same seeds on both sides, and different ones on each rank as in a job; a test may set its own."""
    random.seed(1234 + _RANK)
    for name, seed in (("numpy", "numpy.random"), ("torch", "torch.random")):
        if name in sys.modules:
            module = sys.modules[seed]
            getattr(module, "seed" if name == "numpy" else "manual_seed")(1234 + _RANK)


def pytest_runtest_logstart(nodeid: str) -> None:
    _phases[nodeid] = []
    _executed.clear()
    _tell("started", id=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    _phases.setdefault(report.nodeid, []).append(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    reports = _phases.pop(nodeid, [])
    outcome, output = _outcome(reports)
    _tell("finished", id=nodeid, outcome=outcome, output=output, executed=sorted(_executed))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    _tell("ended", exitstatus=int(exitstatus))
    session.exitstatus = 0  # with another status, torchrun ends the other ranks


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Exit now: threads and process groups that a test left may never end."""
    for stream in sys.stdout, sys.stderr, _LINES:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _watch(frame: Any, event: str, argument: Any) -> Any:
    """Trace the lines of a function that has a rewritten one. A module or class executes no line of its functions."""
    code = frame.f_code
    names = _names(code.co_filename)
    if names and code.co_flags & inspect.CO_OPTIMIZED and any(line in names for *_, line in code.co_lines()):
        return _note
    return None


def _note(frame: Any, event: str, argument: Any) -> Any:
    if event == "line" and frame.f_lineno in (names := _names(frame.f_code.co_filename)):
        _executed.add(names[frame.f_lineno])
    return _note


def _names(filename: str) -> dict[int, str]:
    if filename not in _OF_FILE:
        names = _REWRITTEN.get(os.path.realpath(filename), {})
        _OF_FILE[filename] = {int(line): name for line, name in names.items()}
    return _OF_FILE[filename]


def _outcome(reports: list[Any]) -> tuple[str, str]:
    failed = [report for report in reports if report.failed]
    if failed:
        return "failed", _output(failed[0])
    skipped = [report for report in reports if report.skipped]
    if skipped:
        return "skipped", getattr(skipped[0], "wasxfail", "") or _output(skipped[0])
    return ("passed", "") if reports else ("failed", "no report")


def _output(report: Any) -> str:
    shown = report.longrepr
    if isinstance(shown, tuple):  # of a skip: file, line, reason
        return str(shown[2])
    return str(shown)[-_OUTPUT:]
