"""What the tests of whole runs share."""

import sys
from collections.abc import Callable, Iterator

import pytest

from support import memory, whole
from support.whole import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with memory.folder(tmp_path_factory.mktemp("stage")) as home, whole.rewriting_once():
        yield whole.stage(home)


@pytest.fixture
def tell(
    capfd: pytest.CaptureFixture[str], record_testsuite_property: Callable[[str, object], None]
) -> Iterator[list[str]]:
    """Figures that are printed even if the test passes, and are in JUnit's report: ``support.promises`` reads them."""
    figures: list[str] = []
    yield figures
    for figure in figures:
        record_testsuite_property("figure", figure)
    with capfd.disabled():
        for figure in figures:
            print(f"\n[measured] {figure}", file=sys.stderr)
