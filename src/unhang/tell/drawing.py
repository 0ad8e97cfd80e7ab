"""The drawing of a fix: its ranks in time, or its numbers as bars, before and after; here in plain characters.

`patches/FIX/drawing.json` has what the fix's proof recorded (`nox -s drawings`). Time is the order of operations, not
seconds. The site's pictures are made from the same `Drawing`. Pure, but for reading that file.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from unhang import gate
from unhang.plugins import packs
from unhang.shapes.catalog import Fix

DONE, WAITS, WRONG = "done", "waits", "wrong"
WIDTH = 80
_STATUS = {"hung": "hangs", "crashed": "aborts", "differs": "goes wrong", "passed": "passes"}
_ENDS = {"done": "done", "alive": "waits", "died": "aborts"}
_KINDS = {"all_gather_into_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter"}
_Key = tuple[str, int]
"""The n-th operation on a group: those of all its ranks belong together."""


class Block(NamedTuple):
    """An operation of a rank."""

    column: int
    letter: str
    """What the legend tells."""
    group: int
    """The number of its group, for its colour."""
    state: str
    """``done``; ``waits`` where a rank of its group never comes; ``wrong`` where another comes with something else."""


class Row(NamedTuple):
    """What a rank does."""

    name: str
    blocks: tuple[Block, ...]
    is_cut: bool
    """Whether more came before."""
    more: int
    """The number of operations that follow."""
    end: str
    """In words; it waits if its last block is not done."""


class Bar(NamedTuple):
    """A number."""

    name: str
    value: float | None
    shown: str
    is_right: bool


class Panel(NamedTuple):
    """One side: rows, or bars."""

    name: str
    """``before``, ``after``, or nothing where there is only one."""
    how: str
    """How it ends, in a word or two."""
    is_good: bool
    words: str
    rows: tuple[Row, ...] = ()
    bars: tuple[Bar, ...] = ()

    @property
    def columns(self) -> int:
        """The number of columns that the blocks take, and one for how they end."""
        return max((block.column for row in self.rows for block in row.blocks), default=-1) + 2

    @property
    def largest(self) -> float:
        """The largest of its bars."""
        return max([abs(bar.value) for bar in self.bars if bar.value is not None] or [0.0])

    @property
    def heading(self) -> str:
        """Its name and how it ends."""
        return (f"{self.name}: {self.how}" if self.name else self.how).capitalize()


class Drawing(NamedTuple):
    """All that is drawn."""

    title: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...]
    """What each letter is."""
    groups: tuple[str, ...]
    """The ranks of each group, and its name."""
    note: str
    """What the recording does not show; may be empty."""
    source: str
    """What was recorded."""
    number: str = ""
    """What the bars are."""

    @property
    def scale(self) -> float:
        """The largest of all bars, or 1."""
        return max(panel.largest for panel in self.panels) or 1.0


def of_fix(fix: Fix) -> Drawing | None:
    """Return the drawing of a fix; None if it has none, or one that this version cannot read.

    Raises UnhangError ``bad-pack``.
    """
    path = os.path.join(fix.folder, "drawing.json")
    with packs.Blamed(fix.pack, path), suppress(FileNotFoundError, NotADirectoryError):
        content = packs.read(path)
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # of somebody's pack: the page needs none
            return read(json.loads(content))
    return None


def read(content: Mapping[str, Any]) -> Drawing:
    """Return a drawing from the content of its file. Raises LookupError where a part is missing."""
    recorded = content["recorded"]
    sides = [
        (name, recorded[side]) for name, side in (("before", "untouched"), ("after", "patched")) if side in recorded
    ]
    words = {"before": content["before"], "after": content.get("after", "")}
    source = recorded.get("proof", "") and f"{recorded['proof']}, {recorded['topology']}, case {content['case']}"
    names = [name if len(sides) > 1 else "" for name, _ in sides]
    if "bars" in content:
        right = recorded["untouched"]["right"]
        bars = [_bars(side, right, content["bars"]["labels"]) for _, side in sides]
        panels = [
            Panel(name, "wrong" if index == 0 else "right", index > 0, words[key], bars=bar)
            for index, (name, (key, _), bar) in enumerate(zip(names, sides, bars))
        ]
        return Drawing(content["title"], tuple(panels), (), (), content["note"], source, content["bars"]["of"])
    letters: dict[str, str] = {}
    groups: dict[str, int] = {}
    panels = [
        Panel(name, _STATUS[side["status"]], side["status"] == "passed", words[key], _rows(side, letters, groups))
        for name, (key, side) in zip(names, sides)
    ]
    legend = tuple((letter, text) for text, letter in letters.items())
    return Drawing(content["title"], tuple(panels), legend, tuple(groups), content["note"], source)


def _bars(side: Mapping[str, Any], right: Sequence[float], labels: Sequence[str]) -> tuple[Bar, ...]:
    """Return the numbers of a side, each with a label, and then the right one."""
    values = side["values"]
    names = labels if len(labels) == len(values) else ["all ranks" if labels else "got"] * len(values)
    pairs = [*zip(names, values, [False] * len(values)), *(("right", value, True) for value in right)]
    return tuple(
        Bar(name, None if isinstance(value, str) else value, _number(value), is_right)
        for name, value, is_right in pairs
    )


def _number(value: float | str | None) -> str:
    return "none" if value is None else value if isinstance(value, str) else f"{value:.4g}"


# --- ranks and time


def _rows(side: Mapping[str, Any], letters: dict[str, str], groups: dict[str, int]) -> tuple[Row, ...]:
    """Return the rows of a side; what is new to the legend is added to these."""
    keys = [_keys(rank["did"]) for rank in side["ranks"]]
    columns = _columns(keys)
    met: dict[_Key, list[Mapping[str, Any]]] = {}
    for own, rank in zip(keys, side["ranks"]):
        for key, one in zip(own, rank["did"]):
            met.setdefault(key, []).append(one)
    goes_through = side["status"] in ("passed", "differs")
    states = {key: DONE if goes_through else _state(same) for key, same in met.items()}
    rows = []
    steps = sorted((columns[key], rank, key) for rank, own in enumerate(keys) for key in own)
    for _, rank, key in steps:  # letters in the order of time
        one = side["ranks"][rank]["did"][keys[rank].index(key)]
        letters.setdefault(_told(one), chr(ord("A") + len(letters)))
        groups.setdefault(_group(one), len(groups))
    for number, (own, rank) in enumerate(zip(keys, side["ranks"])):
        blocks = [
            Block(columns[key], letters[_told(one)], groups[_group(one)], states[key])
            for key, one in zip(own, rank["did"])
        ]
        if rank["end"] == "alive" and all(block.state == DONE for block in blocks):  # it waits in no call of torch's
            text = f"waits in {rank['at']}"
            letter = letters.setdefault(text, chr(ord("A") + len(letters)))
            blocks.append(Block(max((block.column for block in blocks), default=-1) + 1, letter, -1, WAITS))
        rows.append(Row(f"rank {number}", tuple(blocks), rank["before"] > 0, rank["after"], _end(rank)))
    return tuple(rows)


def _keys(did: Sequence[Mapping[str, Any]]) -> list[_Key]:
    counts: dict[str, int] = {}
    keys = []
    for one in did:
        counts[one["group"]] = counts.get(one["group"], 0) + 1
        keys.append((one["group"], counts[one["group"]]))
    return keys


def _columns(keys: Sequence[Sequence[_Key]]) -> dict[_Key, int]:
    """Return the column of each operation: right of what any of its ranks did before."""
    columns = {key: 0 for own in keys for key in own}
    for _ in columns:  # enough, unless ranks do the same in two orders: then any columns will do
        for own in keys:
            for before, after in zip(own, own[1:]):
                columns[after] = max(columns[after], columns[before] + 1)
    return columns


def _state(same: Sequence[Mapping[str, Any]]) -> str:
    if len(same) < len(same[0]["ranks"]):
        return WAITS
    return DONE if len({(one["kind"], one["what"]) for one in same}) == 1 else WRONG


def _told(one: Mapping[str, Any]) -> str:
    """Return an operation in words."""
    kind = _KINDS.get(one["kind"], one["kind"].replace("_", "-"))
    if not one["in"]:
        return f"the job's next step, for which the proof has {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return f"{kind}{' of ' + one['what'] if one['what'] else ''} in {one['in']}"


def _group(one: Mapping[str, Any]) -> str:
    ranks = f"ranks {', '.join(map(str, one['ranks']))}"
    return ranks if one["of"] in ("", "undefined") else f"{one['of']} ({ranks})"


def _end(rank: Mapping[str, Any]) -> str:
    if rank["end"] == "raised":
        return "loses its peer" if rank["error"] == "lost peer" else f"raises {rank['error']}"
    return _ENDS[rank["end"]]


# --- in plain characters


def text(drawing: Drawing, width: int = WIDTH) -> str:
    """Return a drawing in ASCII, in lines of at most this width."""
    lines, scale = _filled(drawing.title, width), drawing.scale
    columns = max(panel.columns for panel in drawing.panels)
    lines += _filled(f"The number: {drawing.number}", width) if drawing.number else []
    for panel in drawing.panels:
        lines += ["", *_filled(f"{panel.heading}. {panel.words}", width)]
        lines += _text_bars(panel, scale, width) if panel.bars else _text_rows(panel, columns, width)
    lines += ["", *(line for part in explained(drawing) for line in _filled(part, width))]
    return "\n".join(map(gate.line, lines))


def explained(drawing: Drawing) -> Iterator[str]:
    """Yield what the letters and groups of a drawing are, what it leaves open, and where it comes from."""
    yield from (f"{letter}  {told}" for letter, told in drawing.legend)
    if drawing.groups:
        yield f"groups: {'; '.join(drawing.groups)}"
    yield from filter(None, (drawing.note, drawing.source and f"recorded: {drawing.source}"))


def _filled(part: str, width: int) -> list[str]:
    return textwrap.wrap(part, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def _text_rows(panel: Panel, columns: int, width: int) -> Iterator[str]:
    left = max(len(row.name) for row in panel.rows) + 6
    cell = max(4, min(12, (width - left - 18) // columns))
    for row in panel.rows:
        line = f"  {row.name}{' ..' if row.is_cut else ''}".ljust(left)
        for block in row.blocks:
            start = left + block.column * cell
            line = line.ljust(start)
            is_last = block is row.blocks[-1] and not row.more
            if block.state == DONE or not is_last:
                edge = "-" if block.state == DONE else "!"
                line += f"[{block.letter.center(cell - 3, edge)}] "
            else:
                line += f"[{block.letter} ".ljust(left + (panel.columns - 1) * cell - start, ".") + " "
        yield line + (f"+ {row.more} more, " if row.more else "") + row.end


def _text_bars(panel: Panel, scale: float, width: int) -> Iterator[str]:
    names = max(len(bar.name) for bar in panel.bars)
    numbers = max(len(bar.shown) for bar in panel.bars)
    room = min(50, width - names - numbers - 6)
    for bar in panel.bars:
        size = round(room * abs(bar.value or 0) / scale)
        yield f"  {bar.name.ljust(names)}  {bar.shown.rjust(numbers)}  {('=' if bar.is_right else '#') * size}".rstrip()
