"""Read a saved page of torch's debug server: the stacks or the dumps of all ranks."""

from __future__ import annotations

import re
from html import unescape
from io import BytesIO

from unhang import gate
from unhang.diagnose import logs, recorder
from unhang.diagnose.job import Told

_RANK = re.compile(r"[ \t]{0,80}<h[23]>(Rank (\d{1,7}): [^<\n]{0,500})</h[23]>")
_SHOWN = 8


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is a page."""
    return head.lstrip()[:14].lower() == b"<!doctype html"


def read(data: bytes, file: str) -> Told:
    """Return what a page says of each rank. The server asks them all, so their number is that of the job.

    It does not escape what they answer, so that a parser of HTML takes `<module>` for a tag.
    """
    before, *found = _RANK.split(data.decode(errors="replace"))
    dumps, lost, whys = [], [], []
    text = ["\n" * before.count("\n")]  # each line keeps its number
    for heading, number, body in zip(found[::3], found[1::3], found[2::3]):
        above, _, rest = body.partition("<pre>")
        answer, end, below = rest.rpartition("</pre>")
        answer, lines = unescape(answer), "\n" * body.count("\n")
        if not end or "Failed to fetch" in above:
            lost.append(number)
            whys += answer.strip().splitlines()[:1]
        elif recorder.recognizes(answer.encode()):
            try:
                dumps.append(recorder.read(answer.encode(), f"{file}: rank {number}", int(number)))
            except ValueError as error:
                lost.append(number)
                whys.append(str(error))
        else:
            lines = "\n" * above.count("\n") + answer + "\n" * below.count("\n")
        text += [f"=== {heading} ===", lines]
    parts = tuple(logs.read(BytesIO("".join(text).encode()), file))
    why = next((dump.broken for dump in dumps if dump.broken), "")
    if lost:
        ranks = f"{', '.join(lost[:_SHOWN])}{', ...' if len(lost) > _SHOWN else ''}"
        why = f"nothing came of rank{'s' if len(lost) > 1 else ''} {ranks}: {gate.line((whys or ['no answer'])[0])}"
    elif not (dumps or parts):
        why = "it has neither stacks nor dumps: of torch's debug server, save the pages /stacks and /fr_trace_json"
    is_whole = bool(found) and "</section>" in found[-1]
    return Told(file, tuple(dumps), parts, why=why, size=len(found) // 3 if is_whole else None)
