"""Write the table of the corpus into docs/maintainers/diagnose-evidence.md, next to what other tools say of its dumps.

PYTHONPATH=tests python -m corpus.page docs/maintainers/diagnose-evidence.md [CLONE]

It needs torch, for torchfrtrace, and ``UNHANG_NVRX_CLONE``; CLONE is a work tree of that, whose attribution is run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from corpus import nvrx, pack
from corpus.test_corpus import diagnosed, diagnoses
from support import pages
from unhang.diagnose import intake
from unhang.diagnose.report import span

START, END = "<!-- corpus: written by tests/corpus/page.py -->", "<!-- corpus: end -->"
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")


def main(arguments: Sequence[str]) -> int:
    """Write the table between the markers of the page ``arguments[0]``."""
    page, *clone = arguments
    if clone:
        sys.path.insert(0, str(Path(clone[0], "src")))
    with tempfile.TemporaryDirectory() as folder:
        pages.fill(Path(page), START, END, _tables(Path(folder)))
    return 0


def _tables(folder: Path) -> str:
    rows, ours, counts = [], [], Counter[tuple[str, str]]()
    truths = pack.read()[1]
    for name, truth in sorted(truths.items()):
        found = diagnoses(name, folder)
        dumps = _renamed(folder / name / "dumps", folder / "dumps")
        by = {", ".join(kinds): (*each.suspects.why,) for kinds, each in found.items()}
        whole = found[max(found, key=len)].answers[0]
        told = {
            **{kind: by.get(kind) for kind in pack.KINDS},
            "all": (*found[max(found, key=len)].suspects.why,),
            "torchfrtrace": _torch(dumps),
            "NVRX": _nvrx(dumps),
        }
        if not truth.fix:
            counts.update((tool, _judged(ranks, truth.culprits)) for tool, ranks in told.items() if ranks is not None)
        if truth.fix:
            best = {
                ", ".join(kinds): f"{each.answers[0].answer} {each.answers[0].fix}" for kinds, each in found.items()
            }
            ours.append((f"`{name}`", *(best.get(kind, "") for kind in pack.KINDS), whole.answer))
        else:
            rows.append((f"`{name}`", truth.what, span(truth.culprits), whole.answer, *map(_cell, told.values())))
    for name, dumps, culprits in nvrx.hangs(folder / "nvrx"):
        each = diagnosed(intake.told_by(str(file)) for file in dumps.iterdir())
        again = _renamed(dumps, folder / "dumps")
        told = {"all": (*each.suspects.why,), "torchfrtrace": _torch(again), "NVRX": _nvrx(again)}
        ranks = (_cell(told["all"]), "", "", *map(_cell, told.values()))
        rows.append((f"NVRX `{name}`", "a fault put into two ranks", span(culprits), each.answers[0].answer, *ranks))
    judged = [
        (tool, *(str(counts[tool, word]) for word in ("named", "part", "nobody", "others")))
        for tool in ("dumps", "stacks", "logs", "all", "torchfrtrace", "NVRX")
    ]
    total = sum(not truth.fix for truth in truths.values())
    return "\n\n".join(
        [
            f"The {total} hangs that are no fix's, by what names their culprits:",
            pages.table(("by", "all of them, and nobody else", "some of them", "nobody", "others too"), judged),
            "The recorded hangs of the fixes, by the best answer to each kind of evidence, and to all of it:",
            pages.table(("job", *pack.KINDS, "all"), ours),
            "Each hang that is no fix's, with the ranks that are named:",
            pages.table(
                ("job", "what it is", "culprits", "best answer", *pack.KINDS, "all", "torchfrtrace", "NVRX"), rows
            ),
        ]
    )


def _judged(ranks: Iterable[int], culprits: Iterable[int]) -> str:
    told, right = {*ranks}, {*culprits}
    return "named" if told == right else "others" if told - right else "part" if told else "nobody"


def _cell(ranks: Sequence[int] | None) -> str:
    return "" if ranks is None else span(ranks) or "nobody"


def _renamed(dumps: Path, folder: Path) -> Path | None:
    """Return a folder of the dumps, named as both tools want them; None without any, or with JSON or many ranks."""
    shutil.rmtree(folder, ignore_errors=True)
    files = sorted(dumps.iterdir()) if dumps.exists() else []
    if not files or len(files) > 64 or not files[0].read_bytes().startswith(b"\x80"):
        return None
    folder.mkdir()
    for file in files:
        shutil.copy(file, folder / f"_dump_{file.name.rpartition('_')[2]}")
    return folder


def _torch(folder: Path | None) -> tuple[int, ...] | None:
    """Return the ranks that torchfrtrace calls missing first; nobody where it says nothing, or fails."""
    if folder is None:
        return None
    from torch.distributed.flight_recorder import fr_trace

    said, argv, logger = io.StringIO(), sys.argv, logging.getLogger("Flight Recorder")
    sys.argv, logger.handlers = ["torchfrtrace", str(folder), "-p", "_dump_"], [logging.StreamHandler(said)]
    with contextlib.redirect_stdout(said), contextlib.suppress(Exception, SystemExit):
        fr_trace.main()
    sys.argv = argv
    found = _MISSING.search(said.getvalue())
    return tuple(sorted(map(int, found[1].split(",")))) if found else ()


def _nvrx(folder: Path | None) -> tuple[int, ...] | None:
    """Return the ranks that NVRX's attribution calls hanging, without its model of language."""
    if folder is None:
        return None
    module = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
    analyzer = importlib.import_module(module).CollectiveAnalyzer

    options = {"fr_path": str(folder), "pattern": "_dump_*", "llm_analyze": False}
    said, found = io.StringIO(), list[str]()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.suppress(Exception):
        found = re.findall(r"\d+", analyzer(options).run_sync(options)[0]["hanging_ranks"])
    return tuple(sorted(map(int, found)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
