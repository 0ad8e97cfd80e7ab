"""Logs, and any other text: the watchdogs' lines, errors and stacks of each rank, under any launcher's prefix.

A log may be far larger than the memory. Pieces in which none of a few words stands are passed over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from io import BufferedIOBase

from unhang.diagnose import log_prefixes, phrases, ras, stacks, statements
from unhang.diagnose.evidence import Count, Frame, Group, Message, Operation, Rank, Stack, Statement, kind_of
from unhang.diagnose.log_prefixes import Speaker
from unhang.diagnose.pairs import PAIRED

_NO_GROUP = Group("", "")
_NOBODY = Speaker("", None, None)
_PIECE, _LONGEST, _TEXT = 1 << 20, 1 << 13, 500
_LONGEST_JSON, _SOON = 1 << 18, 100
_SPEAKERS, _MESSAGES, _OPERATIONS, _ISSUED_FRAMES = 20_000, 40, 100, 200

# Lines without any of them are passed over, but for the first ones of each rank.
_WORDS = (
    b"rror", b"xception", b"CCL", b"gloo", b"ollective", b"exitcode", b"(local_rank", b" from ", b"Process ", b"hread ",
    b"= Rank ", b"= rank ", b"=Rank", b"=rank", b"==> ", b"most recent call", b" File ", b"KeyboardInterrupt",
    b"ut of memory", b"ut Of Memory", b"UT_OF_MEMORY", b" fault", b"Caught signal", b"End time of running main",
    b"terminate called", b"#0 ", b" stopped at ", b"  via ", b"Attaching to ", b"Stack dump for ",
    b"restart worker group", *phrases.WORDS, *ras.WORDS,
)  # fmt: skip
_ENDS = "End time of running main"  # what a process of ms-swift says once all has gone well
_HEAD = re.compile(rb"\n([^\r\n]{0,200}?\[rank\d{1,7}\]:)")

# What stands above the stacks of a rank: torch's debug server writes the first, `tail -n +1 rank_*.txt` the second.
_SECTION = re.compile(r"(?:={3,} ?Rank ?(\d{1,7})\b.*===|==> .*?rank[_.-]?(\d{1,7})\b.*<==)$", re.IGNORECASE)
_ABOVE = re.compile(
    r"\W*(?:(?:(?:pid|process|host|hostname|node)\W{1,3})?[\w.-]{0,60}\d[\w.-]{0,60}\W{1,3}){0,2}(?:global[ _])?"
    r"rank\W{0,3}(\d{1,7})\b(?=[\W_]*$|\s*[(\[,]|[\W_]*(?:pid|host|node|process|on)\b)", re.IGNORECASE
)  # fmt: skip
"""A line above the stacks of a process, with nothing between them but empty lines."""
_UNSAID = re.compile(rb"\s*(?:\x1b\[[\d;]*m)*(?:Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!|Fatal Python error: .{1,60})?\s*$")
"""What stands between such a line and the stacks."""
_ROLL = re.compile(r"ranks? +\[([\d, -]{1,4000})\] +stopped at +(\S+):(\d{1,9}) in (\S+)")
_VIA = re.compile(r"\s+via +(\S+):(\d{1,9}) in (\S+)")  # stacks that somebody has grouped by their innermost frames
_WORK = re.compile(r"Work[A-Z]CCL\((?:SeqNum=(\d{1,18}), )?OpType=(\w+)(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?")
_GROUP = re.compile(r"\[PG (?:ID \d{1,18} PG GUID )?([^\s()\]]{1,80})(?: ?\(([^)]{0,200})\))? Rank \d{1,18}\]")
_STATUS = re.compile(r"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work): (\d{1,18})")
_ENQUEUED = re.compile(r"[Ll]ast enqueued(?: NCCL)? work: (\d{1,18})\b")
_COMPLETED = re.compile(r"[Ll]ast completed(?: NCCL)? work: (-1|\d{1,18})\b")
_TRACE = "Stack trace of the failed collective:"
"""What stands above the frames of the operation that timed out: other ranks' lines may be in between."""
_ISSUED = re.compile(r"#(\d{1,18}) (.+) from (.+):(\d{1,18})$")

