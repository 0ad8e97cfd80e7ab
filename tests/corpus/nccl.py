"""What ranks of real NCCL left: known hangs of the fixes, other jobs of plain torch, and one without memory.

PYTHONPATH=tests python -m corpus.nccl FOLDER [LEFT]

packs the recordings below FOLDER (``fixes/<fix>/<case>``, ``jobs/<name>``, ``warmup``), without lines of source. Who is
to blame for a job, and which causes are right, is in its ``truth.json``. LEFT is what hung or failed without its fix in
a run of ``nox -s gpu`` (``.gpu/out/left``); FOLDER goes before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from corpus import pack
from support import needed

ARCHIVE = Path(__file__).with_name("nccl.tar.xz")
KINDS = {"dumps": pack.DUMPS, "py-spy": pack.STACKS, "py-spy-json": "json", "log": pack.LOGS}
"""The folders of a recording, and what is diagnosed as one kind of evidence."""
_FOLDERS = {**KINDS, "stacks": pack.STACKS, "logs": pack.LOGS}


class Truth(NamedTuple):
    """What is wrong with a job."""

    culprits: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()  # of which the first that is said must be one
    fix: str = ""  # the fix whose defect it is, if it is one


def main(folder: str, left: str = "") -> int:
    """Write the archive."""
    files, truths = dict[str, bytes](), dict[str, Truth]()
    for place, truth in [*_recordings(Path(folder)), *(_left(Path(left)) if left else ())]:
        name = f"{truth.fix}-{place.name}" if truth.fix else place.name
        if name not in truths:
            truths[name] = truth
            files |= {f"{name}/{path}": data for path, data in _files(place)}
    pack.write(files, truths, ARCHIVE)
    return 0


def read() -> tuple[dict[str, bytes], dict[str, Truth]]:
    """Return the files of the archive, by path, and the truth of each job."""
    files, rows = pack.unpacked(ARCHIVE)
    return files, {name: Truth(*row) for name, row in rows.items()}


def _recordings(folder: Path) -> Iterator[tuple[Path, Truth]]:
    yield from ((place, Truth(fix=place.parent.name)) for place in sorted(folder.glob("fixes/*/*")))
    for told in sorted(folder.glob("jobs/*/truth.json")):
        truth = json.loads(told.read_text())
        yield told.parent, Truth(truth["suspects"], truth["causes"])
    yield folder / "warmup", Truth((0, 1, 3), ("gpu-memory",))


def _left(folder: Path) -> Iterator[tuple[Path, Truth]]:
    """Yield what ranks left that hung or failed without a fix that has a signature."""
    for place in sorted(folder.glob("*/*/untouched/*")):
        fix = place.parents[1].name
        if fix in needed.NEEDED:
            yield place, Truth(fix=fix)


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a recording."""
    for folder, kind in _FOLDERS.items():
        for file in sorted((place / folder).glob("*")):
            data = pack.without_source(file.read_bytes()) if kind == pack.LOGS else file.read_bytes()
            yield f"{kind}/{file.name.replace('nccl_trace_', '')}", data
    for file in place.glob("log.txt"):
        yield f"{pack.LOGS}/job.log", pack.without_source(file.read_bytes())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
