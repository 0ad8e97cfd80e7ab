"""What NCCL's RAS says of a job: its report as text, whole or in part, and its JSON.

It counts what the hosts have launched, in each communicator. Whoever is behind has not come, and all that are equally
far may still wait in one call: that a communicator is in order acquits nobody.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedIOBase
from typing import NamedTuple

from unhang import gate
from unhang.diagnose import phrases
from unhang.diagnose.evidence import Rank, Statement
from unhang.diagnose.stacks import NOBODY, whole

WORDS = tuple(one.encode() for one in phrases.LISTS["ras"])
_LINES, _MOST, _SHOWN = 60, 20_000, 4
_MEMBER = (
    r"(?: -- (?:GPUs? [\d,{}()\w /-]{1,80}? managed by process (?P<pid>\d{1,9}) on node (?P<host>[\w.:%-]{1,80})"
    r"|\[process information not found\]))?"
)
_SNAPSHOT = re.compile(r"NCCL version \d|Job summary|Communicators\.\.\.")
_ROW = re.compile(r"\s+\d+\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+([A-Z,]+)\s+([A-Z,]+)$")
_HEAD = re.compile(r"#(\d+)-(\d+) \((\w{1,32})\) (?:INCOMPLETE|ERROR|MISMATCH)")
_WHAT = re.compile(
    r"(?:Warnings:)?\s*Communicator ranks have different (\w+|collective operation|status)(?: operation counts)?\s*$"
)
_HAS = r"(?:have|has) (?:launched up to operation (?P<count>\d{1,18})|status (?P<status>\w+)|(?P<none>not) launched)"
_SAME = re.compile(rf"\s*(?P<number>\d{{1,7}}) ranks (?:{_HAS}|reported (?P<error>.+))")
_ONE = re.compile(
    rf"\s*Rank (?P<rank>\d{{1,7}})\b(?: {_HAS}(?: any operations)?| reported (?P<error>.{{1,80}}?)(?= -- |$))?{_MEMBER}"
)
_TABLE = "Comms     Nodes"
_LISTED = re.compile(r"\s*The missing ranks?: ([\d, ]+)")
_PROCESS = re.compile(
    r"(?:.*(?P<dead>PEER_DEAD): |\s*)Process (?P<pid>\d{1,9}) on node (?P<host>[\w.:%-]{1,80}) managing GPU"
)
_OURS = re.compile(r"(?m)^RAS of rank (\d{1,7}), process (\d{1,9})$")  # what ``--live`` writes above an answer
_JSON = re.compile(
    r'"(?P<snapshot>timestamp)"\s*:|"hash"\s*:\s*"(?:0x)?(?P<hash>\w{1,32})"|"size"\s*:\s*(?P<size>\d{1,9})|'
    r'"(?P<list>ranks|missing_ranks)"\s*:\s*\[|'
    r'(?:"rank"\s*:\s*(?P<rank>\d{1,7}),\s*)?"host"\s*:\s*"(?P<host>[^"]{1,80})",\s*"pid"\s*:\s*(?P<pid>\d{1,9})|'
    r'"status"\s*:\s*\{(?P<status>[^{}]*)\}|"collective_counts"\s*:\s*\{(?P<counts>[^{}]*)\}'
)
_PAIR = re.compile(r'"(\w{1,40})"\s*:\s*(\w{1,18})\b')
_CAUSES = {"CUDA": "cuda-error", "system": "network", "Remote": "process-died"}
_STATUS, _ERROR = "status", "error"
_NONE, _MISSING = ("", ""), ("missing", "")
_WRONG = {"INCOMPLETE", "MISMATCH", "ERROR", "ABORT"}


class Member(NamedTuple):
    """A rank of a communicator, or a process."""

    within: int | None  # its rank in the communicator
    pid: str = ""
    host: str = ""
    rank: int | None = None  # its rank in the job, once that is known

    @property
    def process(self) -> str:
        return f"pid {self.pid} on {self.host}" if self.pid else ""


class _Comm:
    """What one answer says of a communicator."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self.counts: dict[tuple[str, str], int] = {}
        """How many ranks have what: of an operation, the status, or an error; or do not answer."""
        self.named: dict[tuple[str, str], list[Member]] = defaultdict(list)

    def put(self, what: tuple[str, str], number: int, *members: Member) -> None:
        """Take that so many ranks, or this one, have that."""
        own = self.named[what]
        own += members[: _MOST - len(own)]
        self.counts[what] = max(self.counts.get(what, 0), number, len(own))

    def of(self, kind: str) -> dict[str, int]:
        """Return how many ranks have each value of a kind."""
        return {value: number for (of, value), number in self.counts.items() if of == kind}


