"""What is collected here, the summary of what is left out or skipped, and an importable sweep."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.sweep importable
from unhang.plugins import packs
from unhang.tell import terminal

pytest.register_assert_rewrite("support.sources", "support.wheels", "support.environments")

UPSTREAMS = {module.partition(".")[0] for module in packs.modules()}
_LEFT_OUT = pytest.StashKey[Counter[str]]()


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a command in this process was told by ``-q``, ``-v`` and ``--color``."""
    for name in ("color", "quiet", "verbose"):
        monkeypatch.setattr(terminal.settings, name, getattr(terminal.Settings, name))


@pytest.fixture(autouse=True)
def _no_pack_left() -> Iterator[None]:
    """Leave no pack in effect, and no `--no-packs`, which would stay in the commands that are suggested."""
    yield
    if packs.words() or packs.others():
        packs.use([], False, {})


@pytest.fixture(autouse=True)
def _no_upstream_left_imported() -> Iterator[None]:
    """Notice a test that leaves an upstream in `sys.modules`: a later test would find that in place of its own."""
    before = {name for name in UPSTREAMS if name in sys.modules}
    yield
    assert {name for name in UPSTREAMS if name in sys.modules} == before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`."""
    parser.addoption("--quick", action="store_true", help="leave out the tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and with `--quick` what is slow."""
    reasons = {item: why for item in items if (why := _left_out(item, config.option.quick))}
    items[:] = [item for item in items if item not in reasons]
    config.hook.pytest_deselected(items=list(reasons))
    config.stash[_LEFT_OUT] = Counter(reasons.values())


def _left_out(item: pytest.Item, quick: bool) -> str:
    """Return why a test is not collected here; empty if it is."""
    if quick and item.get_closest_marker("slow"):
        return "slow: `nox -s tests-all` runs these too"
    from support.wheels import CLONES  # whose asserts are to be rewritten first

    history = item.get_closest_marker("history")
    if history and not os.environ.get(variable := CLONES[history.args[0]]):
        return f"{variable} is not set: shapes that only the upstream's history has are not tested"
    if item.get_closest_marker("torch") and not (os.environ.get("UNHANG_PROOFS_PYTHON") or find_spec("torch")):
        return "no torch here: `nox -s proofs` has one"
    return ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a worker of xdist left out to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        left_out: Counter[str] = session.config.stash.get(_LEFT_OUT, Counter())
        session.config.workeroutput["left-out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker left out: each worker collects all tests, so one of them will do."""
    node.config.stash[_LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left-out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one line for each reason to leave out or to skip tests, with their number."""
    skipped = terminalreporter.stats.get("skipped", [])
    for title, reasons in (
        ("left out", config.stash.get(_LEFT_OUT, Counter())),
        ("skipped", Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)),
    ):
        if reasons:
            terminalreporter.section(title)
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")
