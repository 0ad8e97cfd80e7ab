"""Everything that is missing or wrong in the parts of a fix is named, all of it at once."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.checkout import REPOSITORY
from unhang.compat.sweep import lint, parts, sources
from unhang.judge import scene

pytestmark = pytest.mark.skipif(not find_spec("jsonschema"), reason="no jsonschema")  # its import takes a second
FIX = "mtp-cp-deadlock"
FILES = {
    "manifest": f"patches/{FIX}/manifest.json",
    "page": f"patches/{FIX}/page.md",
    "drawing": f"patches/{FIX}/drawing.json",
    "codemod": "codemods/mtp_cp_deadlock.py",
    "scene": "src/unhang/prove/fixes/mtp_cp_deadlock.py",
    "test": "tests/fixes/test_mtp_cp_deadlock.py",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the parts of one fix."""
    for name in (*FILES.values(), "compat/schemas/manifest.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def found(checkout: Path) -> list[str]:
    return [f"{problem.file}: {problem.entry}: {problem.message}" for problem in parts.problems(checkout, FIX)]


def edited(part: str, old: str, new: str) -> Callable[[Path], object]:
    def edit(checkout: Path) -> None:
        path = checkout / FILES[part]
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return edit


def changed(**keys: Any) -> Callable[[Path], object]:
    def change(checkout: Path) -> None:
        path = checkout / FILES["manifest"]
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return change


def unproved(checkout: Path) -> None:
    """Make it a fix from a diff alone, as a pack may have it."""
    place = {"upstream": "verl", "file": "verl/a.py", "function": "f"}
    words = {"id": FIX, "title": "a diff", "grade": "unproved", "origin": "other, a diff", "licence": "Apache-2.0"}
    (checkout / FILES["manifest"]).write_text(json.dumps({**words, "targets": [place]}))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a manifest that is no JSON": (edited("manifest", "{", ""), "manifest.json: mtp-cp-deadlock: is no JSON: "),
    "an unknown key": (changed(affect={}), "manifest.json: manifest: Additional properties are not allowed"),
    "a title that is too long": (changed(title="t" * 71), "is too long (One line of at most 70 characters"),
    "a target without a function": (
        changed(targets=[{"upstream": "verl", "file": "verl/a.py"}]),
        "manifest.json: targets[0]: 'function' is a required property",
    ),
    "a kind that does not exist": (
        changed(kinds=["crash"]),
        "manifest.json: kinds[0]: 'crash' is not one of ['hang', ",
    ),
    "nothing that is shown": (unproved, "manifest.json: grade: an unproved fix is for a pack of one's own"),
    "a cure without a cause": (
        edited("manifest", '"cause"', '"note"'),
        "manifest.json: manifest: 'cause' is a required property",
    ),
    "no kind": (changed(kinds=[]), "manifest.json: kinds: [] should be non-empty (What the defect does to a job"),
    "numbers in words": (changed(**{"changes-numbers": "no"}), "manifest['changes-numbers']: 'no' is not of type"),
    "another id": (changed(id="mtp"), "manifest.json: id: is mtp, but the folder is mtp-cp-deadlock"),
    "a range, which the sweep knows": (changed(affects={"verl": "== 0.7.1"}), "manifest.json: manifest: Additional"),
    "another title of the page": (edited("page", f"# {FIX}", "# mtp"), f"page.md: line 1: is not `# {FIX}`"),
    "a long line": (edited("page", "## Cause", f"{'x' * 81}\n## Cause"), "is longer than 80 characters, or not ASCII"),
    "no section": (edited("page", "## Danger", "### Danger"), "page.md: Danger: this section is missing"),
    "another order": (
        edited("page", "## Workaround\n", "## Evidence\n\n## Workaround\n"),
        "page.md: sections: are not in this order: Symptom, Who is hit, Danger, Workaround, ",
    ),
    "not every node": (edited("page", parts.EVERY_NODE, "both"), "page.md: Danger: does not say `every node`, and"),
    "other numbers": (changed(**{"changes-numbers": True}), "page.md: Danger: does not say `Your numbers change`, "),
    "another grade": (changed(grade="safeguard"), "page.md: grade: `Grade: safeguard. ` does not begin the evidence"),
    "what is not shown": (
        edited("page", "Grade: cure. ", "Grade: cure. Not shown: "),
        "page.md: grade: the evidence of a",
    ),
    "a target without a rewrite": (
        changed(targets=[{"upstream": "verl", "file": "verl/a.py", "function": "f"}]),
        "codemods/mtp_cp_deadlock.py: f: no rewrite of this target",
    ),
    "a part that was only begun": (
        edited("page", "\n## Cause\n", "\n## Cause\nTODO\n"),
        "page.md: TODO: is still to be written, on line ",
    ),
    "a comment that is too long": (
        edited("codemod", "# unhang mtp-cp-deadlock: ", f"# unhang mtp-cp-deadlock: {'x' * 60} "),
        "a line of upstream's has 120 columns, with its indentation",
    ),
    "no fuzz": (edited("test", "FUZZ = ", "OTHER = "), "test_mtp_cp_deadlock.py: FUZZ: is missing: `nox -s fuzz`"),
}


def test_a_fix_with_all_its_parts_has_no_problem(checkout: Path) -> None:
    assert found(checkout) == []
    assert parts.names(checkout) == [FIX]


@pytest.mark.parametrize("name", BROKEN)
def test_each_problem_is_named(name: str, checkout: Path) -> None:
    change, message = BROKEN[name]
    change(checkout)
    assert [line for line in found(checkout) if message in line], found(checkout)


@pytest.mark.parametrize(
    "keys", [{"title": "t" * 71}, {"when": f"only with {'x' * 320}"}], ids=lambda keys: next(iter(keys))
)
def test_what_is_too_long_is_named_once_with_its_limit(keys: dict[str, str], checkout: Path) -> None:
    changed(**keys)(checkout)
    (name,), (line,) = keys, found(checkout)
    assert line.startswith(f"{FILES['manifest']}: {name}: ")
    assert f"at most {70 if name == 'title' else 320} characters" in line


def test_all_that_is_missing_is_named_at_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in set(FILES) - {"page"}:
        (checkout / FILES[part]).unlink()
    edited("page", "## Symptom", "## Symptoms")(checkout)
    lines = found(checkout)
    assert {line.partition(":")[0] for line in lines} == {*FILES.values()}
    assert all(": is missing" in line or "this section is missing" in line for line in lines)
    (checkout / "compat" / "data").mkdir()
    monkeypatch.setattr(sources, "HERE", checkout / "compat")
    assert lint.main(["--sample", "0"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        *lines, "6 problems in 1 fixes; the matrix was not read, for a manifest is wrong",
    ]  # fmt: skip


def test_a_scene_that_cannot_be_imported_or_lacks_a_part_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene, "proof", lambda fix: SimpleNamespace(GRID=[], settings=1, prepare=1, on_rank=1, wrong=1))
    assert [line.partition(".py: ")[2] for line in found(checkout)] == [
        "right: is missing: see docs/maintainers/scenes.md"
    ]
    monkeypatch.setattr(scene, "proof", None)
    assert [line for line in found(checkout) if "GRID: cannot be read: TypeError" in line]
