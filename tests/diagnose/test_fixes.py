"""The signatures in the manifests are real and differ; where a fix stands gives the command that follows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from support import cli, fixes, wheels
from unhang.diagnose import fixes as signed
from unhang.diagnose.fixes import Place, Standing, cure, standings
from unhang.job import read
from unhang.records import Request
from unhang.shapes import catalog
from unhang.survey.verdicts import survey

PROJECTS = {"megatron": "megatron-core", "verl": "verl", "swift": "ms-swift"}
SWEPT = {f"{target.file}::{target.function}" for fix in catalog.fixes().values() for target in fix.functions}
HANGS = [(one.fix, hang) for one in signed.signatures() for hang in one.hangs]


def versions(project: str) -> list[str]:
    """Return the releases that the tests of the fixes read anyway, the newest first."""
    rows = [row for rows in fixes.of_each("MUTANTS").values() for row in rows if row.upstream == project]
    return sorted({version for row in rows for version in row.versions}, key=Version, reverse=True)


def is_there(place: Place) -> bool:
    """Return whether the sweep looks for the function, or the file of a release on record has it."""
    if f"{place.file}::{place.function}" in SWEPT:
        return True
    project = PROJECTS[place.file.partition("/")[0]]
    files = (wheels.read(project, version, place.file) or b"" for version in versions(project))
    parts = [rf"(?m)^ *(async def|def|class) {name}\b".encode() for name in place.function.split(".")]
    return any(all(re.search(part, data) for part in parts) for data in files)


@pytest.mark.parametrize("whole", signed.signatures(), ids=lambda whole: whole.fix)
def test_every_frame_is_of_a_function_that_a_release_has(whole: signed.Signature) -> None:
    chains = [chain for hang in whole.hangs for chain in (hang.waits, hang.peers or ())]
    chains += [error.frames for hang in whole.hangs for error in hang.errors]
    places = {place for chain in chains for step in chain for place in step}
    assert [place for place in places if not is_there(place)] == []


@pytest.mark.parametrize(("fix", "hang"), HANGS, ids=[f"{fix}-{number}" for number, (fix, _) in enumerate(HANGS)])
def test_a_hang_has_functions_or_errors_and_one_thing_that_differs(fix: str, hang: signed.Hang) -> None:
    assert hang.waits or hang.errors, fix
    assert not (hang.differ and hang.types)
    assert not (hang.peers is not None and (hang.differ or hang.types))
    assert hang.differ in ("", "size", "order", "empty")


def test_a_shape_in_which_it_hangs_so_is_one_that_needs_the_fix() -> None:
    affected = {
        (fix, digest) for (fix, _, digest), shape in catalog.shape_table().shapes.items() if shape.state == "affected"
    }
    named = {(fix, shape) for fix, hang in HANGS for shape in hang.shapes}
    assert named <= affected
    assert named


def test_a_manifest_becomes_a_hang() -> None:
    data = {
        "summary": "So it is.",
        "waits": [["a/b.py::C.d", "a/c.py::d"], ["e.py::f"]],
        "errors": [{"text": "no", "frames": [["g.py::h"]]}],
    }
    hang = signed.hang(data)
    assert hang.waits == ((Place("a/b.py", "C.d"), Place("a/c.py", "d")), (Place("e.py", "f"),))
    assert hang.errors == (signed.Error("no", ((Place("g.py", "h"),),)),)
    assert (hang.peers, hang.differ, hang.types, hang.first, hang.few, hang.shapes) == (None, "", (), False, False, ())
    assert signed.hang({**data, "peers": []}).peers == ()
    assert signed.hang({**data, "peers": ["g.py::h", "i.py::j"]}).peers == ((Place("g.py", "h"), Place("i.py", "j")),)


MTP, WARMUP = "mtp-cp-deadlock", "expert-dp-warmup"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"


def found(site: Path, fix: str) -> tuple[Standing, ...]:
    request = Request(target=str(site), allow_none=True)
    narrowed = request._replace(fixes=(fix,), chosen=(("--fix", fix),))
    return standings(survey(narrowed).findings, request)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"), ("megatron-core", "0.17.1"), ("ms-swift", "4.6.0"))


def test_a_needed_fix_is_applied_and_then_it_is_the_other_nodes_turn(site: Path) -> None:
    (before,) = found(site, MTP)
    assert before[:4] == ("verl", "0.7.1", str(site), "needed")
    assert before.hint == f"on every node of the job, run: unhang apply --target {site} --fix {MTP}"
    run(before.hint.partition("run: ")[2])
    (after,) = found(site, MTP)
    assert after.verdict == "applied"
    assert "restart" in after.hint
    check = after.hint.split("`")[1]
    assert check.startswith(f"unhang check --target {site} --fix {MTP} --expect-digest ")
    assert "nothing left to do" in run(check)


def test_it_says_whether_the_defect_strikes_the_job(site: Path) -> None:
    settings = {"context_parallel_size": 1, "mtp.enable": True, "use_legacy_worker_impl": "disable"}
    job = read.job([], [f"{name}={value}" for name, value in settings.items()])
    (stands,) = standings(survey(Request(target=str(site), fixes=(MTP,), job=job)).findings, Request())
    assert stands.strikes == "cannot-strike"
    assert stands.detail == "cannot strike this job: context_parallel_size=1 (--setting)"
    assert found(site, MTP)[0].strikes is None


def run(command: str) -> str:
    """Run a suggested command as it is, and return what it prints; it must exit with 0."""
    words = [sys.executable, "-m", *command.split()]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=cli.environ()).stdout


def test_a_fix_stands_on_each_installation_with_its_defect(site: Path) -> None:
    stands = [(one.upstream, one.verdict) for one in found(site, WARMUP)]
    assert stands == [("megatron-core", "needed"), ("ms-swift", "needed")]
    (tree,) = found(site, "sft-packed-seq-broadcast")  # megatron-core has a target of it too, which is not affected
    assert (tree.upstream, tree.verdict) == ("megatron-lm", "needed")


def test_code_without_the_defect_is_not_the_job_s_or_the_answer_is_wrong(tmp_path: Path) -> None:
    (one,) = found(cli.unpack_targets(tmp_path, ("verl", "0.9.1")), MTP)
    assert one.verdict == "fixed-upstream"
    assert "--python" in one.hint


def test_an_unknown_shape_has_the_hint_that_check_gives(site: Path) -> None:
    path = site / ENGINE
    path.write_bytes(path.read_bytes().replace(b"n_micro_batch = len(micro_batches)", b"n_micro_batch = 1"))
    (one,) = found(site, MTP)
    assert one.verdict == "drifted"
    assert f"--target {site}" in one.hint
    assert MTP in one.hint


def test_an_environment_without_the_upstream_has_no_standing(tmp_path: Path) -> None:
    assert found(tmp_path, WARMUP) == ()
    assert cure(WARMUP, Request(python="/a b")) == f"unhang apply --python '/a b' --fix {WARMUP}"
