"""The child process in which a function of an environment runs: it ends as soon as the function reaches for the system.

Only ``unhang diff --unknown --run`` starts it. What it guards against is an accident, not an attacker: the code is that
of a package which the user's own job imports.
"""

from __future__ import annotations

import codecs
import importlib
import json
import logging
import os
import resource
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any, NoReturn

from unhang.compat.endstates import trial
from unhang.compat.endstates.endstate import EndState, Source
from unhang.compat.endstates.watched import Unlike

CPU_S, MEMORY = 240, 2 << 30
"""For all settings, and in bytes."""
LONGEST = 1 << 16
"""Bytes of an answer."""
_LIBRARY = (
    *("abc", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "enum", "functools", "heapq"),
    *("inspect", "itertools", "json", "logging", "math", "numbers", "operator", "os", "random", "re", "string"),
    *("textwrap", "time", "traceback", "types", "typing", "unicodedata", "warnings", "weakref"),
)
"""What a function may import itself, of the standard library."""
_HARMLESS = (
    *("builtins.id", "code.", "compile", "cpython.", "exec", "function.", "gc.", "marshal.", "object.", "os.putenv"),
    *("os.unsetenv", "sys.", "time.sleep"),
)
"""How the names of the audit events begin that change nothing outside."""
_IMPORT = "import"


def child(answers: int) -> NoReturn:
    """Answer the question on stdin, as JSON, and end."""
    question = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    nonce = question.pop("nonce")

    def end(**answer: Any) -> NoReturn:
        left = memoryview(f"{nonce}{json.dumps(answer)}".encode()[:LONGEST])
        while left:
            left = left[os.write(answers, left) :]
        os._exit(0)

    def refuse(why: str) -> NoReturn:
        end(shows=trial.NOT_RUN, after=trial.NOT_RUN, settings=0, why=why)

    def reached(event: str, arguments: tuple[Any, ...]) -> None:
        if event == _IMPORT:
            raise ImportError(f"no {arguments[0]}, which the stand-ins lack")
        if not event.startswith(_HARMLESS):
            refuse(f"it reaches for the system ({event}), which the end state does not let it")

    module = importlib.import_module(f"{__package__}.{question['fix'].replace('-', '_')}")
    for name in _LIBRARY:
        importlib.import_module(name)
    for name in ("unicode_escape", "raw_unicode_escape", "latin-1", "ascii"):  # parsers look these up
        codecs.lookup(name)
    warnings.simplefilter("ignore")  # to show one, Python opens the source
    logging.disable()
    for limit, value in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, LONGEST),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(limit, value)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process in the middle of a loop in C, too
    sys.addaudithook(reached)
    try:
        answer = _answered(module.END_STATES, question)
    except BaseException as error:  # an exit, too
        refuse(f"it ends with {type(error).__name__}: {error}"[:1000])
    signal.setitimer(signal.ITIMER_REAL, 0)
    end(**answer._asdict())


def _limit(limit: int, value: int) -> None:
    """Set a limit; what the system grants less of stays as it is."""
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (value, value))


def _answered(endstates: dict[str, EndState], question: dict[str, Any]) -> trial.Trial:
    def begin() -> None:
        signal.setitimer(signal.ITIMER_REAL, question["each_s"])

    right = False
    if question["beside"]:
        name, text, unlike = question["beside"]
        found, why = trial.is_right(endstates[name], Source(text, name), Unlike(*unlike), begin)
        if found is None:
            return trial.Trial(
                trial.NOT_RUN, trial.NOT_RUN, 0, f"it depends on {name}, of which nothing is shown: {why}"
            )
        right = found
    name, before, after = question["name"], question["before"], question["after"]
    record = question["record"]
    return trial.tell(
        endstates[name],
        Source(before, name),
        None if after is None else Source(after, name),
        Unlike(*question["unlike"]),
        record and trial.Record(*record),
        right,
        begin,
    )