class Reader:
    """Reads reports in the lines of a text, one answer or several."""

    def __init__(self) -> None:
        self._answers: list[dict[str, _Comm]] = [{}]
        self._lost: dict[Member, bool] = {}  # processes that do not answer, and whether RAS calls them dead
        self._rows: list[tuple[int, int, str]] = []
        """Of the table: how many communicators, of how many ranks each, and their status and errors."""
        self._ranks: dict[str, int] = {}
        self._comm: _Comm | None = None
        self._heads: set[str] = set()  # the headings of the last answer: it has each once
        self._what, self._last = "", _NONE
        self._is_dead = False
        self.is_open = 0  # so many of the next lines may belong to the last ones
        self.source = ""

    def line(self, text: str, source: str) -> None:
        """Take the next line, without what its launcher put before it."""
        self.is_open = max(self.is_open - 1, 0)
        if self._took(text.rstrip()):
            self.is_open, self.source = _LINES, self.source or source

    def _took(self, text: str) -> bool:
        if _SNAPSHOT.match(text):
            if not text.startswith("Communicators"):
                self._next()
        elif found := _OURS.match(text):
            self._ranks[found[2]] = int(found[1])
        elif found := _ROW.match(text):
            self._rows.append((int(found[1]), int(found[2]), f"{found[3]},{found[4]}"))
        elif found := _HEAD.match(text):
            if found[0] in self._heads:  # the next answer, pasted without its head
                self._next()
            self._heads.add(found[0])
            self._begin(f"#{found[1]}-{found[2]}")
        elif found := _PROCESS.match(text):
            self._lost[Member(None, found["pid"], found["host"])] = bool(found["dead"]) or self._is_dead
        elif "job process" in text:
            self._is_dead, self._comm = "considered dead" in text, None
        elif found := _WHAT.match(text):
            if self._comm is None:  # pasted without its heading
                self._begin("?")
            self._what, self._last = found[1].replace("collective operation", "collective"), _NONE
        elif self._comm is None:
            return _TABLE in text
        elif "Missing communicator data from" in text:
            self._what, self._last = "", _MISSING
        elif found := _LISTED.match(text):
            self._comm.put(_MISSING, 0, *(Member(int(one)) for one in re.findall(r"\d+", found[1])))
        elif found := _SAME.match(text) or _ONE.match(text):
            told = found.groupdict()
            if own := told["count"] or told["status"] or told["error"] or "0" * bool(told["none"]):
                count = self._what if self._what not in ("", _STATUS) else "collective"
                self._last = (_STATUS if told["status"] else _ERROR if told["error"] else count), own
            if self._last != _NONE:  # one that has nothing of its own has what the line above says of several
                named = [Member(int(told["rank"]), told["pid"] or "", told["host"] or "")] if "rank" in told else []
                self._comm.put(self._last, int(told.get("number") or 1), *named)
        else:
            return False
        return True

    def _next(self) -> None:
        if self._answers[-1] or self._rows:
            self._answers.append({})
            self._lost, self._rows = {}, []
        self._heads = set()
        self._comm, self._is_dead = None, False

    def _begin(self, name: str) -> None:
        self._comm = self._answers[-1].setdefault(name, _Comm(name))
        self._what, self._last = "", _NONE

    def json(self, text: str, source: str) -> None:
        """Take a document, or several, whole or cut."""
        self.source = source
        self._ranks.update((pid, int(rank)) for rank, pid in _OURS.findall(text))
        member, kind = Member(None), "ranks"
        for found in _JSON.finditer(text):
            if found["snapshot"]:
                self._next()
            elif found["hash"]:
                self._begin(found["hash"])
            elif found["size"] and self._comm:
                self._comm.size = int(found["size"])
            elif found["list"]:
                kind = found["list"]
            elif found["pid"]:
                member = Member(int(found["rank"]) if found["rank"] else None, found["pid"], found["host"])
            elif self._comm and (found["status"] or found["counts"]):
                for what in self._state(dict(_PAIR.findall(found[0])), member, "counts" if found["counts"] else kind):
                    self._comm.put(what, 1, member)

    def _state(self, told: Mapping[str, str], member: Member, kind: str) -> Sequence[tuple[str, str]]:
        is_dead = told.get("considered_dead") == "true"
        if kind == "counts":
            return [one for one in told.items() if one[1].isdecimal()]
        if kind == "ranks":
            errors = [phrases.RAS.get(told.get(key, "")) for key in ("init_state", "async_error")]
            status = (_STATUS, "RUNNING" if told.get("init_state") == "0" else "INIT")
            return [*((_ERROR, error) for error in errors if error), status]
        if not is_dead and told.get("unresponsive") != "true":
            return [(_STATUS, "NOCOMM")]
        self._lost[member._replace(within=None)] = is_dead
        return [_MISSING]

    def statements(self) -> Iterator[Statement]:
        """Yield what the last answer says, beside those before."""
        comms = self._answers[-1]
        world = self._world([*comms.values()])
        everybody = [(one, comm) for comm in comms.values() for own in comm.named.values() for one in own]
        ranks = {(one.pid, one.host): one.within for one, comm in everybody if one.pid and comm is world}
        for pid, rank in self._ranks.items():  # of other hosts, some may have the same number
            same = {(one.pid, one.host) for one, _ in everybody if one.pid == pid}
            ranks.update(dict.fromkeys(same, rank) if len(same) == 1 else {})

        def of_job(one: Member, comm: _Comm | None = None) -> Member:
            within = one.within if comm is not None and comm is world else None
            return one._replace(rank=ranks.get((one.pid, one.host), within))

        for comm in comms.values():
            for own in comm.named.values():
                own[:] = [of_job(one, comm) for one in own]
        lost = dict.fromkeys((one for comm in comms.values() for one in comm.named.get(_MISSING, ())), False)
        found = [*_lost({**lost, **{of_job(one): is_dead for one, is_dead in self._lost.items()}})]
        for name, comm in comms.items():
            for error in comm.of(_ERROR):
                members = comm.named[_ERROR, error]
                cause = next((code for word, code in _CAUSES.items() if word in error), "mismatch")
                one = _statement(cause, f"{_called(members)}: NCCL reports: {error}", members, "ras-error")
                found.append(one._replace(weight=phrases.FOLLOWS) if "Remote" in error else one)
            found += _behind(comm, [one[name] for one in self._answers[:-1] if name in one][-1:])
        if not found and (self._rows or comms):
            words = {word for _, _, told in self._rows for word in told.split(",")}
            words |= {head.rpartition(" ")[2] for head in self._heads}
            found += [_note(phrases.RAS["set-up"])] * ("INIT" in words)
            wrong = ", ".join(sorted(words & _WRONG))
            found.append(_note(phrases.RAS["unnamed"].format(wrong) if wrong else phrases.RAS["in-order"]))
        yield from (one._replace(source=self.source) for one in found)

    def _world(self, comms: Sequence[_Comm]) -> _Comm | None:
        """Return the communicator whose ranks are the job's: the only one of the largest size."""
        sizes = [size for number, size, _ in self._rows for _ in range(min(number, 2))] or [one.size for one in comms]
        first = [one for one in comms if one.name.startswith("#0-") or 0 < one.size == max(sizes)]
        if len(first) != 1 or sizes.count(max(sizes)) > 1:
            return None
        first[0].size = max(sizes)
        return first[0]


