"""An original goes on proof alone: whatever happens to the files between two runs, each run leaves it recoverable.

A file has its original bytes, or those that an installer's row of RECORD lists, or the receipt and `.unhang/pristine`
have the original: that holds after each action, after things are as they were again, and after `revert`.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support import cli, memory
from unhang.store import dist_info
from unhang.store.receipt import sha256

SWIFT, LISTED = ("ms-swift", "4.1.0"), "ms_swift-4.1.0.dist-info"
WARM_UP, METRIC, OTHER = "expert-dp-warmup", "mean-metric-dtype", "mcore-save-barrier"
FIXES = ("--fix", WARM_UP, "--fix", METRIC)
MINE = b"# mine, before apply\n"


class Place(NamedTuple):
    """A patched copy, and its files as they were before."""

    top: Path
    originals: dict[str, bytes]
    patched: dict[str, bytes]

    def unhang(self, *words: str) -> cli.Ran:
        ran = cli.called_with_all(*words, "--target", self.top)
        assert "internal" not in ran.err, ran.err
        return ran

    def now(self) -> dict[str, bytes | None]:
        return {name: path.read_bytes() if (path := self.top / name).exists() else None for name in self.originals}

    def each(self, change: Callable[[bytes], bytes]) -> None:
        for name in self.originals:
            (self.top / name).write_bytes(change((self.top / name).read_bytes()))

    def put(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (self.top / name).write_bytes(data)

    def git(self, *words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.autocrlf=false"]
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", *who, *words], cwd=self.top, env=env, check=True, capture_output=True)

    def lost(self) -> set[str]:
        """Return the files whose originals nobody can get back."""
        state, kept = self.top / ".unhang", set()
        if (state / "receipt.json").exists():
            receipt = json.loads((state / "receipt.json").read_bytes())
            for entry in (*receipt["files"], *receipt.get("earlier", ())):
                blob = state / "pristine" / entry["pristine"]
                if blob.exists() and sha256(blob.read_bytes()) == blob.name:
                    kept.add((entry["path"], blob.name))
        records = [path.read_bytes() for path in self.top.glob("*.dist-info/RECORD")]
        return {
            name
            for name, data in self.now().items()
            if data != self.originals[name]
            and (name, sha256(self.originals[name])) not in kept
            and not any(data is not None and dist_info.lists(record, name, data) for record in records)
        }


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    with memory.folder(tmp_path_factory.mktemp("laid")) as home:
        made = {}
        for kind, release in {"wheel": SWIFT, "checkout": SWIFT, "two fixes": ("ms-swift", "3.8.0")}.items():
            top = cli.unpack_targets(home / kind, release)
            place = Place(top, {}, {})
            if kind == "checkout":
                shutil.rmtree(top / LISTED)
                place.git("init", "--quiet", "-b", "main")
                place.git("add", ".")
                place.git("commit", "--quiet", "-m", "first")
                for path in top.glob("swift/**/*.py"):  # a dirty checkout: git does not have the originals
                    path.write_bytes(MINE + path.read_bytes())
            before = {str(path.relative_to(top)): path.read_bytes() for path in top.glob("swift/**/*.py")}
            fixes = FIXES if kind != "two fixes" else ("--fix", METRIC, "--fix", "infer-metric-rank0")
            assert place.unhang("apply", *fixes).code == 0
            now = {name: (top / name).read_bytes() for name in before}
            names = [name for name in before if now[name] != before[name]]
            assert names
            made[kind] = Place(top, *({name: files[name] for name in names} for files in (before, now)))
        yield made


@pytest.fixture
def place(laid: dict[str, Place], in_memory: Path, request: pytest.FixtureRequest) -> Place:
    one = laid[request.param]
    return one._replace(top=Path(shutil.copytree(one.top, in_memory / "top", symlinks=True)))


def nothing(_: Place) -> None:
    """Nothing comes back."""


def stash(place: Place) -> None:
    place.git("stash", "--quiet")


def pop(place: Place) -> None:
    place.git("checkout", "--quiet", ".")
    place.git("stash", "pop", "--quiet")


def branch(place: Place) -> None:
    """Our rewrites are committed on a branch; the other one has files of its own."""
    place.git("checkout", "--quiet", "-b", "work")
    place.git("commit", "--quiet", "-a", "-m", "patched")
    place.git("checkout", "--quiet", "main")
    place.each(lambda data: data + b"\nof_main = 1\n")
    place.git("commit", "--quiet", "-a", "-m", "main")


def back_on_branch(place: Place) -> None:
    place.git("checkout", "--quiet", "--force", "work")


def worktree(place: Place) -> None:
    branch(place)
    back_on_branch(place)
    place.git("worktree", "add", "--quiet", str(place.top / "other"), "main")
    assert not (place.top / "other/.unhang").exists()


def strip(place: Place) -> None:
    place.each(lambda data: re.sub(rb"(?m)^ *# unhang .*\n", b"", data))


def format_all(place: Place) -> None:
    """Lay all out anew, as ``ruff format`` and ``black`` do, and comments with it."""
    place.each(formatted)


def formatted(data: bytes) -> bytes:
    """Give strings double quotes, and calls of one line a trailing space and a blank line less."""
    tokens = []
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        is_plain = token.type == tokenize.STRING and re.fullmatch(r"'[\w ,.:=-]+'", token.string)
        tokens.append(token._replace(string=f'"{token.string[1:-1]}"') if is_plain else token)
    laid_out = tokenize.untokenize(tokens)
    assert isinstance(laid_out, bytes)  # the first token is the encoding
    return re.sub(rb"\n\n( +\S)", rb"\n\1", laid_out)


def unparse(place: Place) -> None:
    """Lay all out anew without comments."""
    place.each(lambda data: ast.unparse(ast.parse(data)).encode() + b"\n")


def absent(place: Place) -> None:
    for name in place.originals:
        (place.top / name).rename(place.top / f"{name}.away")


def present(place: Place) -> None:
    for name in place.originals:
        (place.top / f"{name}.away").rename(place.top / name)


def version(place: Place) -> None:
    (place.top / LISTED).rename(place.top / "ms_swift-4.6.0.dist-info")


def first_version(place: Place) -> None:
    (place.top / "ms_swift-4.6.0.dist-info").rename(place.top / LISTED)


def restored(place: Place) -> None:
    """The bytes of a backup, from before one of the two."""
    place.put(place.originals)


def stale_backup(place: Place) -> None:
    """A backup of something else again."""
    place.put(dict.fromkeys(place.originals, b"x = 1\n"))


def patched_again(place: Place) -> None:
    place.put(place.patched)


ACTIONS = (("check",), ("apply", *FIXES), ("revert",), ("revert", "--fix", OTHER), ("revert", "--force"))
CASES = [  # what happens, what undoes it, and whether `revert` then gives the very original
    ("checkout", stash, pop, True),
    ("checkout", branch, back_on_branch, True),
    ("checkout", worktree, nothing, True),
    ("checkout", strip, nothing, False),
    ("checkout", format_all, nothing, False),
    ("checkout", unparse, nothing, False),
    ("checkout", absent, present, True),
    ("checkout", stale_backup, patched_again, True),
    ("wheel", strip, nothing, True),
    ("wheel", format_all, nothing, False),
    ("wheel", unparse, nothing, False),
    ("wheel", absent, present, True),
    ("wheel", version, first_version, True),
    ("wheel", restored, nothing, True),
    ("wheel", stale_backup, patched_again, True),
]
# git takes its time
_MARKED = [pytest.param(*case, marks=[pytest.mark.slow] if case[0] == "checkout" else []) for case in CASES]


@pytest.mark.parametrize("action", ACTIONS, ids=" ".join)
@pytest.mark.parametrize(
    ("place", "happens", "undone", "is_exact"), _MARKED, indirect=["place"],
    ids=lambda it: getattr(it, "__name__", str(it)),
)  # fmt: skip
def test_whatever_happens_between_two_runs_each_original_is_recoverable(
    place: Place, happens: Callable[[Place], None], undone: Callable[[Place], None], is_exact: bool,
    action: tuple[str, ...],
) -> None:  # fmt: skip
    happens(place)
    before = place.now()
    ran = place.unhang(*action)
    assert place.lost() == set(), ran.err
    if action[0] == "check" or OTHER in action:
        assert place.now() == before, "what a run is not about, it does not touch"
    undone(place)
    assert place.lost() == set()
    ran = place.unhang("revert")
    assert place.lost() == set(), ran.err
    assert ran.code == 0 or (action[0] == "revert" and "there is no receipt" in ran.err), ran.err
    assert not is_exact or place.now() == place.originals, ran.err
    if not is_exact:  # the functions are back all the same
        assert b"# unhang " not in b"".join(filter(None, place.now().values()))
        assert place.unhang("check", "--fix", WARM_UP).out.count("applied") == 0


# A part of `.unhang` is gone


@pytest.mark.parametrize("place", ["checkout"], indirect=True)
@pytest.mark.parametrize("action", [("apply", "--fix", OTHER), ("revert",), ("revert", "--force")], ids=" ".join)
def test_originals_without_a_receipt_are_named_and_stay(place: Place, action: tuple[str, ...]) -> None:
    (place.top / ".unhang/receipt.json").unlink()
    blobs = {path: path.read_bytes() for path in (place.top / ".unhang/pristine").iterdir()}
    place.unhang(*action)
    ran = place.unhang("revert")
    assert all(path.read_bytes() == data for path, data in blobs.items())
    assert all(f"no receipt says which file this is the original of: {path}\n" in ran.err for path in blobs)
    assert place.now() == place.patched


@pytest.mark.parametrize("place", ["wheel"], indirect=True)
@pytest.mark.parametrize("action", [("revert",), ("revert", "--force"), ("apply", "--fix", OTHER)], ids=" ".join)
def test_a_file_whose_original_is_gone_does_not_hold_back_the_others(place: Place, action: tuple[str, ...]) -> None:
    name, *others = place.originals
    gone = place.top / ".unhang/pristine" / sha256(place.originals[name])
    gone.unlink()
    assert place.unhang(*action).code == (1 if action[0] == "revert" else 0)
    assert place.unhang("revert", "--fix", OTHER).code == 0
    ran = place.unhang("revert")
    is_alone = action[0] == "revert"
    assert (ran.code, f"the original bytes of {place.top / name} are gone" in ran.err) == (2 if is_alone else 1, True)
    assert place.now() == {name: place.patched[name], **{other: place.originals[other] for other in others}}
    gone.parent.mkdir(exist_ok=True)
    gone.write_bytes(place.originals[name])
    assert place.unhang("revert").code == 0
    assert place.now() == place.originals


# Several originals of one file


@pytest.mark.parametrize("place", ["checkout"], indirect=True)
@pytest.mark.parametrize("first", [True, False])
def test_each_branch_gets_its_own_original_back(place: Place, first: bool) -> None:
    branch(place)
    mains = place.now()
    assert place.unhang("apply", *FIXES).code == 0
    assert place.lost() == set()
    patched = {name: data for name, data in place.now().items() if data is not None}
    for files, wanted in [(place.patched, place.originals), (patched, mains)][:: 1 if first else -1]:
        place.put(files)
        ran = place.unhang("revert")
        assert (ran.code, place.now()) == (0, wanted), ran.err
    assert not (place.top / ".unhang").exists()


@pytest.mark.parametrize("place", ["two fixes"], indirect=True)
def test_one_fix_reverted_and_brought_back_by_a_backup_is_known_still(place: Place) -> None:
    assert place.unhang("revert", "--fix", METRIC).code == 0
    assert place.now() != place.originals
    place.put(place.patched)
    assert place.unhang("revert").code == 0
    assert place.now() == place.originals
    assert not (place.top / ".unhang").exists()


@pytest.mark.parametrize("place", ["two fixes"], indirect=True)
def test_an_edit_between_two_fixes_of_one_file_loses_neither_original(place: Place) -> None:
    assert place.unhang("revert", "--fix", METRIC).code == 0
    place.each(lambda data: data + b"\nmine = 1\n")
    edited = place.now()
    assert place.unhang("apply", "--fix", METRIC).code == 0
    assert place.lost() == set()
    assert place.unhang("revert", "--fix", METRIC).code == 0
    assert place.now() == edited
    assert place.unhang("revert").code == 0
    assert place.now() == {name: data + b"\nmine = 1\n" for name, data in place.originals.items()}
    assert place.lost() == set()
    place.each(lambda data: data.removesuffix(b"\nmine = 1\n"))
    assert place.unhang("revert").code == 0
    assert not (place.top / ".unhang").exists()
    assert b'"' not in b"".join(path.read_bytes() for path in place.top.glob("*.dist-info/RECORD")), "a row of ours"


@pytest.mark.parametrize("place", ["wheel"], indirect=True)
def test_a_comment_that_somebody_wrote_into_our_function_is_an_edit(place: Place) -> None:
    place.each(lambda data: re.sub(rb"(?m)^( *)(# unhang .*\n)", rb"\1# mine\n\1\2", data))
    edited = place.now()
    ran = place.unhang("revert")
    assert (ran.code, ran.err.count("error[edited]"), place.now()) == (1, len(edited), edited)
    assert place.unhang("revert", "--force").code == 0
    assert place.now() == place.originals
    assert {path.read_bytes() for path in place.top.rglob("*.unhang-kept")} == set(edited.values())
