"""Every launcher's prefix tells who speaks, and leaves the line as it was."""

from __future__ import annotations

import pytest

from unhang.diagnose import speakers

TEXT = '  File "a.py", line 3, in f'
WATCHDOG = "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ("", None, None)),
        ("[default3]: ", ("[default3]:", 3, None)),
        ("[default3]: [rank25]: ", ("[default3]:", 3, 25)),
        ("[my-role.3]: ", ("[my-role.3]:", 3, None)),
        ("3: ", ("3:", 3, None)),
        ("12: [default3]: ", ("12:[default3]:", 3, None)),
        ("12: [default3]: [rank99]: ", ("12:[default3]:", 3, 99)),
        ("[1,3]<stderr>: ", ("[1,3]<stderr>:", 3, None)),
        ("[prterun-node1-77@1,3]<stdout>: ", ("[prterun-node1-77@1,3]<stdout>:", 3, None)),
        ("[3] ", ("[3]", 3, None)),
        ("(WorkerDict pid=77, ip=10.0.0.7) ", ("(WorkerDict pid=77, ip=10.0.0.7)", None, None)),
        ("\x1b[36m(WorkerDict pid=77)\x1b[0m [rank7]: ", ("(WorkerDict pid=77)", None, 7)),
        ("(MegatronPolicyWorker[rank=9] pid=77) ", ("(MegatronPolicyWorker[rank=9] pid=77)", 9, None)),
        ("(pid=77) ", ("(pid=77)", None, None)),
        ("[pod/w-0/torch] 2026-01-02T03:04:05.123456789Z [rank7]: ", ("[pod/w-0/torch]", None, 7)),
        ("2026-01-02T03:04:05.1+01:00 ", ("", None, None)),
        ("job-worker-0  | [rank7]: ", ("job-worker-0  |", None, 7)),
        ("node17: [default3]: ", ("node17:[default3]:", 3, None)),
        ("node17: 3: ", ("node17:3:", 3, None)),
        ("Epoch 0:  6%|## | 2/9[rank7]: ", ("", None, 7)),
    ],
)
def test_prefixes(prefix: str, expected: tuple[str, int | None, int | None]) -> None:
    assert speakers.of(prefix + TEXT) == (expected, TEXT)


def test_launchers_that_put_no_space_take_none_that_matters() -> None:
    assert [speakers.of(f"{prefix}{TEXT}")[1].strip() for prefix in ("[default3]:", "[rank3]:")] == [TEXT.strip()] * 2


@pytest.mark.parametrize("line", [" 3: x", "ValueError: x", "12:30:01 x", "step | loss", "[2026-01-02] x", "(see) x"])
def test_what_is_no_prefix(line: str) -> None:
    speaker, _ = speakers.of(line)
    assert (speaker.task, speaker.rank) == (None, None)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (WATCHDOG, 3),
        (WATCHDOG.replace("[Rank", "[PG 1 Rank 0] [Rank"), None),
        (f"(Worker pid=1) {WATCHDOG}", None),
        (f"[rank9]:{WATCHDOG}", 9),
        ("[Rank 3] loss: 0.1", None),
    ],
)
def test_the_rank_that_old_torch_says_in_the_group(line: str, rank: int | None) -> None:
    assert speakers.of(line)[0].rank == rank