def _lost(lost: Mapping[Member, bool]) -> Iterator[Statement]:
    """Yield who does not answer, each once."""
    named: dict[tuple[str, str], tuple[Member, bool]] = {}
    for one, is_dead in lost.items():
        key = (one.pid, one.host or str(one.within))
        named[key] = (max(one, named.get(key, (one,))[0], key=lambda it: it.rank is not None), is_dead)
    bare = [one for one, _ in named.values() if not one.pid]
    if 0 < len(bare) < len(named):  # RAS up to 2.25 tells of the processes and of the ranks apart
        named = {key: it for key, it in named.items() if key[0]}
        if len(bare) == len(named) == 1:
            named = {key: (one._replace(rank=bare[0].rank), is_dead) for key, (one, is_dead) in named.items()}
    for dead, what in ((True, "RAS calls {} dead: it cannot be reached"), (False, "RAS got no answer from {}: {}")):
        if same := [one for one, is_dead in named.values() if is_dead == dead]:
            words = what.format(_called(same), "gone, stopped, or unresponsive as on a full host")
            yield _statement("process-died", words, same, "ras-lost", phrases.RAS["ended"])


def _behind(comm: _Comm, before: Sequence[_Comm]) -> Iterator[Statement]:
    """Yield who has launched less than most in a communicator; what one answer does not decide is a note."""
    behind: dict[Member, int] = {}
    ahead: set[Member] = set()
    told: list[str] = []
    counted = [*dict.fromkeys(kind for kind, _ in comm.counts if kind not in (_ERROR, _MISSING[0]))]
    for what in (it for it in counted if it != _STATUS):
        numbers = comm.of(what)
        low, top = min(numbers, key=int), max(numbers, key=int)
        few, far = numbers[low], comm.named[what, top]
        if low == top:
            continue
        has = "rank has" if few == 1 else "ranks have"
        told.append(f"{few} {has} launched {what} up to {low}, {numbers[top]} up to {top}")
        if 2 * few <= sum(numbers.values()):
            behind.update((it, max(int(top) - int(low), behind.get(it, 0))) for it in comm.named[what, low])
        else:
            ahead.update(far)
            told[-1] += f": {_called(far) or numbers[top]} ahead, and the others are behind"
    if len(states := comm.of(_STATUS)) > 1:
        told.append(", ".join(f"{count} {state}" for state, count in states.items()))
    words = f"{'; '.join(told)} (communicator {comm.name}{f' of {comm.size}' * (comm.size > 0)})"
    odd = [one for one in behind if one in ahead]
    is_same = all(one.of(what) in ({}, comm.of(what)) for one in before for what in counted)
    if told and not is_same:
        yield _note(f"the counts moved between two answers of RAS, so the job goes on: {words}")
    elif odd:
        yield _statement("mismatch", f"{_called(odd)} called something else than most: {words}", odd, "ras-behind")
    elif behind:
        words = f"{_called([*behind])} behind: {words}"
        one = _statement("never-arrived", words, [*behind], "ras-behind", phrases.RAS["look"])
        is_sure = before or max(behind.values()) > 1
        yield one if is_sure else one._replace(words=words + phrases.RAS["again"], text=words, weight=phrases.NOTE)
    elif told:
        yield _note(f"{words}{'' if before else phrases.RAS['again']}")


