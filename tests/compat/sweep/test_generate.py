"""The sweep as a whole, on made-up wheels from an index on this machine, and made-up clones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from support import fake_scenes
from support.fake_clone import git, repository
from support.fake_index import AFFECTED, BATCH, CLEAN, ENGINE, PARALLEL, UNCLEAR, FakeIndex
from unhang.compat.sweep import generate, matrix_files, sources, trees
from unhang.judge.rows import Row, Source
from unhang.shapes import catalog, shape
from unhang.shapes.facts import known

pytest.importorskip("git")
Capture = pytest.CaptureFixture[str]
FUNCTION = "MegatronEngine.forward_backward_batch"


def run(folder: Path, *options: str) -> int:
    return generate.main(["--out", f"{folder}/out", "--cache", f"{folder}/cache", "--without-history", *options])


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def facts(folder: Path, fix: str) -> Any:
    return json.loads((folder / "out" / "data" / f"{fix}.json").read_text())


def data(folder: Path, name: str) -> Any:
    return json.loads((folder / "out" / f"{name}.json").read_text())[name]


def upstreams_own(folder: Path, fix: str) -> dict[str, Any]:
    """The shapes of a fix that are not our rewrite's."""
    return {key: row for key, row in facts(folder, fix)["shapes"].items() if row["state"] != "ours"}


