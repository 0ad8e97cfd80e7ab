"""The sweep, on made-up wheels from an index on this machine, and made-up clones."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fake_index
from support.fake_index import AFFECTED, BATCH, CLEAN, ENGINE, MPU, PARALLEL, UNCLEAR, FakeIndex
from unhang.compat import index
from unhang.compat.sweep import clones, fetch, generate, matrix_files, sources
from unhang.compat.sweep.cache import Cache, code_digest
from unhang.errors import UnhangError
from unhang.shapes import shape

pytest.importorskip("pypi_simple")
pytest.importorskip("git")

REFS = ["refs/heads/main", "refs/heads/dev", "refs/tags/v*"]
UPSTREAMS: dict[str, Any] = {
    "megatron-core": {"floor": "0.10", "version-file": "version", "tips": ["main", "dev"], "tree-tags": "core_v"},
    "verl": {"floor": "0.4", "version-file": "version", "tips": ["main"]},
    "ms-swift": {"floor": "3.0", "version-file": "version", "tips": ["main"]},
}
for name, about in UPSTREAMS.items():
    about |= {"repository": f"made-up/{name}", "refs": REFS}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An index with one release of each upstream; nothing of the real lists, and no clone, is in reach."""
    lists = {
        "upstreams.json": {"upstreams": UPSTREAMS, "as-written": []},
        "decisions.json": {"decisions": []},
        "superseded.json": {"superseded": []},
    }
    monkeypatch.setattr(sources, "load", lists.__getitem__)
    for variable in (*clones.VARIABLES.values(), "UNHANG_WHEELS"):
        monkeypatch.delenv(variable, raising=False)
    with fake_index.serving(FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        monkeypatch.setattr(index, "_RETRIES", 0)
        served.add("megatron-core", "0.17.0", {PARALLEL: AFFECTED})
        served.add("verl", "0.7.0", {ENGINE: CLEAN})
        served.add("ms-swift", "4.0.0", {MPU: "pass\n"})
        yield served


def run(folder: Path, *options: str) -> int:
    return generate.main(["--out", f"{folder}/out", "--cache", f"{folder}/cache", "--without-history", *options])


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def data(folder: Path, name: str) -> Any:
    (found,) = (folder / "out").rglob(f"{name}.json")
    return json.loads(found.read_text())[name]


def test_what_the_index_offers_is_in_the_matrix(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.add("megatron-core", "0.18.1", {PARALLEL: AFFECTED, BATCH: "pass\n"}, yanked=True)
    fake.add("megatron-core", "0.16.0rc0.dev7", {PARALLEL: AFFECTED.replace("number = 0", "number = 1")})
    assert run(tmp_path) == 0
    core, training = data(tmp_path, "releases")["megatron-core"], data(tmp_path, "releases")["megatron-lm"]
    assert list(core["versions"]) == ["0.16.0rc0.dev7", "0.17.0", "0.18.1"]
    place = core["targets"].index(f"{PARALLEL}::initialize_model_parallel")
    shapes = [row["shapes"][place] for row in core["versions"].values()]
    assert shapes[0] != shapes[1] == shapes[2]
    assert [version for version, row in core["versions"].items() if row.get("yanked")] == ["0.18.1"]
    assert list(training["versions"]) == ["0.18.1"], "the one wheel that carries Megatron-LM"
    nightly, stable = sorted(data(tmp_path, "shapes"), key=lambda row: row["shape"] != shapes[0])[:2]
    assert (nightly["state"], nightly["first"]) == ("affected", "megatron-core 0.16.0rc0.dev7")
    assert (stable["first"], stable["last"]) == ("megatron-core 0.17.0", "megatron-core 0.18.1")
    pins = data(tmp_path, "wheels")
    assert [row["version"] for row in pins["megatron-core"]] == ["0.16.0rc0.dev7", "0.17.0", "0.18.1"]
    assert [row["yanked"] for row in pins["megatron-core"]] == [False, False, True]
    files = data(tmp_path, "files")
    patched = [told for told in files.values() if stable["result"] in told.values()]
    assert len(patched) == 1, "the file as we leave it is on record"
    assert files[sources.content(b"pass\n").sha256] == {"_initialize_mpu": None, "get_batch_on_this_tp_rank": None}
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
    parsed = []
    real = shape.parse
    monkeypatch.setattr(shape, "parse", lambda given: (parsed.append(given), real(given))[1])
    assert run(tmp_path / "few") == 0
    few = len(parsed)
    for minor in range(20):
        fake.add("megatron-core", f"0.17.{minor + 1}", {PARALLEL: AFFECTED})
    assert run(tmp_path / "many") == 0
    assert few > 0
    assert len(parsed) == 2 * few, "no more than for one release of them"
    assert run(tmp_path / "many") == 0
    assert len(parsed) == 2 * few, "and none at all when it is known"
    monkeypatch.setattr("unhang.compat.sweep.learnt.code_digest", lambda _: "other code")
    assert run(tmp_path / "many") == 0
    assert len(parsed) == 3 * few, "what other code has learnt is not believed"


def test_the_digest_of_code_is_that_of_every_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1\n")
    before = code_digest([str(tmp_path)])
    (tmp_path / "b.py").write_text("")
    assert code_digest([str(tmp_path)]) != before


def test_wheels_are_fetched_several_at_once(fake: FakeIndex, tmp_path: Path) -> None:
    fake.together = threading.Barrier(3)
    assert run(tmp_path) == 0
    assert fake.together.broken is False, "all three were under way at one time"


def test_what_was_fetched_before_a_failure_is_not_fetched_again(
    fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "CONNECTIONS", 1)
    bad = fake.add("verl", "0.7.2", {ENGINE: CLEAN})
    late = fake.add("ms-swift", "4.6.0")
    fake.refused.add(bad)
    assert run(tmp_path) == 2
    told = capsys.readouterr().err
    assert bad in told
    assert "run it again" in told
    assert not (tmp_path / "out").exists()
    before = [*fake.asked]
    assert late not in before, "it stops at once"
    fake.refused.clear()
    assert run(tmp_path) == 0
    again = fake.asked[len(before) :]
    assert bad in again
    assert not set(again) & (set(before) - {bad})


def test_an_answer_that_breaks_off_is_asked_for_again(fake: FakeIndex, tmp_path: Path) -> None:
    name = fake.add("verl", "0.7.2", {ENGINE: CLEAN})
    fake.cut[name] = 2
    assert run(tmp_path) == 0
    assert fake.asked.count(name) == 3


def test_a_wheel_with_another_digest_is_refused(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = fake.add("verl", "0.7.2", {ENGINE: CLEAN}, sha256="0" * 64)
    assert run(tmp_path) == 2
    told = capsys.readouterr().err
    assert "wrong-digest" in told
    assert name in told
    assert not (tmp_path / "cache" / "wheels" / f"{'0' * 64}.json").exists()


def test_a_pin_that_the_index_contradicts_is_left_as_it_is(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_wheel_that_lies_there_is_not_downloaded(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_listing_that_lacks_a_file_is_made_anew(fake: FakeIndex, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with index.client() as session:
        offered = index.offers(session, "verl", "0", {})
        for wanted, opened in (["a.py"], 1), (["a.py"], 0), ([ENGINE], 1), (["a.py"], 1):
            (release,), count = fetch.releases(session, offered, {"verl": wanted}, cache)
            assert count == opened
        assert release.files == {"a.py": None}


def test_a_damaged_cache_is_made_anew(fake: FakeIndex, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    before = written(tmp_path / "out")
    for path in (tmp_path / "cache" / "contents").iterdir():
        path.write_bytes(b"damaged")
    (tmp_path / "cache" / "learnt.json").write_bytes(b"{")
    assert run(tmp_path) == 0
    assert len(fake.asked) == 6
    assert written(tmp_path / "out") == before


def test_what_evidence_does_not_decide_is_listed(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add("verl", "0.7.2", {ENGINE: UNCLEAR})
    fake.add("verl", "0.7.3", {ENGINE: CLEAN + CLEAN})
    assert run(tmp_path) == 1
    one, two = sorted(line for line in capsys.readouterr().err.splitlines() if line.startswith("undecided: "))
    assert "defined 2 times" in one + two
    assert "verl 0.7.2" in one + two
    digest = shape.digest(shape.find(shape.parse(UNCLEAR.encode()), "MegatronEngine.forward_backward_batch")[0])
    assert digest not in {row["shape"] for row in data(tmp_path, "shapes")}
    decision = {"fix": "mtp-cp-deadlock", "shape": digest, "state": "not-affected", "why": "a person looked at it"}
    monkeypatch.setitem(sources.load("decisions.json"), "decisions", [decision])
    assert run(tmp_path) == 1
    (row,) = (row for row in data(tmp_path, "shapes") if row["shape"] == digest)
    assert (row["state"], row["note"]) == ("not-affected", "a person looked at it")
    assert "1 decided by a person, 1 undecided" in capsys.readouterr().out


def test_a_rewrite_that_does_not_hold_in_one_of_the_files_is_listed(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.add("megatron-core", "0.18.0", {PARALLEL: AFFECTED.replace("import torch\n", "")})
    assert run(tmp_path) == 1
    assert f"its rewrite does not hold in {PARALLEL}" in capsys.readouterr().err


def test_without_the_clones_nothing_is_written_unless_asked(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--out", f"{tmp_path}/out", "--cache", f"{tmp_path}/cache"]) == 2
    told = capsys.readouterr().err
    assert "no clone of made-up/megatron-core, made-up/verl, made-up/ms-swift" in told
    assert "--without-history" in told
    assert not fake.asked
    assert not (tmp_path / "out").exists()


def test_shapes_on_record_are_not_forgotten_by_accident(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, f"--clone=verl={repository(tmp_path / 'verl')}") == 0
    before = written(tmp_path / "out")
    assert len(data(tmp_path, "shapes")) == 4
    assert run(tmp_path) == 2
    assert "2 shapes on record were not seen" in capsys.readouterr().err
    assert written(tmp_path / "out") == before
    assert run(tmp_path, "--forget") == 0
    assert len(data(tmp_path, "shapes")) == 2


def test_a_write_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("one.json", "two.json")]
    matrix_files.write(dict.fromkeys(paths, "old"))
    with pytest.raises(UnicodeEncodeError):
        matrix_files.write(dict(zip(paths, ("new", "\udc80"))))
    assert written(tmp_path) == {"one.json": b"old", "two.json": b"old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"], "and nothing else"


def test_ctrl_c_writes_nothing_and_is_told(
    fake: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix_files, "wheels", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(tmp_path) == 130
    assert "run it again" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# -- clones -----------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str, day: str = "2026-01-01") -> str:
    config = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
    when = f"{day}T12:00:00Z"
    env = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "PATH": "/usr/bin:/bin:/usr/local/bin"}
    done = subprocess.run(["git", *config, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """A made-up verl: three shapes of its target on main, another on dev, a file that does not parse for a day."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    steps = [
        ("2026-01-01", "0.3.0", UNCLEAR),
        ("2026-01-02", "0.4.0", CLEAN),
        ("2026-01-03", "0.4.0", "def broken(:\n    def forward_backward_batch"),
        ("2026-01-04", "0.7.0", CLEAN.replace("0", "2")),
        ("2026-01-05", "0.7.0", CLEAN),
    ]
    for day, version, text in steps:
        (folder / ENGINE).parent.mkdir(parents=True, exist_ok=True)
        (folder / ENGINE).write_text(text)
        (folder / "version").write_text(version + "\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", day, day=day)
    git(folder, "checkout", "-qb", "dev")
    (folder / ENGINE).write_text(CLEAN.replace("0", "3"))
    git(folder, "commit", "-qam", "on dev", day="2026-01-06")
    git(folder, "checkout", "-q", "main")
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


@pytest.mark.parametrize("kind", ["mirror", "work", "url", "url of a server that sends all"])
def test_history_is_every_content_with_its_first_and_last_commit(kind: str, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    where = f"file://{origin}"
    if kind.startswith("url of"):
        git(origin, "config", "uploadpack.allowFilter", "false")
        git(origin, "config", "uploadpack.allowAnySHA1InWant", "false")
    elif kind != "url":
        git(tmp_path, "clone", "-q", *(["--mirror"] if kind == "mirror" else []), str(origin), "copy")
        where = str(tmp_path / "copy")
    repo = clones.open_clone(where, tmp_path / "cache")
    assert repo.bare is (kind != "work")
    if kind == "url":
        missing = repo.git.rev_list("--objects", "--all", "--missing=print")
        assert "?" in missing, "no blob is in it before one is asked for"
    seen, commits = clones.history(repo, UPSTREAMS["verl"], [ENGINE])
    assert commits == 6
    assert [item.content.data.decode() for item in seen] == [
        UNCLEAR,
        CLEAN,
        "def broken(:\n    def forward_backward_batch",
        CLEAN.replace("0", "2"),
        CLEAN.replace("0", "3"),
    ]
    names = git(origin, "log", "--reverse", "--format=%h", "--abbrev=9", "main").split()
    assert seen[1][2:] == (f"2026-01-02 {names[1]}", f"2026-01-05 {names[4]}", True)
    assert [item.supported for item in seen] == [False, True, True, True, True]
    assert [path for path, _ in clones.tips(repo, UPSTREAMS["verl"], [ENGINE, "no/such.py"])] == [ENGINE]


def test_blobs_are_fetched_in_one_go(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    repo = clones.open_clone(f"file://{origin}", tmp_path / "cache")
    blobs = [git(origin, "rev-parse", f"{commit}:{ENGINE}") for commit in ("main", "main~1", "dev")]
    reader = clones.Reader(repo)
    reader.prefetch(blobs)
    origin.rename(tmp_path / "away")
    reader.prefetch(blobs)
    assert [reader.content(blob) is None for blob in blobs] == [False] * 3, "nothing is left to ask the origin for"
    assert reader.content(f"main~1:{ENGINE}") == reader.content(blobs[1])
    assert reader.content("main:verl") is None, "a folder"
    assert reader.content("main:no/such") is None


def test_a_clone_of_ours_is_brought_up_to_date(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    clones.open_clone(f"file://{origin}", tmp_path / "cache")
    (origin / ENGINE).write_text("pass\n")
    git(origin, "commit", "-qam", "more", day="2026-02-01")
    repo = clones.open_clone(f"file://{origin}", tmp_path / "cache")
    ((_, found),) = clones.tips(repo, UPSTREAMS["verl"], [ENGINE])
    assert found.data == b"pass\n"


def test_trees_are_the_tagged_releases_that_no_wheel_has(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    for tag in ("core_v0.9.0", "core_v0.16.0", "core_v0.16.0rc1", "core_v0.17.0", "core_vnext", "v0.15.0"):
        git(origin, "tag", tag)
    repo = clones.open_clone(str(origin), tmp_path)
    found = {item.version: item for item in clones.trees(repo, UPSTREAMS["megatron-core"], [ENGINE, BATCH], ["0.17.0"])}
    assert sorted(found) == ["0.16.0", "0.16.0rc1"]
    release = found["0.16.0"]
    assert (release.upstream, release.files[BATCH]) == ("megatron-lm", None)
    assert release.files[ENGINE] == sources.content(CLEAN.encode())


@pytest.mark.parametrize("where", ["{}/nowhere", "file://{}/nowhere", "{}"])
def test_what_is_no_clone_is_refused_by_name(where: str, tmp_path: Path) -> None:
    place = where.format(tmp_path)
    with pytest.raises(UnhangError) as told:
        clones.open_clone(place, tmp_path / "cache")
    assert (told.value.code, place in told.value.message) == ("clone-failed", True)


def test_a_clone_that_lacks_a_pull_request_says_how_to_fetch_it(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    with pytest.raises(UnhangError) as told:
        clones.open_clone(str(origin), tmp_path, ["refs/pull/7/head"])
    assert told.value.hint == "run this there: git fetch origin refs/pull/7/head:refs/pull/7/head"
    git(origin, "update-ref", "refs/pull/7/head", "dev")
    clones.open_clone(str(origin), tmp_path, ["refs/pull/7/head"])
    repo = clones.open_clone(f"file://{origin}", tmp_path, ["refs/pull/7/head"])
    assert repo.commit("refs/pull/7/head").message.strip() == "on dev"


def test_a_sweep_of_history_tells_what_it_left_out(
    fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = repository(tmp_path / "origin")
    assert run(tmp_path, "--clone", f"verl={origin}") == 0
    told = capsys.readouterr()
    assert f"left out: {ENGINE} at 2026-01-03" in told.err
    assert "6 commits, 7 distinct files" in told.out
    rows = [row for row in data(tmp_path, "shapes") if row["fix"] == "mtp-cp-deadlock"]
    assert {row["state"] for row in rows} == {"not-affected"}
    assert len(rows) == 3, "and what is older than the floor, and undecided, is not there"
    assert {row["first"][:10] for row in rows} == {"2026-01-02", "2026-01-04", "2026-01-06"}


@pytest.mark.parametrize("told", ["verl", "vrel=/x", "verl="])
def test_a_clone_that_is_not_understood_is_refused(
    told: str, fake: FakeIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--clone", told) == 2
    assert "UPSTREAM=PATH_OR_URL" in capsys.readouterr().err
    assert not fake.asked
