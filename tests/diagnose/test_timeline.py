"""The last collectives of each rank, with their times, from dumps."""

from __future__ import annotations

from pathlib import Path

from support import recorder_dumps
from unhang.diagnose import intake, picture, recorder
from unhang.diagnose.evidence import Recent
from unhang.tell import progress

START = 1_790_000_000_000_000_000


def test_the_newest_entries_with_what_is_not_done(tmp_path: Path) -> None:
    entries = [recorder_dumps.entry(number) for number in range(30)]
    entries += [recorder_dumps.entry(30, state="started"), recorder_dumps.entry(31, state="scheduled")]
    recorded = recorder_dumps.dump(entries)
    (tmp_path / "rank_1").write_bytes(recorder_dumps.as_pickle(recorded))
    old = recorder_dumps.dump(entries[:4])
    (tmp_path / "old").mkdir()
    (tmp_path / "old/rank_1.json").write_bytes(recorder_dumps.as_json(old))
    (tmp_path / "rank_1.txt").write_text('Process 7: python\n\nThread 1 (idle): "MainThread"\n    step (train.py:12)\n')
    (tmp_path / "rank_2").write_bytes(b"\x80\x02broken")
    job = intake.read([str(tmp_path)], progress.silent)
    (rank, found), *others = picture.moments(job).items()
    assert (rank, others, len(found)) == (1, [], recorder.RECENT)
    done, started, scheduled = found[-3:]
    assert done == Recent("0", "default_pg", "all_reduce", 30, False, START + 29_000, START + 29_000, waits=False)
    assert [(one.sequence, one.waits) for one in (started, scheduled)] == [(31, True), (32, True)]


def test_entries_without_a_time_a_group_or_a_number_are_left_out() -> None:
    whole = recorder_dumps.entry(0)
    for key, value in (
        ("time_created_ns", -1),
        ("time_created_ns", "x"),
        ("process_group", []),
        ("collective_seq_id", None),
    ):
        assert not [*recorder._recent([whole | {key: value}])]
    (odd,) = recorder._recent([whole | {"profiling_name": 7, "process_group": ["0", "undefined"]}])
    assert (odd.group, odd.kind) == ("group 0", "")
