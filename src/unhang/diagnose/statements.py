"""What a text says about ranks and processes: which ones it blames, which ones only wait, and for which cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from signal import Signals

from unhang.diagnose.evidence import SPEAKER, Message, Statement, kind_of, spoken
from unhang.diagnose.log_prefixes import Speaker
from unhang.diagnose.phrases import ABORTS, ABOUT, ENDED, ENDS, FOLLOWS, NOTE, OWN, PHRASES, WAITS, Phrase

NOBODY = "a process"
_MOST, _ALIKE, _TEXT, _RANKS = 4_000, 200, 500, 10_000
_RUN = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_OF_RAY = re.compile(r"\((?:([\w.:<>-]{1,80}?)(?:\[rank=\d+\]| rank=\d+)? )?pid=(\d{1,9})(?:, ip=([\w.:]{1,40}))?\)")
_OF_POD = re.compile(r"\[pod/([^/\]]{1,120})")
_OF_HOST = re.compile(r"([A-Za-z][\w.-]*):$")
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?(\w+) ?(?:\(([^)]{0,200})\) ?)?Rank (\d{1,7})\]")
_NEAR = re.compile(r"127\.|::1$|localhost$|0\.0\.0\.0$")  # whose it is nobody knows
_GAP = re.compile(r" +(?=[ :])")  # in a sentence: what a line did not tell
_PROCESS = re.compile(r"pid (\d+)(?: on (\S+))?$")
_LISTED = re.compile(r"(?m)^\s*(\d{1,7})!?: \[(.*?)\]?$")  # a rank, and what it lacks, in a line of a list
_STUCK, _FEW = ("watchdog-stuck", "heartbeat"), 3
_PROCESS_OF_RANK = "npu-process"  # says which rank a pid has, and nothing else
_TASKS = "see what each node has started: under Slurm, srun is to start as many tasks a node as it has devices"
_FACTS = ("running", "set-up", _PROCESS_OF_RANK)  # phrases that explain nothing by themselves
_DAY_S = 86_400.0
_STARVED = 1.5  # a watchdog looks every second or less: one that ran so many times its limit stood still itself


class Reader:
    """Reads the statements in the lines of a text."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[Speaker, Phrase, dict[str, str], str, float | None, str]] = {}
        self._alike: Counter[str] = Counter()
        self.open: dict[Speaker, list[tuple[Phrase, list[str], str, float | None]]] = {}  # what goes on in next lines

    def line(self, speaker: Speaker, text: str, source: str, at: float | None) -> None:
        """Take the next line, without what its launcher put before it."""
        left = self.open.pop(speaker, [])
        for _, lines, *_ in left:
            lines.append(text)
        left += [(phrase, [text], source, at) for phrase in PHRASES if phrase.word in text]
        for one in left:
            if len(one[1]) >= one[0].lines:
                self._take(speaker, *one)
        if left := [one for one in left if len(one[1]) < one[0].lines]:
            self.open[speaker] = left[:_ALIKE]

    def restart(self) -> None:
        """Forget what was said of processes, and not of devices: a job's next start does not mend these."""
        self._found = {key: one for key, one in self._found.items() if one[1].cause == "cuda-error"}
        self.open.clear()

    def _take(self, speaker: Speaker, phrase: Phrase, lines: list[str], source: str, at: float | None) -> None:
        """Take what a phrase says, once all its lines have come."""
        text = "\n".join(lines)
        if not (found := phrase.pattern.search(text)):
            return
        values = {name: value for name, value in found.groupdict().items() if value}
        values |= _unconnected(values)
        listed = _LISTED.findall(values.pop("listed", ""))
        for one in [{**values, "culprits": rank, "what": what} for rank, what in listed[:_ALIKE]] or [values]:
            key = (phrase.key, speaker, *one.items())
            if key not in self._found and self._alike[phrase.key] < _ALIKE and len(self._found) < _MOST:
                self._alike[phrase.key] += 1
                self._found[key] = speaker, phrase, one, source, at, text[:_TEXT]

    def statements(self, rank_of: Callable[[Speaker], int]) -> Iterator[Statement]:
        """Yield what was said, in the order of the lines; the rank of a speaker is ``SPEAKER`` if it is not known."""
        for speaker, left in self.open.items():
            for one in left:
                self._take(speaker, *one)
        self.open.clear()
        found = [*self._found.values()]
        pids = defaultdict[str, set[str]](set)
        for _, phrase, values, *_ in found:
            if phrase.key == _PROCESS_OF_RANK:  # of another host's, one pid may have two
                pids[values["own_pid"]].add(values["by"])
        said = []
        for speaker, _, values, *_ in found:
            rank, same = rank_of(speaker), pids.get(values.get("own_pid", ""), ())
            said.append((values, int(values.get("by") or (min(same) if rank == SPEAKER and len(same) == 1 else rank))))
        for (speaker, phrase, _, source, at, text), (values, by) in zip(found, _awaited(said)):
            if "by" in values and (group := _GROUP.search(text)) and group[1] != "0" and group[2] != "default_pg":
                by = rank_of(speaker)
                values = {**values, "within": values["by"]} if by == SPEAKER else values
            if phrase.key == "store-gone":
                values = {**next((it for _, one, it, *_ in found if one == phrase and it), {}), **values}
            yield _statement(phrase, values, by, name_of(speaker))._replace(source=source, at=at, text=text)