_RAISES = re.compile(r"(?:[\w.]*\w(?:Error|Exception)|KeyboardInterrupt)(?:\(\w+\))?(?::|$)")
_COMPLAINT, _WAITED = (re.compile("|".join(phrases.LISTS[of])) for of in ("complaints", "waited"))
_MILD = re.compile(r"\w*Warning:|\(raylet[,)]|\[ *\d{1,9}\.\d{6}\] |.{0,80}\b(?:DEBUG|INFO|WARNING|kernel:)(?!\w)")
"""The beginning of a line after which a process goes on, whatever it names, or of one that tells of others."""
_LOGGED = re.compile(r"(?!\[?[EWIF]\d).{0,120}\b(?:DEBUG|INFO|WARN|WARNING)\b")
"""A logger's line of a process that goes on; torch's own are none, for they come from other threads."""
_CAUGHT = re.compile(r".{0,120}\b(?:DEBUG|WARN|WARNING)\b")
"""One above a traceback that a logger prints; INFO stands above that of a process which dies, too."""
_STEP = re.compile(r".{0,200}?\b(iteration|iter|(?:global_)?step|epoch)s?\b\W{0,12}(\d{1,12})\b", re.IGNORECASE)
"""How far a training is. After two of them, it has survived what went wrong before."""
_RESTART = re.compile(r"(?:.*\])? ?\[\S+\] Worker group FAILED\. (\d+/\d+) attempts left; will restart worker group$")
_IGNORED = "Exception ignored in"
_CHAIN = re.compile(r"$| |During handling of the above|The above exception was|Traceback \(")
_STOPPED = ("0", "-15")  # done; stopped by the launcher
_RAISED = re.compile(r"[\w.]+(?::|$)")
_SUMMARY_RANK = re.compile(r"\s+rank\s+: (\d{1,7}) \(local_rank")
_EXITCODE = re.compile(r"\s+(exitcode\s+: (-?\d{1,9}))")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")

# A line of the watchdog that a terminal has wrapped, and what stands at its end.
_CUT = re.compile(
    r"Watchdog caught collective operation timeout(?!.*timing out)|watchdog thread terminated with $|"
    r"(?:detected by watchdog at work|Timeout at NCCL work)(?!.*completed(?: NCCL)? work: \S)"
)
_BEGINS = re.compile(r"\W{0,4}\[(?:rank|default|E |E\d)|\(\w+ pid=|Traceback|frame #|\s*what\(\)")
_PADDED, _CUT_LINES = re.compile(r"\s{2,}$"), 3


