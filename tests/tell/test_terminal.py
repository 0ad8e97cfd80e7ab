"""Text for a terminal: wrapped at its width with nothing lost and no command broken, and when it has colours."""

import io

import pytest

from unhang.tell import terminal

DRIFTED = (
    "error[x]: the anchor is not found: if self.model_config.mtp.enable and self.is_mp_src_rank_with_outputs(): then\n"
    "  in: /a/path/without/a/space/in/it/that/is/longer/than/a/narrow/terminal/transformer_impl.py\n"
    "  hint: reinstall it, or: unhang explain mtp-cp-deadlock --target '/a b'; `unhang revert --fix mtp` undoes it"
)
COMMANDS = ("unhang explain mtp-cp-deadlock --target '/a b';", "`unhang revert --fix mtp`")


class Terminal(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, isatty: bool = True) -> None:
        super().__init__()
        self._isatty = isatty

    def isatty(self) -> bool:
        return self._isatty

    def fileno(self) -> int:
        return -1


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("width", [120, 80, 40, 10])
def test_wrapped_text_fits_loses_nothing_and_keeps_words_and_commands_whole(width: int) -> None:
    text = terminal.wrapped(DRIFTED, width)
    assert words(text) == words(DRIFTED)
    assert all(command in text for command in COMMANDS)
    for line in text.splitlines():
        assert len(line) <= width or " " not in line.strip() or line.strip() in COMMANDS, line
    margins = [len(line) - len(line.lstrip()) for line in text.splitlines()]
    assert set(margins) <= {0, 2, 4}


def test_without_a_width_or_with_enough_of_it_text_stays_as_it_is() -> None:
    for width in 0, 200:
        assert terminal.wrapped(DRIFTED, width) == DRIFTED


def test_a_page_is_wrapped_at_another_width() -> None:
    page = "# name\n\none two\nthree four\n\n## List\n- five six\n  seven\n- eight\nnine\nten\n## End\n- a"
    assert terminal.refilled(page, 0) == page
    wide = "# name\n\none two three four\n\n## List\n- five six seven\n- eight\nnine ten\n## End\n- a"
    assert terminal.refilled(page, 80) == wide
    narrow = "# name\n\none two\nthree\nfour\n\n## List\n- five\n  six\n  seven\n- eight\nnine ten\n## End\n- a"
    assert terminal.refilled(page, 8) == narrow


def test_each_row_of_a_table_stays_a_line_of_its_own() -> None:
    table = "Two\nwords:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nthe\nend"
    assert terminal.refilled(table, 80) == table.replace("Two\nwords", "Two words").replace("the\nend", "the end")
    assert terminal.refilled("| a | b |\n| c | d |\nend", 5) == "| a |\n  b |\n| c |\n  d |\nend"


def test_a_line_that_is_a_command_stays_one_line() -> None:
    command = "  unhang apply --target site --fix a --fix b"
    for line in command, f"  RUN pip install unhang && {command.strip()}":
        assert terminal.wrapped(f"next:\n{line}", 20) == f"next:\n{line}"
    assert len(terminal.wrapped(command.replace("unhang", "then"), 20).splitlines()) > 1


@pytest.mark.parametrize(
    ("columns", "isatty", "width"), [("72", True, 72), ("72", False, 0), ("wide", True, 0), ("", True, 0)]
)
def test_the_width_is_columns_or_the_terminals(
    columns: str, isatty: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.width(Terminal(isatty=isatty)) == width
    closed = io.StringIO()
    closed.close()
    assert terminal.width(closed) == 0


@pytest.mark.parametrize(
    ("option", "variables", "isatty", "coloured"),
    [
        ("auto", {}, False, False),
        ("auto", {}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "", "FORCE_COLOR": ""}, True, True),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_the_option_decides_on_colour_then_a_variable_then_the_terminal(
    option: str, variables: dict[str, str], isatty: bool, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal.settings, "color", option)
    assert terminal.colour(Terminal(isatty=isatty)) is coloured
