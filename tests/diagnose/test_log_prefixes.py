"""Every launcher's prefix tells who speaks, and leaves the line as it was."""

from __future__ import annotations

import json

import pytest

from unhang.diagnose import log_prefixes

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
        ("  3: ", ("3:", 3, None)),
        ("12: [default3]: ", ("12:[default3]:", 3, None)),
        ("12: [default3]: [rank99]: ", ("12:[default3]:", 3, 99)),
        ("[1,3]<stderr>: ", ("[1,3]<stderr>:", 3, None)),
        ("[prterun-node1-77@1,3]<stdout>: ", ("[prterun-node1-77@1,3]<stdout>:", 3, None)),
        ("[prterun-node1-77@1,3][node1:4711]<stdout>: ", ("[prterun-node1-77@1,3][node1:4711]<stdout>:", 3, None)),
        ("[3]<stderr>: ", ("[3]<stderr>:", 3, None)),
        ("Wed Nov  5 10:00:04 2026<stdout>:[rank7]: ", ("", None, 7)),
        ("[Wed Nov 25 10:00:04 2026][1,3]<stderr>: ", ("[1,3]<stderr>:", 3, None)),
        ("[Wed Nov 25 10:00:04 2026]<stderr>: ", ("", None, None)),
        ("[3] ", ("[3]", 3, None)),
        ("(WorkerDict pid=77, ip=10.0.0.7) ", ("(WorkerDict pid=77, ip=10.0.0.7)", None, None)),
        ("\x1b[36m(WorkerDict pid=77)\x1b[0m [rank7]: ", ("(WorkerDict pid=77)", None, 7)),
        ("(MegatronPolicyWorker[rank=9] pid=77) ", ("(MegatronPolicyWorker[rank=9] pid=77)", 9, None)),
        ("(pid=77) ", ("(pid=77)", None, None)),
        ("[pod/w-0/torch] 2026-01-02T03:04:05.123456789Z [rank7]: ", ("[pod/w-0/torch]", None, 7)),
        ("2026-01-02T03:04:05.1+01:00 ", ("", None, None)),
        ("2026-01-02T03:04:05.123456789Z stderr F ", ("", None, None)),
        ("2026-01-02T03:04:05.123456789+02:00 stdout F 3: ", ("3:", 3, None)),
        ("Nov 25 10:00:04 ", ("", None, None)),
        ("Nov  5 10:00:04 [rank7]: ", ("", None, 7)),
        ("2026-01-02T03:04:05 12: ", ("12:", 12, None)),
        ("[2026-01-02 03:04:05.123456] [default3]: ", ("[default3]:", 3, None)),
        ("2026-01-02 03:04:05 (WorkerDict pid=77) ", ("(WorkerDict pid=77)", None, None)),
        ("team trainer-worker-3 pytorch ", ("team trainer-worker-3 pytorch", None, None)),
        ("job-worker-0  | [rank7]: ", ("job-worker-0  |", None, 7)),
        ("node17: [default3]: ", ("node17:[default3]:", 3, None)),
        ("node17: 3: ", ("node17:3:", 3, None)),
        ("worker-3: ", ("worker-3:", None, None)),
        ("step | ", ("step |", None, None)),
        ("Epoch 0:  6%|## | 2/9[rank7]: ", ("", None, 7)),
    ],
)
def test_prefixes(prefix: str, expected: tuple[str, int | None, int | None]) -> None:
    assert log_prefixes.of(prefix + TEXT) == (expected, TEXT)


@pytest.mark.parametrize(
    ("wrapped", "launcher"),
    [
        ({"labels": {"pod": "w-0"}, "line": TEXT, "timestamp": "2026-01-02T03:04:05Z"}, "{'pod': 'w-0'}"),
        ({"log": f"{TEXT}\n", "stream": "stderr"}, "stderr"),
        ({"message": TEXT, "podName": "w-0", "containerName": "torch", "labels": {"a": "b"}}, "w-0 torch"),
        ({"namespace": "a", "podName": "w-0", "containerName": "torch", "message": f"3: {TEXT}"}, "w-0 torch3:"),
    ],
)
def test_a_line_within_json_is_that_line(wrapped: dict[str, object], launcher: str) -> None:
    speaker, text = log_prefixes.of(json.dumps(wrapped))
    assert (speaker.launcher, text) == (launcher, TEXT)


NO_SPACE = ("[default3]:", "[rank3]:", "Wed Nov 25 10:00:04 2026[1,3]<stderr>:")


def test_launchers_that_put_no_space_take_none_that_matters() -> None:
    assert [log_prefixes.of(f"{prefix}{TEXT}")[1].strip() for prefix in NO_SPACE] == [TEXT.strip()] * 3


@pytest.mark.parametrize(
    "line",
    [
        *('{"message": {"a": 1}}', '{"a": 1}', '{"line', '{"line": null}'),
        *(" 3: x", "ValueError: x", "12:30:01 x", "[2026-01-02] x", "(see) x"),
        *("2026-01-02 03:04:05,123   INFO x", "[2026-01-02 03:04:05,123] INFO: Process 3"),  # a logger's own time
    ],
)
def test_what_is_no_prefix(line: str) -> None:
    assert log_prefixes.of(line) == (("", None, None), line)


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
    assert log_prefixes.of(line)[0].rank == rank


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2026-11-22 09:15:03,5 ERROR no", 0.0),
        ("[rank3]:[E1122 09:15:03.5 ProcessGroupNCCL.cpp:685] no", 0.0),
        ("2026-11-22T09:15:03.5Z no", 0.0),
        ("[E322 09:15:03.5 ProcessGroupNCCL.cpp:685] no", -8 * 31 * 86400.0),
        ("no time at all", None),
    ],
)
def test_a_time_is_the_same_in_every_format(line: str, seconds: float | None) -> None:
    first = log_prefixes.time_in("2026-11-22 09:15:03.5")
    found = log_prefixes.time_in(line)
    assert first is not None
    assert (None if found is None else found - first) == seconds
