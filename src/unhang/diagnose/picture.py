"""A diagnosis as one page of HTML: ranks x time, and each rank's stack. It has no script and asks for no other file."""

from __future__ import annotations

import base64
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from unhang.diagnose import report, where
from unhang.diagnose.evidence import Job, Rank, Recent, Stack
from unhang.diagnose.report import Report
from unhang.diagnose.stacks import MAIN
from unhang.gate import html
from unhang.tell.console import count

_EACH = 64
"""So many ranks have a row of their own with a name; of more, those that are alike share one, above all rows."""
_ROWS, _PANELS, _THREADS, _FRAMES = 40, 200, 20, 60
_STACKS = 4 << 20  # characters in all
_WIDE, _LEFT, _HIGH, _LABEL, _NAME, _TICKS = 1000, 150, 22, 16, 14, 5
_COLOURS = 6
_STYLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "picture.css")


class _Panel(NamedTuple):
    """Ranks that are at the same, and their stacks."""

    ranks: tuple[int, ...]
    doing: str
    why: str
    stacks: tuple[Stack, ...]


def page(what: Report) -> str:
    """Return the page of a diagnosis."""
    found = what.diagnosis
    suspects, job = found.who.why, found.facts.job
    panels = _panels(job.ranks, suspects)
    with open(_STYLE, encoding="utf-8") as file:
        style = f"\n{file.read()}"
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    parts = report.text(what, colour=False).split("\n\n")
    named = f"suspect: {job.called(suspects)}" if suspects else "no rank is suspect"
    return "".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-",
        f"{digest}'; base-uri 'none'; form-action 'none'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>unhang diagnose: {html(named)}</title><style>{style}</style></head>\n<body><main>",
        f"<h1>unhang diagnose: {html(named)}</h1>\n",
        *(_tag("pre", html(part), class_="answer", tabindex=0) + "\n" for part in parts),
        "<h2>Ranks and time</h2>\n",
        *_pictures(panels, suspects, job),
        "<h2>Stacks</h2>\n",
        *_stacks(panels, job),
        "</main></body></html>\n",
    ])  # fmt: skip


def _panels(ranks: Mapping[int, Rank], suspects: Mapping[int, str]) -> list[_Panel]:
    """Return the ranks that are at the same together: suspects first, then the most."""
    alike: dict[tuple[str, str, object], list[int]] = defaultdict(list)
    for number, rank in ranks.items():
        paths = tuple(one.frames for one in rank.stacks if one.thread == MAIN)
        alike[where.elsewhere(rank).doing, suspects.get(number, ""), paths].append(number)
    panels = [_Panel(tuple(same), doing, why, ranks[same[0]].stacks) for (doing, why, _), same in alike.items()]
    return sorted(panels, key=lambda one: (not one.why, -len(one.ranks), one.ranks))


class _Drawn(NamedTuple):
    """What all pictures of a page share."""

    first: int  # the time at the left edge
    last: int
    moments: Mapping[int, Sequence[Recent]]
    suspects: Collection[int]
    colours: Mapping[str, str]  # by group
    job: Job

    def bars(self, rank: int) -> Iterator[tuple[Recent, str, float, float]]:
        """Yield what a rank has issued, with its class, where it begins and how wide it is."""
        for one in self.moments.get(rank, ()):
            x = self.x(one.created)
            end = _WIDE - 2 if one.waits else self.x(one.ended) if one.ended else x
            yield one, self.colours[one.group], min(x, _WIDE - 4), max(round(end - x, 1), 2)

    def x(self, time: int) -> float:
        """Return where a time is."""
        share = (time - self.first) / max(self.last - self.first, 1)
        return round(_LEFT + min(max(share, 0), 1) * (_WIDE - _LEFT), 1)


