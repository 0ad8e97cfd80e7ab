"""`unhang diagnose` as a command: its exit codes, its formats, and the environment."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from support import cli, recorder_dumps, suggestions
from unhang.cli import diagnose_command
from unhang.cli.main import main
from unhang.diagnose import intake, known
from unhang.diagnose.evidence import Job, Rank, Unread
from unhang.diagnose.known import ANSWERS, Answer

MTP = "mtp-cp-deadlock"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
JOB = Job({0: Rank(0)}, {}, 2, 1, (Unread("x", "no dump", False),))


GROUP = "7", "DATA_PARALLEL_GROUP_WITH_CP"
FRAMES = (
    ("reduce_loss_in_tracker", "/env/megatron/core/transformer/multi_token_prediction.py", 359),
    ("get_megatron_mtp_loss", "/env/verl/utils/megatron_utils.py", 1307),
    ("forward_backward_batch", f"/env/{ENGINE}", 605),
)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """The dumps of a job of two ranks, of which one reduces the loss and one is past it, and a file that is none."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    done = recorder_dumps.entry(0)
    waits = recorder_dumps.entry(1, state="started", seq=1, sizes=[[1]], group=GROUP, frames=FRAMES)
    groups = {"0": ("default_pg", (0, 1)), GROUP[0]: (GROUP[1], (0, 1))}
    passed = recorder_dumps.entry(1, state="started", seq=2)
    for rank, entries in enumerate(([done, waits], [done, passed])):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(recorder_dumps.as_pickle(recorder_dumps.dump(entries, groups)))
    (folder / "core.17").write_bytes(b"\x7fELF\0\0")
    return folder


