"""The receipt: exact, whatever happens to files and fixes in between, and never trusted further than it deserves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unhang.errors import UnhangError
from unhang.store import git_exclude, receipt
from unhang.store.receipt import Entry, Fixed, Receipt
from unhang.store.transaction import FileChange, commit, exclusive

A, B, C = b"pristine\n", b"patched\n", b"patched twice\n"
FIRST = Fixed("fix-one", "m.py", "f", "s0", "s1", True)
SECOND = Fixed("fix-two", "m.py", "g", "t0", "t1", False)


def entry(
    before: bytes = A, after: bytes = B, *fixes: Fixed, relative: str = "p/m.py", root: str = "/site", row: str = "1"
) -> Entry:
    listed = f"{root}/p-1.dist-info/RECORD"
    return Entry(
        f"{root}/{relative}", relative, "verl", "0.7.1", root, receipt.sha256(before), receipt.sha256(after), listed,
        f"{relative},sha256={row},{row}", fixes or (FIRST,),
    )  # fmt: skip


def write(state: Path, new: Receipt, *blobs: bytes) -> list[FileChange]:
    """Bring a receipt to disk as a run does."""
    with exclusive(str(state)):
        changes = receipt.changes(str(state), new, {receipt.sha256(data): data for data in blobs})
        commit(changes, state_dir=str(state))
    return changes


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else b"" for path in top.rglob("*")}


# Nothing


def test_no_receipt(tmp_path: Path) -> None:
    assert receipt.load(str(tmp_path)) is None
    assert receipt.load(str(tmp_path / "nonexistent")) is None
    assert receipt.changes(str(tmp_path), Receipt("1", ()), {}) == []


def test_the_same_receipt_changes_nothing(tmp_path: Path) -> None:
    new = receipt.merge(None, [entry()])
    write(tmp_path / "state", new, A)
    assert receipt.changes(str(tmp_path / "state"), new, {}) == []


def test_nothing_is_written_by_planning(tmp_path: Path) -> None:
    receipt.changes(str(tmp_path / ".unhang"), receipt.merge(None, [entry()]), {receipt.sha256(A): A})
    assert list(tmp_path.iterdir()) == []


def test_a_blob_that_nobody_has_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing"):
        receipt.changes(str(tmp_path), receipt.merge(None, [entry()]), {})
    with pytest.raises(ValueError, match="missing"):
        receipt.changes(str(tmp_path), receipt.merge(None, [entry()]), {receipt.sha256(A): B})


# There and back


def test_what_was_written_is_read_and_taken_away_without_a_trace(tmp_path: Path) -> None:
    state = tmp_path / "share" / "unhang"
    odd = entry(relative="p/caf\udce9.py")._replace(record=None, record_row=None, version=None)
    new = receipt.merge(None, [entry(), odd])
    write(state, new, A)
    assert receipt.load(str(state)) == new
    assert receipt.pristine(str(state), new.files[0]) == A
    assert json.loads((state / "receipt.json").read_bytes())["schema"] == 1
    write(state, receipt.without(new, [entry().path, odd.path]))
    assert files(tmp_path) == {}


def test_one_of_two_files_goes_and_its_blob_with_it(tmp_path: Path) -> None:
    other = entry(C, B, relative="p/n.py")
    write(tmp_path / "state", receipt.merge(None, [entry(), other]), A, C)
    write(tmp_path / "state", receipt.without(receipt.merge(None, [entry(), other]), [other.path]))
    assert os.listdir(tmp_path / "state" / "pristine") == [receipt.sha256(A)]


def test_a_blob_shared_by_two_files_stays_for_the_second(tmp_path: Path) -> None:
    other = entry(relative="p/n.py")
    both = receipt.merge(None, [entry(), other])
    changes = write(tmp_path / "state", both, A)
    assert len(changes) == 2
    write(tmp_path / "state", receipt.without(both, [other.path]))
    assert receipt.pristine(str(tmp_path / "state"), entry()) == A


def test_files_of_others_beside_ours_stay(tmp_path: Path) -> None:
    state = tmp_path / "state"
    new = receipt.merge(None, [entry()])
    write(state, new, A)
    (state / "pristine" / "notes.txt").write_text("mine")
    write(state, receipt.without(new, [entry().path]))
    assert files(tmp_path) == {"state": b"", "state/pristine": b"", "state/pristine/notes.txt": b"mine"}


def test_the_order_of_things_does_not_show() -> None:
    other = entry(relative="p/n.py")
    one = Receipt("1", (entry(A, B, FIRST, SECOND), other))
    two = Receipt("1", (other, entry(A, B, SECOND, FIRST)))
    assert receipt.render(one) == receipt.render(two)
    assert receipt.render(one).endswith(b"}\n")
    assert receipt.render(one) != receipt.render(one._replace(files=(other,)))


# Merging


def test_a_second_fix_keeps_the_first_pristine_bytes_and_row() -> None:
    first = receipt.merge(None, [entry(A, B, FIRST, row="1")])
    (merged,) = receipt.merge(first, [entry(B, C, SECOND, row="2")]).files
    assert merged == entry(A, C, FIRST, SECOND, row="1")


def test_the_same_fix_again_stands_once() -> None:
    newer = FIRST._replace(after="s2")
    first = receipt.merge(None, [entry(A, B, FIRST, SECOND)])
    (merged,) = receipt.merge(first, [entry(B, C, newer)]).files
    assert merged.fixes == (SECOND, newer)
    assert merged.pristine == receipt.sha256(A)


def test_a_reinstalled_file_begins_anew() -> None:
    """Another release underneath: its own bytes are the pristine ones, and the old fixes are gone with the old file."""
    first = receipt.merge(None, [entry(A, B, FIRST)])
    anew = entry(b"another release\n", C, SECOND)
    assert receipt.merge(first, [anew]).files == (anew,)


def test_one_of_two_fixes_taken_out() -> None:
    both = receipt.merge(None, [entry(A, C, FIRST, SECOND)])
    one = both.files[0]._replace(patched=receipt.sha256(B), fixes=(FIRST,))
    assert receipt.merge(both, [one]).files == (entry(A, B, FIRST),)


def test_other_files_stay() -> None:
    other = entry(relative="p/a.py")
    merged = receipt.merge(receipt.merge(None, [other]), [entry()])
    assert merged.files == (other, entry())
    assert receipt.without(merged, [other.path]).files == (entry(),)
    assert receipt.without(merged, ["/elsewhere"]).files == merged.files


# Not to be trusted


def spoilt(change: Callable[[dict[str, Any]], Any]) -> bytes:
    content = json.loads(receipt.render(receipt.merge(None, [entry()])))
    changed = change(content)
    return json.dumps(content if changed is None else changed).encode()


def set_file(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["files"][0].update(values)


def test_unspoilt_it_is_read() -> None:
    """Else the tests below show nothing."""
    assert receipt.parse(spoilt(lambda content: None), "x").files == (entry(),)


@pytest.mark.parametrize("schema", [2, 99])
def test_a_newer_receipt_asks_for_a_newer_unhang(tmp_path: Path, schema: int) -> None:
    (tmp_path / "receipt.json").write_text(json.dumps({"schema": schema, "unhang": "9.9", "files": "whatever"}))
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert caught.value.code == "newer-receipt"
    assert "9.9" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda content: [],
        lambda content: content.pop("schema") and None,
        lambda content: content.update(schema=0),
        lambda content: content.update(schema="1"),
        lambda content: content.update(schema=True),
        lambda content: content.pop("unhang") and None,
        lambda content: content.update(files={}),
        lambda content: content.update(files=["x"]),
        lambda content: content.update(files=content["files"] * 2),
        lambda content: content.update(exclude={"newline": True}),
        set_file(path="p/m.py"),
        set_file(path="/site/p/../../etc/passwd"),
        set_file(path="/etc/passwd"),
        set_file(path="/site/p/m\0.py"),
        set_file(relative="../etc/passwd", path="/etc/passwd"),
        set_file(relative="/site/p/m.py"),
        set_file(relative="p//m.py"),
        set_file(root="site"),
        set_file(root="/site/../site"),
        set_file(upstream=None),
        set_file(version=7),
        set_file(pristine="abc"),
        set_file(pristine="../../../../../../etc/passwd"),
        set_file(patched=receipt.sha256(B).upper()),
        set_file(record="/etc/passwd"),
        set_file(record="/site/p-1.dist-info/METADATA"),
        set_file(record="/site/sub/p-1.dist-info/RECORD"),
        set_file(record="/site/p/RECORD"),
        set_file(record_row=7),
        set_file(record_row="../../evil.py,,"),
        set_file(record_row="p/m.py,sha256=1,1\nother.py,,"),
        set_file(fixes=None),
        set_file(fixes=[{**FIRST._asdict(), "verified": 1}]),
        set_file(fixes=[{"fix": "x"}]),
    ],
)
def test_a_receipt_that_was_tampered_with_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (tmp_path / "receipt.json").write_bytes(spoilt(change))
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert (caught.value.code, caught.value.path) == ("bad-receipt", str(tmp_path / "receipt.json"))
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"null", b"[" * 100_000, b"\0"])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "receipt.json").write_bytes(data)
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert caught.value.code == "bad-receipt"


def test_a_receipt_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(receipt.render(receipt.merge(None, [entry()])))
    (tmp_path / "receipt.json").symlink_to(tmp_path / "real")
    with pytest.raises(UnhangError) as caught:
        receipt.load(str(tmp_path))
    assert caught.value.code == "bad-receipt"


def test_original_bytes_that_were_altered_or_lost_are_refused(tmp_path: Path) -> None:
    new = receipt.merge(None, [entry()])
    write(tmp_path / "state", new, A)
    blob = tmp_path / "state" / "pristine" / receipt.sha256(A)
    for hurt in (lambda: blob.write_bytes(b"evil"), blob.unlink):
        hurt()
        with pytest.raises(UnhangError) as caught:
            receipt.pristine(str(tmp_path / "state"), entry())
        assert caught.value.code == "bad-receipt"
    blob.write_bytes(b"evil")
    with pytest.raises(UnhangError) as caught:
        receipt.changes(str(tmp_path / "state"), new, {receipt.sha256(A): A})
    assert (caught.value.code, caught.value.path) == ("bad-receipt", str(blob))


def test_blobs_are_not_deleted_through_a_link(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / receipt.sha256(C)).write_bytes(C)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "pristine").symlink_to(store)
    with pytest.raises(UnhangError) as caught:
        receipt.changes(str(tmp_path / "state"), receipt.merge(None, [entry()]), {receipt.sha256(A): A})
    assert caught.value.code == "bad-receipt"
    assert list(store.iterdir()) == [store / receipt.sha256(C)]


# Out of git


def git(folder: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "checkout"
    top.mkdir()
    git(top, "init", "--quiet")
    (top / "sub" / "we[i]rd").mkdir(parents=True)
    (top / "sub" / "we[i]rd" / "kept").touch()
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "first")
    return top


def there_and_back(folder: Path) -> str:
    """Write and remove a receipt in `folder`; return what git saw in between."""
    new = receipt.merge(None, [entry()])
    write(folder / ".unhang", new, A)
    seen = git(folder, "status", "--porcelain", "--untracked-files=all")
    loaded = receipt.load(str(folder / ".unhang"))
    assert loaded is not None
    write(folder / ".unhang", receipt.without(loaded, [entry().path]))
    assert not (folder / ".unhang").exists()
    return seen


def test_outside_of_git_there_is_nothing_to_keep_out_of(tmp_path: Path) -> None:
    assert git_exclude.find(str(tmp_path)) is None
    write(tmp_path / ".unhang", receipt.merge(None, [entry()]), A)
    loaded = receipt.load(str(tmp_path / ".unhang"))
    assert loaded is not None
    assert loaded.exclude is None


@pytest.mark.parametrize("content", [b"", b"not git's\n", b"gitdir: /nonexistent\n", b"gitdir: .\n"])
def test_what_only_looks_like_git_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".git").write_bytes(content)
    assert git_exclude.find(str(tmp_path)) is None
    (tmp_path / ".git").unlink()
    (tmp_path / ".git").mkdir()
    assert git_exclude.find(str(tmp_path)) is None


def test_a_receipt_under_share_has_no_part_in_git(checkout: Path) -> None:
    before = (checkout / ".git" / "info" / "exclude").read_bytes()
    write(checkout / "share" / "unhang", receipt.merge(None, [entry()]), A)
    assert (checkout / ".git" / "info" / "exclude").read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"*.log\n", b"*.log", b"# one\r\n*.log\r\n", b"/.unhang/\n", b"\xff\n", None]
)
@pytest.mark.parametrize("sub", [".", "sub/we[i]rd"])
def test_git_sees_nothing_and_the_file_comes_back_exactly(checkout: Path, sub: str, content: bytes | None) -> None:
    exclude = checkout / ".git" / "info" / "exclude"
    exclude.unlink()
    if content is not None:
        exclude.write_bytes(content)
    assert there_and_back(checkout / sub) == ""
    assert (exclude.read_bytes() if exclude.exists() else None) == content
    assert exclude.parent.exists()


def test_without_an_info_folder(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git" / "info")
    assert there_and_back(checkout) == ""
    assert not (checkout / ".git" / "info").exists()


def test_a_worktree(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    exclude = checkout / ".git" / "info" / "exclude"
    before = exclude.read_bytes()
    assert there_and_back(tmp_path / "tree") == ""
    assert exclude.read_bytes() == before


def test_a_submodule(checkout: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet")
    git(outer, "submodule", "--quiet", "add", str(checkout), "inner")
    assert (outer / "inner" / ".git").is_file()
    assert there_and_back(outer / "inner") == ""


@pytest.mark.parametrize("start", [b"*.log", b"*.log\n", b"", None])
def test_a_line_of_the_users_added_since_stays(checkout: Path, start: bytes | None) -> None:
    exclude = checkout / ".git" / "info" / "exclude"
    exclude.unlink()
    if start is not None:
        exclude.write_bytes(start)
    new = receipt.merge(None, [entry()])
    write(checkout / ".unhang", new, A)
    with exclude.open("ab") as file:
        file.write(b"*.tmp\n")
    loaded = receipt.load(str(checkout / ".unhang"))
    assert loaded is not None
    write(checkout / ".unhang", receipt.without(loaded, [entry().path]))
    assert exclude.read_bytes() == ((start or b"").rstrip(b"\n") + b"\n" if start else b"") + b"*.tmp\n"


def test_a_line_that_the_user_took_out_is_not_missed(checkout: Path) -> None:
    new = receipt.merge(None, [entry()])
    write(checkout / ".unhang", new, A)
    (checkout / ".git" / "info" / "exclude").write_bytes(b"*.log\n")
    loaded = receipt.load(str(checkout / ".unhang"))
    assert loaded is not None
    write(checkout / ".unhang", receipt.without(loaded, [entry().path]))
    assert (checkout / ".git" / "info" / "exclude").read_bytes() == b"*.log\n"
    assert not (checkout / ".unhang").exists()


def test_a_second_apply_adds_no_second_line(checkout: Path) -> None:
    first = receipt.merge(None, [entry()])
    write(checkout / ".unhang", first, A)
    before = (checkout / ".git" / "info" / "exclude").read_bytes()
    loaded = receipt.load(str(checkout / ".unhang"))
    write(checkout / ".unhang", receipt.merge(loaded, [entry(C, B, relative="p/n.py")]), C)
    assert (checkout / ".git" / "info" / "exclude").read_bytes() == before
    assert before.count(b"/.unhang/\n") == 1
    again = receipt.load(str(checkout / ".unhang"))
    assert again is not None
    assert loaded is not None
    assert again.exclude == loaded.exclude
    assert loaded.exclude is not None


# Cheap


def loaded(code: str) -> set[str]:
    """The modules of a fresh interpreter after `code`."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.split())


def test_looking_imports_nothing_slow() -> None:
    code = (
        "from unhang.store.receipt import load; from unhang.store.state import interrupted\n"
        "load('/nonexistent'); interrupted('/nonexistent')"
    )
    slow = {"dataclasses", "pathlib", "tempfile", "inspect", "filelock", "subprocess", "libcst", "ast", "logging"}
    slow |= {"unhang.store.transaction", "unhang.store.journal", "unhang.store.lock"}
    assert slow & (loaded(code) - loaded("")) == set()  # an editable install may load some by itself