def _note(words: str) -> Statement:
    return Statement("", words, "", weight=phrases.NOTE, key="ras")


def _statement(cause: str, words: str, members: Sequence[Member], key: str, do: str = "") -> Statement:
    ranks = tuple(sorted({one.rank for one in members if one.rank is not None}))
    names = tuple(gate.line(one.process) for one in members if one.pid)
    return Statement(cause, gate.line(words), "", ranks, names, key=key, do=do)


def _called(members: Sequence[Member]) -> str:
    """Return members as a sentence has them: ``rank 1 (pid 60004 on 10.0.0.13)``."""
    shown = []
    for one in members[:_SHOWN]:
        within = "" if one.within is None else f"rank {one.within} of its communicator"
        told = within if one.rank is None else f"rank {one.rank}"
        shown.append(f"{told} ({one.process})" if told and one.pid else told or one.process)
    return ", ".join(shown) + (f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else "")


def recognizes(head: bytes) -> bool:
    """Return whether a file that begins so is RAS's JSON, also below what its server says before."""
    return b'"communicators"' in head


def read(stream: BufferedIOBase, name: str) -> Iterator[Rank]:
    """Yield what JSON says. Raises ValueError if it says nothing, and what the stream raises after that."""
    reader, (data, broken) = Reader(), whole(stream)
    reader.json(data.decode(errors="replace"), f"{name}:1")
    if not (said := tuple(reader.statements())):
        raise ValueError("not an answer of RAS")
    yield Rank(NOBODY, statements=said)
    if broken:
        raise broken
