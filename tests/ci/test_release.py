"""What a tag must agree with, and what prepares it."""

from pathlib import Path

import pytest
import release
from release import CHANGELOG, CITATION, VERSION

NEW = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- A fix.\n- Another.\n\n## 0.1.0 (2026-11-01)\n\n- The first.\n"
AGREED = {
    VERSION: '"""Unhang."""\n\n__version__ = "0.2.0"\n',
    CHANGELOG: NEW,
    CITATION: "cff-version: 1.2.0\nversion: 0.2.0\ndate-released: 2026-12-01\n",
}


def test_what_agrees_gives_the_notes_of_its_section() -> None:
    assert release.complaints("v0.2.0", AGREED) == []
    assert release.notes("0.2.0", NEW) == "- A fix.\n- Another."
    assert release.notes("0.1.0", NEW) == "- The first."


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (VERSION, '"0.2.0"', '"0.2.0.dev0"', f"{VERSION} has version 0.2.0.dev0, not 0.2.0"),
        (CHANGELOG, "2026-12-01", "unreleased", "0.2.0 (unreleased), not with 0.2.0 (YYYY-MM-DD)"),
        (CHANGELOG, "2026-12-01", "2026-13-01", "0.2.0 (2026-13-01)"),
        (CHANGELOG, "## 0.2.0", "## 0.3.0", "begins with 0.3.0 (2026-12-01)"),
        (CHANGELOG, NEW, "# Changelog\n", "begins with none ()"),
        (CHANGELOG, "- A fix.\n- Another.\n", "", "says nothing of 0.2.0"),
        (CITATION, "version: 0.2.0", "version: 0.1.0", f"{CITATION} does not have version: 0.2.0"),
        (CITATION, "2026-12-01", "2026-12-02", "date-released: 2026-12-01"),
        (CITATION, "date-released: 2026-12-01\n", "", "date-released: 2026-12-01"),
    ],
)
def test_what_does_not_agree_is_named(name: str, old: str, new: str, said: str) -> None:
    assert old in AGREED[name]
    found = release.complaints("v0.2.0", {**AGREED, name: AGREED[name].replace(old, new, 1)})
    assert said in "\n".join(found)


def test_what_is_true_only_before_the_first_release_is_named_and_dropped() -> None:
    page = f"Install it.\n\nThere is no release yet. {release.FIRST}\nIt is easy.\n"
    assert release.complaints("v0.2.0", {**AGREED, "README.md": page}) == [
        f"README.md has a line that ends with {release.FIRST}"
    ]
    before = {**AGREED, CHANGELOG: NEW.replace("2026-12-01", "unreleased"), "README.md": page}
    prepared = release.prepare("0.2.0", "2026-12-01", before)
    assert prepared == {**AGREED, "README.md": "Install it.\n\nIt is easy.\n"}


@pytest.mark.parametrize("tag", ["0.2.0", "v0.2", "v0.2.0rc1", "v1", "vv0.2.0", "main"])
def test_only_a_release_has_a_tag(tag: str) -> None:
    assert release.complaints(tag, AGREED) == [f"{tag} is not a tag of a release: v1.2.3"]


def test_this_repository_can_be_prepared_and_then_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = release.read(release.REPOSITORY)
    if "(unreleased)" not in texts[CHANGELOG]:
        pytest.skip("this is a released version")
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert release.main(["check", "v0.9.0"], tmp_path) == 1
    assert release.main(["prepare", "0.9.0"], tmp_path) == 0
    assert release.main(["check", "v0.9.0"], tmp_path) == 0
    printed = capsys.readouterr()
    assert f"{VERSION} has version" in printed.err
    assert printed.out.startswith("- "), "the notes"
    with pytest.raises(SystemExit, match="2"):
        release.main(["prepare", "0.9.1"], tmp_path)
    assert release.main(["check", "v0.9.0"], tmp_path) == 0