class _Said:
    """What one speaker has said."""

    def __init__(self) -> None:
        self.stacks = stacks.Collector()
        self.waited: Stack | None = None
        self.waiting: dict[Operation, Operation] = {}  # by what every line says of an operation
        self._last = Operation(stacks.NOBODY, _NO_GROUP, None, "")
        self.completed: dict[str, Operation] = {}
        self.counts: dict[str, Count] = {}
        self.messages: dict[str, Message] = {}
        self.caught: list[tuple[str, str, tuple[Frame, ...], float | None]] = []
        """Errors below a warning: its own, unless it soon says that it goes on."""
        self.is_warned = self.is_uncaught = self.is_ignored = self.ended = False
        self._unsure: list[str] = []  # errors that it may have survived, by what `messages` calls them
        self._steps: dict[str, int] = {}  # since then, by what they are called
        self.at: float | None = None
        """When its last traceback began, if that or the line above it says so: an older line's time tells nothing."""

    def error(self, text: str, source: str, at: float | None) -> None:
        """Take an error, its time, and the traceback that ends here."""
        frames = self.stacks.raised()
        at = at or (self.at if frames else None)
        if frames and self.is_warned:
            self.caught.append((text, source, frames, at))
        else:
            self._keep(text, source, frames, at, uncaught=bool(frames) and self.is_uncaught)

    def settle(self, *, goes_on: bool) -> None:
        """Keep the errors below a warning, unless it goes on."""
        for one in () if goes_on else self.caught:
            self._keep(*one)
        self.caught.clear()

    def _keep(
        self, text: str, source: str, frames: tuple[Frame, ...], at: float | None, *, uncaught: bool = False
    ) -> None:
        if frames and self.waited is None and _WAITED.search(text):
            self.waited = Stack(stacks.MAIN, frames, None, source)
        if len(self.messages) < _MESSAGES:
            one = Message(text[:_TEXT], source, frames, at, uncaught, survived=bool(frames) and self.is_ignored)
            known = self.messages.setdefault(name := _NUMBER.sub("#", one.text), one)
            if known.survived:  # it may be fatal the next time
                self.messages[name] = one
            if frames and not uncaught:
                self._unsure.append(name)
                self._steps.clear()

    def step(self, text: str) -> bool:
        """Take a line after an error; return whether it shows, with those before, that the training goes on."""
        if not (found := _STEP.match(text)):
            return False
        kind, number = found[1].lower(), int(found[2])
        if self._steps.setdefault(kind, number) >= number:
            return False
        for name in self._unsure:
            self.messages[name] = self.messages[name]._replace(survived=True)
        self._unsure.clear()
        return True

    def wait(self, operation: Operation) -> None:
        """Take an operation that timed out: the same one is often told twice, and not always with its group."""
        key = operation._replace(group=_NO_GROUP, source="")
        if key in self.waiting or len(self.waiting) < _OPERATIONS:
            known = self.waiting.setdefault(key, operation)
            self._last = key
            if not known.group.name:
                self.waiting[key] = known._replace(group=operation.group)

    def timed_out(self) -> dict[str, Count]:
        """Return how far it is in each group by what timed out: a watchdog names the oldest that is not done."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for one in self.waiting.values():
            if one.group.name and one.sequence is not None and one.kind not in PAIRED:
                numbers[one.group.name].append(one.sequence)
        return {group: Count(max(several), min(several) - 1) for group, several in numbers.items()}

    def status(self, text: str, source: str) -> None:
        """Take a line that names a group, and the numbers of operations in it."""
        group = _group(text)
        enqueued, completed = _ENQUEUED.search(text), _COMPLETED.search(text)
        if group.name and enqueued and completed:
            self.counts[group.name] = Count(int(enqueued[1]), max(int(completed[1]), 0))
        if found := _STATUS.search(text):
            same = [key for key, known in self.waiting.items() if known.sequence == int(found[1])]
            bare = [key for key in same if not self.waiting[key].group.name]
            if bare:
                self.waiting[bare[0]] = self.waiting[bare[0]]._replace(group=group)
            elif not same:
                self.wait(Operation(stacks.NOBODY, group, int(found[1]), "", source=source))
        if completed and int(completed[1]) > 0:
            number = int(completed[1])
            self.completed[group.name] = Operation(stacks.NOBODY, group, number, "", done=True, source=source)

    def issued(self, text: str) -> bool:
        """Take a frame of the operation that timed out last, if it is the next one; return whether it is."""
        found, last = _ISSUED.match(text), self.waiting.get(self._last)
        if not found or not last or int(found[1]) != len(last.frames) or len(last.frames) >= _ISSUED_FRAMES:
            return False
        self.waiting[self._last] = last._replace(frames=(*last.frames, Frame(found[2], found[3], int(found[4]))))
        return True


class _Log:
    """A log, while it is read."""

    def __init__(self) -> None:
        self.said: dict[Speaker, _Said] = defaultdict(_Said)
        self.ranks: dict[str, set[int]] = defaultdict(set)  # what torch calls itself behind each launcher's prefix
        self.exits: dict[int, Message] = {}
        self.open: set[Speaker] = set()  # who may be in the middle of a stack
        self.caught: dict[Speaker, int] = {}  # of whom is to be known whether they go on, and within how many lines
        self.after: dict[Speaker, int] = {}  # likewise, after an error that is below no warning
        self._starts: set[str] = set()
        self._before = (_NOBODY, "")
        self._above = ""
        self._before_at: float | None = None
        self._heads: set[bytes] = set()  # beginnings of lines that say the rank
        self._summary = stacks.NOBODY
        self._section: int | None = None
        self._failed: dict[str, _Said] = {}
        self.rolled: list[tuple[tuple[int, ...], list[Frame], str]] = []
        self.statements = statements.Reader()
        self.ras = ras.Reader()
        self._cut = ""  # the beginning of a line that a terminal has wrapped
        self._cut_at, self._left = "", 0

    def words(self, piece: bytes) -> list[bytes]:
        """Return what the lines of a piece that are to be taken have: words, or a beginning not seen before.

        Torch puts the rank before each line of some logs, so that alone is no reason to take it.
        """
        heads: set[bytes] = set(_HEAD.findall(b"\n" + piece)) if b"[rank" in piece else set()
        new = heads - self._heads
        if len(self._heads) + len(new) > _SPEAKERS:  # there is a time in it
            new = {b"[rank"}
        self._heads |= new
        return [*(word for word in _WORDS if word in piece), *new]

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to the last ones."""
        is_left = self.open or self.caught or self.after or self._cut
        return bool(is_left or self.statements.open or self.ras.is_open)

    def before(self, line: str, above: str) -> None:
        """Take the line before: loggers write the time there; and the last one that says something, such as a rank."""
        speaker, said = log_prefixes.of(above)
        self._above = said if speaker.rank is None else ""  # a line of torch's is no heading
        self._before, self._before_at = log_prefixes.of(line), log_prefixes.time_in(line)

    def line(self, line: str, source: str) -> None:
        """Take one line, which within JSON may be several."""
        if self._cut:
            if self._left and not _BEGINS.match(line):
                self._cut, self._left = self._cut + line, self._left - 1
                if not _CUT.search(self._cut):
                    self.end()
                return
            self.end()
        if _CUT.search(line):
            self._cut, self._cut_at, self._left = _PADDED.sub("", line), source, _CUT_LINES
        else:
            self._whole(line, source)

    def end(self) -> None:
        """Take what is left of a line that a terminal has wrapped."""
        line, self._cut = self._cut, ""
        if line:
            self._whole(line, self._cut_at)

    def _whole(self, line: str, source: str) -> None:
        at = log_prefixes.time_in(line)
        for speaker, said in log_prefixes.each(line):
            text = said.rstrip()
            if found := _RESTART.match(text):
                self._restart(found[1])
            self._settle(speaker, text)
            self.statements.line(speaker, text, source, at)
            self.ras.line(text, source)
            self._line(speaker, text, at, source)
            self._before, self._before_at = (speaker, text), at

    def _restart(self, left: str) -> None:
        """Forget what was said of ranks that are no more, once for each start: each node's launcher tells it."""
        if left not in self._starts:
            self._starts.add(left)
            self.statements.restart()
            for one in (self.said, self.exits, self.caught, self.after):
                one.clear()

    def _settle(self, speaker: Speaker, text: str) -> None:
        """Learn from a line whether somebody goes on after an error: below a warning, or not."""
        for one, left in tuple(self.caught.items()):
            is_told = one == speaker and not (self.said[one].stacks.in_traceback or _CHAIN.match(text))
            if is_told or not left:
                self.said[one].settle(goes_on=is_told and bool(_LOGGED.match(text)))
                del self.caught[one]
            else:
                self.caught[one] = left - 1
        left = self.after.pop(speaker, 0)
        if left and not self.said[speaker].step(text) and left > 1:
            self.after[speaker] = left - 1

    def _line(self, speaker: Speaker, text: str, at: float | None, source: str) -> None:
        if found := _SECTION.match(text):
            self._section = int(found[1] or found[2])
            return
        who, above = self._before
        if speaker == _NOBODY and stacks.begins(text) and (found := _ABOVE.match(self._above)):
            self._section = int(found[1])
        if self._section is not None and speaker == _NOBODY:
            speaker = Speaker("", None, self._section)
        if speaker not in self.said and len(self.said) >= _SPEAKERS:
            speaker = Speaker("", None, speaker.rank if len(self.said) < 2 * _SPEAKERS else None)
        said = self.said[speaker]
        if speaker.rank is not None:
            self.ranks[speaker.launcher].add(speaker.rank)
        if text.startswith("Traceback ("):
            said.is_uncaught = speaker.rank is not None
            said.is_warned = who == speaker and bool(_CAUGHT.match(above) or (said.caught and not above))
            said.is_ignored = who == speaker and above.startswith(_IGNORED)
            is_above = who in (speaker, Speaker(speaker.launcher, speaker.task, None))
            is_chained = who == speaker and _CHAIN.match(above)
            said.at = at or (self._before_at if is_above else None) or (said.at if is_chained else None)
        if self._rolled(text, source):
            return
        if text.startswith("#"):
            failed = self._failed.get(speaker.launcher)
            if failed and failed.issued(text):
                return
        ends = said.stacks.in_traceback
        if said.stacks.line(text, source):
            self.open.add(speaker)
            return
        self.open.discard(speaker)
        if found := _WORK.search(text):
            number, elements = (int(it) if it else None for it in found.group(1, 3))  # torch before 2.0 says none
            kind = kind_of(found[2])
            said.wait(Operation(stacks.NOBODY, _group(text), number, kind, elements=elements, source=source))
            self._failed[speaker.launcher] = said
        elif _TRACE in text:
            self._failed[speaker.launcher] = said
        elif "ast enqueued" in text:
            said.status(text, source)
            if "dump signal" in text:  # of a rank that did not time out itself
                said.error(text, source, at)
        elif found := _SUMMARY_RANK.match(text):
            self._summary = int(found[1])
        elif (found := _EXITCODE.match(text)) and self._summary != stacks.NOBODY:
            if found[2] not in _STOPPED:
                name = statements.signal_of(found[2].removeprefix("-"))
                self.exits[self._summary] = Message(f"{found[1]} ({name})" if "-" in found[2] else found[1], source)
        elif _ENDS in text:
            said.ended = True
        elif (
            _RAISES.match(text) or (_COMPLAINT.search(text) and not _MILD.match(text)) or (ends and _RAISED.match(text))
        ):
            said.error(text, source, at)
            if said.caught:
                self.caught[speaker] = _SOON
            elif ends and not said.is_uncaught:
                self.after[speaker] = _SOON
        elif ends:
            said.stacks.raised()

    def _rolled(self, text: str, source: str) -> bool:
        """Take a line of stacks that somebody has grouped; return whether it is one."""
        if found := _ROLL.match(text):
            frame = Frame(found[4], found[2], int(found[3]))
            self.rolled.append((statements.ranks_in(found[1]), [frame], source))
        elif self.rolled and (found := _VIA.match(text)):
            self.rolled[-1][1].append(Frame(found[3], found[1], int(found[2])))
        return bool(found)

    def told(self) -> Iterator[Rank]:
        """Yield what each rank said, in ascending order, and last what nobody knows the rank of."""
        self.end()
        ranks: dict[int, list[_Said]] = defaultdict(list)
        spied: dict[int, list[Stack]] = defaultdict(list)
        nobodies: list[Rank] = []
        trusted = all(
            speaker.task is None or self.ranks[speaker.launcher] <= {speaker.task} for speaker in tuple(self.said)
        )
        for speaker, said in self.said.items():
            said.settle(goes_on=False)
            rank = self._rank(speaker, trusted=trusted)
            ranks[rank].append(said)
            for name, found in said.stacks.pids():
                if rank == stacks.NOBODY and (name or speaker.launcher):
                    called = name or statements.name_of(speaker) or speaker.launcher.strip(" []:")
                    nobodies.append(Rank(stacks.NOBODY, stacks=found, name=called))
                else:
                    spied[rank].extend(found)
        for numbers, frames, source in self.rolled:
            for number in numbers:
                spied[number].append(Stack(stacks.MAIN, tuple(frames), None, source))
        for rank in sorted({*ranks, *spied, *self.exits}, key=lambda it: (it == stacks.NOBODY, it)):
            exits = (self.exits[rank],) if rank in self.exits else ()
            yield from _rank(rank, ranks[rank], spied[rank], exits)
        yield from nobodies
        unknown = [one for said in self.said.values() for one in said.stacks.unknown()]
        notes = [Statement("", words, source, weight=phrases.NOTE) for words, source in unknown]
        stated = self.statements.statements(lambda speaker: self._rank(speaker, trusted=trusted))
        if all_stated := (*stated, *self.ras.statements(), *notes):
            yield Rank(stacks.NOBODY, statements=all_stated)

    def _rank(self, speaker: Speaker, *, trusted: bool) -> int:
        if speaker.rank is not None:
            return speaker.rank
        if not speaker.launcher:
            return stacks.NOBODY
        named = self.ranks[speaker.launcher]
        if len(named) == 1 and (speaker.task is None or trusted):
            return next(iter(named))
        return stacks.NOBODY if named or speaker.task is None or not trusted else speaker.task


