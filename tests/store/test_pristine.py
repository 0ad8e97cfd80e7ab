"""The receipt and the pristine bytes are saved together, and deleted without a trace."""

import json
import os
from pathlib import Path

import pytest

from support.receipts import A, B, C, entry, save, without
from unhang.errors import UnhangError
from unhang.store import pristine
from unhang.store.receipt import Receipt, load, merge, sha256


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else b"" for path in top.rglob("*")}


def test_what_is_saved_already_changes_nothing(tmp_path: Path) -> None:
    assert pristine.changes(str(tmp_path / ".unhang"), Receipt("1", ()), {}) == []
    new = merge(None, [entry()])
    save(tmp_path / ".unhang", new, A)
    assert pristine.changes(str(tmp_path / ".unhang"), new, {}) == []


def test_missing_pristine_bytes_are_a_mistake(tmp_path: Path) -> None:
    for found in ({}, {sha256(A): B}):
        with pytest.raises(ValueError, match="missing"):
            pristine.changes(str(tmp_path), merge(None, [entry()]), found)


def test_what_was_saved_is_read_and_deleted_without_a_trace(tmp_path: Path) -> None:
    state = tmp_path / ".unhang"
    odd = entry(relative="p/caf\udce9.py", root=str(tmp_path))._replace(record=None, record_row=None, version=None)
    new = merge(None, [entry(root=str(tmp_path)), odd])
    save(state, new, A)
    assert load(str(state)) == new
    assert pristine.read(new.files[0]) == A
    assert json.loads((state / "receipt.json").read_bytes())["schema"] == 1
    save(state, Receipt("", ()))
    assert files(tmp_path) == {}


def test_pristine_bytes_are_deleted_with_the_last_of_their_files(tmp_path: Path) -> None:
    twin, other = entry(relative="p/n.py"), entry(C, B, relative="p/o.py")
    new = merge(None, [entry(), twin, other])
    assert len(save(tmp_path / ".unhang", new, A, C)) == 3
    save(tmp_path / ".unhang", without(new, twin.path, other.path))
    assert os.listdir(tmp_path / ".unhang" / "pristine") == [sha256(A)]
    assert pristine.read(entry(root=str(tmp_path))) == A


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    state = tmp_path / ".unhang"
    new = merge(None, [entry()])
    save(state, new, A)
    (state / "pristine" / "notes.txt").write_text("mine")
    save(state, without(new, entry().path))
    left = {".unhang": b"", ".unhang/.gitignore": b"*", ".unhang/pristine": b"", ".unhang/pristine/notes.txt": b"mine"}
    assert files(tmp_path) == left


def test_original_bytes_that_were_altered_or_lost_are_refused(tmp_path: Path) -> None:
    new = merge(None, [entry()])
    save(tmp_path / ".unhang", new, A)
    blob = tmp_path / ".unhang" / "pristine" / sha256(A)
    for hurt in (lambda: blob.write_bytes(b"evil"), blob.unlink):
        hurt()
        with pytest.raises(UnhangError) as caught:
            pristine.read(entry(root=str(tmp_path)))
        assert caught.value.code == "bad-receipt"
    blob.write_bytes(b"evil")
    with pytest.raises(UnhangError) as caught:
        pristine.changes(str(tmp_path / ".unhang"), new, {sha256(A): A})
    assert (caught.value.code, caught.value.path) == ("bad-receipt", str(blob))


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / sha256(C)).write_bytes(C)
    (tmp_path / ".unhang").mkdir()
    (tmp_path / ".unhang" / "pristine").symlink_to(store)
    with pytest.raises(UnhangError) as caught:
        pristine.changes(str(tmp_path / ".unhang"), merge(None, [entry()]), {sha256(A): A})
    assert caught.value.code == "bad-state"
    assert list(store.iterdir()) == [store / sha256(C)]
