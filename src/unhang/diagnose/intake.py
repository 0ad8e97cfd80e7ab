"""Read all files of a hung job. The content of a file shows what it is."""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import stat
import zlib
from calendar import timegm
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO, FileIO
from typing import Any, TypeAlias

from unhang import gate
from unhang.diagnose import job, logs, ras, readers, recorder, stacks
from unhang.diagnose.evidence import GONE, RUNNING, Job, Rank
from unhang.tell.progress import Step

_Stream: TypeAlias = "BufferedReader[FileIO] | BufferedReader[BytesIO] | gzip.GzipFile"
_HEAD = 1 << 16
_ARCHIVE = re.compile(rb"(?s).{257}ustar|PK\x03\x04|\xfd7zXZ\0|\x28\xb5\x2f\xfd|BZh\d1AY&SY|7z\xbc\xaf\x27\x1c")
"""How tar, zip, xz, zstd, bzip2 and 7z begin."""
_RANK = re.compile(
    r"(?:(?<![a-z])(local|node|group|role|host|[cdemptv]p|e[dt]p)[_.\-]?)?rank[_.\-]?(\d{1,7})", re.IGNORECASE
)  # a rank in a name, and what it is within, where that is not the job
_STAMP = re.compile(
    r"(?<!\d)(20\d\d)[-_.]?([01]\d)[-_.]?([0-3]\d)[-_.T ]?([0-2]\d)[-_.:h]?([0-5]\d)(?:[-_.:m]?([0-5]\d))?(?!\d)"
)
_OF_DUMP = re.compile(r"(?:.*\D)?(\d{1,7})$")  # torch puts the rank behind what a user has called the dumps
_LOG = re.compile(r"\.(log|out|err)(\.\d+)?$|std(out|err)", re.IGNORECASE)
_ATTEMPT = re.compile(r"(?s)(.*/)attempt_(\d{1,7})/(?:(\d{1,7})/[^/]+$)?")
"""torchrun's folder of each start of the ranks, and the rank on its node."""
_WORLD = re.compile(
    rb"using world size: (\d{1,7}),|world_size: (\d{1,7}), local_world_size: |global_world_sizes=\[(\d{1,7})\b"
    rb"|^PARTIAL DATA: \d{1,7}/(\d{1,7}) workers responded"
)  # where Megatron, ms-swift, torchrun and torch's debug server say of how many ranks a job is, as it begins
_STATES = (RUNNING, "stopped", GONE)
_MOST, _NOTES = 1 << 20, 5
_ENDINGS = re.compile(r"(\.(gz|json|pkl|pickle|txt|log|out|err|dump))+$", re.IGNORECASE)


def read(paths: Sequence[str], progress: Step) -> Job:
    """Return what these files, and the files in these folders, say of a job. It names the files that cannot be read."""
    sizes, told = files(paths)
    done = 0
    progress(lambda: f"reading {done} of {len(sizes)} files")
    gc.disable()  # what comes is kept, and to look for garbage in it takes a third of our own time
    try:
        for file, answer in readers.answers(told_by, sizes):
            done += 1
            told.append(answer if isinstance(answer, job.Told) else job.Told(file, why=str(answer)))
        return merged(told)
    finally:
        gc.enable()


def merged(told: Sequence[job.Told]) -> Job:
    """Return what these files say of a job, those in torchrun's folder of a rank as of that rank, unless their lines
    are of other ranks, or of two ``3/stderr.log`` each is of another node.
    """
    unnamed = [one.file for one in told if one.named is None and (one.parts or not (one.dumps or one.why))]
    places = {file: (it[3], os.path.basename(file)) for file in unnamed if (it := _ATTEMPT.match(file)) and it[3]}
    times = Counter(places.values())

    def ranked(one: job.Told) -> job.Told:
        place = places.get(one.file)
        if not place or times[place] > 1 or not {part.rank for part in one.parts} <= {stacks.NOBODY, int(place[0])}:
            return one
        return one._replace(named=int(place[0]))

    return job.merged(map(ranked, told))


