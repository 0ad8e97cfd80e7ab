"""`unhang diagnose` as a command: its exit codes, its formats, the environment, and `--capture`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support import cli, recorder_dumps, suggestions
from unhang.cli.main import main
from unhang.diagnose import capture, diagnosis, intake
from unhang.diagnose.answer import ANSWERS, Answer
from unhang.diagnose.evidence import Job, Rank, Unread
from unhang.errors import UnhangError

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
    ran = cli.unhang(*words)
    assert (ran.code, ran.err.splitlines()[1:]) == (0, [])
    assert ran.err.startswith(f"warning: {dumps / 'core.17'}: ")
    read, _, _, known = ran.out.splitlines()[:4]
    assert (read, known) == ("read 2 files: 2 of 2 ranks", "known: mtp-cp-deadlock (cure)")
    assert "rank 0: waiting in all_reduce 1 of DATA_PARALLEL_GROUP_WITH_CP, [1] Float\n" in ran.out
    (command,) = (one.command for one in suggestions.found(ran.out) if " apply " in one.command)
    assert cli.unhang(*command.split()[1:]).code == 0
    (standing,) = cli.unhang(*words, "--output-format", "json").json["answers"][0]["standings"]
    assert standing["verdict"] == "applied"


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that the files give, to fill in."""
    answers: list[Answer] = []
    monkeypatch.setattr(intake, "read", lambda paths, step: JOB)
    monkeypatch.setattr(diagnosis, "diagnose", lambda job, signatures: tuple(answers))
    return answers


def answer(name: str) -> Answer:
    return Answer(name, MTP if name in ("known", "possible") else "", "So it is.")


@pytest.mark.parametrize("name", ANSWERS)
def test_only_a_known_hang_exits_with_0(name: str, answered: list[Answer], tmp_path: Path) -> None:
    answered += [answer("slow"), answer(name)]
    assert main(["diagnose", "dumps", "--target", str(tmp_path)]) == (0 if name == "known" else 1)


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
    answered.append(answer("known"))
    assert main(["diagnose", "dumps", "--target", str(tmp_path / "gone")]) == 0
    out, err = capsys.readouterr()
    assert "error[not-a-folder]" in err
    assert "known: mtp-cp-deadlock (cure)\n" in out
    assert f"in the environment of the job, on every node, run: unhang apply --fix {MTP}\n" in out
    assert "environment: " not in out


def test_no_environment_is_searched_for_an_answer_without_a_fix(
    answered: list[Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered.append(answer("desync"))
    assert main(["diagnose", "dumps", "--target", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err == "warning: x: no dump\n"


def test_an_overlay_that_the_job_imports_is_what_brings_the_fix_into_place(
    answered: list[Answer], pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answered.append(answer("known"))
    overlay = str(tmp_path / "overlay")
    assert cli.unhang("overlay", overlay, "--target", pristine, "--fix", "expert-dp-warmup").code == 0
    monkeypatch.setenv("PYTHONPATH", f"{overlay}:{pristine}")
    monkeypatch.setattr(sys, "path", [overlay, str(pristine), *sys.path])  # as an interpreter would have it
    words = ["diagnose", "dumps", "--python", sys.executable]
    assert main(words) == 0
    # with --fix it would lose the fix that it has
    command = f"unhang overlay {overlay} --python {sys.executable}"
    assert f"; on every node of the job, run: {command}\n" in capsys.readouterr().out
    assert cli.unhang(*command.split()[1:], env={"PYTHONPATH": f"{overlay}:{pristine}"}).code == 0
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"\n  applied on verl 0.7.1 in {pristine} (" in out
    assert "; a job that started before that needs a restart; " in out


def test_nothing_read_exits_with_2_and_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, answered: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answered.append(answer("not-enough"))
    monkeypatch.setattr(intake, "read", lambda paths, step: JOB._replace(ranks={}, files=0))
    assert main(["diagnose", "a", "b"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "warning: x: no dump\nerror[nothing-read]: nothing could be read of a and 1 more path\n  hint: "
    )
    assert main(["diagnose", "a", "--output-format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "nothing-read"


def test_capture_prints_what_to_do_and_takes_the_stacks_of_this_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []

    def take(folder: Path) -> tuple[Path, ...]:
        folders.append(folder)
        return folder / "a", folder / "b"

    monkeypatch.setattr(capture, "advice", lambda: "set this")
    monkeypatch.setattr(capture, "take", take)
    assert main(["diagnose", "--capture"]) == 0
    assert folders == [Path("unhang-stacks")]
    said = "took the stacks of 2 ranks on this node; once all nodes have, run: unhang diagnose unhang-stacks\n"
    assert capsys.readouterr() == ("set this\n", said)


def test_capture_says_why_it_takes_no_stacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> tuple[Path, ...]:
        raise UnhangError("no-py-spy", "there is no py-spy", hint="pip install py-spy")

    monkeypatch.setattr(capture, "advice", lambda: "set this")
    monkeypatch.setattr(capture, "take", refused)
    assert main(["diagnose", "--capture"]) == 0
    said = "no stacks were taken here: there is no py-spy; pip install py-spy\n"
    assert capsys.readouterr() == ("set this\n", said)
