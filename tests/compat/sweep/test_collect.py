"""What is collected from releases, history and branches."""

from pathlib import Path

import pytest

from support.fake_clone import BROKEN
from support.fake_index import CLEAN, ENGINE, PARALLEL
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
AGREE = ("agree(): 1", "agree(): 2")


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection([MTP, WARMUP], Learnt(Cache(tmp_path)))


def release(found: Content | None, version: str = "0.7.0") -> Release:
    return Release("verl", version, False, {ENGINE: found})


def test_a_shape_is_collected_once_for_all_its_releases(collection: Collection) -> None:
    for version in ("0.7.0", "0.7.1"):
        collection.release(release(CONTENT, version))
    ((key, row),) = collection.rows.items()
    assert key[:2] == ("mtp-cp-deadlock", FUNCTION)
    assert (row.content, row.releases, row.supported) == (CONTENT, [("verl", "0.7.0"), ("verl", "0.7.1")], True)
    other = content(b"pass\n")
    collection.release(release(None, "0.7.2"))
    collection.release(release(other, "0.7.3"))
    shapes = [collection.shapes["verl", f"0.7.{patch}", MTP] for patch in range(4)]
    assert shapes == [key[2], key[2], None, None]
    assert collection.files == {
        (MTP.fix, CONTENT.sha256): {FUNCTION: key[2]},
        (MTP.fix, other.sha256): {FUNCTION: None},
    }


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
    assert [*collection.files] == [(MTP.fix, CONTENT.sha256)]
    assert collection.rows == {}


def test_a_change_by_hand_has_a_note_unless_its_shape_is_known(collection: Collection) -> None:
    collection.release(release(CONTENT))
    ((*_, before),) = collection.rows
    collection.change(MTP, before, CONTENT, "known")
    collection.change(MTP, before, content(CLEAN.replace("0", "1").encode()), "by hand")
    assert [row.note for row in collection.rows.values()] == ["", "by hand"]


def test_what_is_seen_together_is_collected_and_what_is_changed_by_hand_takes_its_place(tmp_path: Path) -> None:
    other = WARMUP._replace(fix="pair", upstream="verl", file="other.py", function="agree")
    target = other._replace(file="one.py", function="run", depends_on=other)
    one, two, beside, later = (content(f"def {text}\n".encode()) for text in ("run(): 1", "run(): 2", *AGREE))
    found = Collection([target, other], Learnt(Cache(tmp_path)))
    shapes = {text: str(found._shape(target, text)) for text in (one, two)}
    shapes |= {text: str(found._shape(other, text)) for text in (beside, later)}
    found.release(Release("verl", "1.0", False, {"one.py": one, "other.py": beside}))
    found.release(Release("verl", "2.0", False, {"one.py": two, "other.py": None}))
    assert found.pairs == {("pair", "run", shapes[one]): {shapes[beside]}}
    found.together(target, two, beside)
    found.together(target, content(b"def run(:"), beside)
    found.change(other, shapes[beside], later, "by hand")
    both = {shapes[beside], shapes[later]}
    assert found.pairs == {("pair", "run", shapes[text]): both for text in (one, two)}
    found.change(target, shapes[one], content(b"def run(): 3\n"), "by hand")
    assert list(found.pairs.values()) == [both] * 3
