"""A receipt is about one release and about functions: apply, then a change underneath, then each command.

What has to be there in the end is not written down here: it comes from fresh installs of the same wheels.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support import cli, environments, memory, wheels
from support.environments import Env

UPGRADES = [
    ("verl", "0.6.0", "0.7.1"),  # 0.6.1 has a defect that no rewrite cures: `apply` ends with 1 there
    ("verl", "0.7.1", "0.8.0"),
    ("ms-swift", "4.1.0", "4.6.0"),
    ("ms-swift", "3.8.0", "4.1.0"),
    ("megatron-core", "0.16.1", "0.17.1"),
    ("megatron-core", "0.17.1", "0.19.2"),
]
DOWNGRADES = [(project, new, old) for project, old, new in UPGRADES if new != "0.8.0"]  # that one needs nothing
REINSTALLS = [(project, version, version) for project, version, _ in UPGRADES]
RELEASES = list(dict.fromkeys(release[:2] for release in UPGRADES))
MARK = re.compile(rb"^ *(?=# unhang [\w-]+: )", re.MULTILINE)
SCRIPTS = re.compile(rb"^\.\./.*\n", re.MULTILINE)
KEPT = ".unhang-kept"
Tree = dict[str, "bytes | None"]


class Place(NamedTuple):
    """A virtual environment."""

    env: Env

    def copy(self, to: Path) -> Place:
        shutil.copytree(self.env.prefix, to, symlinks=True)
        return Place(Env(to, to / "bin/python", to / self.env.site.relative_to(self.env.prefix)))

    def unhang(self, *arguments: str) -> cli.Ran:
        return cli.called_with_all(*arguments, "--python", self.env.python)

    def check(self) -> tuple[int, dict[tuple[str, str, str], str]]:
        ran = self.unhang("check", "--output-format", "json")
        return ran.code, cli.verdicts(ran)

    def pip(self, *words: object) -> None:
        command = [environments.pip_python(), "-m", "pip", "--python", str(self.env.python), *map(str, words), "-q"]
        environments.run(*command, cwd=self.env.prefix)

    def tree(self) -> Tree:
        """Return each file and folder, without bytecode, and without the scripts in RECORD: they name the prefix."""
        found: Tree = {}
        for path in self.env.site.rglob("*"):
            if "__pycache__" not in path.parts:
                data = path.read_bytes() if path.is_file() else None
                found[str(path.relative_to(self.env.site))] = SCRIPTS.sub(b"", data) if data else data
        return found

    def patched(self) -> list[Path]:
        return [path for path in self.env.site.glob("[!u]*/**/*.py") if MARK.search(path.read_bytes())]

    def edit(self, change: Callable[[bytes], bytes], paths: list[Path]) -> None:
        for path in paths:
            path.write_bytes(change(path.read_bytes()))


class Laid:
    """Environments that are made once, then copied."""

    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        self.blank = Place(environments.make_env(home / "blank"))
        self.fresh, self.applied = cache(self.fresh_), cache(self.applied_)

    def copy(self, place: Place) -> Place:
        self.count += 1
        return place.copy(self.home / str(self.count))

    def install(self, place: Place, project: str, version: str, *options: str) -> None:
        wheel = self.wheel(project, version)
        place.pip("install", "--no-deps", "--no-index", "--no-compile", "--ignore-requires-python", *options, wheel)

    def wheel(self, project: str, version: str) -> Path:
        """Return a wheel by a name that says it is for any Python: some have binaries, which nobody loads here."""
        wheel = self.home / f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        if not wheel.exists():
            wheel.symlink_to(wheels.fetch(project, version))
        return wheel

    def fresh_(self, project: str, version: str) -> Place:
        place = self.copy(self.blank)
        self.install(place, project, version)
        return place

    def applied_(self, project: str, version: str) -> Place:
        place = self.copy(self.fresh(project, version))
        ran = place.unhang("apply")
        assert (ran.code, bool(place.patched())) == (0, True), ran.err
        return place


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laid]:
    with memory.folder(tmp_path_factory.mktemp("laid")) as home:
        yield Laid(home)


def each(cases: Sequence[tuple[str, ...]], *, quick: int = 1) -> pytest.MarkDecorator:
    """Run a test on these; so many of ms-swift are quick, the others slow."""
    sample = [case for case in cases if case[0] == "ms-swift"][:quick]
    marked = [pytest.param(*c, id="-".join(c), marks=[] if c in sample else pytest.mark.slow) for c in cases]
    return pytest.mark.parametrize(("project", "old", "new")[: len(cases[0])], marked)


def assert_rows_hold(place: Place) -> None:
    """Verify each row of each RECORD that has a hash."""
    for record in place.env.site.glob("*.dist-info/RECORD"):
        with open(record, encoding="utf-8", newline="") as file:
            for name, recorded, size in csv.reader(file):
                if recorded:
                    data = (place.env.site / name).read_bytes()
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    assert (recorded, size) == (f"sha256={digest}", str(len(data))), name


def without_records(tree: Tree) -> Tree:
    return {name: data for name, data in tree.items() if not name.endswith("/RECORD")}


# Another release, or the same one again


@pytest.mark.slow
@each(UPGRADES + DOWNGRADES + REINSTALLS)
def test_after_an_install_nothing_of_the_new_files_is_undone(laid: Laid, project: str, old: str, new: str) -> None:
    """The originals of files that the new release does not have stay: nothing there shows that they are not needed."""
    fresh = laid.fresh(project, new)
    place = laid.copy(laid.applied(project, old))
    patched = [path.relative_to(place.env.site) for path in place.patched()]
    laid.install(place, project, new, *(["--force-reinstall"] if old == new else []))
    installed = place.tree()
    assert without_state(installed) == fresh.tree()
    has_gone = not all((place.env.site / path).exists() for path in patched)

    assert place.check() == fresh.check()
    assert place.tree() == installed, "check writes nothing"
    for words in (["revert"], ["revert", "--force"]):
        reverted = laid.copy(place)
        ran = reverted.unhang(*words)
        assert ran.code == 0, ran.err
        assert ran.err.count("\nnote: ") + ran.err.startswith("note: ") == len(patched), "a line for each file"
        assert all(str(reverted.env.site / path) in ran.err for path in patched)
        assert without_state(reverted.tree()) == fresh.tree()
        assert has_gone == (reverted.tree() != fresh.tree()), "the originals of files that are gone, and no others"

    first = laid.copy(fresh)
    assert first.unhang("apply").code == 0
    ran = place.unhang("apply")
    assert ran.code == 0, ran.err
    assert without_state(place.tree()) == without_state(first.tree())
    assert has_gone or place.tree() == first.tree(), "the receipt and the original bytes too, as after a first apply"
    assert_rows_hold(place)
    has_receipt = has_gone or bool(first.patched())
    assert place.unhang("revert").code == int(not has_receipt), "without a patch there is no receipt"
    assert without_state(place.tree()) == fresh.tree()
    assert has_gone or place.tree() == fresh.tree()


def without_state(tree: Tree) -> Tree:
    return {name: data for name, data in tree.items() if not name.startswith(".unhang")}


@pytest.mark.slow
def test_an_install_into_a_folder_leaves_the_other_release_s_rows(laid: Laid) -> None:
    """It leaves the .dist-info of the other release, whose RECORD still has our rows."""
    place, wheel = laid.copy(laid.applied("ms-swift", "4.1.0")), laid.wheel("ms-swift", "4.6.0")
    place.pip("install", "--target", place.env.site, "--upgrade", "--no-deps", "--no-index", "--no-compile", wheel)
    installed = place.tree()
    assert ".unhang/receipt.json" in installed
    ran = place.unhang("revert", "--force")
    assert (ran.code, "is of ms_swift-4.6.0 now" in ran.err) == (0, True), ran.err
    assert place.tree() == without_state(installed)


# An edit


def edit_outside(data: bytes) -> bytes:
    """Edit a file on both sides of every function."""
    return b"# my own line\n" + data + b"\nmine = 1\n"


def edit_inside(data: bytes) -> bytes:
    """Edit each function that was rewritten."""
    return MARK.sub(lambda found: found[0] + b"pass\n" + found[0], data)


@pytest.mark.slow
@each(RELEASES)
def test_an_edit_outside_of_the_functions_stays(laid: Laid, project: str, old: str) -> None:
    applied = laid.applied(project, old)
    place = laid.copy(applied)
    files = place.patched()
    place.edit(edit_outside, files)
    edited = place.tree()

    assert place.check() == applied.check(), "still applied, and nothing is left to do"
    ran = place.unhang("apply")
    assert (ran.code, place.tree()) == (0, edited), ran.err

    plain = laid.copy(laid.fresh(project, old))
    plain.edit(edit_outside, [plain.env.site / path.relative_to(place.env.site) for path in files])
    for words in (["revert"], ["revert", "--force"]):
        reverted = laid.copy(place)
        ran = reverted.unhang(*words)
        assert (ran.code, "that edit stays" in ran.err) == (0, True), ran.err
        assert without_state(without_records(reverted.tree())) == without_records(plain.tree())
        assert {path.read_bytes() for path in reverted.env.site.glob(".unhang/pristine/*")} == {
            (laid.fresh(project, old).env.site / path.relative_to(place.env.site)).read_bytes() for path in files
        }, "for the files are not what they were"
        assert_rows_hold(reverted)

    place.edit(lambda data: data.removeprefix(b"# my own line\n").removesuffix(b"\nmine = 1\n"), files)
    assert place.unhang("revert").code == 0
    assert place.tree() == laid.fresh(project, old).tree()


@each(RELEASES, quick=0)
def test_one_fix_after_the_other_goes_in_and_out_beside_an_edit(laid: Laid, project: str, old: str) -> None:
    place = laid.copy(laid.fresh(project, old))
    results = place.unhang("check", "--output-format", "json").json["results"]
    plain, fixes = place.tree(), sorted({item["fix"] for item in results if item["verdict"] == "needed"})
    for fix in fixes:
        assert place.unhang("apply", "--fix", fix).code == 0
        place.edit(edit_outside, place.patched())
    assert place.check()[0] == 0
    for fix in fixes:
        ran = place.unhang("revert", "--fix", fix)
        assert ran.code == 0, ran.err
    assert_rows_hold(place)
    now = without_state(without_records(place.tree()))
    assert now.keys() == without_records(plain).keys()
    for name, data in now.items():
        while data != plain[name]:  # some files were edited several times
            assert data is not None
            assert data.startswith(b"# my own line\n"), name
            data = data.removeprefix(b"# my own line\n").removesuffix(b"\nmine = 1\n")


@pytest.mark.slow
@each(RELEASES)
def test_an_edit_inside_of_the_functions_is_refused_without_force(laid: Laid, project: str, old: str) -> None:
    place = laid.copy(laid.applied(project, old))
    files = place.patched()
    place.edit(edit_inside, files)
    edited = place.tree()
    code, verdicts = place.check()
    assert (code, "applied" in verdicts.values()) == (1, False)
    for words in (["apply"], ["revert"]):
        ran = place.unhang(*words)
        assert ran.code == 1
        assert place.tree() == edited, words
    assert ran.err.count("error[edited]") == len(files)

    ran = place.unhang("revert", "--force")
    assert ran.code == 0, ran.err
    names = [str(path.relative_to(place.env.site)) for path in files]
    kept = {f"{name}{KEPT}": edited[name] for name in names}
    assert place.tree() == {**laid.fresh(project, old).tree(), **kept}
