"""The page of a diagnosis: well formed, small, without scripts; nothing of a file acts in it. Chromium reads it too."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from support import pictured, recorder_dumps
from unhang.diagnose import intake, known, picture, recorder
from unhang.diagnose.evidence import Recent
from unhang.diagnose.report import Report
from unhang.records import Request
from unhang.tell import progress


class Page(HTMLParser):
    """What a page has in it; each element ends where it must."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self._open += [tag] if tag != "meta" else []
        given = dict(attrs)
        self.ids += [str(given["id"])] if given.get("id") else []
        self.targets |= {str(given["href"])} if "href" in given else set()
        assert not [name for name in given if name.startswith("on") or name in {"style", "src"}]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(folder: Path) -> str:
    job = intake.read([str(folder)], progress.silent)
    found = known.diagnose(job)
    return picture.page(Report(found, (), None, {}, Request()))


@pytest.mark.parametrize("ranks", [8, 100])
def test_each_rank_leads_to_its_stack_and_nothing_of_a_file_acts(tmp_path: Path, ranks: int) -> None:
    text = drawn(pictured.write(tmp_path / "job", ranks, late=3))
    page = Page(text)
    assert sorted(page.ids) == sorted(f"rank-{rank}" for rank in range(ranks))
    assert page.targets == {f"#{name}" for name in page.ids}
    assert page.names == {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "pre", "ul", "li", "div",
        "section", "span", "svg", "a", "rect", "path", "text",
    }  # fmt: skip
    assert "suspect: rank 3" in page.text
    assert "load<script>alert(1)</script>\"'&\\u202e (data.py:3)" in page.text
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?:", text)
    assert len(text) < 2_000 * ranks + 20_000


def test_stacks_alone_have_no_times_and_a_page_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pictured.write(tmp_path / "job", 4, late=0, dumps=False)
    page = Page(drawn(folder))
    assert "No file says when" in page.text
    assert "step (train.py:12)" in page.text
    assert "svg" not in page.names
    monkeypatch.setattr(picture, "_STACKS", 10)
    assert Page(drawn(folder)).text.count("The stacks are left out") == 1, "the first ones are shown"


def test_the_newest_entries_with_what_is_not_done(tmp_path: Path) -> None:
    entries = [recorder_dumps.entry(number) for number in range(30)]
    entries += [recorder_dumps.entry(30, state="started"), recorder_dumps.entry(31, state="scheduled")]
    (tmp_path / "rank_1").write_bytes(recorder_dumps.as_pickle(recorder_dumps.dump(entries)))
    (tmp_path / "old-rank_1.json").write_bytes(recorder_dumps.as_json(recorder_dumps.dump(entries[:4])))
    (tmp_path / "rank_1.txt").write_text('Process 7: python\n\nThread 1 (idle): "MainThread"\n    step (train.py:12)\n')
    job = intake.read([str(tmp_path)], progress.silent)
    found = job.ranks[1].recent
    assert ([*job.ranks], len(found)) == ([1], recorder.RECENT)
    done, started, scheduled = found[-3:]
    at = 1_790_000_000_000_029_000
    assert done == Recent("default_pg", "all_reduce", 30, at, at, waits=False)
    assert [(one.sequence, one.waits) for one in (started, scheduled)] == [(31, True), (32, True)]


def test_entries_without_a_time_a_group_or_a_number_are_left_out() -> None:
    whole = recorder_dumps.entry(0)
    values: dict[str, list[Any]] = {"time_created_ns": [-1, "x"], "process_group": [[]], "collective_seq_id": [None]}
    for key, odds in values.items():
        assert not [made for odd in odds for made in recorder._recent([whole | {key: odd}], ())]
    (bare,) = recorder._recent([whole | {"profiling_name": 7, "process_group": ["0", "undefined"]}], ())
    assert (bare.group, bare.kind) == ("group 0", "")
