"""Why a job hangs or ended, as a short list of codes, the best first, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from unhang.diagnose import stacks, where, who
from unhang.diagnose.evidence import SPEAKER, Job, Message, Statement, spoken
from unhang.diagnose.facts import Facts
from unhang.diagnose.phrases import ABOUT, CODES, FOLLOWS, OWN, WAITS
from unhang.diagnose.statements import is_known, place, weighed
from unhang.diagnose.who import Who

_SLOW = re.compile(r"(?i)save|checkpoint|evaluat|validat|download|preprocess|tokeniz|_first$|load_state|compile")
_RAISED = re.compile(r"[\w.]*\w(?:Error|Exception)\b")
_LOADER = re.compile(r"torch/utils/data/|dataloader|data/iterators")
_SAVES = re.compile(r"(?i)save|checkpoint")
_LOST = re.compile(r"(?i)connection (?:reset|closed|was likely closed)|broken pipe")
"""In an error of a rank that did not wait for long: its peer has gone."""
_LIMIT = "raise the limit of that group (`init_process_group(timeout=...)`, --distributed-timeout-minutes)"
_FIRST = "; it is the first call of its group, so see, too, whether NCCL came up between all hosts (NCCL_DEBUG=INFO)"
_APART = (
    "compare their GPUs in `nvidia-smi`, and look for an Xid in `dmesg`: one whose power or utilisation is not that of "
    "the others is stuck; if all are alike, it is the network: run once with NCCL_DEBUG=INFO, and with "
    "NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1"
)
_RULES = {
    who.DEVICE: "slow-rank",
    who.TOGETHER: "slow-rank",
    who.HOST: "never-arrived",
    who.SILENT: "never-arrived",
    who.DISAGREES: "mismatch",
}
"""What a rule of the suspects' means, where no line says more."""
_SEEN = "see what holds it at that place: its frames are among where the ranks are"
"""What to do about a rank that did not come, and of which there is a stack."""
_SHOWN = 3


class Cause(NamedTuple):
    """Why a job hangs or ended."""

    code: str  # one of ``CODES``
    why: str
    do: str


def of(facts: Facts, first: Who) -> tuple[Cause, ...]:
    """Return the causes of a job's hang or end, the best first; none if nothing tells."""
    said = weighed(facts.job.statements)
    found: dict[str, Cause] = {}
    for one in [*_direct(facts, first, said)] or _indirect(facts, said):
        found.setdefault(one.code, one)
    return tuple(found.values())


def _direct(facts: Facts, first: Who, said: Sequence[Statement]) -> Iterator[Cause]:
    """Yield what explains a job: errors, what lines say, a long piece of work, and what a rule has found."""
    job, told = facts.job, [one for one in said if one.weight in (OWN, ABOUT)]
    yield from _errors(facts, first, said)
    yield from _of_statements(one for one in told if one.cause != "never-arrived")
    yield from _slow(job, said)
    yield from _of_statements(one for one in told if one.cause == "never-arrived")
    for one in () if first.why else [it for it in facts.meetings if it.differ][:1]:
        ranks, what = [it for it, op in one.operations.items() if op.kind], " and ".join(sorted(one.differ))
        yield Cause("mismatch", f"{job.called(ranks)} disagree on the {what} of a collective", CODES["mismatch"])
    if first.rule in _RULES:
        ranks, why = [*first.why], next(iter(first.why.values()))
        frames = [
            [frame for stack in job.ranks[it].stacks for frame in stack.frames] for it in ranks if it in job.ranks
        ]
        is_loading = any(_LOADER.search(frame.file) for own in frames for frame in own)
        code = "process-died" if "its process is" in why else "slow-rank" if is_loading else _RULES[first.rule]
        is_seen = code == "never-arrived" and len(frames) == len(ranks) and all(frames)
        yield Cause(code, f"{job.called(ranks)}: {why}", _SEEN if is_seen else CODES[code])


def _indirect(facts: Facts, said: Sequence[Statement]) -> Iterator[Cause]:
    """Yield what is known where nothing explains it: that ranks wait, or that a peer of theirs has gone."""
    waits = [one for one in said if one.weight == WAITS]
    yield from _of_waiting(facts, waits)
    lines = dict(reversed([place(one) for one in waits]))
    gone = [one for one in said if one.weight == FOLLOWS and (not waits or one.cause == "process-died")]
    yield from _of_statements(one for one in gone if not waits or place(one)[1] < lines.get(place(one)[0], 0))


def _of_statements(said: Iterable[Statement]) -> Iterator[Cause]:
    alike: dict[str, list[Statement]] = {}
    for one in said:
        alike.setdefault(one.cause, []).append(one)
    for code, same in alike.items():
        ranks: dict[tuple[str, bool], list[int]] = {}  # several that say the same
        for one in same:
            rest = one.words if " its " in one.words else one.words.removeprefix(f"rank {one.by} ")
            ranks.setdefault((rest, rest != one.words), []).append(one.by)
        words = [f"{spoken(of)} {rest}" if is_own else rest for (rest, is_own), of in ranks.items()]
        more = f" (and {len(words) - _SHOWN} more like this)" if len(words) > _SHOWN else ""
        do = next((one.do for one in same if one.do), CODES[code])
        yield Cause(code, f"{'; '.join(words[:_SHOWN])}{more}", do)


