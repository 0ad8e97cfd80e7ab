"""docs/maintainers/dumps.md: the dumps that are read, and the page."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from unhang.diagnose import intake, known
from unhang.tell.progress import silent

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("dumps")


def test_the_dumps_are_of_one_job(dumps: Any, tmp_path: Path) -> None:
    dumps.lay_out(tmp_path / "dumps", dumps.Case(16, 60, 3))
    job = intake.read([str(tmp_path / "dumps")], silent)
    assert (job.size, job.unread, list(job.ranks)) == (16, (), list(range(16)))
    assert {group.members for group in job.groups.values()} == {
        tuple(range(16)), tuple(range(8)), tuple(range(8, 16)), *((place, place + 8) for place in range(8)),
    }  # fmt: skip
    assert {rank: len(one.waiting) for rank, one in job.ranks.items()} == {**dict.fromkeys(range(16), 8), 5: 0}
    assert all(len(one.last[0].frames) == 3 for one in job.ranks.values())
    found = known.diagnose(job)
    assert [*found.who.why] == [5]
    assert {place.ranks for place in found.places} == {(5,), tuple(rank for rank in range(16) if rank != 5)}


def test_the_cost_of_a_command_has_that_of_its_children(dumps: Any) -> None:
    inner = "x = b'x' * (150 << 20); [sum(range(10 ** 6)) for _ in range(20)]"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    taken = dumps.cost([dumps.sys.executable, "-c", outer])
    assert taken.peak_mb > 150
    assert taken.processor_s > 0.05
    assert dumps.cost([dumps.sys.executable, "-c", "raise SystemExit(3)"]) is None


def test_a_command_that_does_not_end_is_stopped(dumps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "PATIENCE_S", 0.2)
    assert dumps.cost([dumps.sys.executable, "-c", "import time; time.sleep(600)"]) is None


def test_the_committed_page_has_the_text_of_the_generator(dumps: Any) -> None:
    text = re.sub(r"\\\{\w+\\\}", "(?s:.+?)", re.escape(dumps._PAGE))
    assert re.fullmatch(text, (ROOT / "docs" / "maintainers" / "dumps.md").read_text(encoding="utf-8"))