def test_a_folder_of_dumps_gives_the_fix_and_the_command_and_then_there_is_none_to_run(dumps: Path, site: Path) -> None:
    words = ("diagnose", dumps, "--target", site)
    ran = cli.called(*words)
    assert (ran.code, ran.err.splitlines()[1:]) == (0, [])
    assert ran.err.startswith(f"warning: {dumps / 'core.17'}: ")
    assert {"read 2 files: 2 of 2 ranks", "known: mtp-cp-deadlock (cure)"} <= {*ran.out.splitlines()}
    assert ran.out.startswith("rank 0: deadlocked in DATA_PARALLEL_GROUP_WITH_CP: it waits for ranks that wait for it")
    assert "rank 0: waiting in all_reduce 1 of DATA_PARALLEL_GROUP_WITH_CP, [1] Float\n" in ran.out
    assert ran.out.endswith("\n  then start the job again\n")
    (command,) = (one.command for one in suggestions.found(ran.out) if " apply " in one.command)
    assert cli.called(*command.split()[1:]).code == 0
    refuted = cli.called(*words, "--output-format", "json")
    answer = refuted.json["answers"][0]
    assert (refuted.code, answer["answer"], answer["command"]) == (1, "not-here", None)
    assert [one["verdict"] for one in answer["standings"]] == ["applied"]
    assert " apply " not in cli.called(*words).out


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that the files give, to fill in."""
    answers: list[Answer] = []
    monkeypatch.setattr(intake, "read", lambda paths, step: JOB)
    monkeypatch.setattr(known, "answers", lambda *_: tuple(answers))
    return answers


def answer(name: str) -> Answer:
    return Answer(name, MTP, "So it is.")


@pytest.mark.parametrize("name", ANSWERS)
def test_only_a_known_hang_exits_with_0(name: str, answered: list[Answer], pristine: Path) -> None:
    answered += [answer("possible"), answer(name)]
    assert main(["diagnose", "dumps", "--target", str(pristine)]) == (0 if name == "known" else 1)


def test_the_formats_say_the_same_and_what_was_not_read_is_a_warning(
    answered: list[Answer], pristine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered.append(answer("known"))
    apply = f"unhang apply --target {pristine} --fix {MTP}"
    words = ["diagnose", "dumps", "--target", str(pristine), "--output-format"]
    assert main([*words, "json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == "warning: x: no dump\n"
    assert document["environment"]["prefix"] == str(pristine)
    assert [(row["fix"], row["command"], row["standings"][0]["verdict"]) for row in document["answers"]] == [
        (MTP, apply, "needed")
    ]
    assert main([*words, "github"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("::error title=unhang known")
    assert (out.endswith("::warning title=unhang::x: no dump\n"), err) == (True, "")
    assert main(words[:-1]) == 0
    out, err = capsys.readouterr()
    assert f"\n  needed on verl 0.7.1 in {pristine}; on every node of the job, run: {apply}\n" in out
    assert err == "warning: x: no dump\n"


def test_an_environment_that_cannot_be_read_does_not_hide_the_answer(
    answered: list[Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered.append(answer("possible"))
    assert main(["diagnose", "dumps", "--target", str(tmp_path / "gone")]) == 1
    out, err = capsys.readouterr()
    assert "error[not-a-folder]" in err
    assert "possible: mtp-cp-deadlock (cure)\n" in out
    assert f"in the job's environment, run: unhang check --fix {MTP}\n" in out
    assert "environment: " not in out


def test_no_environment_is_searched_where_no_rank_is_in_a_function_of_a_fix(
    answered: list[Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "dumps", "--target", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err == "warning: x: no dump\n"


def test_an_overlay_that_the_job_imports_is_what_brings_the_fix_into_place(
    answered: list[Answer], pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answered.append(answer("known"))
    overlay = str(tmp_path / "overlay")
    assert cli.called("overlay", overlay, "--target", pristine, "--fix", "expert-dp-warmup").code == 0
    monkeypatch.setenv("PYTHONPATH", f"{overlay}:{pristine}")
    monkeypatch.setattr(sys, "path", [overlay, str(pristine), *sys.path])  # as an interpreter would have it
    words = ["diagnose", "dumps", "--python", sys.executable]
    assert main(words) == 0
    # with --fix it would lose the fix that it has
    command = f"unhang overlay {overlay} --python {sys.executable}"
    assert f"; on every node of the job, run: {command}\n" in capsys.readouterr().out
    assert cli.unhang(*command.split()[1:], env={"PYTHONPATH": f"{overlay}:{pristine}"}).code == 0
    answered[:] = [answer("not-here")]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert f": applied on verl 0.7.1 in {pristine}" in out
    assert "; a job that started before that needs a restart; " in out


def test_nothing_read_exits_with_2_and_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, answered: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(intake, "read", lambda paths, step: JOB._replace(ranks={}, files=0))
    assert main(["diagnose", "a", "b"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "warning: x: no dump\nerror[nothing-read]: nothing could be read of a and 1 more path\n  hint: "
    )
    assert main(["diagnose", "a", "--output-format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "nothing-read"


CAUGHT = (
    "[rank3]:[E1122 09:15:03.1 ProcessGroupNCCL.cpp:685] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
    "ran for 600020 milliseconds before timing out.\n"
)


def test_a_log_alone_says_what_to_set_next_time(tmp_path: Path, pristine: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(CAUGHT)
    ran = cli.called("diagnose", log, "--target", pristine, env={"COLUMNS": "80"})
    assert ran.code == 1
    assert "`unhang diagnose --live`" in ran.out, "the job may still run"
    assert "`unhang explain never-arrived` says what to set" in " ".join(ran.out.split())
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT=1" in cli.called("explain", "never-arrived").out


def test_live_does_not_send_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.log").write_text(CAUGHT)
    monkeypatch.setattr(diagnose_command, "_collected", lambda _: nullcontext(tmp_path))
    ran = cli.called("diagnose", "--live", "--target", tmp_path)
    assert (ran.code, "--live" in ran.out + ran.err) == (1, False)
    assert ran.out.endswith("\nnext: `unhang explain never-arrived` says what to set before the next job\n")


def test_the_stack_of_the_failed_collective_in_a_log_names_the_fix(tmp_path: Path, pristine: Path) -> None:
    log = tmp_path / "train.log"
    trace = "".join(f"#{at} {name} from {file}:{line}\n" for at, (name, file, line) in enumerate(FRAMES))
    log.write_text(
        f"{CAUGHT}[rank3]:[E1122 09:15:03.2 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective:\n{trace}"
    )
    ran = cli.called("diagnose", log, "--target", pristine)
    assert (ran.code, "known: mtp-cp-deadlock (cure)\n" in ran.out) == (0, True)
    assert "this is so if these " in ran.out
    bare = cli.called("diagnose", log, "--target", tmp_path)
    assert (bare.code, "possible: mtp-cp-deadlock (cure)\n" in bare.out) == (1, True)


def test_a_hang_of_another_release_is_not_that_of_this_one(tmp_path: Path, pristine: Path) -> None:
    """The broadcasts of Megatron-LM 0.16 do not pair up; in 0.17 the same fix cures a crash."""
    frames = [("get_batch_on_this_tp_rank", "/env/megatron/training/utils.py", 77)]
    more = {
        "state": "started",
        "seq": 1,
        "sizes": [[1]],
        "frames": frames,
        "group": ("7", "TENSOR_MODEL_PARALLEL_GROUP"),
    }
    groups = {"0": ("default_pg", (0, 1)), "7": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1))}
    (dumps := tmp_path / "dumps").mkdir()
    for rank, dtype in enumerate(("Int", "Long")):
        waits = recorder_dumps.entry(0, "nccl:broadcast", dtypes=[dtype], **more)
        (dumps / f"rank_{rank}").write_bytes(recorder_dumps.as_pickle(recorder_dumps.dump([waits], groups)))
    possible, refuted = (
        cli.called("diagnose", dumps, "--target", target, "--output-format", "json") for target in (tmp_path, pristine)
    )
    rows = [ran.json["answers"][0] for ran in (possible, refuted)]
    assert [(row["answer"], row["command"]) for row in rows] == [("possible", None), ("not-here", None)]
    assert (possible.code, refuted.code) == (1, 1)


def test_a_log_begins_with_the_first_error_and_its_traceback(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    raised = ["Traceback (most recent call last):", '  File "/job/model.py", line 40, in forward', "ValueError: NaN"]
    log.write_text(CAUGHT + "".join(f"[rank1]: {line}\n" for line in raised))
    out = cli.called("diagnose", log, "--target", tmp_path).out
    assert out.splitlines()[:3] == [
        "rank 1: it failed by itself: ValueError: NaN",
        f"  {log}:4",
        "    /job/model.py:40 in forward",
    ]
    assert "before the next run" not in out.lower()
    log.write_text("".join(f"(WorkerDict pid=12, ip=10.0.0.1) {line}\n" for line in raised))
    assert cli.called("diagnose", log, "--target", tmp_path).out.splitlines()[:3] == [
        "a process of which no file says the rank: it failed by itself: ValueError: NaN",
        f"  {log}:3",
        "    /job/model.py:40 in forward",
    ]
    document = cli.called("diagnose", log, "--target", tmp_path, "--output-format", "json").json
    assert document["job"]["errors"] == [{"text": "ValueError: NaN", "source": f"{log}:3"}]


def test_a_page_replaces_a_file_whole_and_follows_its_link(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "link.html").symlink_to("old")
    before = {path.name for path in tmp_path.iterdir()}
    for name in ("link.html", "/dev/null"):
        assert main(["diagnose", str(dumps), "--html", str(tmp_path / name), "--target", str(tmp_path)]) == 1
    assert (tmp_path / "old").read_text().startswith("<!doctype html>")
    assert (tmp_path / "link.html").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_page_that_cannot_be_written_does_not_cost_the_answer(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(dumps), "--html", str(tmp_path / "none" / "x"), "--target", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "possible" in out
    assert "No such file or directory" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("a --html .", "bad-option"),
        ("a --slurm 1", "bad-option"),
        ("a --keep d", "bad-option"),
        ("a --master h:1", "bad-option"),
        ("--live --keep full", "not-empty"),
        ("--live --keep full/file", "not-a-folder"),
    ],
)
def test_options_that_do_not_go_together(
    words: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert main(["diagnose", *words.split()]) == 2
    assert f"[{code}]" in capsys.readouterr().err
