"""What errors say about ranks and processes: a row for each sentence of torch's, NCCL's, a launcher's, the kernel's.

The groups of a pattern have names. `culprits` and `waits` are ranks, as in `4, 5-7`; `by` is the rank that says it.
`pid`, `name` and `host` name a process that the line blames. The words for the reader may have all groups, and `{who}`:
the rank or process that says it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OWN, ABOUT, WAITS, FOLLOWS = "own", "about", "waits", "follows"
"""A process says it of itself; of others; that it waits; or what it says only since another has failed."""
_LIST = r"\d{1,7}(?:[, ]{1,3}\d{1,7}|-\d{1,7}){0,2000}"
_BY = r"(?:\[?Rank (?P<by>\d{1,7})\]?:? )?"
_AT = r"(?:(?P<host>[A-Za-z][\w.-]{0,80}):(?P<pid>\d{1,9}):\d{1,9} \[(?P<gpu>\d{1,3})\] )?.{0,200}?"
"""Who says a line of NCCL's."""
_PEER = r"\[?(?P<peer>[\w.:%-]{2,80}?)\]?(?:<\d{1,5}>|:\d{1,5}\b)"
_SHM = "look at /dev/shm (`df -h /dev/shm`; a container has `--shm-size`) and at the memory of the host (`dmesg`)"
_OOM = "look for `oom-kill` in `dmesg` of its node; give the job more memory of the host, or use less: fewer workers of loaders, less pinned or offloaded"


class Phrase(NamedTuple):
    """A sentence of which it is known what it means."""

    key: str
    """Its name in the tests."""
    cause: str
    word: str
    """Stands in each line that begins it: what is looked for first."""
    pattern: re.Pattern[str]
    words: str
    """For the reader."""
    weight: str
    do: str
    """What to do about it, where the cause's page says less."""
    lines: int
    """How many lines it may have."""


def _row(cause: str, weight: str, key: str, word: str, pattern: str, words: str, do: str = "", lines: int = 1) -> Phrase:
    return Phrase(key, cause, word, re.compile(pattern, re.DOTALL if lines > 1 else 0), words, weight, do, lines)


PHRASES = (
    # torch: barriers, collectives, stores
    _row("never-arrived", ABOUT, "barrier-missed", "failed to pass monitoredBarrier",
         rf"{_BY}Ranks? (?P<culprits>{_LIST}) failed to pass monitoredBarrier in (?P<ms>\d+) ?ms",
         "{who} says that {culprits} did not come to its monitored barrier within {seconds}"),
    _row("never-arrived", FOLLOWS, "barrier-reached", "successfully reached monitoredBarrier",
         r"Rank (?P<waits>\d{1,7}) successfully reached monitoredBarrier",
         "{waits} came to the monitored barrier; the error of rank 0 names who did not"),
    _row("never-arrived", ABOUT, "never-joined", "lagging ranks that caused this timeout",
         rf"ranks \[(?P<culprits>{_LIST})\] are the lagging ranks", "torch's report says that {culprits} never joined"),
    _row("mismatch", ABOUT, "lagging-joined", "joined but didn't finish collective",
         rf"\[(?P<culprits>{_LIST})\] joined but didn't finish collective #(?P<number>\d+)",
         "torch's report says that {culprits} joined collective {number} and did not finish it"),
    _row("never-arrived", ABOUT, "lagging-finished", "but didn't join collective",
         rf"\[(?P<culprits>{_LIST})\] finished collective #\d+, but didn't join collective #(?P<number>\d+)",
         "torch's report says that {culprits} did not join collective {number}"),
    _row("never-arrived", WAITS, "watchdog", "ran for ",
         rf"{_BY}Watchdog caught collective operation timeout: Work\w+\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<op>\w+).*?"
         r"Timeout\(ms\)=(?P<limit>\d+)\) ran for (?P<ms>\d+) milliseconds",
         "{who} waits in {op}{number}, and gave up after {seconds}"),
    _row("mismatch", ABOUT, "fingerprints", "Detected mismatch between collectives on ranks",
         r"Rank (?P<by>\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+),? ?)?"
         r"OpType=(?P<op>\w+).*?,? but Rank (?P<other>\d{1,7}) is running collective: CollectiveFingerPrint\("
         r"(?:SequenceNumber=(?P<number2>\d+),? ?)?OpType=(?P<op2>\w+)",
         "rank {by} runs {op}{number}, and rank {other} runs {op2}{number2}"),
    _row("rendezvous", ABOUT, "clients-joined", "clients joined",
         r"Timed out after (?P<s>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<all>\d+) clients joined",
         "{came} of {all} processes came to the store within {seconds}"),
    # processes that are gone
    _row("loader-died", OWN, "loader-killed", "is killed by signal",
         r"DataLoader worker \(pid (?P<child>\d+)\) is killed by signal: (?P<signal>[\w ]+)",
         "a worker of the data loader of {who}, pid {child}, was killed ({signal})", _SHM),
    _row("process-died", ABOUT, "ray-actor-died", "ActorDiedError",
         r"ActorDiedError.*?\n(?:.*?\n)?\s*pid: (?P<pid>\d+)\s+name: (?P<name>\S+)(?:\s+namespace: \S+)?(?:\s+ip: (?P<host>\S+))?",
         "Ray says that the actor {process} died", _OOM, lines=9),
    _row("process-died", ABOUT, "ray-worker-died", "A worker died or was killed",
         r"Worker IP address: (?P<host>\S+) .*?Worker PID: (?P<pid>\d+)", "Ray says that the worker {process} died", _OOM),
    # the network
    _row("network", ABOUT, "ib-completion", "Got completion from peer",
         rf"{_AT}NET/IB\w* ?: ?Got completion from peer {_PEER} with (?:status|error)[= ]?(?P<status>\d+).*?"
         r"vendor err (?P<vendor>\d+)",
         "{process}: its card's work with the peer {peer} failed, status {status}, vendor error {vendor}",
         "look at the cards and the cable between that host and {peer}: `ibstat`, counters, `dmesg` of both"),
)  # fmt: skip
"""In this order, each that matches a line says something of it."""
WORDS = tuple(dict.fromkeys(one.word.encode() for one in PHRASES))
"""What a line must have, that is to be looked at."""
