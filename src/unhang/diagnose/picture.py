"""A diagnosis as one page of HTML: ranks x time, and each rank's stack. It has no script and asks for no other file."""

from __future__ import annotations

import base64
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
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#57606a;--line:#d0d7de;--mark:#ffe2d6;--red:#b3261e;
--c0:#0b6bcb;--c1:#8250df;--c2:#1a7f37;--c3:#9a6700;--c4:#bf3989;--c5:#0f766e}
@media(prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--dim:#9198a1;--line:#3d444d;--mark:#4b2113;
--red:#ff8c7a;--c0:#4493f8;--c1:#ab7df8;--c2:#3fb950;--c3:#d29922;--c4:#db61a2;--c5:#2dd4bf}}
body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--back);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}p,li{color:var(--text)}
pre{overflow-x:auto;padding:.7rem;border:1px solid var(--line);border-radius:6px;font:.82rem/1.5 ui-monospace,monospace}
pre.answer{border:0;padding:0;margin:.7rem 0;white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto}svg{display:block;min-width:40rem;width:100%;height:auto}
svg text{font:12px ui-monospace,monospace;fill:var(--text)}svg .suspect{fill:var(--red);font-weight:bold}
svg .row{fill:transparent}svg a:hover .row,svg a:focus .row{fill:var(--line)}svg .mark{fill:var(--mark)}
svg a:focus{outline:2px solid var(--c0)}svg .grid{stroke:var(--line)}
svg .o{fill-opacity:.3}svg .w{stroke:var(--red);stroke-width:2;fill-opacity:.25}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.key{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.85rem}
.key svg{display:inline;min-width:0;width:1rem;height:.7rem}
section.rank{border:1px solid var(--line);border-radius:6px;padding:0 1rem .5rem;margin:1rem 0;scroll-margin-top:1rem}
section.rank:has(:target){border-color:var(--c0);border-width:3px}
section.suspect h3{color:var(--red)}.ranks :target,h3:target{background:var(--mark);font-weight:bold}
.ranks{max-height:9rem;overflow:auto;font:.82rem/1.7 ui-monospace,monospace}summary{cursor:pointer}a{color:var(--c0)}
"""


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
    digest = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
    named = f"suspect: {job.called(suspects)}" if suspects else "no rank is suspect"
    return "".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-",
        f"{digest}'; base-uri 'none'; form-action 'none'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>unhang diagnose: {html(named)}</title><style>{_STYLE}</style></head>\n<body><main>",
        f"<h1>unhang diagnose: {html(named)}</h1>\n",
        *_answer(report.text(what, colour=False)),
        "<h2>Ranks and time</h2>\n",
        *_pictures(panels, moments(job), suspects, job),
        "<h2>Stacks</h2>\n",
        *_stacks(panels, job),
        "</main></body></html>\n",
    ])  # fmt: skip


def _answer(text: str) -> Iterator[str]:
    """Yield the answer; its lines wrap on a narrow screen, but for those of the table."""
    for part in text.split("\n\n"):
        yield _tag("pre", html(part), class_="" if part.startswith(report.TABLE) else "answer", tabindex=0) + "\n"


def _panels(ranks: Mapping[int, Rank], suspects: Mapping[int, str]) -> list[_Panel]:
    """Return the ranks that are at the same together: suspects first, then the most."""
    alike: dict[tuple[str, str, object], list[int]] = defaultdict(list)
    for number, rank in ranks.items():
        paths = tuple((one.thread == MAIN, one.frames) for one in rank.stacks if one.thread == MAIN)
        alike[where.elsewhere(rank).doing, suspects.get(number, ""), paths].append(number)
    panels = [_Panel(tuple(same), doing, why, ranks[same[0]].stacks) for (doing, why, _), same in alike.items()]
    return sorted(panels, key=lambda one: (not one.why, -len(one.ranks), one.ranks))


# --- ranks x time


class _Scale(NamedTuple):
    """Where a time is in the picture."""

    first: int
    last: int

    def x(self, time: int) -> float:
        share = (time - self.first) / max(self.last - self.first, 1)
        return round(_LEFT + min(max(share, 0), 1) * (_WIDE - _LEFT), 1)


class _Drawn(NamedTuple):
    """What all pictures of a page share."""

    scale: _Scale
    moments: Mapping[int, Sequence[Recent]]
    suspects: frozenset[int]
    colours: Mapping[str, str]
    """By group."""
    job: Job


def _pictures(
    panels: Sequence[_Panel], recent: Mapping[int, Sequence[Recent]], suspects: Collection[int], job: Job
) -> Iterator[str]:
    if not recent:
        yield _tag("p", "No file says when: times come from dumps of the flight recorder. The stacks are below.")
        return
    ranks = sorted(rank for panel in panels for rank in panel.ranks)
    first = sorted(one[0].created for one in recent.values())
    last = max(max(one.created, one.ended) for same in recent.values() for one in same)
    start = first[len(first) // 10]
    groups = list(dict.fromkeys(one.group for rank in ranks for one in recent.get(rank, ())))
    drawn = _Drawn(
        _Scale(start, last + (last - start) // 10 + 1), recent, frozenset(suspects),
        {group: f"c{index % _COLOURS}" for index, group in enumerate(groups)}, job,
    )  # fmt: skip
    yield _tag(
        "p",
        f"The last {max(map(len, recent.values()))} collectives of a rank at most, over {_seconds(last - start)}. A "
        "bar begins when the host issues a collective; one with a border, up to the right edge, is not done. Choose a "
        "row for the rank's stack.",
    )
    keys = (
        _tag("li", _svg(16, 10, _tag("rect", class_=drawn.colours[group], width=16, height=10)) + " " + html(group))
        for group in groups[:_ROWS]
    )
    yield _tag("ul", "".join(keys), class_="key")
    if len(ranks) <= _EACH:
        yield from _rows([((rank,), rank) for rank in ranks], drawn)
        return
    yield _tag("p", "Ranks that are at the same share a row, which shows the first of them.")
    yield from _rows([(panel.ranks, panel.ranks[0]) for panel in panels[:_ROWS]], drawn)
    yield _tag("p", f"All {len(ranks)} ranks, from the first to the last; what is not done is paler:")
    yield _overview(ranks, drawn)


def _rows(rows: Sequence[tuple[Sequence[int], int]], drawn: _Drawn) -> Iterator[str]:
    """Yield a picture with a row for each of some ranks, given those that it stands for."""
    parts = [_axis(drawn.scale, (len(rows) + 1) * _HIGH)]
    for at, (ranks, shown) in enumerate(rows, 1):
        y, suspect = at * _HIGH, not drawn.suspects.isdisjoint(ranks)
        label = drawn.job.called(ranks).removeprefix("ranks ").removeprefix("rank ")
        short = label if len(label) <= _NAME else f"{ranks[0]}, ... ({len(ranks)})"
        bars = [_tag("rect", class_="mark", y=y, width=_WIDE, height=_HIGH)] if suspect else []
        bars.append(_tag("rect", class_="row", y=y, width=_WIDE, height=_HIGH))
        bars.append(
            _tag("text", html(f"* {short}" if suspect else short), class_="suspect" if suspect else "", x=4, y=y + 15)
        )
        for one in drawn.moments.get(shown, ()):
            x, wide = _bar(one, drawn.scale)
            title = _tag(
                "title",
                html(f"{one.kind or 'collective'} {one.sequence} of {one.group}{', not done' if one.waits else ''}"),
            )
            name = f"{drawn.colours[one.group]}{' w' if one.waits else ''}"
            bars.append(_tag("rect", title, class_=name, x=x, y=y + 4, width=wide, height=_HIGH - 8))
        name = f"{'suspect ' if suspect else ''}{drawn.job.called(ranks)}"
        parts.append(_tag("a", "".join(bars), href=f"#rank-{shown}", aria_label=name))
        parts.append(_tag("path", class_="grid", d=f"M0 {y + _HIGH}H{_WIDE}") + "\n")
    yield _tag("div", _svg(_WIDE, (len(rows) + 1) * _HIGH, "".join(parts), "ranks and time"), class_="wide")


def _axis(scale: _Scale, high: int) -> str:
    """Return lines for a few times, each with a name."""
    parts = []
    for step in range(_TICKS):
        time = (scale.last - scale.first) * step // _TICKS
        x = scale.x(scale.first + time)
        parts.append(_tag("path", class_="grid", d=f"M{x} 0V{high}") + _tag("text", _seconds(time), x=x + 3, y=15))
    return "".join(parts)


def _overview(ranks: Sequence[int], drawn: _Drawn) -> str:
    """Return a row of a few pixels for each rank; bars of one colour are one path, so that the page stays small."""
    high = 3 if len(ranks) <= 2048 else 1
    paths: dict[tuple[str, bool], list[str]] = defaultdict(list)
    parts, names, below = [], [], -_HIGH
    for at, rank in enumerate(ranks):
        y = at * high
        for one in drawn.moments.get(rank, ()):
            x, wide = _bar(one, drawn.scale)
            paths[drawn.colours[one.group], one.waits].append(f"M{x:g} {y}h{wide:g}v{high}h-{wide:g}z")
        if rank in drawn.suspects:
            parts.append(_tag("rect", class_="mark", y=y, width=_WIDE, height=high))
            if y - below >= _LABEL:  # there is room for a name
                names.append(_tag("text", f"* {rank}", class_="suspect", x=64, y=y + 9))
                below = y
        if at % -(-_LABEL // high) == 0:
            names.append(_tag("text", str(rank), x=4, y=y + 9))
        row = _tag("rect", class_="row", y=y, width=_WIDE, height=high)
        names.append(_tag("a", row, href=f"#rank-{rank}", tabindex=-1, aria_label=f"rank {rank}"))
    for (colour, waits), lines in paths.items():
        parts.append(_tag("path", class_=f"{colour}{' o' if waits else ''}", d="".join(lines)))
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


def _bar(one: Recent, scale: _Scale) -> tuple[float, float]:
    x = scale.x(one.created)
    end = _WIDE - 2 if one.waits else scale.x(one.ended) if one.ended else x
    return min(x, _WIDE - 4), max(round(end - x, 1), 2)


def _seconds(nanoseconds: int) -> str:
    """Return a time as people read it."""
    if not nanoseconds:
        return "0 s"
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds} ns"


def moments(job: Job) -> dict[int, tuple[Recent, ...]]:
    """Return the last collectives of each rank of a job that has dumped some, with whether each is not done."""
    return {
        number: tuple(one._replace(waits=_waits(one, rank)) for one in rank.recent)
        for number, rank in job.ranks.items()
        if rank.recent
    }


def _waits(entry: Recent, rank: Rank) -> bool:
    """Return whether an entry is not done: what follows such a one in its group is not done either."""
    own = [one for one in rank.waiting if one.group.name.partition("/")[0] == entry.name and one.sequence is not None]
    numbers = {one.sequence for one in own if (one.kind in ("send", "recv")) == entry.p2p}
    return entry.sequence in numbers or (
        not entry.p2p and any(number is not None and entry.sequence >= number for number in numbers)
    )


# --- what each rank is at


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
            parts.append("".join(_threads(panel.stacks)))
            room -= len(parts[-1])
        yield _tag("section", "".join(parts), class_="rank suspect" if panel.why else "rank") + "\n"


def _threads(stacks: Sequence[Stack]) -> Iterator[str]:
    """Yield the main thread, and the others behind a line to open."""
    first, *others = sorted(stacks[:_THREADS], key=lambda one: one.thread != MAIN)
    yield _frames(first)
    if others:
        yield _tag("details", _tag("summary", count(len(others), "more thread")) + "".join(map(_frames, others)))


def _frames(stack: Stack) -> str:
    lines = [f"{stack.thread[:200]}, {stack.source}"]
    lines += [f"  {frame.function} ({frame.file}:{frame.line})"[:500] for frame in stack.frames[:_FRAMES]]
    return _tag("pre", html("\n".join(lines)), tabindex=0)
