"""What a long run says it is doing: on a terminal, in a log, and with ``-q``."""

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest

from unhang.tell import progress, terminal

LONG_S = 30  # for a busy machine; each wait ends as soon as the text is there


class Stream(io.StringIO):
    """A stderr that may be a terminal."""

    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal

    def fileno(self) -> int:
        return -1


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    for name in ("FIRST_S", "_LOG_S", "_TERMINAL_S"):
        monkeypatch.setattr(progress, name, 0.001)
    return Stream()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def run(stderr: Stream) -> str:
    with redirect_stderr(stderr), progress.shown() as step:
        for number in 1, 2:
            step(f"planning wheel {number} of a few")
            until(lambda end=f"wheel {number}": end in stderr.getvalue())  # type: ignore[misc]
        step("")
        stderr.write("a note\n")
        step(lambda: "case 3")
        until(lambda: "case 3" in stderr.getvalue())
    return stderr.getvalue()


def test_a_log_has_a_line_for_each_step(stderr: Stream) -> None:
    assert run(stderr) == "planning wheel 1 of a few\nplanning wheel 2 of a few\na note\ncase 3\n"


def test_a_terminal_has_one_line_that_fits_and_is_erased(stderr: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr.is_terminal = True
    rewritten = [f"\r\x1b[K{text}" for text in ("planning wheel 1 of", "planning wheel 2 of", "", "case 3", "")]
    assert run(stderr) == "".join(rewritten[:3] + ["a note\n"] + rewritten[3:])
    stderr.truncate(0)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run(stderr)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_short_run_says_nothing_nor_a_quiet_one(quiet: bool, stderr: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.0 if quiet else LONG_S)
    monkeypatch.setattr(terminal.settings, "quiet", quiet)
    begun = time.monotonic()
    with redirect_stderr(stderr), progress.shown() as step:
        step("planning")
        time.sleep(0.02)
    assert stderr.getvalue() == ""
    assert time.monotonic() - begun < LONG_S, "the end waits for nothing"


def test_a_stderr_that_is_closed_stops_nothing(stderr: Stream) -> None:
    stderr.close()
    with redirect_stderr(stderr), progress.shown() as step:
        step("planning")
        time.sleep(0.02)
