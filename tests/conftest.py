"""The option `--quick`, the summary of what was skipped, and an importable sweep."""

import sys
from collections import Counter
from collections.abc import Iterator

import pytest

import support.checkout  # noqa: F401 - makes unhang.compat.sweep importable
from unhang import packs
from unhang.tell import terminal

pytest.register_assert_rewrite("support.rewrites", "support.sources", "support.wheels", "support.environments")

UPSTREAMS = {module.partition(".")[0] for module in packs.modules()}
LEFT_OUT = "slow, left out by --quick: `nox -s tests-all` runs these too"


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
    parser.addoption("--quick", action="store_true", help="skip the tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the slow tests, rather than deselect them: xdist does not report what its workers deselect."""
    if config.option.quick:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason to skip tests, with their number."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