def read(stream: BufferedIOBase, name: str) -> Iterator[Rank]:
    """Yield what a text says of each rank; the rank is -1 where it does not say which.

    Raises ValueError where it is no text, and what the stream raises: what stands before that has been yielded then.
    """
    log, wrong = _Log(), None
    try:
        for number, piece in _pieces(stream):
            words = log.words(piece)
            if log.is_open or words:
                _take(log, piece, words, name, number)
    except Exception as error:  # of any decompressor
        wrong = error
    yield from log.told()
    if wrong:
        raise wrong


def _take(log: _Log, piece: bytes, words: list[bytes], name: str, number: int) -> None:
    """Take the lines of a piece that have one of the words, or may go on with a stack."""
    went_on, before, above = False, b"", b""
    for at, line in enumerate(piece.split(b"\n"), number):
        for part in line.rstrip(b"\r").split(b"\r"):  # a progress bar's
            if log.is_open or any(word in part for word in words):
                log.before(*(one[:_LONGEST].decode(errors="replace") for one in (before, above)))
                most = _LONGEST_JSON if part.startswith(b'{"') else _LONGEST
                log.line(part[:most].decode(errors="replace"), f"{name}:{at}")
                went_on = went_on or bool(log.open)
            before, above = part, b"" if log.open else above if _UNSAID.match(part) else part
    if not went_on:
        log.open.clear()


