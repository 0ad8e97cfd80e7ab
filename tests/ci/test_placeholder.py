"""The placeholder of the owner's name: the count on record, and what fills it in."""

import json
import subprocess
from pathlib import Path

import placeholder
import pytest

PAGE = "uses: OWNER/unhang@v1, [site](https://OWNER.github.io/unhang/), OWNER/unhang/issues\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with three uses on record."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "link.md").symlink_to("page.md")
    (tmp_path / placeholder.RECORD).write_text('{"page.md": 3}')
    for arguments in ["init", "-q"], ["add", "-A"]:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_a_use_more_or_less_is_named_and_so_is_any_other_form(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert placeholder.main([], repository) == 0
    page = repository / "page.md"
    page.write_text(PAGE * 2)
    assert placeholder.main([], repository) == 1
    assert "page.md: 6 uses, and 3 on record\n" in capsys.readouterr().out
    assert placeholder.main(["--write"], repository) == 0
    page.write_text(PAGE * 2 + "OWNER/other\n")
    assert placeholder.complaints(repository) == [
        "page.md: OWNER that is neither OWNER/unhang nor OWNER.github.io/unhang"
    ]
    page.unlink()
    assert placeholder.complaints(repository) == ["page.md: 0 uses, and 6 on record"]


def test_a_name_is_filled_in_everywhere_and_none_may_come_back(repository: Path) -> None:
    assert placeholder.main(["--fill", "Some-Lab"], repository) == 0
    filled = "uses: Some-Lab/unhang@v1, [site](https://some-lab.github.io/unhang/), Some-Lab/unhang/issues\n"
    assert (repository / "page.md").read_text() == filled
    assert (repository / "link.md").is_symlink()
    assert json.loads((repository / placeholder.RECORD).read_text()) == {}
    (repository / "page.md").write_text(PAGE)
    assert placeholder.main([], repository) == 1


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "https://x"])
def test_what_is_no_name_is_refused_and_nothing_is_written(repository: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        placeholder.main([f"--fill={name}"], repository)
    assert (repository / "page.md").read_text() == PAGE
