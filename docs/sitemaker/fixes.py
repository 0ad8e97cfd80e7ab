"""A page for each fix, made from its page.md, its manifest and the matrix; and the page that lists them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from sitemaker.links import with_fixes
from unhang.compat.sweep.pages import fixes_table, signs
from unhang.judge import matrix
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.tell import drawing, instead
from unhang.tell.matrix_text import effect, retirement, upstreams_own
from unhang.tell.version_ranges import panels

INDEX = """# The fixes

{table}

A `cure` is shown on the real function: the defect is there before the rewrite, and gone after it. For a `safeguard`,
only the cause is shown, or a stand-in takes the place of what fails. [The matrix](../matrix.md) has every release.

```{{toctree}}
:hidden:

{ids}
```
"""
DRAWINGS = "../drawings/"
_TABLE = re.compile(r"^\| fix \| grade \|.*(?:\n\|.*)+", re.MULTILINE)
PAGE = """{head}
```text
unhang check --fix {id}     # is it needed here?
unhang apply --fix {id}
```
{drawing}
{rest}

{effect}

## How a hung job shows it
{signs}

`unhang diagnose PATH...` looks for these in what the job left: [My job hangs](../my-job-hangs.md).

## What the rewrite assumes
{assumes}

## The functions
{targets}

## In the matrix
{matrix}{proof}
"""


def pages(proved: Collection[str]) -> dict[str, str]:
    """Return the pages of the fixes, by their place on the site; those in ``proved`` have a page of their proof."""
    found, releases, table = list(catalog.fixes().values()), catalog.releases(), catalog.shape_table()
    ids = [fix.id for fix in found]
    listed = as_list(with_fixes(fixes_table(found, releases, table), "fixes/index.md", ids))
    index = INDEX.format(table=listed, ids="\n".join(ids))
    return {
        "fixes/index.md": index,
        **{f"fixes/{fix.id}.md": page(fix, releases, table, fix.id in proved) for fix in found},
    }


def as_list(page: str) -> str:
    """Return a page on which each table of fixes is one that a phone shows as a list."""
    return _TABLE.sub(r"```{table}\n:class: fixes\n\n\g<0>\n```", page)


def page(fix: Fix, releases: matrix.Releases, table: catalog.ShapeTable, is_proved: bool) -> str:
    """Return the page of one fix, which leads to the page of its proof if there is one."""
    shown = [line.removeprefix("  ") for line in signs(fix.manifest)]
    if files := dict.fromkeys(
        re.findall(r"([\w/]+\.py)::", str(fix.manifest.get("signature")))
    ):  # search then finds a whole frame
        shown.append(f"- in the files: {', '.join(f'`{file}`' for file in files)}")
    own = [f"- {target.upstream}: `{target.function}` in `{target.file}`" for target in fix.targets]
    beside = ["", instead.section(fix)] if "instead" in fix.manifest else []
    head, mark, rest = catalog.page(fix.id).rstrip().partition("## ")
    return PAGE.format(
        head=head,
        drawing=f"\n![]({DRAWINGS}{fix.id}.svg)\n" if drawing.of_fix(fix) else "",
        proof=f"\n\n[Every case of its proof](../maintainers/proofs/{fix.id}.md)." if is_proved else "",
        rest=mark + rest,
        signs="\n".join(shown),
        id=fix.id,
        effect=effect(fix),
        assumes=f"{fix.manifest['assumes']}.",
        targets="\n".join(own + beside),
        matrix="\n\n".join(_ranges(fix, releases, table)),
    )


def _ranges(fix: Fix, releases: matrix.Releases, table: catalog.ShapeTable) -> list[str]:
    """Return a table for each upstream of a fix, and the release from which on it can be dropped."""
    since, found = matrix.droppable(fix, releases, table), []
    rows = matrix.rows([fix], releases, table)
    for panel in panels(rows, [fix]):
        lines = [f"| {'; '.join([item.label, *item.notes])} | {item.verdicts[0]} |" for item in panel.ranges]
        head = f"| {panel.upstream} | verdict on an untouched copy |\n|---|---|"
        found += ["\n".join([head, *lines]), retirement(panel.upstream, since)]
    return [*found, f"Upstream's own fix: {upstreams_own(fix, rows)}."]
