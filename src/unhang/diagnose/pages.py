"""Read a saved page of torch's debug server: the stacks or the dumps of all ranks."""

from __future__ import annotations

import re
from html import unescape
from io import BytesIO

from unhang import gate
from unhang.diagnose import logs, recorder
from unhang.diagnose.job import Told

_RANK = re.compile(r"[ \t]*<h[23]>(Rank (\d{1,7}): [^<\n]{0,500})</h[23]>")
_PRE = re.compile(r"[ \t]*<pre>(.*)</pre>", re.DOTALL)
_SHOWN = 8


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is a page."""
    return head.lstrip()[:14].lower() == b"<!doctype html"


def read(data: bytes, file: str) -> Told:
    """Return what a page says of each rank. The server asks them all, so their number is that of the job.

    It does not escape what they answer, so that a parser of HTML takes `<module>` for a tag.
    """
    before, *rest = _RANK.split(data.decode(errors="replace"))
    dumps, lost, whys = [], [], []
    text = ["\n" * before.count("\n")]  # each line keeps its number
    for heading, number, body in zip(rest[::3], rest[1::3], rest[2::3]):
        found = _PRE.search(body)
        answer, lines = unescape(found[1]) if found else "", "\n" * body.count("\n")
        if found is None or "Failed to fetch" in body[: found.start()]:
            lost.append(number)
            whys += answer.strip().splitlines()[:1]
        elif recorder.recognizes(answer.encode()):
            try:
                dumps.append(recorder.read(answer.encode(), f"{file}: rank {number}", int(number)))
            except ValueError as error:
                lost.append(number)
                whys.append(str(error))
        else:
            lines = "\n" * body[: found.start()].count("\n") + answer + "\n" * body[found.end() :].count("\n")
        text += [f"=== {heading} ===", lines]
    parts = tuple(logs.read(BytesIO("".join(text).encode()), file))
    why = next((dump.broken for dump in dumps if dump.broken), "")
    if lost:
        ranks = f"{', '.join(lost[:_SHOWN])}{', ...' if len(lost) > _SHOWN else ''}"
        why = f"nothing came of rank{'s' if len(lost) > 1 else ''} {ranks}: {gate.line((whys or ['no answer'])[0])}"
    elif not (dumps or parts):
        why = "it has neither stacks nor dumps: of torch's debug server, save the pages /stacks and /fr_trace_json"
    return Told(file, tuple(dumps), parts, why=why, size=len(rest) // 3 or None)
