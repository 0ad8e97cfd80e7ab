"""Writes the figures of `nox -s attack` into docs/promises.md, from JUnit's reports of its groups of tests.

python -m support.promises FOLDER     FOLDER has one report for each group, GROUP.xml
"""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from support.checkout import REPOSITORY
from support.pages import fill, table

PAGE = REPOSITORY / "docs" / "promises.md"
START, END = "<!-- figures: written by nox -s attack -->", "<!-- figures: end -->"


def page(reports: Iterable[tuple[str, str]]) -> str:
    """Return the table of the groups and the list of their figures, from each group's name and report.

    Raises ValueError for a report with a failure or without a test.
    """
    rows, figures = [], []
    for name, text in reports:
        suite = next(ET.fromstring(text).iter("testsuite"))
        tests, failed, errors, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
        if failed or errors or tests == skipped:
            raise ValueError(f"{name}: {failed + errors} of {tests} tests failed, {skipped} were skipped")
        rows.append((name, str(tests - skipped), str(skipped)))
        figures += [str(entry.get("value")) for entry in suite.iter("property") if entry.get("name") == "figure"]
    return "\n".join([table(("attack", "tests passed", "skipped"), rows), "", *(f"- {figure}" for figure in figures)])


def main(folder: Path) -> None:
    reports = sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime)
    fill(PAGE, START, END, page((path.stem, path.read_text(encoding="utf-8")) for path in reports))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
