"""Write the tables of public reports, NCCL's recordings and the corpus into docs/maintainers/diagnose-evidence.md.

PYTHONPATH=tests python -m corpus.page docs/maintainers/diagnose-evidence.md [CLONE]

The corpus's, which has what other tools say of its dumps, needs torch, for torchfrtrace, and ``UNHANG_NVRX_CLONE``;
without that, the first two are written. CLONE is a work tree of it, whose attribution is run.
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

from corpus import nccl, nvrx, pack, public, test_nccl
from corpus.test_corpus import Found, diagnoses, found
from support import needed, pages
from unhang.diagnose import intake
from unhang.diagnose.evidence import span

START, END = "<!-- {}: written by tests/corpus/page.py -->", "<!-- {}: end -->"
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")


def main(arguments: Sequence[str]) -> int:
    """Write the tables between the markers of the page ``arguments[0]``."""
    page, *clone = arguments
    if clone:
        sys.path.insert(0, str(Path(clone[0], "src")))
    with tempfile.TemporaryDirectory() as folder:
        made = {"public": public.table(public.scored(public.HERE)), "nccl": _of_nccl(Path(folder))}
        if nvrx.CLONE:
            made["corpus"] = _tables(Path(folder))
    for name, text in made.items():
        pages.fill(Path(page), START.format(name), END.format(name), text)
    return 0


def _of_nccl(folder: Path) -> str:
    kinds, hangs, jobs = (*nccl.KINDS.values(), "all"), [], []
    for name, truth in test_nccl.TRUTHS.items():
        found = test_nccl.diagnoses(name, folder)
        if truth.fix:
            hangs.append((f"`{name}`", *(best(found[it], truth.fix) if it in found else "" for it in kinds)))
        else:
            named = (cell((*found[it].diagnosis.who.why,)) if it in found else "" for it in kinds)
            causes = ", ".join(cause.code for cause in found["all"].diagnosis.causes)
            jobs.append((f"`{name}`", span(truth.culprits), *named, causes))
    heads = ("hang", *kinds), ("job", "culprits", *kinds, "causes")
    return "\n\n".join(pages.table(head, rows) for head, rows in zip(heads, (hangs, jobs)))


def _tables(folder: Path) -> str:
    rows, ours, counts = [], [], Counter[tuple[str, str]]()
    truths = pack.read()[1]
    for name, truth in sorted(truths.items()):
        by_kind = diagnoses(name, folder)
        dumps = _renamed(folder / name / "dumps", folder / "dumps")
        ranks = {kind: (*each.diagnosis.who.why,) for kind, each in by_kind.items()}
        told = {kind: ranks.get(kind) for kind in (*pack.KINDS, "all")}
        told |= {"torchfrtrace": _torch(dumps), "NVRX": _nvrx(dumps)}
        said = {kind: best(each, truth.fix) for kind, each in by_kind.items()}
        if truth.fix:
            ours.append((f"`{name}`", *(said.get(kind, "") for kind in (*pack.KINDS, "all"))))
        else:
            counts.update((tool, _judged(each, truth.culprits)) for tool, each in told.items() if each is not None)
            rows.append((f"`{name}`", truth.what, span(truth.culprits), said["all"], *map(cell, told.values())))
    for name, dumps, culprits in nvrx.hangs(folder / "nvrx"):
        each = found((intake.told_by(str(file)) for file in dumps.iterdir()), needed.Lines())
        again, named = _renamed(dumps, folder / "dumps"), (*each.diagnosis.who.why,)
        cells = (cell(named), "", "", *map(cell, (named, _torch(again), _nvrx(again))))
        rows.append((f"NVRX `{name}`", "a fault put into two ranks", span(culprits), best(each), *cells))
    judged = [
        (tool, *(str(counts[tool, word]) for word in ("named", "part", "nobody", "others")))
        for tool in ("dumps", "stacks", "logs", "all", "torchfrtrace", "NVRX")
    ]
    total = sum(not truth.fix for truth in truths.values())
    return "\n\n".join(
        [
            f"The {total} hangs that belong to no fix, by the evidence that names their culprits:",
            pages.table(("by", "all of them, and nobody else", "some of them", "nobody", "others too"), judged),
            "The recorded hangs of the fixes, in an environment that needs every fix, by the answer to each kind of "
            "evidence, and to all of it:",
            pages.table(("job", *pack.KINDS, "all"), ours),
            "Each hang that belongs to no fix, with the ranks that are named:",
            pages.table(("job", "what it is", "culprits", "answer", *pack.KINDS, "all", "torchfrtrace", "NVRX"), rows),
        ]
    )


def best(each: Found, fix: str = "") -> str:
    """Return the answer to a fix, or the best one."""
    return next((f"{one.answer}: {one.fix}" for one in each.answers if fix in ("", one.fix)), "none")


def _judged(ranks: Iterable[int], culprits: Iterable[int]) -> str:
    told, right = {*ranks}, {*culprits}
    return "named" if told == right else "others" if told - right else "part" if told else "nobody"


def cell(ranks: Sequence[int] | None) -> str:
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
    missing = _MISSING.search(said.getvalue())
    return tuple(sorted(map(int, missing[1].split(",")))) if missing else ()


def _nvrx(folder: Path | None) -> tuple[int, ...] | None:
    """Return the ranks that NVRX's attribution calls hanging, without its model of language."""
    if folder is None:
        return None
    module = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
    analyzer = importlib.import_module(module).CollectiveAnalyzer

    options = {"fr_path": str(folder), "pattern": "_dump_*", "llm_analyze": False}
    said, hanging = io.StringIO(), list[str]()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.suppress(Exception):
        hanging = re.findall(r"\d+", analyzer(options).run_sync(options)[0]["hanging_ranks"])
    return tuple(sorted(map(int, hanging)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