def _unconnected(values: Mapping[str, str]) -> dict[str, str]:
    """Return who is not in HCCL's list of those that came, if it is whole; of how many, it does not always say."""
    came = {*map(int, re.findall(r"\[(\d{16})\]", values.get("listed", "")))}
    missing = {*range(min(int(values.get("all", max(came, default=0))), _RANKS))} - came
    is_whole = came and missing and len(came) == int(values.get("came", 0))
    return {"culprits": ", ".join(map(str, sorted(missing))), "all": "its", **values} if is_whole else {}


def _awaited(said: Sequence[tuple[dict[str, str], int]]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield what lines tell, and who says them; whom one awaits is its culprit, unless that rank waits itself."""
    told = [
        (values.get("group", ""), values.get("mine", ""), values["awaited"], by)
        for values, by in said
        if "awaited" in values
    ]
    waiting = {(group, mine) for group, mine, *_ in told}
    known = {(group, mine): by for group, mine, *_, by in told if by != SPEAKER and mine}
    groups = {(number, group) for group, _, number, _ in told}
    taken = Counter(number for number, _ in groups) + Counter({str(by) for *_, by in told})
    for values, by in said:
        if number := values.get("awaited", ""):
            group, rank = values.get("group", ""), known.get((values.get("group", ""), number))
            size = f" of {values['all']}" if "all" in values else ""
            words = f"rank {number} of its group{size}{f' ({group})' if group else ''}"
            if rank is not None and str(rank) != number:
                words = f"rank {rank}, which is {words}"
            if (group, number) in waiting:
                words += ", which waits itself"
            elif rank is not None or taken[number] == 1:  # else another one has that number
                values = {**values, "culprits": number if rank is None else str(rank)}
            values = {**values, "awaited": words}
        yield values, by


def known(one: Statement, rank: int) -> Statement:
    """Return a statement whose speaker is known to be a rank."""
    if one.by != SPEAKER or rank < 0:
        return one
    words = one.words.replace(one.speaker or NOBODY, f"rank {rank}")
    if one.weight == OWN:
        return one._replace(culprits=(rank,), by=rank, words=words, processes=())
    culprits, waits = (tuple(rank if it == SPEAKER else it for it in ranks) for ranks in (one.culprits, one.waits))
    return one._replace(culprits=culprits, waits=waits, by=rank, words=words)


def weighed(said: Iterable[Statement]) -> list[Statement]:
    """Return statements in the order in which they explain a job, each with the weight that it has beside the others.

    What many say that one does is added. Those who give up are not to blame for what they do later, and that a process
    has ended tells something only where nothing else is known.
    """
    said = [one for one in said if one.weight != NOTE]
    first_end = next((one for one in said if one.weight == ENDS), None)
    if first_end and all(one.weight in (ENDS, FOLLOWS) for one in said):
        said[said.index(first_end)] = first_end._replace(weight=ABOUT)
    said = [one._replace(weight=FOLLOWS) if one.weight == ENDS else one for one in said]
    timed_out, first, lines = _timed_out(said)
    gave_up = [one.speaker for one in timed_out if one.speaker]
    waiting = {rank for one in timed_out for rank in one.waits}
    left = []
    for one in (*_alone(said), *_by_sizes(said), *_tasks(said), *_set_up(said), *said):
        is_later = first is None or one.at is None or one.at - int(dict(one.values).get("s", 0)) >= first
        stood_still = timed_out and one.key in _STUCK and (is_later or one.by in waiting)
        file, line = place(one)
        is_after = "many" in dict(one.values) and line > lines.get(file, line)  # those that gave up
        is_known = any(_are_one(it, other) for it in one.processes for other in gave_up)
        if not (stood_still or is_after or (one.cause == "process-died" and is_known)):
            left.append(one)
    order = {OWN: 0, ABOUT: 0, WAITS: 1, FOLLOWS: 2}
    return sorted((one for one in left if one.key not in _FACTS), key=lambda one: order[one.weight])


def agreed(said: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return statements: a note of one file that another has, too, such as a second answer of RAS, is sure."""
    notes = Counter(one.text for one in said if one.weight == NOTE and one.text)
    sure = {text for text, number in notes.items() if number > 1}
    return tuple(one._replace(weight=ABOUT, words=one.text) if one.text in sure else one for one in said)


def _timed_out(said: Iterable[Statement]) -> tuple[list[Statement], float | None, dict[str, int]]:
    """Return what says that ranks gave up, when the first did, and in each file the line of the first."""
    timed_out = [one for one in said if one.weight == WAITS]
    first = min((one.at for one in timed_out if one.at is not None), default=None)
    return timed_out, first, dict(reversed([place(one) for one in timed_out]))


def before_waiting(said: Sequence[Statement]) -> list[Statement]:
    """Return what explains a job by itself, and neither follows from ranks that gave up nor is a day older."""
    _, first, lines = _timed_out(said)

    def is_before(one: Statement) -> bool:
        if first is not None and one.at is not None:
            return first - _DAY_S < one.at < first
        file, line = place(one)
        return line < lines.get(file, line + 1)

    return [one for one in weighed(said) if one.weight in (OWN, ABOUT) and is_before(one)]


def _are_one(name: str, other: str) -> bool:
    """Return whether two names may be of one process: the pids are the same, and so are the hosts if both have one."""
    one, two = _PROCESS.search(name), _PROCESS.search(other)
    return name == other or bool(one and two and one[1] == two[1] and (one[2] or two[2]) == (two[2] or one[2]))


def place(one: Statement | Message) -> tuple[str, int]:
    """Return the file and the line where something is said; line 0 if it has none."""
    file, _, line = one.source.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def blamed(said: Iterable[Statement]) -> list[Statement]:
    """Return the statements that name whom to look at first: the best one that blames anybody, and those like it."""
    direct = [
        one for one in weighed(said) if one.weight in (OWN, ABOUT) if {*one.culprits} - {SPEAKER} or one.processes
    ]
    direct.sort(key=lambda one: one.cause == "never-arrived")  # that one has died says why it did not come
    return [one for one in direct if one.key == direct[0].key]


def _alone(said: Sequence[Statement]) -> Iterator[Statement]:
    """Yield whom a detailed debug run shows to be in another call than most, where three ranks or more say theirs."""
    newest = {one.by: one for one in said if one.key == "running"}
    groups = {dict(one.values)["group"] for one in said if one.key == "at-work"}
    if not newest and groups == {"0"}:  # other groups have the same numbers
        newest = {one.by: one for one in reversed(said) if one.key == "watchdog" and one.by != SPEAKER}
        numbers = {dict(one.values).get("number", "") for one in newest.values()}
        groups = {found[1] for one in newest.values() if (found := _GROUP.search(one.text))}
        if len(numbers) > 1 or len(groups) > 1:
            return
    calls: dict[str, list[int]] = {}
    for rank, one in newest.items():
        calls.setdefault(_call(one), []).append(rank)
    most, ranks = max(calls.items(), key=lambda item: len(item[1]), default=("", []))
    if len(newest) < _FEW or 2 * len(ranks) <= len(newest):
        return
    for call, others in calls.items():
        if call != most:
            words = f"{spoken(others)} {'runs' if len(others) == 1 else 'run'} {call}, and {spoken(ranks)} {most}"
            source = newest[others[0]].source
            yield Statement("mismatch", words, source, tuple(others), waits=tuple(ranks), key="alone")


def _by_sizes(said: Sequence[Statement]) -> Iterator[Statement]:
    """Yield where the sizes of a gather, which say how many ranks it has, differ, or one alone of these is missing."""
    calls: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for one in said:
        values = dict(one.values)
        if one.by != SPEAKER and "out" in values and kind_of(values["op"]) in ("all_gather", "reduce_scatter"):
            calls[_call(one)].setdefault(one.by, (int(values["size"]), int(values["out"])))
    groups = {dict(one.values)["group"] for one in said if one.key == "at-work"}
    for call, ranks in calls.items():
        sizes = {max(pair) // max(1, min(pair)) for pair in ranks.values()}
        if len(sizes) != 1 or len(ranks) < 2 or max(ranks) >= (size := sizes.pop()):
            continue
        alike = {pair: rank for rank, pair in ranks.items()}
        if len(alike) > 1:
            words = ", ".join(f"rank {rank} has {pair[0]} elements" for pair, rank in alike.items())
            yield Statement("mismatch", f"of {call}, {words}", "", key="sizes")
        elif size == len(ranks) + 1 > _FEW and len(calls) == 1 and groups == {"0"}:
            missing = {*range(size)} - {*ranks}
            words = f"{spoken(ranks)} of {size}, as its sizes say, wait in {call}, and {spoken(missing)} does not"
            yield Statement("never-arrived", words, "", tuple(missing), key="sizes")


def _tasks(said: Sequence[Statement]) -> Iterator[Statement]:
    """Yield where the ranks of a group of HCCL's timed out in different calls, each in its first."""
    groups = defaultdict[str, dict[str, str]](dict)
    for one in said:
        values = dict(one.values)
        if one.key == "hccl-task" and "mine" in values:
            groups[values["group"]].setdefault(values["mine"], _call(one))
    for group, calls in groups.items():
        if len({*calls.values()}) > 1:
            words = " and ".join(f"rank {mine} in {call}" for mine, call in [*calls.items()][:_FEW])
            yield Statement("mismatch", f"of the group {group}, {words} timed out", "", key="tasks")


def _set_up(said: Sequence[Statement]) -> Iterator[Statement]:
    """Yield who has begun the set-up of the job, by Lightning's lines, if these are not all."""
    told, came = [one for one in said if one.key == "set-up"], {one.by for one in said if one.by != SPEAKER}
    size = int(dict(told[-1].values)["all"]) if told else 0
    if 0 < len(came) < size and len(told) < _ALIKE:
        left = tuple({*range(min(size, _RANKS))} - came)
        words = f"{spoken(came)}, so {len(came)} of {size}, began their set-up, and nothing says so of {spoken(left)}"
        yield told[-1]._replace(words=words, do=_TASKS, key="few", culprits=left, weight=ABOUT)


def is_known(text: str) -> bool:
    """Return whether a line says something of which it is known what it means."""
    return any(one.word in text and one.pattern.search(text) for one in PHRASES)


def _call(one: Statement) -> str:
    values = dict(one.values)
    what = f"{kind_of(values['op'])} {values.get('number', '')}".strip()
    return f"{what} of {values['dtype']} [{values.get('shape', '')}]" if "dtype" in values else what


def _statement(phrase: Phrase, values: dict[str, str], by: int, speaker: str) -> Statement:
    values = {name.rstrip("2") if name not in _SECOND else name: value for name, value in values.items()}
    ranks = {name: ranks_in(values.get(name, "")) for name in ("culprits", "waits")}
    process, weight, cause = _process(values), phrase.weight, phrase.cause
    own = _process({name.removeprefix("own_"): value for name, value in values.items() if name.startswith("own_")})
    who = f"rank {by}" if by != SPEAKER else speaker or own or NOBODY
    who += f", rank {values['within']} of its group," if "within" in values else ""
    if not {values.get("code"), values.get("signal")}.isdisjoint(ABORTS):
        weight = ENDS
    milliseconds, limit = int(values.get("ms", 0)) or 1000 * int(values.get("s", 0)), int(values.get("limit", 0))
    if is_starved := 0 < _STARVED * limit < milliseconds:
        cause, weight = "starved", ABOUT
    peer = "" if _NEAR.match(it := values.get("peer", "")) else it
    processes: tuple[str, ...] = (process or peer,) if peer or (process and weight in (OWN, ABOUT, ENDS)) else ()
    if weight == OWN and not ranks["culprits"]:
        name = " of ".join(filter(None, (process, speaker or own)))
        ranks["culprits"], processes = ((by,), ()) if by != SPEAKER or not name else ((), (name,))
        if "own_pid" in values and "own_host" not in values:  # HCCL says both, and the pid is what a user looks for
            processes = (own,)
    if tasks := values.get("tasks", "").split():
        ranks["culprits"], processes = tuple(int(task.rpartition(":")[2]) for task in tasks), tuple(tasks)
    if phrase.weight in (WAITS, FOLLOWS) and not ranks["waits"]:
        ranks["waits"] = (by,)
    if "theirs" in values and values["mine"] == str(by):  # so its group begins as the job does
        ranks["culprits"] = ranks_in(values["theirs"])
    told = defaultdict(str, {**values, **{name: spoken(some) for name, some in ranks.items() if some}})
    told |= {"who": who, "process": process or who, "seconds": _time(milliseconds)}
    told["member"] = f" as rank {told['mine']} of {told['all']} of its group" if told["mine"] and told["all"] else ""
    told["at"] = f" at {told['store']}:{told['port']}" if told["store"] else ""
    told |= {name: kind_of(values[name]) for name in ("op", "op2") if name in values}
    code, number = told["code"], told["code"].removeprefix("-")
    signal = signal_of(told["signal"] if code == number else number)  # that of a signal is below zero
    told["exit"] = f"signal {number} ({signal})" if code != number else f"code {code}"
    told |= {name: f" {values[name]}" for name in _SECOND[:2] if name in values and phrase.key in _NUMBERED}
    words = _GAP.sub("", phrase.words.format_map(told)).rstrip(" :")[:_TEXT]
    if is_starved:
        words += f", at a limit of {_time(limit)}: its watchdog, or all of it, stood still meanwhile"
    do = ENDED.get(signal, phrase.do).format_map(told)
    return Statement(
        cause, words, "", ranks["culprits"], processes, ranks["waits"], by, speaker or own, None, weight, do, "",
        phrase.key, tuple(values.items()),
    )  # fmt: skip


_NUMBERED, _SECOND = ("watchdog", "fingerprints"), ("number", "number2", "op2", "size2")


def signal_of(text: str) -> str:
    """Return the name of a signal, by its name or number; empty if it is none."""
    try:
        return Signals(int(text)).name if text.isdecimal() else Signals[text].name
    except (KeyError, ValueError):
        return ""


def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks that a list has: ``4, 5-7``."""
    found = (range(int(first), int(last or first) + 1) for first, last in _RUN.findall(text))
    return tuple(rank for run in found if len(run) < _RANKS for rank in run)[:_RANKS]


def _process(values: dict[str, str]) -> str:
    """Return the name of the process that a line tells of: ``WorkerDict_0:3, pid 87687 on 10.0.0.5``."""
    numbers = [f"{name} {values[name]}" for name in ("device", "pid") if name in values]
    name = ", ".join(filter(None, (values.get("name", ""), *numbers)))
    return " on ".join(filter(None, (name, values.get("host", ""))))


def name_of(speaker: Speaker) -> str:
    """Return by what a launcher's prefix a user would recognise a process; empty if it tells nothing."""
    if found := _OF_RAY.search(speaker.launcher):
        return _process(dict(zip(("name", "pid", "host"), (it or "" for it in found.groups()))))
    if found := _OF_POD.search(speaker.launcher) or _OF_HOST.search(speaker.launcher):
        return found[1]
    return ""


def _time(milliseconds: int) -> str:
    return f"{milliseconds // 1000} s" if milliseconds >= 1000 else f"{milliseconds} ms" if milliseconds else ""
