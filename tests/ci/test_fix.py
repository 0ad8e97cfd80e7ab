"""Every check of one fix, in order, up to the first that wants a person. No command is run here."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import fix as session
import pytest

from support.checkout import REPOSITORY

pytestmark = pytest.mark.skipif(not find_spec("jsonschema"), reason="no jsonschema")  # its import takes a second
FIX = "mean-metric-dtype"
ORDER = ["parts", "lint", "sweep", "tests", "mutants", "proofs"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Record the commands instead of running them; a test may set the exit code of those with a word."""
    codes: dict[str, int] = {}

    def ran(words: Sequence[str]) -> tuple[int, str]:
        line = " ".join(words)
        print(f"ran {line}")
        return next((code for word, code in codes.items() if word in line), 0), ""

    monkeypatch.setattr(session, "ran", ran)
    monkeypatch.setattr(session, "unfinished", lambda fix: iter(()))
    return codes


def test_the_steps_run_in_order_and_name_what_they_run(ran: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert session.main([FIX]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("[")] == ORDER
    assert "ran -m unhang.compat.sweep.generate --fix mean-metric-dtype\n" in out
    modules = set(out.replace("\n", " ").split()) & {path for path in out.split() if path.endswith(".py")}
    assert [path for path in modules if not (REPOSITORY / path).is_file()] == []
    capsys.readouterr()
    assert session.main([FIX, "lint", "parts"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line[0] == "["] == ["[1/6] parts", "[2/6] lint"]


@pytest.mark.parametrize(
    ("word", "code", "step", "where"),
    [
        ("generate", 1, "sweep", "src/unhang/prove/fixes/mean_metric_dtype.py:"),
        ("mutants", 1, "mutants", "src/unhang/prove/fixes/mean_metric_dtype.py:"),
        ("fuzz", 1, "tests", "codemods/mean_metric_dtype.py:"),
        ("test_proofs.py", 1, "proofs", "src/unhang/prove/fixes/mean_metric_dtype.py:"),
    ],
)
def test_it_stops_at_the_first_step_that_wants_a_person(
    word: str, code: int, step: str, where: str, ran: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ran[word] = code
    assert session.main([FIX]) == 1
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("[")] == ORDER[: ORDER.index(step) + 1]
    stopped, place, *_, again = out[out.index("stopped at") :].splitlines()
    assert f", {step}: it wants a person" in stopped
    file, number, *_ = place.strip().split(":")
    assert f"{file}:" == where
    line = (REPOSITORY / file).read_text().splitlines()[int(number) - 1]
    assert line.lstrip().startswith(("def plan(", "CASES", "GRID"))
    assert again == f"then run `nox -s fix -- {FIX}` again"


TRACEBACK = """
tests/fixes/test_mean_metric_dtype.py:41:
src/unhang/rewrite/one_file.py:80:
src/unhang/codemods/mean_metric_dtype.py:30:
src/unhang/codemods/base.py:99: AnchorError
____ another failure ____
codemods/mean_metric_dtype.py:12: ValueError
"""


@pytest.mark.parametrize(
    ("output", "place"),
    [
        (TRACEBACK, "codemods/mean_metric_dtype.py:30"),
        ("tests/fixes/test_mean_metric_dtype.py:41: AssertionError\n", "tests/fixes/test_mean_metric_dtype.py:41"),
        (
            "codemods/mean_metric_dtype.py:7:5: F401 unused\ncodemods/mean_metric_dtype.py:9:1: E501",
            "codemods/mean_metric_dtype.py:7",
        ),
        ("codemods/fsdp_reduce_order.py:7: error: no\n", ""),
        ("survived: gate\n", ""),
    ],
)
def test_the_place_is_that_of_the_fix_to_which_the_first_failure_leads(output: str, place: str) -> None:
    assert session.blamed(output, [*session.files(FIX).values()]) == place


def test_a_command_is_shown_while_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert session.ran(["-c", "print('a'); raise SystemExit(3)"]) == (3, "a\n")
    assert capfd.readouterr().out == "a\n"


def test_no_test_of_the_fix_in_a_shared_module_is_no_failure(ran: dict[str, int]) -> None:
    ran["pytest"] = 5
    assert session.main([FIX]) == 0
    ran["generate"] = 5
    assert session.main([FIX]) == 1


def test_a_step_that_could_not_run_blames_no_part_of_the_fix(
    ran: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ran["generate"] = 2
    assert session.main([FIX]) == 1
    assert capsys.readouterr().out.splitlines()[-2].strip() == "the error above says why this step did not run"


@pytest.mark.parametrize(
    ("command", "printed", "wanted"),
    [
        (
            "ruff",
            "/a/bin/python3: No module named ruff\n",
            "ruff is not installed here: run this once without nox's -R",
        ),
        (
            "lint",
            f"patches/{FIX}/manifest.json: when: is true of none\n",
            session.located(f"patches/{FIX}/manifest.json", "when") + ": when: is true of none",
        ),
    ],
)
def test_what_a_tool_says_of_itself_or_of_a_file_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, printed: str, wanted: str
) -> None:
    def ran(words: Sequence[str]) -> tuple[int, str]:
        return (1, printed) if any(word.endswith(command) for word in words) else (0, "")

    monkeypatch.setattr(session, "ran", ran)
    assert session.main([FIX]) == 1
    assert wanted in capsys.readouterr().out
    monkeypatch.setattr(session, "ran", lambda words: (0, printed))
    assert session.main([FIX]) == 0, "what succeeds wants nobody, whatever it prints"


def test_a_fix_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert session.main(["no-such-fix"]) == 2
    assert "`unhang pack new` begins one" in capsys.readouterr().err


def test_a_draft_stops_at_its_first_line_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in f"patches/{FIX}", "compat/schemas":
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    page = tmp_path / f"patches/{FIX}/page.md"
    page.write_text(page.read_text().replace("## Cause\n", "## Cause\nTODO: what is wrong.\n"))
    monkeypatch.setattr(session, "REPOSITORY", tmp_path)
    assert session.main([FIX]) == 1
    out = capsys.readouterr().out.splitlines()
    number = page.read_text().splitlines().index("TODO: what is wrong.") + 1
    assert out[:3] == [
        "[1/6] parts",
        "stopped at step 1 of 6, parts: it wants a person",
        f"    patches/{FIX}/page.md:{number}: TODO: what is wrong.",
    ]
    assert out[-2].endswith("test_mean_metric_dtype.py: mean-metric-dtype: is missing: nothing tests the fix")


MANIFEST, MODULE = f"patches/{FIX}/manifest.json", "codemods/mean_metric_dtype.py"


@pytest.mark.parametrize(
    ("file", "entry", "begins"),
    [
        (MANIFEST, "when", '"when":'),
        (MANIFEST, "manifest['changes-numbers']", '"changes-numbers":'),
        (MANIFEST, "decisions[0].why", '"why":'),
        (MANIFEST, "targets[0].file", '"targets":'),  # which has it in a line
        (MANIFEST, "manifest", "{"),
        (MANIFEST, "MeanMetric.compute", '{"upstream":'),  # the row of a target
        (f"patches/{FIX}/page.md", "Danger", "## Danger"),
        (f"patches/{FIX}/page.md", "line 3", ""),
        (MODULE, "Metric.no_such", "CODEMODS"),
        ("src/unhang/prove/fixes/mean_metric_dtype.py", "GRID", "GRID"),
        ("patches/no-such-fix/page.md", "no-such-fix", ""),
    ],
)
def test_a_problem_has_the_line_that_it_is_about(file: str, entry: str, begins: str) -> None:
    place, _, line = session.located(file, entry).partition(":")
    assert (place, bool(line)) == (file, (REPOSITORY / file).is_file())
    if line:
        assert (REPOSITORY / file).read_text().splitlines()[int(line) - 1].strip().startswith(begins)


def test_every_place_of_every_step_has_a_line() -> None:
    places = [session.place(where) for step in session.steps(FIX) for where in step.wants]
    assert [place for place in places if not place.rpartition(":")[2].isdigit()] == []
    assert len({*places}) == 9, "the names are found in their files"


def test_help_needs_nothing_that_is_installed() -> None:
    command = [sys.executable, "-I", "-S", str(REPOSITORY / ".ci" / "fix.py"), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"nox -s fix -- ID {what}" in told for what in ("mutants proofs", "play NAME==VERSION")), told
