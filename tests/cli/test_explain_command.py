"""`unhang explain NAME`: the page of a fix, and what the matrix says about it; an error's cause and cure."""

import pytest

from support import cli, ptys
from unhang.cli.error_codes import codes
from unhang.shapes import catalog

DRAWN = "\n\n## What its proof recorded\n"


@pytest.mark.parametrize("fix", cli.FOUR)
def test_a_page_has_its_sections_and_fits_80_columns(fix: str) -> None:
    page = cli.called("explain", fix)
    assert page.code == 0
    for word in ("Symptom", "Cause", "Evidence", "Cost", "github.com"):
        assert word in page.out
    assert max(map(len, page.out.splitlines())) <= 80


def undrawn(page: str) -> list[str]:
    """Return the words of a page without its drawing, which another width changes."""
    head, _, rest = page.replace("\r\n", "\n").partition(DRAWN)
    return [*head.split(), *rest.partition("\n\n## ")[2].split()]


@pytest.mark.parametrize(("columns", "above"), [(50, 40), (130, 120)])
def test_a_terminal_gets_the_page_at_its_width(columns: int, above: int) -> None:
    piped = cli.called("explain", "expert-dp-warmup")
    code, shown = ptys.unhang("explain", "expert-dp-warmup", columns=columns)
    assert (code, undrawn(shown)) == (piped.code, undrawn(piped.out))
    assert above < max(map(len, shown.splitlines())) <= columns


@pytest.mark.parametrize("words", ["reduce_loss_in_tracker", "REDUCE_loss", "loss first batch"])
def test_a_word_of_the_symptom_finds_the_page(words: str) -> None:
    assert cli.called("explain", words) == cli.unhang("explain", "mtp-cp-deadlock")


def test_the_drawing_stands_after_the_symptom() -> None:
    shown = cli.called("explain", "mtp-cp-deadlock").out.partition("\n\n## Symptom\n")[2].split("\n\n## ")[1]
    assert shown.splitlines()[3:6] == [
        "Before: hangs. Rank 0 reduces the loss over both context-parallel ranks. Rank 1",
        "   has left the step without it.",
        "  rank 0    [A ......... waits",
    ]


def test_a_word_of_several_symptoms_gives_the_list_of_them() -> None:
    ran = cli.called("explain", "MoE")
    assert (ran.code, ran.out) == (0, cli.called("list", "MoE").out)
    assert [line.split()[0] for line in ran.out.splitlines()[:4:2]] == ["empty-expert-hang", "expert-dp-warmup"]
    assert ran.err == "2 fixes have 'MoE' in their symptom; `unhang explain ID` prints the page of one\n"


def test_an_error_code_has_its_cause_and_cure() -> None:
    ran = cli.called("explain", "no-locks")
    cause, cure = codes()["no-locks"]
    assert (ran.code, ran.out.split()) == (0, f"# no-locks ## Cause {cause} ## Cure {cure}".split())
    assert max(map(len, ran.out.splitlines())) <= 80
    code, shown = ptys.unhang("explain", "no-locks", columns=50)
    assert (code, shown.split()) == (0, ran.out.split())
    assert max(map(len, shown.splitlines())) <= 50


@pytest.mark.parametrize(("typed", "meant"), [("mtp-cp-deadlok", "mtp-cp-deadlock"), ("not-writeable", "not-writable")])
def test_a_mistyped_name_is_an_error_that_names_the_nearest(typed: str, meant: str) -> None:
    ran = cli.called("explain", typed)
    assert (ran.code, ran.out) == (2, "")
    assert f"did you mean {meant}?" in ran.err


def test_the_last_section_is_about_the_matrix() -> None:
    text = cli.called("explain", "mtp-cp-deadlock").out
    page, _, section = text.partition("\n\n## In the matrix\n")
    head, _, rest = page.partition(DRAWN)
    page = f"{head}\n\n## {rest.partition('## ')[2]}"
    assumes = "## What the rewrite assumes\nany backend and device; megatron-core's parallel state, as `mpu`"
    effect = "## What it does to a job\nThe defect: hang. The rewrite changes no numbers of a job that runs today."
    assert page == f"{catalog.page('mtp-cp-deadlock').rstrip()}\n\n{assumes}\n\n{effect}"
    assert "0.7.1" in section
    assert "It can be dropped with verl 0.8.0.dev0 and later" in section
    assert "It cannot be dropped yet: the newest release of ms-swift" in cli.called("explain", "expert-dp-warmup").out
