"""Says on stderr what a long run is doing: one line that is rewritten on a terminal, a line for each step in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TextIO

from unhang import gate
from unhang.tell import terminal

FIRST_S = 2.0
"""A run that takes no longer says nothing."""
_TERMINAL_S, _LOG_S = 0.2, 2.0  # how often to look whether the step has changed
Step = Callable[[str | Callable[[], str]], None]
"""Names the step that begins, or takes a function that does. An empty one clears the line, for other text."""


def silent(_step: str | Callable[[], str]) -> None:
    """Say nothing: for callers that no user waits for."""


@contextmanager
def shown() -> Iterator[Step]:
    """Show each step that is named inside a ``with``; nothing with ``-q``."""
    if terminal.settings.quiet:
        yield silent
        return
    line = _Line(sys.stderr)
    thread = Thread(target=line.follow, daemon=True)
    thread.start()
    try:
        yield line.step
    finally:
        line.done.set()
        thread.join()
        line.step("")


class _Line:
    def __init__(self, stream: TextIO) -> None:
        self.done = Event()
        self._lock = Lock()
        self._stream = stream
        self._rewrites = terminal.rewrites(stream)
        self._step: str | Callable[[], str] = ""
        self._shown = ""

    def step(self, step: str | Callable[[], str]) -> None:
        with self._lock:
            self._step = step
            if not step:
                self._show("")

    def follow(self) -> None:
        wait = FIRST_S
        while not self.done.wait(wait):
            with self._lock:
                self._show(self._step if isinstance(self._step, str) else self._step())
            wait = _TERMINAL_S if self._rewrites else _LOG_S

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        text = gate.line(text)
        with suppress(OSError, ValueError):  # stderr is full or closed: the run goes on
            if self._rewrites:
                self._stream.write(f"\r\x1b[K{text[: (terminal.width(self._stream) or 80) - 1]}")
            elif text:
                self._stream.write(f"{text}\n")
            self._stream.flush()
