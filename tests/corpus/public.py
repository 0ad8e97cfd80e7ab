"""What `unhang diagnose` says of hangs and aborts that people posted, against what is right: a score and its table.

    PYTHONPATH=tests python -m corpus.public [FOLDER...]

Each report is a folder of files as they were posted (names, hosts, addresses and paths replaced, without lines of
source), and a `truth.json` that was written from the thread before unhang ran: `posted`, `suspects`, `processes`,
`causes` (the first one named must be among them), `says` (expressions that the text must hold), `note`. A report that
is known to be missed has its `verdict`, too. The name of a folder has no rank, as that would be read.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from unhang.diagnose import fixes, intake, known, report
from unhang.diagnose.report import Report
from unhang.records import Request

HERE = Path(__file__).with_name("public")
VERDICTS = ("answered", "thin", "empty", "wrong")
_OURS = ("truth.json", "README")


class Score(NamedTuple):
    """How good an answer is."""

    verdict: str  # one of VERDICTS
    lacks: tuple[str, ...]  # what is not said, or said and not so


def reports(folder: Path) -> Iterator[Path]:
    """Yield the reports below a folder."""
    yield from (truth.parent for truth in sorted(folder.rglob("truth.json")))


def answer(files: Path) -> dict[str, Any]:
    """Return the JSON of a diagnosis of a report, in this process, with its text and warnings as `text`."""
    paths = [str(path) for path in sorted(files.rglob("*")) if path.is_file() and path.name not in _OURS]
    job = intake.merged([intake.told_by(path) for path in paths])
    seen = known.diagnose(job)
    answers = known.answers(seen, fixes.signatures(), known.Sources(()), {})
    found = Report(seen, answers, None, {}, Request())
    text = "\n".join((report.text(found, colour=False), *report.warnings(job)))
    document: dict[str, Any] = json.loads(report.document(found))
    return {**document, "text": text.replace(f"{files}/", "")}


def score(truth: dict[str, Any], said: dict[str, Any]) -> Score:
    """Return how good an answer is: `wrong` if it suspects one who is not to blame, whatever else it says.

    A truth without `suspects` suspects no rank; one without `processes` leaves open which of them is named. Other ranks
    that may be suspected in place of its own are in `suspects_also_ok`.
    """
    codes = [one["code"] for one in said["causes"]]
    suspects, right, names = {*said["suspects"]}, {*(truth.get("suspects") or ())}, truth.get("processes", [".*"])
    right = next(({*other} for other in truth.get("suspects_also_ok", ()) if suspects == {*other}), right)
    strangers = [one for one in said["processes"] if not any(re.search(name, one) for name in names)]
    unnamed = [name for name in truth.get("processes", ()) if not any(re.search(name, it) for it in said["processes"])]
    lacks = [f"suspects {sorted(right - suspects)}"] if right - suspects else []
    lacks += [f"process {name}" for name in unnamed]
    if truth.get("causes") and codes[:1] not in [[code] for code in truth["causes"]]:
        lacks.append(f"cause {codes[:1]}, not {truth['causes']}")
    lacks += [f"says {one}" for one in truth.get("says", ()) if not re.search(one, said["text"])]
    if suspects - right or strangers:
        return Score("wrong", (f"suspects {[*sorted(suspects - right), *strangers]}", *lacks))
    is_empty = not (suspects or said["processes"] or codes)
    return Score("answered" if not lacks else "empty" if is_empty else "thin", tuple(lacks))


def scored(folder: Path) -> dict[Path, Score]:
    """Return the score of each report below a folder."""
    return {one: score(json.loads((one / "truth.json").read_text()), answer(one)) for one in reports(folder)}


def table(scores: dict[Path, Score]) -> str:
    """Return a row of Markdown for each report, and one with the sums."""
    count = Counter(one.verdict for one in scores.values())
    rows = ["| report | posted in | says |", "| --- | --- | --- |"]
    for path, one in scores.items():
        posted = json.loads((path / "truth.json").read_text()).get("posted", "")
        lacks = "; ".join(one.lacks).replace("|", "\\|")
        rows.append(f"| {path.name} | {posted} | {one.verdict}{': ' * bool(lacks)}{lacks} |")
    sums = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS)
    return "\n".join([*rows, "", f"{len(scores)} reports: {sums}."])


if __name__ == "__main__":
    for name in sys.argv[1:] or [str(HERE)]:
        print(table(scored(Path(name))))
