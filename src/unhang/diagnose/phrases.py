"""What errors say about ranks and processes: the sentences of ``phrases.ini``, which says how to write one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from configparser import ConfigParser, ExtendedInterpolation, SectionProxy
from typing import NamedTuple

OWN, ABOUT, WAITS, FOLLOWS, ENDS, NOTE = "own", "about", "waits", "follows", "ends", "note"
"""A process says it of itself; of others; that it waits; or what it says only since another has failed; or that one
has ended, which tells something only where no line says why; or what explains nothing, and a reader is to know."""
ABORTS = ("-6", "6", "SIGABRT")
"""Mostly its watchdog's: such an end tells as little as one of ``ENDS``."""
_TABLES = ("ended", "native", "native-says", "codes", "ras", "lists")
"""The sections that are no phrases."""


class Phrase(NamedTuple):
    """A sentence of which it is known what it means: a section of the table, with one of its words."""

    key: str  # the name of the section
    cause: str
    weight: str
    word: str
    pattern: re.Pattern[str]
    words: str  # what is said to the reader
    do: str
    lines: int


def _phrases(row: SectionProxy) -> Iterator[Phrase]:
    """Yield the phrase of a section with each of its words; a pattern goes on in the next line without a space."""
    cause, weight = row["means"].split(", ")
    pattern, says, do = row["pattern"].replace("\n", ""), row["says"], row.get("do", "")
    lines = row.getint("lines", 1)
    compiled = re.compile(pattern, re.DOTALL if lines > 1 else 0)
    says, do = (text.replace("\n", " ") for text in (says, do))
    for word in row.get("word", pattern).split("\n"):
        yield Phrase(row.name, cause, weight, word, compiled, says, do, lines)


_TABLE = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=ExtendedInterpolation())
_TABLE.optionxform = str  # type: ignore[assignment, method-assign]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "phrases.ini"), encoding="utf-8") as _file:
    _TABLE.read_file(_file)
PHRASES = tuple(one for name in _TABLE.sections() if name not in _TABLES for one in _phrases(_TABLE[name]))
"""In this order, each that matches a line says something of it."""
ENDED, _NATIVE, WAITS_FOR, CODES, RAS, _LISTS = (
    {name: text.replace("\n", " ") for name, text in _TABLE[of].items() if name not in _TABLE.defaults()}
    for of in _TABLES
)
"""What to do about a process that a signal has ended; native functions in which it waits, by for what; that in words;
what to do about each cause; what is said of NCCL's RAS; lists of words.
"""
NATIVE = tuple((kind, re.compile(pattern.replace(" ", ""))) for kind, pattern in _NATIVE.items())
LISTS = {name: tuple(text.split(", ")) for name, text in _LISTS.items()}
WORDS = tuple(dict.fromkeys(one.word.encode() for one in PHRASES))
"""What a line must have, that is to be looked at."""