def _pictures(panels: Sequence[_Panel], suspects: Collection[int], job: Job) -> Iterator[str]:
    recent = {number: rank.recent for number, rank in job.ranks.items() if rank.recent}
    if not recent:
        yield _tag("p", "No file says when: times come from dumps of the flight recorder. The stacks are below.")
        return
    ranks = sorted(rank for panel in panels for rank in panel.ranks)
    first = sorted(one[0].created for one in recent.values())
    last = max(max(one.created, one.ended) for same in recent.values() for one in same)
    start = first[len(first) // 10]
    groups = dict.fromkeys(one.group for rank in ranks for one in recent.get(rank, ()))
    colours = {group: f"c{index % _COLOURS}" for index, group in enumerate(groups)}
    drawn = _Drawn(start, last + (last - start) // 10 + 1, recent, suspects, colours, job)
    yield _tag(
        "p",
        f"The last {max(map(len, recent.values()))} collectives of a rank at most, over {_seconds(last - start)}. A "
        "bar begins when the host issues a collective; one with a border, up to the right edge, is not done. Choose a "
        "row for the rank's stack.",
    )
    keys = (
        _tag("li", _svg(16, 10, _tag("rect", class_=colour, width=16, height=10)) + " " + html(group))
        for group, colour in [*colours.items()][:_ROWS]
    )
    yield _tag("ul", "".join(keys), class_="key")
    if len(ranks) <= _EACH:
        yield _rows([(rank,) for rank in ranks], drawn)
        return
    yield _tag("p", "Ranks that are at the same share a row, which shows the first of them.")
    yield _rows([panel.ranks for panel in panels[:_ROWS]], drawn)
    yield _tag("p", f"All {len(ranks)} ranks, from the first to the last; what is not done is paler:")
    yield _overview(ranks, drawn)


def _rows(rows: Sequence[Sequence[int]], drawn: _Drawn) -> str:
    """Return a picture with a row for each of some runs of ranks, which shows the first of them, and times above."""
    high, parts = (len(rows) + 1) * _HIGH, []
    for step in range(_TICKS):
        time = (drawn.last - drawn.first) * step // _TICKS
        x = drawn.x(drawn.first + time)
        parts.append(_tag("path", class_="grid", d=f"M{x} 0V{high}") + _tag("text", _seconds(time), x=x + 3, y=15))
    for at, ranks in enumerate(rows, 1):
        y, is_suspect = at * _HIGH, ranks[0] in drawn.suspects
        label = drawn.job.called(ranks).removeprefix("ranks ").removeprefix("rank ")
        label = label if len(label) <= _NAME else f"{ranks[0]}, ... ({len(ranks)})"
        bars = [_tag("rect", class_=name, y=y, width=_WIDE, height=_HIGH) for name in ["mark"] * is_suspect + ["row"]]
        mark = ("* ", "suspect", "suspect ") if is_suspect else ("", "", "")
        bars.append(_tag("text", html(f"{mark[0]}{label}"), class_=mark[1], x=4, y=y + 15))
        for one, colour, x, wide in drawn.bars(ranks[0]):
            title = f"{one.kind or 'collective'} {one.sequence} of {one.group}{', not done' if one.waits else ''}"
            name = f"{colour}{' w' if one.waits else ''}"
            bar = _tag("rect", _tag("title", html(title)), class_=name, x=x, y=y + 4, width=wide, height=_HIGH - 8)
            bars.append(bar)
        name = f"{mark[2]}{drawn.job.called(ranks)}"
        parts.append(_tag("a", "".join(bars), href=f"#rank-{ranks[0]}", aria_label=name))
        parts.append(_tag("path", class_="grid", d=f"M0 {y + _HIGH}H{_WIDE}") + "\n")
    return _tag("div", _svg(_WIDE, high, "".join(parts), "ranks and time"), class_="wide")


def _overview(ranks: Sequence[int], drawn: _Drawn) -> str:
    """Return a row of a few pixels for each rank; bars of one colour are one path, so that the page stays small."""
    high = 3 if len(ranks) <= 2048 else 1
    paths: dict[str, list[str]] = defaultdict(list)
    parts, names, below = [], [], -_HIGH
    for at, rank in enumerate(ranks):
        y = at * high
        for one, colour, x, wide in drawn.bars(rank):
            paths[f"{colour}{' o' if one.waits else ''}"].append(f"M{x:g} {y}h{wide:g}v{high}h-{wide:g}z")
        if rank in drawn.suspects:
            parts.append(_tag("rect", class_="mark", y=y, width=_WIDE, height=high))
            if y - below >= _LABEL:  # there is room for a name
                names.append(_tag("text", f"* {rank}", class_="suspect", x=64, y=y + 9))
                below = y
        if at % -(-_LABEL // high) == 0:
            names.append(_tag("text", str(rank), x=4, y=y + 9))
        row = _tag("rect", class_="row", y=y, width=_WIDE, height=high)
        names.append(_tag("a", row, href=f"#rank-{rank}", tabindex=-1, aria_label=f"rank {rank}"))
    parts += [_tag("path", class_=name, d="".join(lines)) for name, lines in paths.items()]
    picture = _svg(_WIDE, len(ranks) * high + _LABEL, "".join([*parts, *names]), "all ranks and time")
    return _tag("div", picture, class_="wide")


def _svg(wide: int, high: int, content: str, label: str = "") -> str:
    about = f'role="group" aria-label="{label}"' if label else 'aria-hidden="true"'
    return f'<svg viewBox="0 0 {wide} {high}" {about}>{content}</svg>'


def _tag(name: str, content: str = "", **attributes: object) -> str:
    """Return an element. Its content is HTML, its attributes are text; one that is empty is left out."""
    given = ((key.rstrip("_").replace("_", "-"), str(value)) for key, value in attributes.items())
    words = "".join(f' {key}="{html(value)}"' for key, value in given if value)
    return f"<{name}{words}>{content}</{name}>"


def _seconds(nanoseconds: int) -> str:
    """Return a time as people read it."""
    units = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
    size, unit = next((one for one in units if nanoseconds >= one[0]), units[0])
    return f"{nanoseconds / size:.3g} {unit}"


def _stacks(panels: Sequence[_Panel], job: Job) -> Iterator[str]:
    room = _STACKS
    for at, panel in enumerate(panels):
        first, *more = panel.ranks
        parts = [_tag("h3", html(job.called(panel.ranks)), id="" if more else f"rank-{first}")]
        if more:
            numbers = " ".join(_tag("span", str(rank), id=f"rank-{rank}") for rank in panel.ranks)
            parts.append(_tag("p", numbers, class_="ranks", tabindex=0))
        parts.append(_tag("p", html(f"suspect: {panel.why}" if panel.why else panel.doing)))
        if at >= _PANELS or room <= 0:
            parts.append(_tag("p", "The stacks are left out: the page would be too large."))
        elif not panel.stacks:
            parts.append(_tag("p", "No file has the stacks."))
        else:
            parts.append(_threads(panel.stacks))
            room -= len(parts[-1])
        yield _tag("section", "".join(parts), class_="rank suspect" if panel.why else "rank") + "\n"


def _threads(stacks: Sequence[Stack]) -> str:
    """Return the main thread, and the others behind a line to open."""
    told = []
    for stack in sorted(stacks[:_THREADS], key=lambda one: one.thread != MAIN):
        lines = [f"{stack.thread[:200]}, {stack.source}"]
        lines += [f"  {frame.function} ({frame.file}:{frame.line})"[:500] for frame in stack.frames[:_FRAMES]]
        told.append(_tag("pre", html("\n".join(lines)), tabindex=0))
    others = _tag("summary", count(len(told) - 1, "more thread")) + "".join(told[1:])
    return told[0] + (_tag("details", others) if told[1:] else "")
