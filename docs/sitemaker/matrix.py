"""The matrix as a page: a row for each release, which docs/static/matrix.js can filter. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from unhang.gate import html
from unhang.judge import matrix
from unhang.judge.decide import FIXED_UPSTREAM, NEEDED, NOT_AFFECTED
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell.version_ranges import Panel, Range, panels

PAGE = """# The matrix

What an untouched copy of each release needs. `unhang matrix` prints the same, and `unhang check` judges the code that
is really installed. A fix that a row does not name has nothing to do there: the release does not have the defect.

<div class="wide-picture">

![Which release needs which fix: upstream releases across, fixes down, a sign and a colour for each verdict](matrix.svg)

</div>

## By fix

{by_fix}

## By release

<form id="filter" role="search" hidden>
<label>Search <input type="search" placeholder="verl 0.7.1" autocomplete="off"></label>
<label>Upstream <select><option value="">all</option>{upstreams}</select></label>
<label>Needs <select><option value="">any or none</option>{fixes}</select></label>
<output></output>
</form>

```{{table}}
:class: matrix

| release | needs | fixed upstream |
|---|---|---|
{rows}
```
"""


def pages() -> dict[str, str]:
    """Return the page, by its place on the site."""
    fixes = list(catalog.fixes().values())
    found = panels(matrix.rows(fixes, catalog.releases(), catalog.shape_table()), fixes)
    text = PAGE.format(
        by_fix=f'<div class="by-fix">{"".join(map(_of_fix, fixes))}</div>',
        upstreams="".join(f"<option>{panel.upstream}</option>" for panel in found),
        fixes="".join(f"<option>{fix.id}</option>" for fix in fixes),
        rows="\n".join(row for panel in found for row in reversed(list(_rows(panel)))),
    )
    return {"matrix.md": text}


def _of_fix(fix: Fix) -> str:
    """Return a fix with the ranges of releases that have one verdict each, as HTML."""
    rows = matrix.rows([fix], catalog.releases(), catalog.shape_table())
    ranges = [(panel.upstream, item) for panel in panels(rows, [fix]) for item in panel.ranges]
    items = (
        f'<li class="{item.verdicts[0]}">{html("; ".join([f"{upstream} {item.label}", *item.notes]))}: '
        f"{item.verdicts[0]}</li>"
        for upstream, item in ranges
        if item.verdicts[0] != NOT_AFFECTED
    )
    head = f'<h3><a href="fixes/{fix.id}.html">{fix.id}</a></h3><p>{html(fix.title)}</p>'
    return f"{head}<ul>{''.join(items)}</ul>"


def _rows(panel: Panel) -> Iterator[str]:
    """Yield a row for each release of an upstream, and one for the nightlies with the same verdicts."""
    for folded in panel.ranges:
        for _, group in groupby(folded.versions, key=lambda version: matrix.is_nightly(version) or version):
            item = Range(tuple(group), (), folded.verdicts)
            label = f"{item.label} (yanked)" if item.versions[0] in folded.yanked else item.label
            needs, fixed = (_named(panel, item, verdict) for verdict in (NEEDED, FIXED_UPSTREAM))
            yield f"| {panel.upstream} {label} | {needs} | {fixed} |"


def _named(panel: Panel, item: Range, verdict: str) -> str:
    """Return links to the fixes that have a verdict in a range."""
    fixes = (fix for fix, found in zip(panel.fixes, item.verdicts, strict=True) if found == verdict)
    return ", ".join(f"[{fix.id}](fixes/{fix.id}.md)" for fix in fixes)
