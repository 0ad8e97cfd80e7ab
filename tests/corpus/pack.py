"""Write the corpus: the played jobs of ``corpus.jobs``, and the ones that ``tests/hangs`` has recorded on real ranks.

PYTHONPATH=tests python -m corpus.pack [FOLDER]

FOLDER is pytest's ``--basetemp`` of a run of ``tests/hangs``. Without it the recorded jobs stay as they are packed.
"""

from __future__ import annotations

import io
import json
import lzma
import pickle
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from corpus import jobs, leave, ranks
from hangs import foreign

ARCHIVE = Path(__file__).with_name("hangs.tar.xz")
DUMPS, STACKS, LOGS = KINDS = ("dumps", "stacks", "logs")
_TRUTH = "truth.json"
_SOURCE = re.compile(r'(^.* File "[^\n]*\n)((?!.* File ").*\n)', re.MULTILINE)
"""In a traceback, a frame and the line of source below it."""
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26}]


class Truth(NamedTuple):
    """What is wrong with a job."""

    what: str
    culprits: tuple[int, ...]
    """Empty where no rank is to be named: all of them do the same, or what is wrong no file can show."""
    fix: str = ""  # the fix whose defect it is; mostly none
    recorded: bool = False  # whether real ranks of gloo left its evidence


def main(folder: str = "") -> int:
    """Write the archive."""
    files, truths = {}, {}
    for name, hang in jobs.HANGS.items():
        files.update({f"{name}/{path}": data for path, data in played(hang)})
        truths[name] = truth(hang)
    for name, known, own in _recorded(Path(folder)) if folder else _packed():
        truths[name] = known
        files.update({f"{name}/{path}": data for path, data in own})
    write(files, truths)
    return 0


def truth(hang: jobs.Hang) -> Truth:
    """Return the truth of a played job."""
    return Truth(hang.what, hang.ranks if hang.culprits is None else hang.culprits, hang.fix)


@cache
def read() -> tuple[dict[str, bytes], dict[str, Truth]]:
    """Return the files of the archive, by path, and the truth of each job."""
    files, rows = unpacked(ARCHIVE) if ARCHIVE.exists() else ({}, {})
    return files, {name: Truth(*row) for name, row in rows.items()}


def unpacked(path: Path) -> tuple[dict[str, bytes], dict[str, tuple[Any, ...]]]:
    """Return the files of an archive, by path, and what is told of each job."""
    with tarfile.open(path) as archive:
        files = {member.name: stream.read() for member in archive if (stream := archive.extractfile(member))}
    return files, {name: tuple(map(_tupled, row)) for name, row in json.loads(files.pop(_TRUTH)).items()}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write(files: Mapping[str, bytes], truths: Mapping[str, tuple[Any, ...]], into: Path = ARCHIVE) -> None:
    """Write an archive, the same for the same files: those of a kind and a job together, since they compress so."""
    whole = {_TRUTH: json.dumps(truths, indent=0, sort_keys=True).encode(), **files}
    with (
        lzma.open(into, "wb", format=lzma.FORMAT_XZ, filters=_FILTERS) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path, data in sorted(whole.items(), key=lambda one: (one[0].split("/")[1:2], one[0])):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def played(hang: jobs.Hang) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a played job: ``dumps/rank_3``, ``stacks/rank_3.txt``, ``logs/job.log``."""
    groups, style = jobs.LAYOUTS[hang.layout].groups, hang.style
    ends = ranks.play(hang.world(), groups, hang.body)
    shared = ""
    for rank, end in enumerate(ends):
        if (dump := leave.dump(rank, end, groups, style)) is not None:
            yield f"dumps/rank_{rank}", dump
        if (stack := leave.stack(rank, end, as_json=style.as_json)) is not None:
            yield f"stacks/rank_{rank}.{'json' if style.as_json else 'txt'}", stack.encode()
        said = "" if rank >= style.logged else leave.prefixed(rank, list(leave.log(rank, end, groups, style)), style)
        if style.prefix:
            shared += said
        elif said:
            yield f"logs/rank_{rank}.log", said.encode()
    if not style.prefix and any(end.last and end.last.do not in (ranks.FAIL, ranks.DIE) for end in ends):
        yield _census(len(ends))
    if shared := shared + leave.exits(ends):
        yield "logs/job.log", shared.encode()


def _census(size: int) -> tuple[str, bytes]:
    """Return what ``--live`` writes beside stacks: of how many ranks the job is."""
    told = {"unhang-live": 1, "node": "n1", "size": size, "ranks": [], "notes": []}
    return f"{STACKS}/on-n1.json", json.dumps(told).encode()


def _recorded(folder: Path) -> Iterator[tuple[str, Truth, list[tuple[str, bytes]]]]:
    """Yield the truth and the files of each recorded job: those of the fixes on four ranks, and the foreign ones."""
    for path in sorted(folder.glob("hangs0/*/untouched/*4")):
        fix = path.parts[-3]
        truth = Truth(f"the hang of {fix}", (), fix, recorded=True)
        yield f"{fix}-{path.name}", truth, [*_files(path), _census(4)]
    for name, job in foreign.JOBS.items():
        path = folder / "hangs0" / "foreign" / name
        if name != "in-training" and path.exists():
            what = (job.body.__doc__ or "").splitlines()[0].rstrip(".")
            yield f"real-{name}", Truth(what, job.culprits, "", recorded=True), [*_files(path), _census(job.world)]


def _packed() -> Iterator[tuple[str, Truth, list[tuple[str, bytes]]]]:
    """Yield the same of the archive."""
    files, truths = read()
    for name, known in truths.items():
        if known.recorded:
            own = [(path.partition("/")[2], data) for path, data in files.items() if path.startswith(f"{name}/")]
            yield name, known, own


def _files(out: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a recorded job, without lines of source."""
    for kind, source in {DUMPS: "recorder", STACKS: "py-spy", LOGS: "log"}.items():
        for file in sorted((out / source).glob("*")):
            data = file.read_bytes()
            if not data:
                continue
            if kind == DUMPS:
                raw = pickle.loads(data)
                raw["entries"] = raw["entries"][-60:]
                data = pickle.dumps(raw, protocol=2)
            elif kind == LOGS:
                data = without_source(data)
            yield f"{kind}/{file.name.replace('nccl_trace_', '')}", data


def without_source(log: bytes) -> bytes:
    """Return a log without the lines of source in its tracebacks."""
    return _SOURCE.sub(r"\1", log.decode()).encode()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
