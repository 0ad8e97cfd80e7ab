"""Write the tables of docs/maintainers/diagnose-evidence.md from a run of `nox -s proofs`.

PYTHONPATH=tests python -m hangs.page docs/maintainers/diagnose-evidence.md .nox/proofs/tmp/hangs.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hangs import cases, foreign, inputs
from support import pages

START, END = "<!-- hangs: written by tests/hangs/page.py -->", "<!-- hangs: end -->"
_Answers = Mapping[str, str]


def main(arguments: Sequence[str]) -> int:
    """Write the tables of this run between the markers of the page ``arguments[0]``."""
    page, source = map(Path, arguments)
    lines = json.loads(source.read_text(encoding="utf-8"))["hangs"]
    pages.fill(page, START, END, tables({line["job"]: line["answers"] for line in lines}))
    return 0


def tables(jobs: Mapping[str, _Answers]) -> str:
    """Return Markdown: a table of the fixes' hangs, and one of all other jobs. A row is an input, or a job."""
    ours = {name: [job for job in jobs if job.startswith(f"{name} ") and "," not in job] for name in _fixes(jobs)}
    rows = [
        (
            one,
            *(
                _counted([jobs[job][one].partition(" ")[0] for job in named if one in jobs[job]])
                for named in ours.values()
            ),
        )
        for one in inputs.INPUTS
    ]
    others = [job for job in jobs if all(job not in named for named in ours.values())]
    about = {name: (one.body.__doc__ or "").rstrip(".") for name, one in foreign.JOBS.items()}
    return "\n\n".join(
        [
            "The best answer to each fix's hangs, by input:",
            pages.table(("input", *(f"`{fix}`, {len(named)} jobs" for fix, named in ours.items())), rows),
            "The best answers to all other jobs:",
            pages.table(
                ("job", "what it is", "answers, and to how many inputs"),
                [(f"`{job}`", about.get(job, ""), _counted(list(jobs[job].values()))) for job in others],
            ),
        ]
    )


def _fixes(jobs: Mapping[str, _Answers]) -> list[str]:
    return [fix for fix in sorted({**cases.HANGS, **cases.TREES}) if any(job.startswith(f"{fix} ") for job in jobs)]


def _counted(answers: Sequence[str]) -> str:
    """Return each answer, with its number where there are several."""
    if len(set(answers)) == 1:
        return answers[0]
    return ", ".join(f"{answers.count(one)} {one}" for one in sorted(set(answers)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
