"""What is collected from releases, history and branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fake_clone import BROKEN
from support.fake_index import AFFECTED, CLEAN, ENGINE, PARALLEL
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.clones import Seen
from unhang.compat.sweep.collect import Collection
from unhang.compat.sweep.gather import targets
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.sources import Content, Release, content

FUNCTION = "MegatronEngine.forward_backward_batch"
(MTP,) = (target for target in targets() if target.fix == "mtp-cp-deadlock")
WARMUP = next(target for target in targets() if target.file == PARALLEL)
CONTENT = content(CLEAN.encode())


@pytest.fixture
def learnt(tmp_path: Path) -> Learnt:
    return Learnt(Cache(tmp_path))


@pytest.fixture
def collection(learnt: Learnt) -> Collection:
    return Collection([MTP, WARMUP], learnt)


def release(found: Content | None, version: str = "0.7.0") -> Release:
    return Release("verl", version, False, {ENGINE: found})


def test_a_shape_is_collected_once_for_all_its_releases(collection: Collection) -> None:
    for version in ("0.7.0", "0.7.1"):
        collection.release(release(CONTENT, version))
    ((key, row),) = collection.rows.items()
    assert key[:2] == ("mtp-cp-deadlock", FUNCTION)
    assert (row.content, row.releases, row.supported) == (CONTENT, [("verl", "0.7.0"), ("verl", "0.7.1")], True)
    assert collection.shapes["verl", "0.7.1", MTP] == key[2]
    assert collection.files == {CONTENT.sha256: {FUNCTION: key[2]}}


def test_a_release_without_the_file_or_the_function(collection: Collection) -> None:
    collection.release(release(None))
    other = content(b"pass\n")
    collection.release(release(other, "0.7.1"))
    assert collection.rows == {}
    assert [collection.shapes["verl", version, MTP] for version in ("0.7.0", "0.7.1")] == [None, None]
    assert collection.files == {other.sha256: {FUNCTION: None}}


def test_a_released_file_that_does_not_parse_is_a_problem(collection: Collection) -> None:
    collection.release(release(content(BROKEN.encode())))
    (problem,) = collection.problems
    assert problem.startswith(f"{ENGINE} of verl 0.7.0: it does not parse")
    assert collection.files == {}


def test_history_gives_commits_but_no_files(collection: Collection) -> None:
    broken = collection.history(
        [
            Seen(ENGINE, CONTENT, "2026-01-01 a", "2026-01-02 b", False),
            Seen(ENGINE, CONTENT, "2026-01-03 c", "2026-01-03 c", True),
            Seen(ENGINE, content(BROKEN.encode()), "2026-01-04 d", "2026-01-04 d", True),
        ]
    )
    assert [line.partition(":")[0] for line in broken] == [f"{ENGINE} at 2026-01-04 d"]
    (row,) = collection.rows.values()
    assert row.commits == ["2026-01-01 a", "2026-01-02 b", "2026-01-03 c", "2026-01-03 c"]
    assert row.supported, "one of them is at the floor"
    assert collection.files == {}


def test_a_tip_gives_files_but_no_rows(collection: Collection) -> None:
    collection.tip(ENGINE, CONTENT)
    assert [*collection.files] == [CONTENT.sha256]
    assert collection.rows == {}


def test_a_change_by_hand_has_a_note_unless_its_shape_is_known(collection: Collection) -> None:
    collection.release(release(CONTENT))
    collection.change(MTP, CONTENT, "known")
    collection.change(MTP, content(CLEAN.replace("0", "1").encode()), "by hand")
    assert [row.note for row in collection.rows.values()] == ["", "by hand"]


def test_a_patched_file_is_on_record_if_its_rewrite_succeeds(collection: Collection, learnt: Learnt) -> None:
    good, bad = content(AFFECTED.encode()), content(AFFECTED.replace("import torch\n", "").encode())
    for version, found in (("0.17.0", good), ("0.18.0", bad)):
        collection.release(Release("megatron-core", version, False, {PARALLEL: found}))
    ((key, _),) = collection.rows.items()
    result = learnt.state(good, WARMUP).result
    assert result is not None
    (failed,) = collection.patched({key: result})
    assert bad.sha256 in failed
    (digest,) = {*collection.files} - {good.sha256, bad.sha256}
    assert collection.files[digest] == {WARMUP.function: result}