def _errors(facts: Facts, first: Who, said: Sequence[Statement]) -> Iterator[Cause]:
    """Yield that ranks, or processes of unknown rank, raised an error that no statement has."""
    lines: Iterable[Message] = (line for lines in facts.errors.values() for line in lines)
    lines = [*(lines if first.rule == who.FAILED else ()), *facts.strangers]
    lines = [line for line in lines if not is_known(line.text)]
    own = [line for line in lines if line.frames or _RAISED.match(line.text)]
    if own:
        whose = facts.job.called(first.why) if first.rule == who.FAILED else "a process"
        yield Cause("python-error", f"{whose} raised {own[0].text}", CODES["python-error"])
        return
    is_told = any(one.cause == "process-died" and one.weight != FOLLOWS for one in said)
    if first.why and not is_told and any(line.text.startswith("exitcode") for line in lines):
        yield Cause("process-died", f"{facts.job.called(first.why)} ended by itself", CODES["process-died"])


def _slow(job: Job, said: Sequence[Statement]) -> Iterator[Cause]:
    """Yield that ranks wait behind what one rank does for long, such as a save."""
    told = [(number, one.messages, one.stacks) for number, one in job.ranks.items()]
    for number, messages, spied in (*told, (SPEAKER, job.strangers, ())):
        waited = [line.frames for line in messages if not _LOST.search(line.text)]
        for frames in (*waited, *(stack.frames for stack in spied)):
            found = next((one for one in frames if _SLOW.search(one.function)), None)
            waits = next((one for one in frames if "torch/distributed/" in one.file), None)
            if found and waits:
                limit = next((f", {one.words}" for one in said if one.weight == WAITS and number in one.waits), "")
                at = f"{found.function} ({found.file}:{found.line})"
                who_waits = "a process" if number == SPEAKER else job.called([number])
                what = f"{who_waits} waits in {waits.function}, within {at}"
                is_save = _SAVES.search(found.function)
                do = f"{_LIMIT}, or save less, faster or asynchronously" if is_save else f"{_LIMIT}, or make it shorter"
                yield Cause("slow-rank", f"{what}: another rank is still at it{limit}", do)
                return


def _of_waiting(facts: Facts, said: Sequence[Statement]) -> Iterator[Cause]:
    """Yield that ranks wait, and that none of these is the one that did not come."""
    job = facts.job
    ranks = {rank for one in said for rank in one.waits if rank != SPEAKER}
    ranks |= {number for number, rank in job.ranks.items() if rank.waiting}
    if not (ranks or said):
        yield from _of_calls(facts)
        return
    kinds = sorted({one.kind for rank in job.ranks.values() for one in rank.waiting if one.kind})
    kind = f" in {', '.join(kinds)}" if kinds else ""
    told = f"{job.called(ranks)} wait{'s' * (len(ranks) == 1)}{kind}{f' ({said[0].words})' if said else ''}"
    if said and len(ranks) < 2:  # of a process of unknown rank, the traceback with which it gave up says more
        gave_up = [line.frames[0] for line in job.strangers if line.frames and is_known(line.text) and not ranks]
        told = said[0].words + "".join(f", in {one.function} ({one.file}:{one.line})" for one in gave_up[:1])
    numbers = {dict(one.values).get("number") for one in said}
    sizes = {job.size or 0, *(int(dict(one.values)["all"]) for one in job.statements if one.key == "set-up")}
    have_all_come = any(
        one.agrees and len(ranks) == len(one.waiting) > 1
        for one in facts.meetings
        if any(count.device for count in facts.counts.get(one.group.name, {}).values())
    )
    if have_all_come or len(ranks) == max(sizes) > 1 == len(numbers) == len(kinds):
        yield Cause("network", f"{told}: these are all ranks, and none is done", _APART)
        return
    first = _FIRST if numbers == {"1"} else ""
    others = "who else is in that group did not come, or runs another call"
    do = next((one.do for one in said if one.do), CODES["never-arrived"] + first)
    if len(ranks) > 1 == len(facts.meetings) and ranks >= job.ranks.keys() | job.spoken:
        do = f"{do}; if these are all ranks, {_APART}"
    yield Cause("never-arrived", f"{told}: {others}", do)


def _of_calls(facts: Facts) -> Iterator[Cause]:
    """Yield that all processes wait for others by their stacks, but those of Ray's that wait for the others' work."""
    job, calls = facts.job, facts.calls
    driven = {it for it in calls if where.is_idle(job.ranks[it]) or where.is_controller(job.ranks[it])}
    others = {number: call for number, call in calls.items() if number not in driven}
    inner = [where.waiting_stack(job.ranks[number]).native[:1] for number in others]
    is_own = all(it and stacks.native(it[0]) in (stacks.LOCK, stacks.PYTHON) for it in inner)  # no peer explains that
    if all(others.values()) and not is_own and not facts.goes_on:
        calls_in = [where.collectives(job.ranks[it]) or where.waiting_stack(job.ranks[it]).native for it in others]
        is_sent = all(any("recv" in name.lower() for name in names) for names in calls_in)
        who_else = "its sender, such as the stage before, did not send" if is_sent else "who is to come there did not"
        places = "; ".join([*dict.fromkeys(others.values())][:_SHOWN])
        told = f"{job.called(others)} wait{'s' * (len(others) == 1)} in {places}: {who_else}"
        yield Cause("never-arrived", told, CODES["never-arrived"])
