"""Write the tables of NCCL's recordings into docs/maintainers/diagnose-evidence.md.

PYTHONPATH=tests python -m corpus.nccl_page docs/maintainers/diagnose-evidence.md
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from corpus import nccl
from corpus.page import best, cell
from corpus.test_nccl import FIXES, JOBS, TRUTHS, diagnoses
from support import pages
from unhang.diagnose.evidence import span

START, END = "<!-- nccl: written by tests/corpus/nccl_page.py -->", "<!-- nccl: end -->"
KINDS = (*nccl.KINDS.values(), "all")


def main(page: str) -> int:
    """Write the tables between the markers of the page."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: diagnoses(name, Path(folder)) for name in TRUTHS}
    hangs = [
        (f"`{name}`", *(best(one, TRUTHS[name].fix) if (one := found[name].get(kind)) else "" for kind in KINDS))
        for name in FIXES
    ]
    jobs = [
        (
            f"`{name}`",
            span(TRUTHS[name].culprits),
            *(cell((*one.diagnosis.who.why,)) if (one := found[name].get(kind)) else "" for kind in KINDS),
            ", ".join(cause.code for cause in found[name]["all"].diagnosis.causes),
        )
        for name in JOBS
    ]
    tables = (pages.table(("hang", *KINDS), hangs), pages.table(("job", "culprits", *KINDS, "causes"), jobs))
    pages.fill(Path(page), START, END, "\n\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
