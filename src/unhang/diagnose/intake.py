"""Read all files of a hung job. What a file is, its content tells."""

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
from unhang.diagnose import job, logs, one_job, readers, recorder, stacks
from unhang.diagnose.evidence import GONE, RUNNING, Job, Rank
from unhang.tell.progress import Step

_Stream: TypeAlias = "BufferedReader[FileIO] | BufferedReader[BytesIO] | gzip.GzipFile"
_HEAD = 1 << 16
_ARCHIVE = re.compile(rb"(?s).{257}ustar|PK\x03\x04|\xfd7zXZ\0|\x28\xb5\x2f\xfd|BZh\d1AY&SY|7z\xbc\xaf\x27\x1c")
"""How tar, zip, xz, zstd, bzip2 and 7z begin."""
_RANK = re.compile(
    r"(?:(?<![a-z])(local|node|group|role|host|[cdemptv]p|e[dt]p)[_.\-]?)?rank[_.\-]?(\d{1,7})", re.IGNORECASE
)
"""A rank in a name, and what it is within, where that is not the job."""
_STAMP = re.compile(
    r"(?<!\d)(20\d\d)[-_.]?([01]\d)[-_.]?([0-3]\d)[-_.T ]?([0-2]\d)[-_.:h]?([0-5]\d)(?:[-_.:m]?([0-5]\d))?(?!\d)"
)
_NUMBER = re.compile(r"^(?:.*[^\d.][_.\-])?(\d{1,7})$")
_NO_RANK = re.compile(
    r"(node|host|pod|worker|gpu|pid|job|slurm|run|step|iter\w*|attempt|epoch|v\d+)[_.\-]\d+$", re.IGNORECASE
)
_LOG = re.compile(r"\.(log|out|err)(\.\d+)?$|std(out|err)", re.IGNORECASE)
_OF_POD = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ")
"""How a file of Kubernetes in /var/log/pods begins."""
_THOUSAND = 1000
_ATTEMPT = re.compile(r"(?s)(.*/)attempt_(\d{1,7})/")
"""torchrun's folder of each start of the ranks."""
_WORLD = re.compile(
    rb"using world size: (\d{1,7}),|world_size: (\d{1,7}), local_world_size: |global_world_sizes=\[(\d{1,7})\b"
    rb"|^PARTIAL DATA: \d{1,7}/(\d{1,7}) workers responded"
)
"""Where Megatron, ms-swift, torchrun and torch's debug server say of how many ranks a job is, as it begins."""
_STATES = (RUNNING, "stopped", GONE)
_MOST, _NOTES = 1 << 20, 5
_ENDINGS = re.compile(r"(\.(gz|json|pkl|pickle|txt|log|out|err|dump))+$", re.IGNORECASE)


def read(paths: Sequence[str], progress: Step) -> Job:
    """Return what these files, and the files in these folders, say of a job. It names the files that cannot be read."""
    sizes, told = files(paths)
    done = 0
    progress(lambda: f"reading {done} of {len(sizes)} files")
    was_on = gc.isenabled()
    gc.disable()  # what comes is kept, and to look for garbage in it takes a third of our own time
    try:
        for file, answer in readers.answers(told_by, sizes):
            done += 1
            told.append(answer if isinstance(answer, job.Told) else job.Told(file, why=str(answer)))
        return merged(told)
    finally:
        if was_on:
            gc.enable()


def merged(told: Sequence[job.Told]) -> Job:
    """Return what these files say of a job, together."""
    return job.merged(_unambiguous(told))


def files(paths: Sequence[str]) -> tuple[dict[str, int], list[job.Told]]:
    """Return the size of each file, and the paths that are none."""
    sizes: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    wrong: list[job.Told] = []
    found = []
    for path in paths:
        before = len(wrong)
        inside = [*_within(path, wrong)] if os.path.isdir(path) else [path]
        found += inside
        if not inside and len(wrong) == before:
            wrong.append(job.Told(path, why="it is a folder without files"))
    last: dict[str, int] = defaultdict(int)
    for attempt in filter(None, map(_ATTEMPT.match, found)):
        last[attempt[1]] = max(int(attempt[2]), last[attempt[1]])
    for file in found:
        try:
            status = os.stat(file)
        except OSError as error:
            wrong.append(job.Told(file, why=error.strerror or str(error)))
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
    return sizes, wrong


def _within(folder: str, wrong: list[job.Told]) -> Iterator[str]:
    """Yield the files in a folder and its folders; links to folders are not followed."""

    def refused(error: OSError) -> None:
        wrong.append(job.Told(os.fspath(error.filename), why=error.strerror or str(error)))

    for parent, folders, names in os.walk(folder, onerror=refused):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted(names))


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
                dump = recorder.read(data, file, named)
                return job.Told(file, (dump,), named=named, why=dump.broken or str(cut or ""))
            named = None if _is_of_process(file, named, head) else named
            size = int(found[found.lastindex or 1]) if (found := _WORLD.search(head)) else None
            parts.extend((stacks if stacks.recognizes(head) else logs).read(stream, file))
    except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    named = _unless_shared(file, named, parts)
    taken = _taken(file, named) if parts else one_job.Taken()
    return job.Told(file, parts=tuple(parts), named=named, why=why, size=size or None, taken=taken)