def _pieces(stream: BufferedIOBase) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, many at a time, with the number of the first one; of an endless line, its beginning."""
    number, rest, skips = 1, b"", False
    while read := stream.read1(_PIECE):  # not `read`, which loses what stands before the end of a broken file
        if number == 1 and not rest:
            read = read.lstrip(b"\0")  # so a log begins that was emptied while a process went on to write it
            if b"\0" in read[:8192]:
                raise ValueError("not text")
        if skips:
            if b"\n" not in read:
                continue
            read, skips = b"\n" + read.partition(b"\n")[2], False
        piece, end, rest = (rest + read).rpartition(b"\n")
        if len(rest) > _PIECE:  # a progress bar's line may be as long as its log
            bar, _, rest = rest.rpartition(b"\r")
            piece, end = piece + end + bar, b""
        if piece:
            yield number, piece
        number += piece.count(b"\n") + len(end)
        if len(rest) > _PIECE:
            rest, skips = rest[:_LONGEST], True
    yield number, rest


def _rank(rank: int, spoken: list[_Said], spied: list[Stack], exits: tuple[Message, ...]) -> Iterator[Rank]:
    told = Rank(
        rank,
        waiting=tuple(one._replace(rank=rank) for said in spoken for one in said.waiting.values()),
        last=tuple(one._replace(rank=rank) for said in spoken for one in said.completed.values()),
        stacks=(*spied, *(said.waited for said in spoken if said.waited)),
        counts={
            **{name: count for said in spoken for name, count in said.timed_out().items()},
            **{name: count for said in spoken for name, count in said.counts.items()},
        },
        messages=(*exits, *(message for said in spoken for message in said.messages.values())),
        ended=any(said.ended for said in spoken),
    )
    if told != Rank(rank) or (spoken and rank != stacks.NOBODY):
        yield told


def _group(text: str) -> Group:
    found = _GROUP.search(text)
    return Group(found[1], found[2] or "") if found else _NO_GROUP
