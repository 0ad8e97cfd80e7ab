"""The README's table and the picture: written from the matrix, and found if they are stale."""

import shutil
from pathlib import Path

import pytest

from support import made_up
from support.checkout import REPOSITORY
from unhang.compat.sweep import pages
from unhang.errors import UnhangError
from unhang.shapes import catalog

NAMES = ("README.md", "docs/my-job-hangs.md", "docs/my-numbers-are-wrong.md", "docs/matrix.svg")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages, to change."""
    shutil.copytree(REPOSITORY / "docs/drawings", tmp_path / "docs/drawings")
    for name in NAMES:
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_the_pages_are_not_stale_and_the_readme_stays_short() -> None:
    assert not pages.stale(REPOSITORY), "run nox -s pages"
    above, _, rest = (REPOSITORY / "README.md").read_text().partition(pages.START)
    assert len((above + rest.partition(pages.END)[2]).splitlines()) <= 64, "without its table of fixes"


def test_a_stale_page_is_named_and_written_again(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(checkout)]
    assert pages.main([*root, "--check"]) == 0
    good = {checkout / name: (checkout / name).read_text() for name in NAMES}
    (checkout / "README.md").write_text(good[checkout / "README.md"].replace("| verl 0.7.1 |", "| verl 0.7.2 |"))
    hangs = good[checkout / "docs/my-job-hangs.md"]
    (checkout / "docs/my-job-hangs.md").write_text(hangs.replace("unhang explain mtp", "unhang explain mpt"))
    numbers = good[checkout / "docs/my-numbers-are-wrong.md"]
    (checkout / "docs/my-numbers-are-wrong.md").write_text(numbers.replace("explain fsdp", "explain fdsp"))
    (checkout / "docs/matrix.svg").unlink()
    assert pages.main([*root, "--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [str(path) for path in good]
    assert not (checkout / "docs/matrix.svg").exists(), "--check writes nothing"
    assert pages.main(root) == 0
    assert {path: path.read_text() for path in good} == good
    assert len(capsys.readouterr().err.splitlines()) == len(NAMES)
    assert pages.main(root) == 0
    assert capsys.readouterr().err == "", "it writes no page that is up to date"
    (checkout / "README.md").write_text("no markers")
    assert pages.main(root) == 2
    assert "no-markers" in capsys.readouterr().err


def test_only_the_part_between_the_markers_is_written(checkout: Path) -> None:
    readme = checkout / "README.md"
    readme.write_text(f"before\n{pages.START}\nold\n{pages.END}\nafter\n")
    table = pages.fixes_table(list(catalog.fixes().values()), catalog.releases(), catalog.shape_table())
    assert pages.stale(checkout) == {readme: f"before\n{pages.START}\n{table}\n{pages.END}\nafter\n"}


def test_each_symptom_is_there_once_with_its_fix() -> None:
    text = pages.symptoms(list(catalog.fixes().values()))
    for fix in catalog.fixes().values():
        symptom = fix.manifest["symptom"].replace("*", r"\*")
        assert text.count(f"- {symptom} `unhang explain {fix.id}`") == 1


def test_a_fix_is_on_the_page_of_what_its_defect_does_to_a_job() -> None:
    hangs, numbers = ((REPOSITORY / name).read_text() for name in NAMES[1:3])
    for fix in catalog.fixes().values():
        command = f"`unhang explain {fix.id}`\n"
        assert (command in hangs) is (fix.kinds != ("wrong-values",))
        assert (command in numbers) is ("wrong-values" in fix.kinds)


def test_a_signature_is_told_by_the_kinds_of_files_in_which_it_shows() -> None:
    hangs = [
        {"waits": [["a.py::A.run", "b.py::run"], ["c.py::go"]], "peers": ["d.py::stop", "c.py::go"]},
        {"errors": [{"text": "no key"}], "differ": "size"},
        {"types": ["Int", "Long"]},
    ]
    assert pages.signs({"signature": {"hangs": hangs}, "no-hang": "Some values are wrong."}) == [
        "  - in the stacks: `A.run`, `run`, `go`, `stop`",
        "  - in the dumps: ranks that issue one call with different numbers of elements, one call with tensors of "
        "`Int` on some ranks, and of `Long` on others",
        "  - in the log: `no key`",
        "  - without a hang: Some values are wrong.",
    ]
    assert pages.signs({}) == []


PAIR = f"{pages.START}\n{pages.END}\n"


@pytest.mark.parametrize(
    "page", ["", pages.START, f"{pages.END}\n{pages.START}\n", f"{pages.START}\n{PAIR}", PAIR + PAIR]
)
def test_a_page_without_one_pair_of_markers_is_refused(page: str) -> None:
    with pytest.raises(UnhangError) as caught:
        pages.with_text("README.md", page, "table")
    assert caught.value.code == "no-markers"


def test_conflict_markers_are_replaced_in_a_table_and_refused_elsewhere() -> None:
    conflict = "<<<<<<< HEAD\nold\n=======\nnew\n>>>>>>> other\n"
    page = f"before\n{pages.START}\n{conflict}{pages.END}\nafter\n"
    assert pages.with_text("README.md", page, "table") == f"before\n{pages.START}\ntable\n{pages.END}\nafter\n"
    with pytest.raises(UnhangError, match="in what a person wrote"):
        pages.with_text("README.md", conflict + page, "table")


def test_the_table_has_who_needs_a_fix_and_from_where_on_it_can_go() -> None:
    fixes = [
        made_up.fix("hang", "core", "swift"),
        made_up.fix("stall", "core", grade="safeguard", changes_numbers=True),
    ]
    releases = made_up.releases(
        fixes,
        core={"1.0": "affected affected", "1.1rc0.dev99000": "affected fixed", "1.1": "fixed affected"},
        swift={"4.0": "affected"},
    )
    assert pages.fixes_table(fixes, releases, made_up.table(*fixes)).splitlines() == [
        "| fix | grade | kinds | changes numbers | what is wrong | needed by | fixed upstream in |",
        "|---|---|---|---|---|---|---|",
        "| `hang` | cure | hang | no | the title of hang | core 1.0, and 1 nightly; swift 4.0 | core 1.1 |",
        "| `stall` | safeguard | hang | yes | the title of stall | core 1.0 to 1.1 | not yet |",
    ]