@contextmanager
def opened(file: str) -> Iterator[_Stream]:
    """Open a file, unzipped, and in UTF-8 without a mark of its encoding if it is text that has one."""
    with BufferedReader(FileIO(file), _HEAD) as stream:
        if stream.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unzipped:
                yield _decoded(unzipped)
        else:
            yield _decoded(stream)


def _decoded(stream: _Stream) -> _Stream:
    head = stream.peek(len(BOM_UTF8))
    if head.startswith(BOM_UTF8):
        stream.read(len(BOM_UTF8))
    elif head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return BufferedReader(BytesIO(stacks.whole(stream)[0].decode("utf-16", "replace").encode()), _HEAD)
    return stream


def rank_in(file: str) -> int | None:
    """Return the rank that a file's name, or its folder's, tells: ``trace_rank_3``, ``dump-3.json``, ``3/err.log``."""
    folder, name = os.path.split(_ENDINGS.sub("", file))
    folder = os.path.basename(folder)
    number = _called(name)
    if number is None and not _NO_RANK.search(name) and (match := _NUMBER.search(name)):
        number = match[1]
    number = number or _called(folder) or (folder if re.fullmatch(r"\d{1,7}", folder) else None)
    return None if number is None else int(number)


def _called(name: str) -> str | None:
    """Return the number of the last rank of the job that a name tells as such."""
    return next((rank for of, rank in reversed(_RANK.findall(name)) if not of), None)


def _taken(file: str, named: int | None) -> one_job.Taken:
    """Return with what a file was taken, and when, by its path and the file system."""
    series = file
    if named is not None:
        for before in ("(?i:rank)[_.\\-]?", r"(?<!\d)"):
            if found := [*re.finditer(rf"{before}(?P<own>0*{named})(?!\d)", file)]:
                series = f"{file[: found[-1].start('own')]}*{file[found[-1].end('own') :]}"
                break
    stamp = 0
    for time in _STAMP.finditer(series):  # the last one counts
        with suppress(ValueError):
            stamp = timegm((*map(int, time.groups("0")), 0, 0, 0))
    return one_job.Taken(series, stamp, os.stat(file).st_mtime)


def _is_of_process(file: str, named: int | None, head: bytes) -> bool:
    """Return whether the number in a name is that of the process whose stacks these are, or of a container's start."""
    if named is None or _called(os.path.basename(file)):
        return False
    return bool(_OF_POD.match(head) or re.search(rb'(?:^|\n)Process %d: |"pid": ?%d\b' % (named, named), head))


def _unless_shared(file: str, named: int | None, parts: Sequence[Rank]) -> int | None:
    """Return the rank that a name tells, but that a number alone tells nothing where the lines are of other ranks."""
    is_shared = any(part.rank not in (stacks.NOBODY, named) for part in parts)
    return None if is_shared and not _called(os.path.basename(file)) else named


def _unambiguous(told: Sequence[job.Told]) -> list[job.Told]:
    """Return what the files say, without the numbers in their names that may be no ranks of the job.

    Of two ``3/stderr.log`` neither is of rank 3: they may be of two nodes. And a number of some thousands, below which
    most are missing, is that of a process or a job.
    """
    names = [os.path.basename(one.file) for one in told]
    bare = [not _called(name) and one.named is not None and bool(one.parts) for name, one in zip(names, told)]
    seen = Counter((name, one.named) for name, one, is_bare in zip(names, told, bare) if is_bare)
    numbers = sorted({number for _, number in seen if number is not None})
    pids = {number for place, number in enumerate(numbers, 1) if number >= _THOUSAND and number > 2 * place}
    return [
        one._replace(named=None) if is_bare and (one.named in pids or seen[name, one.named] > 1) else one
        for name, one, is_bare in zip(names, told, bare)
    ]


# --- the notes of a node


def states(data: bytes, file: str) -> job.Told:
    """Return what the notes say that `--live` has written of a node. Raises ValueError if they are none."""
    raw = json.loads(data)
    ranks, notes, size = (raw.get(key) for key in ("ranks", "notes", "size"))
    notes = [gate.line(str(note)) for note in notes] if isinstance(notes, list) else []
    more = [f"and {len(notes) - _NOTES} more"] if len(notes) > _NOTES else []
    why = "; ".join([*notes[:_NOTES], *more])
    node = gate.line(str(raw.get("node") or ""))
    size = size if isinstance(size, int) and 0 < size <= _MOST else None
    parts = (_state(row, size or _MOST) for row in (ranks if isinstance(ranks, list) else [])[:_MOST])
    name = f"{file} ({node})" if node else file
    return job.Told(name, parts=tuple(part for part in parts if part), why=why, size=size)


def _state(row: Any, size: int) -> Rank | None:
    """Return what a row says of a rank. One without a process was reckoned, and is none beyond the size of the job."""
    number, state = (row.get("rank"), row.get("state")) if isinstance(row, dict) else (None, None)
    if not isinstance(number, int) or not 0 <= number < (_MOST if "pid" in row else size) or state not in _STATES:
        return None
    cpu = row.get("cpu")
    return Rank(number, process=state, cpu=cpu if isinstance(cpu, float) and cpu >= 0 else None)