def files(paths: Sequence[str]) -> tuple[dict[str, int], list[job.Told]]:
    """Return the size of each file, and the paths that are none."""
    sizes: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    wrong, refused, found = list[job.Told](), list[OSError](), list[str]()
    for path in paths:
        before, walk = len(found) + len(refused), os.walk(path, onerror=refused.append) if os.path.isdir(path) else ()
        found += sorted(os.path.join(parent, name) for parent, _, names in walk for name in names)
        if not os.path.isdir(path):
            found.append(path)
        elif len(found) + len(refused) == before:
            wrong.append(job.Told(path, why="it is a folder without files"))
    last: dict[str, int] = defaultdict(int)
    for attempt in filter(None, map(_ATTEMPT.match, found)):
        last[attempt[1]] = max(int(attempt[2]), last[attempt[1]])
    for file in found:
        try:
            status = os.stat(file)
        except OSError as error:
            refused.append(error)
            continue
        if not stat.S_ISREG(status.st_mode):
            wrong.append(job.Told(file, why="it is not a file"))
        elif not status.st_size:  # a rank may well have said nothing
            wrong.append(job.Told(file, why="" if _LOG.search(os.path.basename(file)) else "it is empty"))
        elif (of := _ATTEMPT.match(file)) and int(of[2]) < last[of[1]]:
            wrong.append(job.Told(file, why=f"it is of an earlier attempt than attempt_{last[of[1]]}"))
        elif (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            sizes[file] = status.st_size
    wrong += [job.Told(os.fspath(error.filename), why=error.strerror or str(error)) for error in refused]
    return sizes, wrong


def told_by(file: str) -> job.Told:
    """Return what a file says. This runs in a process of its own."""
    parts: list[Rank] = []
    named, size, why = rank_in(file), None, ""
    try:
        with opened(file) as stream:
            head = stream.peek(_HEAD)[:_HEAD]
            if _ARCHIVE.match(head):
                raise ValueError("it is an archive: unpack it first")
            if head.startswith(b'{"unhang-live"'):
                return states(stacks.whole(stream)[0], file)
            if recorder.recognizes(head):
                data, cut = stacks.whole(stream)
                number = _OF_DUMP.match(_ENDINGS.sub("", os.path.basename(file)))
                dump = recorder.read(data, file, named if named is not None or not number else int(number[1]))
                return job.Told(file, (dump,), named=dump.rank.rank, why=dump.broken or str(cut or ""))
            size = int(found[found.lastindex or 1]) if (found := _WORLD.search(head)) else None
            parts.extend(next((one for one in (ras, stacks) if one.recognizes(head)), logs).read(stream, file))
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return job.Told(file, parts=tuple(parts), named=named, why=why, size=size or None, at=_at(file))


@contextmanager
def opened(file: str) -> Iterator[_Stream]:
    """Open a file, unzipped, and in UTF-8 without a mark of its encoding if it is text that has one."""
    with BufferedReader(FileIO(file), _HEAD) as raw:
        is_zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=raw) if is_zipped else raw as stream:
            head = stream.peek(len(BOM_UTF8))
            if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                yield BufferedReader(BytesIO(stacks.whole(stream)[0].decode("utf-16", "replace").encode()), _HEAD)
                return
            if head.startswith(BOM_UTF8):
                stream.read(len(BOM_UTF8))
            yield stream


def rank_in(file: str) -> int | None:
    """Return the rank that a file's name, or its folder's, calls so: ``stack_rank_3.txt``, ``rank3/err.log``.

    A number alone may be that of a node, a process or a start.
    """
    folder, name = os.path.split(file)
    found = (rank for part in (name, os.path.basename(folder)) for of, rank in reversed(_RANK.findall(part)) if not of)
    return next(map(int, found), None)


def _at(file: str) -> float:
    """Return when a file was taken, by the last time in its path, else by the file system."""
    stamp = None
    for time in _STAMP.finditer(file):
        with suppress(ValueError):
            stamp = timegm((*map(int, time.groups("0")), 0, 0, 0))
    return int(os.stat(file).st_mtime) if stamp is None else stamp


def states(data: bytes, file: str) -> job.Told:
    """Return what the notes say that `--live` has written of a node. Raises ValueError if they are none."""
    raw = json.loads(data)
    rows, notes, size = (raw.get(key) for key in ("ranks", "notes", "size"))
    size = size if isinstance(size, int) and 0 < size <= _MOST else None
    parts = (_state(row, size or _MOST) for row in (rows if isinstance(rows, list) else [])[:_MOST])
    notes = [gate.line(str(note)) for note in notes] if isinstance(notes, list) else []
    notes[_NOTES:] = [f"and {len(notes) - _NOTES} more"] * (len(notes) > _NOTES)
    node = gate.line(str(raw.get("node") or ""))
    name = f"{file} ({node})" if node else file
    return job.Told(name, parts=tuple(part for part in parts if part), why="; ".join(notes), size=size)


def _state(row: Any, size: int) -> Rank | None:
    """Return what a row says of a rank. One without a process was reckoned, and is none beyond the size of the job."""
    number, state = (row.get("rank"), row.get("state")) if isinstance(row, dict) else (None, None)
    if not isinstance(number, int) or not 0 <= number < (_MOST if "pid" in row else size) or state not in _STATES:
        return None
    cpu = row.get("cpu")
    return Rank(number, process=state, cpu=cpu if isinstance(cpu, float) and cpu >= 0 else None)