def test_what_the_index_offers_is_in_the_matrix(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    fake.add("megatron-core", "0.18.1", {PARALLEL: AFFECTED, BATCH: "pass\n"}, yanked=True)
    fake.add("megatron-core", "0.16.0rc0.dev7", {PARALLEL: AFFECTED.replace("number = 0", "number = 1")})
    assert run(tmp_path) == 0
    core, training = (
        (f"megatron-core {version}" for version in ("0.16.0rc0.dev7", "0.17.0", "0.18.1")),
        "megatron-lm 0.18.1",
    )
    listed = data(tmp_path, "releases")
    assert [*listed] == [*core, training, "ms-swift 4.0.0", "verl 0.7.0"], "one wheel carries Megatron-LM"
    assert [name for name, row in listed.items() if row] == ["megatron-core 0.18.1", training], "yanked"
    warmup = facts(tmp_path, "expert-dp-warmup")
    assert [*warmup["releases"]] == [name for name in listed if name.split()[0] in warmup["targets"]]
    assert warmup["targets"]["megatron-core"] == [f"{PARALLEL}::initialize_model_parallel"]
    shapes = [row[0] for name, row in warmup["releases"].items() if name.startswith("megatron-core ")]
    assert shapes[0] != shapes[1] == shapes[2]
    nightly, stable = (warmup["shapes"][f"initialize_model_parallel {shape}"] for shape in shapes[:2])
    assert (nightly["state"], nightly["first"]) == ("affected", "megatron-core 0.16.0rc0.dev7")
    assert (stable["first"], stable["last"]) == ("megatron-core 0.17.0", "megatron-core 0.18.1")
    pins = data(tmp_path, "wheels")
    assert [row["version"] for row in pins["megatron-core"]] == ["0.16.0rc0.dev7", "0.17.0", "0.18.1"]
    assert [row["yanked"] for row in pins["megatron-core"]] == [False, False, True]
    patched = [shapes_ for shapes_ in warmup["files"].values() if stable["result"] in shapes_.values()]
    assert len(patched) == 1, "the file as we leave it is on record"
    empty = sources.content(b"pass\n").sha256
    assert warmup["files"][empty] == {"_initialize_mpu": None}
    assert facts(tmp_path, "sft-packed-seq-broadcast")["files"][empty] == {"get_batch_on_this_tp_rank": None}
    ours = warmup["shapes"][f"initialize_model_parallel {stable['result']}"]
    assert (ours["state"], {*ours}) == ("ours", {"state", "outline"})
    assert stable["endstate"]["cured"] > 0 == stable["endstate"]["worse"]
    out = capsys.readouterr().out
    assert "5 releases, 1 of them nightlies, 1 yanked\n" in out
    assert "2 shapes of initialize_model_parallel (expert-dp-warmup), in 2 distinct files\n" in out


def test_a_second_run_fetches_nothing_and_writes_the_same_bytes(fake: FakeIndex, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    first = written(tmp_path / "out")
    assert len(fake.asked) == 3
    for links in fake.pages.values():
        links.reverse()
    assert run(tmp_path) == 0
    assert written(tmp_path / "out") == first
    assert len(fake.asked) == 3
    other = tmp_path / "other"
    assert run(other) == 0, "from nothing"
    assert written(other / "out") == first


def test_the_cost_grows_with_contents_and_not_with_releases(
    fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = Mock(wraps=shape.parse)
    monkeypatch.setattr(shape, "parse", parse)
    assert run(tmp_path / "few") == 0
    few = parse.call_count
    for minor in range(20):
        fake.add("megatron-core", f"0.17.{minor + 1}", {PARALLEL: AFFECTED})
    assert run(tmp_path / "many") == 0
    assert few > 0
    assert parse.call_count == 2 * few, "no more than for one release of them"
    assert run(tmp_path / "many") == 0
    assert parse.call_count == 2 * few, "and none at all when it is known"


def test_what_evidence_does_not_decide_is_listed(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    fake.add("verl", "0.7.2", {ENGINE: UNCLEAR})
    fake.add("verl", "0.7.3", {ENGINE: CLEAN + CLEAN})
    fake.add("megatron-core", "0.18.0", {PARALLEL: AFFECTED.replace("import torch\n", "")})
    assert run(tmp_path) == 1
    lines = sorted(line for line in capsys.readouterr().err.splitlines() if line.startswith("undecided: "))
    assert len(lines) == 3
    for part in (f"its rewrite fails in {PARALLEL}", ", verl 0.7.2: ", f"0.7.3: {FUNCTION} is defined 2"):
        assert [line for line in lines if part in line], lines
    digest = shape.digest(shape.find(shape.parse(UNCLEAR.encode()), FUNCTION)[0])
    key = f"{FUNCTION} {digest}"
    assert key not in facts(tmp_path, "mtp-cp-deadlock")["shapes"]
    decision = {"fix": "mtp-cp-deadlock", "shape": digest, "state": "not-affected", "why": "a person looked at it"}
    sources.decisions().append(decision)
    assert run(tmp_path) == 1
    row = facts(tmp_path, "mtp-cp-deadlock")["shapes"][key]
    assert (row["state"], row["note"]) == ("not-affected", "a person looked at it")
    assert "1 decided by a person, 2 undecided" in capsys.readouterr().out


def test_a_pin_that_the_index_contradicts_is_left_as_it_is(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path) == 0
    before = written(tmp_path / "out")
    (name,) = (name for name in fake.wheels if name.startswith("verl"))
    fake.withdraw(name)
    fake.add("verl", "0.7.0", {ENGINE: UNCLEAR})
    assert run(tmp_path) == 2
    assert "pin-changed" in capsys.readouterr().err
    fake.withdraw(name)
    fake.add("verl", "0.7.1", {ENGINE: CLEAN})
    assert run(tmp_path) == 2
    assert "no longer has verl 0.7.0" in capsys.readouterr().err
    assert written(tmp_path / "out") == before


def test_a_wheel_that_lies_there_is_not_downloaded(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (name,) = (name for name in fake.wheels if name.startswith("verl"))
    (wheels / name).write_bytes(fake.wheels[name])
    assert run(tmp_path, "--wheels", str(wheels)) == 0
    assert name not in fake.asked
    assert len(fake.asked) == 2
    (wheels / name).write_bytes(b"not it")
    assert run(tmp_path / "other", "--wheels", str(wheels)) == 2
    assert "wrong-digest" in capsys.readouterr().err


def test_without_the_clones_nothing_is_written(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    assert generate.main(["--out", f"{tmp_path}/out", "--cache", f"{tmp_path}/cache"]) == 2
    err = capsys.readouterr().err
    assert "no clone of a/core, a/verl, a/swift" in err
    assert "--without-history" in err
    for argument in ("verl", "vrel=/x", "verl="):
        assert run(tmp_path, "--clone", argument) == 2
        assert "UPSTREAM=PATH_OR_URL" in capsys.readouterr().err
    assert not fake.asked
    assert not (tmp_path / "out").exists()


def test_a_sweep_of_history_reports_what_it_left_out_and_forgets_nothing_by_accident(
    fake: FakeIndex, tmp_path: Path, capsys: Capture
) -> None:
    clone = f"--clone=verl={repository(tmp_path / 'verl')}"
    assert run(tmp_path, clone) == 0, "of a new upstream nothing is on record: it is read as it is now"
    out, err = capsys.readouterr()
    assert f"left out: {ENGINE} at 2026-01-03" in err
    assert "6 commits, 7 distinct files" in out
    rows = [*upstreams_own(tmp_path, "mtp-cp-deadlock").values()]
    assert {row["state"] for row in rows} == {"not-affected"}
    assert len(rows) == 3, "and what is older than the floor, and undecided, is not there"
    assert {row["first"][:10] for row in rows} == {"2026-01-02", "2026-01-04", "2026-01-06"}
    before = written(tmp_path / "out")
    (tmp_path / "verl" / ENGINE).write_text(CLEAN.replace("0", "9"))
    git(tmp_path / "verl", "commit", "-qam", "newer", day="2026-01-08")
    assert run(tmp_path, clone) == 0
    assert "6 commits, 7 distinct files" in capsys.readouterr().out
    assert written(tmp_path / "out") == before, "a newer commit is not read"
    assert run(tmp_path) == 2
    assert "2 shapes on record would be lost" in capsys.readouterr().err
    assert written(tmp_path / "out") == before
    assert run(tmp_path, "--forget") == 0
    assert sum(len(upstreams_own(tmp_path, fix)) for fix in catalog.fixes()) == 2
    assert run(tmp_path, clone, "--newest") == 0
    assert "7 commits, 8 distinct files" in capsys.readouterr().out
    assert written(tmp_path / "out")["swept.json"] != before["swept.json"]


def test_one_fix_is_swept_and_the_rows_of_the_others_stay(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    clone = f"--clone=verl={repository(tmp_path / 'verl')}"
    assert run(tmp_path, clone, "--newest") == 0
    before = written(tmp_path / "out")
    fake.asked.clear()
    assert run(tmp_path, clone, "--fix", "mtp-cp-deadlock") == 0
    assert written(tmp_path / "out") == before
    for fix in "mtp-cp-deadlock", "expert-dp-warmup":
        path = tmp_path / "out" / "data" / f"{fix}.json"
        path.write_text(path.read_text().replace("not-affected", "fixed").replace('"affected"', '"wrong"'))
    assert run(tmp_path, clone, "--fix", "mtp-cp-deadlock") == 0
    after = written(tmp_path / "out")
    assert [name for name in before if after[name] != before[name]] == ["data/expert-dp-warmup.json"]
    fake.add("verl", "0.7.9", {ENGINE: CLEAN})
    assert run(tmp_path, clone, "--fix", "expert-dp-warmup", "--fix", "mtp-cp-deadlock") == 0
    assert written(tmp_path / "out") == before, "and a release that is not on record is left to the whole sweep"
    assert not fake.asked
    assert run(tmp_path, clone, "--fix", "mtp-cp-deadlock", "--newest") == 2
    assert "--newest moves the commits of all fixes" in capsys.readouterr().err


def test_a_fix_that_is_new_gets_its_rows(fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path) == 0
    whole, fixes = written(tmp_path / "out"), catalog.fixes()
    for path in (tmp_path / "out" / "data").iterdir():
        path.unlink()
    with monkeypatch.context() as without:
        without.setattr(catalog, "fixes", lambda: {fix: fixes[fix] for fix in fixes if fix != "expert-dp-warmup"})
        assert run(tmp_path) == 0
    assert written(tmp_path / "out") != whole
    assert run(tmp_path, "--fix", "expert-dp-warmup") == 0
    assert written(tmp_path / "out") == whole


@pytest.fixture
def unswept(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fix of which nothing is on record yet."""
    fix = "mtp-cp-deadlock"
    with monkeypatch.context() as without:
        without.setattr(catalog, "known", lambda path: {} if path.endswith(f"/data/{fix}.json") else known(path))
        without.setattr(catalog, "_swept", {})
        catalog.learn({})
        yield fix
    catalog.learn({})


@pytest.mark.parametrize("targets", [{}, {"verl": ["verl/another.py::f"]}], ids=["a new fix", "a new target"])
def test_the_first_run_knows_the_releases_in_which_a_scene_can_play(
    targets: dict[str, list[str]], unswept: str, fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def play(fix: str, before: Source, after: Source | None) -> Row:
        places.extend([(fix, version) for _, version, _ in trees._all_released(catalog.fix(fix).targets)])
        return fake_scenes.run(fix, before, after)

    monkeypatch.setattr(trees, "run", play)
    if targets:
        catalog.learn({unswept: {"targets": targets, "releases": {"verl 0.7.0": ["0123456789abcdef"]}}})
    assert run(tmp_path) == 0
    assert {version for fix, version in places if fix == unswept} == {"0.7.0"}


def test_conflict_markers_are_told_before_anything_is_fetched(fake: FakeIndex, tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path) == 0
    fake.asked.clear()
    for name in "data/mtp-cp-deadlock.json", "wheels.json", "swept.json":
        path = tmp_path / "out" / name
        good = path.read_text() if path.exists() else "{}\n"
        path.write_text(f"<<<<<<< HEAD\n{good}=======\n{good}>>>>>>> other\n")
        assert run(tmp_path, "--fix", "mtp-cp-deadlock") == 2
        told = capsys.readouterr().err
        assert all(part in told for part in ("conflict-markers", name, "git checkout", "nox -s sweep -- --fix")), told
        path.write_text(good)
    assert not fake.asked


def test_ctrl_c_writes_nothing(
    fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(matrix_files, "wheels", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(tmp_path) == 130
    assert "run it again" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
