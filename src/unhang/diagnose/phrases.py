"""What errors say about ranks and processes: a row for each sentence of torch's, NCCL's, a launcher's, the kernel's.

The groups of a pattern have names. `culprits` and `waits` are ranks, as in `4, 5-7`; `by` is the rank that says it.
`pid`, `name` and `host` name a process that the line blames, `peer` the address of one, and `own_pid` and `own_host`
that which says it. The words for the reader may have all groups, and `{who}`: the rank or process that says it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OWN, ABOUT, WAITS, FOLLOWS, ENDS = "own", "about", "waits", "follows", "ends"
"""A process says it of itself; of others; that it waits; or what it says only since another has failed; or that one
has ended, which tells something only where no line says why."""
_LIST = r"\d{1,7}(?:[, ]{1,3}\d{1,7}|-\d{1,7}){0,2000}"
_BY = r"(?:\[?Rank (?P<by>\d{1,7})\]?:? )?"
_AT = r"(?:(?P<own_host>[A-Za-z][\w.-]{0,80}):(?P<own_pid>\d{1,9}):\d{1,9} \[\d{1,3}\] .{0,200}?)?"
"""Who says a line of NCCL's."""
_PEER = r"\[?(?:::ffff:)?(?P<peer>[\w.:%-]{2,80}?)\]?(?:<\d{1,5}>|:\d{1,5}\b(?!%|:\w))"
_STORE = r"remote=\[?(?:::ffff:)?(?P<store>[\w.:-]+?)\]?:(?P<port>\d{2,5})\b"
_CODE, _SIGNAL = r"-(?:4|6|7|8|9|11)\b", "SIG(?:ILL|ABRT|BUS|FPE|KILL|SEGV)"
"""What no launcher sends to stop a process: 1 mostly comes of another one's end."""
ABORTS = ("-6", "6", "SIGABRT")
"""Mostly its watchdog's: such an end tells as little as one of ``ENDS``."""
_SHM = "look at /dev/shm (`df -h /dev/shm`; a container has `--shm-size`), and at the memory of the host in `dmesg`"
_OOM = (
    "look for `oom-kill` in `dmesg` of its node; give the job more memory of the host, or let it use less (workers of "
    "loaders, pinned and offloaded tensors)"
)
_CRASH = "run again with PYTHONFAULTHANDLER=1, which prints where it was, and look at its core with gdb"
ENDED = {
    "SIGHUP": "its terminal was closed: start it under tmux, nohup or the batch system",
    "SIGKILL": _OOM, "SIGBUS": _SHM, "SIGSEGV": _CRASH, "SIGILL": _CRASH, "SIGFPE": _CRASH,
    "SIGABRT": "read what stands above in its own log: mostly its watchdog, an assertion, or an uncaught error of C++",
}  # fmt: skip
"""What to do about a process that a signal has ended."""
_LOCAL = "the card may not use that memory: see NCCL_NET_GDR_LEVEL=LOC (no GPUDirect), nvidia_peermem, `ulimit -l`"
_CARDS = "look at the cards and the cable between these hosts: `ibstat`, their counters, `dmesg` of both"
_REACH = "look whether each host reaches that address and port: its name, a firewall, NCCL_SOCKET_IFNAME, MASTER_ADDR"
_GPU = "look at that GPU: `nvidia-smi -q`, `dmesg | grep -i xid`; take its node out of the job if it comes again"
_DUMB = "run again with CUDA_LAUNCH_BLOCKING=1 to see which call it is: the line above is often a later one"
_INDEX = f"an index is out of range, mostly a token or a label beyond its table: {_DUMB}"


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


def _row(
    cause: str, weight: str, key: str, word: str, pattern: str, words: str, do: str = "", lines: int = 1
) -> Phrase:
    return Phrase(key, cause, word, re.compile(pattern, re.DOTALL if lines > 1 else 0), words, weight, do, lines)


_TORCH = (
    _row("never-arrived", ABOUT, "barrier-missed", "failed to pass monitoredBarrier",
         rf"{_BY}Ranks? (?P<culprits>{_LIST}) failed to pass monitoredBarrier in (?P<ms>\d{{1,12}}) ?ms",
         "{who} says that {culprits} did not come to its monitored barrier within {seconds}"),
    _row("never-arrived", FOLLOWS, "barrier-reached", "successfully reached monitoredBarrier",
         r"Rank (?P<waits>\d{1,7}) successfully reached monitoredBarrier",
         "{waits} came to the monitored barrier; the error of rank 0 names who did not"),
    _row("never-arrived", ABOUT, "barrier-timed-out", "timed out in monitoredBarrier",
         r"Rank (?P<waits>\d{1,7}) timed out in monitoredBarrier(?: after (?P<ms>\d{1,12}) ?ms)?",
         "{waits} timed out in the monitored barrier"),
    _row("never-arrived", ABOUT, "never-joined", "lagging ranks that caused this timeout",
         rf"ranks \[(?P<culprits>{_LIST})\] are the lagging ranks", "torch's report says that {culprits} never joined"),
    _row("mismatch", ABOUT, "lagging-joined", "joined but didn't finish collective",
         rf"\[(?P<culprits>{_LIST})\] joined but didn't finish collective #(?P<number>\d+)",
         "torch's report says that {culprits} joined collective {number}, and did not finish it"),
    _row("never-arrived", ABOUT, "lagging-finished", "but didn't join collective",
         rf"\[(?P<culprits>{_LIST})\] finished collective #\d+, but didn't join collective #(?P<number>\d+)",
         "torch's report says that {culprits} did not join collective {number}"),
    _row("never-arrived", WAITS, "watchdog", "Watchdog caught collective operation timeout",
         rf"{_BY}Watchdog caught collective operation timeout: Work\w+\((?:SeqNum=(?P<number>\d{{1,18}}), )?OpType=(?P<op>\w+)"
         r"(?:, NumelIn=(?P<size>\d{1,18}), NumelOut=(?P<out>\d{1,18}))?.*?Timeout\(ms\)=(?P<limit>\d{1,12})\) ran for (?P<ms>\d{1,12}) milliseconds",
         "{who} waits in {op}{number}, and gave up after {seconds}"),
    _row("never-arrived", WAITS, "at-work", "last completed",
         r"\[PG (?:ID \d+ PG GUID )?(?P<group>\w+) ?(?:\([^)]{0,200}\) ?)?Rank (?P<by>\d{1,7})\].{0,80}?(?:at work(?: sequence id)?|NCCL work): (?P<number>\d+)",
         "{who} waits in collective {number} of group {group}"),
    _row("starved", OWN, "heartbeat", "Heartbeat monitor timed out", r"Heartbeat monitor timed out",
         "{who}: its watchdog stood still, as where a call of CUDA's or the interpreter's lock is held",
         "take its native stack (`py-spy dump --native`)"),
    _row("starved", OWN, "watchdog-stuck", "watchdog got stuck",
         r"watchdog got stuck for (?P<s>\d{1,9}) ?seconds",
         "{who}: its watchdog stood still for {seconds}, as where a call of CUDA's or the interpreter's lock is held",
         "take its native stack (`py-spy dump --native`)"),
    _row("never-arrived", FOLLOWS, "dump-signal", "Received a dump signal due to a collective timeout from",
         r"collective timeout from +rank (?P<waits>\d{1,7})\b", "{waits} was the first whose collective timed out"),
    _row("never-arrived", FOLLOWS, "another-timed-out", "dump signal from another rank",
         r"dump signal from another rank|global timeout from another rank", "{who} was told that another rank timed out"),
    _row("mismatch", ABOUT, "fingerprints", "Detected mismatch between collectives on ranks",
         r"Rank (?P<by>\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+),? ?)?"
         r"OpType=(?P<op>\w+)(?:, TensorShape=(?P<size>\[[\d, ]*\]))?.*?,? but Rank (?P<other>\d{1,7}) is running collective: CollectiveFingerPrint\("
         r"(?:SequenceNumber=(?P<number2>\d+),? ?)?OpType=(?P<op2>\w+)(?:, TensorShape=(?P<size2>\[[\d, ]*\]))?",
         "rank {by} runs {op}{number} {size}, and rank {other} runs {op2}{number2} {size2}"),
    _row("mismatch", ABOUT, "running", "Running collective: CollectiveFingerPrint",
         r"\[Rank (?P<by>\d{1,7})\] Running collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+),? ?)?"
         r"OpType=(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[\d, ]*)\], TensorDtypes=(?P<dtype>\w+))?",
         "rank {by} runs {op} {number}"),
    _row("mismatch", ABOUT, "gloo-sizes", "op.preamble.length <= op.nbytes",
         r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<had>\d+)",
         "{who} got {got} bytes where it expected at most {had}: ranks disagree on a size, or on which call this is"),
    _row("mismatch", ABOUT, "inconsistent-model", "appears not to match", r"Rank (?P<by>\d{1,7})\]?:? params\[(?P<index>\d+)\]"
         r" in this process with sizes .{0,200} appears not to match .{0,80}process (?P<other>\d+)",
         "the model of rank {by} differs from that of rank {other}, from parameter {index} on"),
    _row("mismatch", ABOUT, "inconsistent-parameters", "expects same model across all ranks",
         r"Rank (?P<other>\d{1,7}) has (?P<had>\d+) params, while rank (?P<by>\d{1,7}) has inconsistent (?P<got>\d+)",
         "the model of rank {by} has {got} parameters, that of rank {other} {had}",
         "see what each of them builds; where one has 0, NCCL brought nothing between them: try NCCL_P2P_DISABLE=1"),
    _row("mismatch", OWN, "unused-parameters", "Expected to have finished reduction in the prior iteration",
         r"Expected to have finished reduction in the prior iteration",
         "parameters of {who} got no gradient, for which DistributedDataParallel waits",
         "see which these are with TORCH_DISTRIBUTED_DEBUG=DETAIL; use all of them, or find_unused_parameters=True"),
    _row("never-arrived", WAITS, "gloo-waited", "Timed out waiting",
         r"Timed out waiting (?P<ms>\d{1,12}) ?ms for (?P<op>recv|send) operation", "{who} waits for a {op}, and gave up after {seconds}"),
    _row("never-arrived", WAITS, "gloo-timeout", "aused pair closure", r"(?:Application timeout|Read timeout|Write timeout)",
         "{who} gave up waiting for another rank"),
    _row("process-died", FOLLOWS, "gloo-closed", " by peer", rf"(?:Connection closed by peer|(?:Read|Write) error|writev) (?:{_PEER})?",
         "{who} lost its peer {peer}: that one has ended, or gave up"),
    _row("network", ABOUT, "gloo-connect", "Gloo connectFullMesh failed", rf"connectFullMesh failed with .{{0,300}}?(?:remote=|with ){_PEER}",
         "{who} cannot connect to {peer}", _REACH),
    _row("never-arrived", ABOUT, "unique-id", "is setting up NCCL communicator",
         r"\[(?P<mine>\d{1,7})\] is setting up NCCL communicator and \w+ ncclUniqueId from \[(?P<theirs>\d{1,7})\].*?got error: .{0,20}[Tt]imeout",
         "{who}, rank {mine} of its group, is in a call to which rank {theirs} of that group has not come"),
    _row("process-died", FOLLOWS, "unique-id-lost", "is setting up NCCL communicator",
         r"\[(?P<mine>\d{1,7})\] is setting up NCCL communicator and \w+ ncclUniqueId from \[(?P<theirs>\d{1,7})\].*?got error: (?P<error>(?!.{0,20}[Tt]imeout)[\w ]{3,60})",
         "{who}, rank {mine} of its group, lost the store or rank {theirs} of that group ({error}): that one has ended, or its host is out of reach"),
    _row("never-arrived", ABOUT, "store-missing", "barrier failed -- missing ranks", rf"missing ranks: \[?(?P<culprits>{_LIST})",
         "{who} says that {culprits} did not come to a barrier in the store"),
    _row("rendezvous", ABOUT, "store-barrier", "in store based barrier",
         r"(?P<what>Timed out).{0,80}? in store based barrier on rank:? (?P<by>\d{1,7}), for key: \S+ \(world_size=(?P<all>\d+), \w+=(?P<came>\d+)",
         "{came} of {all} processes came to the set-up of a group, where rank {by} waited",
         "where fewer came, see what the others do; where more, a port or a file of the store is left from before, or two jobs share it"),
    _row("rendezvous", FOLLOWS, "store-barrier-waits", "Waiting in store based barrier",
         r"barrier to initialize process group for rank: (?P<by>\d{1,7}), key: \S+ \(world_size=(?P<all>\d+), \w+=(?P<came>\d+)",
         "{came} of {all} processes came to the set-up of a group, where rank {by} waits"),
    _row("rendezvous", ABOUT, "clients-joined", "clients joined",
         r"Timed out after (?P<s>\d{1,9}) seconds waiting for clients\. (?P<came>\d+)/(?P<all>\d+) clients joined",
         "{came} of {all} processes came to the store within {seconds}"),
    _row("rendezvous", ABOUT, "client-timeout", "while trying to connect to",
         r"client socket has timed out after (?P<s>\d{1,9}) ?(?:s\b|seconds|000ms) while trying to connect to \(?(?P<store>[\w.:-]+?)[,: ]{1,2}(?P<port>\d{2,5})\b",
         "{who} did not reach the store at {store}, port {port}, within {seconds}", _REACH),
    _row("rendezvous", ABOUT, "client-old", "Original timeout was", r"connect\(\) timed out. Original timeout was (?P<ms>\d{1,12}) ms",
         "{who} did not reach the store within {seconds}", _REACH),
    _row("rendezvous", ABOUT, "client-failed", "has failed to connect to any network address",
         r"failed to connect to any network address of \(?(?P<store>[\w.:-]+?),? ?(?P<port>\d{2,5})\)",
         "{who} cannot connect to the store at {store}, port {port}", _REACH),
    _row("rendezvous", ABOUT, "client-tcp", "TCP client failed to connect/validate", r"to host (?P<store>[\w.:%-]+?):(?P<port>\d{2,5}) - (?:timed out|retrying)", "{who} cannot connect to the store at {store}, port {port}", _REACH),
    _row("rendezvous", ABOUT, "port-in-use", "ddress already in use",
         r"(?:(?:port:? ?|bind to \S{2,60}:|socket on \S{2,60}:)(?P<port>\d+).{0,200}?)?(?i:address already in use)", "the port {port} of the store is in use: another job, or one left from before",
         "see who has it with `ss -ltnp`; end that, or give this job another port (--master-port, --rdzv-endpoint)"),
    _row("rendezvous", ABOUT, "store-wait", "imeout after", r"(?:[Ww]ait|barrier) timeout after (?P<ms>\d{1,12}) ?ms, keys?: (?P<keyname>\S+)",
         "{who} waited {seconds} in the store for {keyname}, which another rank was to write"),
    _row("rendezvous", ABOUT, "rendezvous-timeout", "RendezvousTimeoutError", r"RendezvousTimeoutError",
         "the nodes did not all come to the rendezvous in time", _REACH),
    _row("rendezvous", ABOUT, "rendezvous-connection", "RendezvousConnectionError", r"RendezvousConnectionError",
         "{who} lost, or never had, the node of the rendezvous", "see whether the node of the rendezvous has ended; " + _REACH),
    _row("rendezvous", ABOUT, "rendezvous-closed", "RendezvousClosedError", r"RendezvousClosedError",
         "{who} came to a rendezvous that is closed: another agent of the job has ended", "begin with the log of the agent that ended first; start all anew, with another --rdzv-id"),
    _row("process-died", FOLLOWS, "store-gone", "ecv, got 0 bytes", rf"(?:{_STORE}.{{0,80}})?ecv, got 0 bytes", "{who} lost the store{at}: rank 0 or the agent, which had it, has ended"),
    _row("process-died", FOLLOWS, "store-broken", " failed on SocketImpl(", rf"(?:send|recv)\w* failed on SocketImpl\(.{{0,200}}?{_STORE}\): (?!.{{0,10}}ecv, got 0 bytes)", "{who} lost the store{at}: rank 0 or the agent, which had it, has ended"),
    _row("rendezvous", FOLLOWS, "set-up", "GLOBAL_RANK: ", r"GLOBAL_RANK: (?P<by>\d{1,7}), MEMBER: \d{1,7}/(?P<all>\d{1,7})", "rank {by} of {all} begins its set-up"),
    _row("process-died", FOLLOWS, "heartbeat-lost", "has failed to send a keep-alive heartbeat",
         r"node '(?P<host>[\w.-]+?)(?:_\d+){0,2}' has failed to send a keep-alive heartbeat", "{host} lost the node of the rendezvous"),
)  # fmt: skip
_NCCL = (
    _row("network", ABOUT, "ib-local", "ot completion from peer",
         rf"{_AT}NET/IB\w* ?: ?Got completion from peer (?P<far>\S+?)<\d+> with (?:status|error)[= ]?4\b",
         "{who}: its card's work with the peer {far} failed, status 4: a local protection error", _LOCAL),
    _row("network", ABOUT, "ib-completion", "ot completion from peer",
         rf"{_AT}NET/IB\w* ?: ?Got completion from peer {_PEER} with (?:status|error)[= ]?(?P<status>(?!4\b)\d+).*?vendor err (?P<vendor>\d+)",
         "{who}: its card's work with the peer {peer} failed, status {status}, vendor error {vendor}", _CARDS),
    _row("network", OWN, "ib-event", "sync ", rf"{_AT}NET/IB ?: ?(?P<card>\S+) .{{0,20}}sync (?:fatal event.*?:|event ?:) ?(?P<event>.{{1,80}})", "{who}: its card {card} reports {event}", _CARDS),
    _row("network", ABOUT, "ibv-call", "Call to ibv_", rf"{_AT}Call to (?P<call>ibv_\w+) failed(?: with error (?P<error>.{{1,80}}))?", "{who}: its card failed in {call}: {error}", _CARDS),
    _row("network", ABOUT, "nccl-connect", "onnect to ",
         rf"{_AT}[Cc]onnect to {_PEER}.{{0,60}}?(?:failed|returned|timed out)\W{{0,4}}(?P<error>[\w .()-]{{3,60}})?",
         "{who} cannot connect to {peer}: {error}", _REACH),
    _row("process-died", FOLLOWS, "nccl-reset", "Call to ", rf"{_AT}WARN .{{0,60}}?Call to (?P<call>\w+) .{{0,20}}?(?:{_PEER} )?failed ?: (?P<error>Connection reset by peer|Broken pipe)",
         "{who} lost its peer {peer} ({error}): that one has ended, or the network broke"),
    _row("network", ABOUT, "nccl-lost", "Call to ", rf"{_AT}WARN .{{0,60}}?Call to (?P<call>\w+) .{{0,20}}?(?:{_PEER} )?failed ?: (?P<error>Connection timed out|No route to host|Network is unreachable)", "{who} lost its peer {peer}: {error}", _REACH),
    _row("mismatch", ABOUT, "nccl-truncated", "truncated :", rf"{_AT}NCCL WARN .{{0,60}}?[Mm]essage truncated : receiv(?:ed|ing) (?P<got>\d+) bytes instead of (?P<had>\d+)",
         "{who} got {got} bytes where it expected {had}: ranks disagree on a size, on which call this is, or on a setting of NCCL's"),
    _row("network", ABOUT, "nccl-retry", "onnect returned ", rf"{_AT}[Cc]onnect returned (?P<error>[\w ]{{3,40}}), retrying", "{who} cannot connect: {error}", _REACH),
    _row("rendezvous", ABOUT, "rank-twice", "has already checked in", r"rank (?P<culprits>\d+) of (?P<all>\d+) ranks has already checked in",
         "two processes say that they are {culprits} of {all}", "see RANK and --node-rank of each node: two have the same, or two jobs share a port"),
    _row("process-died", FOLLOWS, "nccl-closed", "onnection closed by remote peer", rf"{_AT}[Cc]onnection closed by remote peer (?:{_PEER})?", "{who} lost its peer {peer}: that one has ended, or its host is gone"),
    _row("process-died", FOLLOWS, "nccl-remote", "remote process exit", r"(?:remote process exited|remote process exiting prematurely)",
         "{who} lost a peer: another process has ended, or the network broke"),
    _row("process-died", FOLLOWS, "service-closed", "Connection closed by localRank", r"Connection closed by localRank (?P<local>\d+)",
         "the process with local rank {local} has ended"),
    _row("network", ENDS, "nccl-system", "system error", r"NCCL error.{0,200}unhandled system error", "a call of NCCL's to the system failed for {who}",
         "run again with NCCL_DEBUG=WARN, which says which call and which peer; /dev/shm may be full, or an interface or a limit (`ulimit -n`, `-l`) is too small"),
    _row("network", ABOUT, "nccl-plugin", "NCCL WARN NET/", rf"{_AT}NCCL WARN (?P<error>NET/(?:OFI|Plugin|UCX) .{{3,120}})", "{who}: {error}", "see whether the provider of that plugin works on that host (`fi_info`, `ucx_info -d`), and fits NCCL's version"),
    _row("network", ABOUT, "ucx-retries", "ransport retry count exceeded", r"\[(?P<own_host>[\w.-]+):(?P<own_pid>\d+):.{0,80}ransport retry count exceeded on (?P<card>[\w:]+)", "{who}: its card {card} got no answer from its peer", _CARDS),
    _row("network", ABOUT, "no-interface", "o socket interface found", r"[Nn]o socket interface found",
         "{who} has no network interface that NCCL may use", "see NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME on that host"),
    _row("gpu-memory", OWN, "nccl-memory", "NCCL WARN", rf"{_AT}NCCL WARN .{{0,80}}?(?:Failed to CUDA [mc]alloc|Cuda failure (?:2 )?'out of memory')",
         "{who} had no memory on its GPU left for NCCL's buffers",
         "leave some memory of the GPU free for NCCL (its buffers come with the first collective of a group)"),
    _row("process-died", OWN, "nccl-shm", "/dev/shm/nccl-", rf"{_AT}(?:[Ee]rror while creating shared memory segment|[Ee]rror: failed to extend|posix_fallocate) ?/?\S*", "{who} found no room in /dev/shm for NCCL", _SHM),
    _row("cuda-error", OWN, "nccl-cuda", "Cuda failure", rf"{_AT}Cuda failure (?P<number>\d+ )?'(?P<error>(?!out of memory|device-side|uncorr|peer acc)[^']{{1,120}})'", "{who}: CUDA failed: {error}", _GPU),
    _row("mismatch", ABOUT, "nccl-mismatched", "Mismatched collective detected", r"your collective calls at and around rank (?P<culprits>\d{1,7})", "NCCL says that the collectives of ranks differ at and around {culprits}"),
    _row("rendezvous", ABOUT, "duplicate-gpu", "Duplicate GPU detected", r"Duplicate GPU detected ?: ?rank (?P<culprits>\d+ and rank \d+)",
         "{culprits} use the same GPU", "give each rank its own: LOCAL_RANK, CUDA_VISIBLE_DEVICES, set_device"),
)  # fmt: skip
_DEVICE = (
    _row("gpu-memory", OWN, "cuda-memory", "out of memory", r"(?:CUDA|HIP|NPU|XPU) (?:error: )?out of memory(?:\. Tried to allocate (?P<size>[\d.]+ \w+))?"
         r"(?:.{0,20}GPU (?P<gpu>\d+))?", "{who} had no memory left on its GPU",
         "see whether it alone has more to do: a longer sequence, another stage, a process that was left on that GPU"),
    _row("cuda-error", OWN, "cuda-error", "CUDA error", r"CUDA error: (?P<error>(?!out of memory|device-side|uncorr|CUDA-capable device|peer acc)[\w ,'./-]{3,120})", "{who}: CUDA failed: {error}", _DUMB),
    _row("cuda-error", OWN, "device-assert", "device-side assert triggered", rf"{_AT}device-side assert triggered", "{who}: CUDA failed: device-side assert triggered", _INDEX),
    _row("cuda-error", OWN, "device-busy", "busy or unavailable", r"CUDA-capable device\S* \S+ busy or unavailable", "{who}: its GPU is busy or unavailable",
         "see what else is on it with `nvidia-smi`, and whether its compute mode is exclusive (`nvidia-smi -q -d COMPUTE`)"),
    _row("cuda-error", OWN, "peer-access", "peer access is not supported", rf"{_AT}peer access is not supported", "{who}: peer access is not supported between its GPUs", "run with NCCL_P2P_DISABLE=1; `nvidia-smi topo -p2p r` shows which GPUs have it"),
    _row("cuda-error", OWN, "cublas", "_STATUS_", r"(?P<error>C(?:UBLAS|UDNN|USOLVER|UFFT)_STATUS_\w+)", "{who}: a library of CUDA's failed: {error}", _DUMB),
    _row("cuda-error", ABOUT, "xid", "NVRM: Xid", r"NVRM: Xid \(PCI:(?P<name>[\w:.]+)\): (?P<xid>\d+)(?:, pid='?(?P<pid>\d+)'?)?(?:, name=[^,]{1,60})?, (?P<error>[^,]{1,80})",
         "the driver reports Xid {xid} of the GPU {name}: {error}", _GPU),
    _row("cuda-error", ABOUT, "off-the-bus", "NVRM: The NVIDIA GPU", r"GPU (?P<name>[\da-f]{4,8}:[\w:.]+).{0,200}fallen off the bus",
         "the GPU {name} has fallen off the bus", _GPU, lines=3),
    _row("cuda-error", ABOUT, "gpu-lost", "Unable to determine the device handle", r"device handle for GPU ?(?P<name>[\da-f]{4,8}:[\w:.]+\d)",
         "the GPU {name} does not answer", _GPU),
    _row("cuda-error", OWN, "fabric-manager", "system not yet initialized", r"system not yet initialized", "{who}: CUDA does not come up on its host",
         "see `systemctl status nvidia-fabricmanager` there: its version must be the driver's"),
    _row("cuda-error", OWN, "ecc", "ncorrectable ECC", rf"{_AT}[Uu]ncorrectable ECC error", "{who}: its GPU's memory is damaged (uncorrectable ECC error)", "take that GPU out of the job, and reset or replace it: `nvidia-smi -q -d ECC,ROW_REMAPPER`"),
    _row("cuda-error", ABOUT, "gpu-hardware", "ncorrectable hardware error", r"(?P<name>[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d): .{0,20}uncorrectable hardware error", "the driver reports an uncorrectable hardware error of the GPU {name}", _GPU),
)  # fmt: skip
_DIED = (
    _row("loader-died", OWN, "loader-killed", "is killed by signal", r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>[\w ]+)", "{who}: a worker of its data loader, pid {pid}, was killed ({signal})", _SHM),
    _row("loader-died", OWN, "loader-exited", "exited unexpectedly", r"DataLoader worker \(pid\(?s?\)? (?P<pid>[\d, ]+)\) exited unexpectedly", "{who}: a worker of its data loader, pid {pid}, ended unexpectedly", "its own error stands above; else " + _SHM),
    _row("loader-died", OWN, "map-died", "abruptly died", r"[Oo]ne of the subprocesses has abruptly died", "{who}: a worker that prepares its data has died", _OOM),
    _row("loader-died", OWN, "loader-bus", "Unexpected bus error encountered in worker", r"Unexpected bus error", "{who}: a worker of its data loader found no room in shared memory", _SHM),
    _row("slow-rank", OWN, "loader-slow", "DataLoader timed out", r"DataLoader timed out after (?P<s>\d{1,9})", "the data loader of {who} gave nothing within {seconds}",
         "see what its workers wait for: storage, a lock, a sample without end"),
    _row("process-died", ABOUT, "elastic-table", "(local_rank:",
         rf"rank +: (?P<culprits>\d{{1,7}}) \(local_rank: \d+\)\s+exitcode +: (?P<code>(?!-6){_CODE}) \(pid: (?P<process_id>\d+)\)",
         "torchrun says that {culprits} (pid {process_id}) ended with {exit}", lines=2),
    _row("process-died", ENDS, "elastic-root", "first observed failure",
         r"rank +: (?P<culprits>\d{1,7}) \(local_rank: \d+\)\s+exitcode +: (?P<code>-6) \(pid: (?P<process_id>\d+)\)",
         "torchrun says that {culprits} (pid {process_id}) was the first to end, with {exit}", lines=7),
    _row("process-died", ABOUT, "elastic-failed", "failed (exitcode:",
         rf"failed \(exitcode: (?P<code>{_CODE})\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
         "torchrun says that {process}, of local rank {local}, ended with {exit}"),
    _row("process-died", FOLLOWS, "elastic-signal", " death signal", r"Received (?:Signals\.\w+ )?(?P<signal>\d+) death signal",
         "the launcher was told to end, by signal {signal}: something outside of the job stopped it",
         "see who sent it: the batch system, its limit of time, or a preemption"),
    _row("process-died", ABOUT, "deepspeed-exit", "exits with return code",
         rf"(?:(?P<name>local_rank=0)\b.*)?exits with return code = (?P<code>{_CODE})",
         "DeepSpeed's launcher says that a process ended with {exit}"),  # it names its last one, which only 0 tells
    _row("process-died", ABOUT, "accelerate-signal", "died with <Signals.", rf"died with <Signals\.(?P<signal>{_SIGNAL}): \d+>",
         "the launcher says that a process was ended by {signal}"),
    _row("process-died", ABOUT, "spawn-signal", "terminated with signal",
         rf"process (?P<culprits>\d{{1,7}}) terminated with signal (?P<signal>{_SIGNAL})",
         "torch.multiprocessing says that {culprits} was ended by {signal}"),
    _row("process-died", ABOUT, "spawn-exit", "terminated with exit code",
         r"process (?P<culprits>\d{1,7}) terminated with exit code (?P<number>\d+)",
         "torch.multiprocessing says that {culprits} ended with exit code {number}"),
    _row("python-error", ENDS, "spawn-raised", "terminated with the following error", r"-- Process (?P<culprits>\d{1,7}) terminated with the following error",
         "torch.multiprocessing says that {culprits} raised an error, which follows"),
    _row("process-died", ABOUT, "mpirun", "noticed that process rank", r"noticed that process rank (?P<culprits>\d{1,7}) with PID (?P<process_id>\d+) on node (?P<node>\S+) exited on signal (?P<signal>\d+)(?: \((?P<why>[\w ]+)\))?",
         "mpirun says that {culprits} on {node} was ended by signal {signal} ({why})"),
    _row("process-died", ABOUT, "mpirun-exit", "The first process to do so was", r"Process name: (?:\[\[\d+,\d+\],)?(?P<culprits>\d{1,7})\]?\s+Exit code: +(?P<code>-?\d+)",
         "the launcher says that {culprits} was the first to end, with {exit}", lines=5),
    _row("process-died", ABOUT, "mpi-abort", "MPI_ABORT was invoked", r"MPI_ABORT was invoked on rank (?P<culprits>\d{1,7})", "{culprits} called MPI_ABORT"),
    _row("network", ABOUT, "orte-lost", "lost communication with", r"Remote daemon: .{0,40}? on node (?P<host>\S+)", "mpirun lost the node {host}", "see whether {host} is up", lines=8),
    _row("process-died", ABOUT, "mpi-peer", "peer process has unexpectedly disconnected", r"Peer host: +(?P<host>\S+)", "a process on {host} has disconnected", lines=16),
    _row("process-died", ABOUT, "srun-task", "srun: error:",
         rf"srun: error: (?P<node>\S+): (?:task (?P<culprits>\d{{1,7}}): (?P<error>Killed|Out Of Memory|Segmentation fault|Bus error)"
         rf"|tasks (?P<culprits2>{_LIST}): (?P<error2>Out Of Memory|Segmentation fault|Bus error))",
         "Slurm says of {culprits} on {node}: {error}", _OOM),
    _row("process-died", ENDS, "srun-ended", "srun: error:",
         r"srun: error: (?P<host>\S+): (?P<name>task \d{1,7}): (?P<error>Exited with exit code \d+|Aborted)", "Slurm says of {process}: {error}"),
    _row("process-died", ABOUT, "slurm-oom", "oom_kill event", r"Detected \d+ oom.kill event", "Slurm says that the kernel killed a process of the job, since its memory was full", _OOM),
    _row("process-died", ABOUT, "slurm-cancelled", "CANCELLED AT", r"\*\*\* (?:STEP|JOB) (?P<step>\S+) (?:ON (?P<node>\S+) )?CANCELLED AT \S+(?: \S+)?? DUE TO (?P<error>NODE FAILURE|TIME LIMIT|PREEMPTION|[\w ]{3,40})",
         "Slurm ended the step {step} on {node}: {error}", "it did not hang: see the limit, or the node, in `sacct -j {step}`"),
    _row("process-died", FOLLOWS, "slurm-ended", "CANCELLED AT", r"\*\*\* (?:STEP|JOB) (?P<step>\S+) (?:ON (?P<node>\S+) )?CANCELLED AT \S+ \*\*\*",
         "Slurm ended the step {step} on {node}: it was cancelled, or a task of it failed", "see who did so in `sacct -j {step} -o JobID,State,ExitCode,End`"),
    _row("process-died", ABOUT, "node-failure", "srun: error: Node failure", r"Node failure on (?P<host>\S+)", "Slurm says that the node {host} failed", "see `scontrol show node {host}`"),
    _row("process-died", ABOUT, "kernel-oom", "Killed process", r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]{1,60})\)",
         "the kernel killed {process}, since the memory of the host was full", _OOM),
    _row("process-died", ABOUT, "oom-invoked", "invoked oom-killer", r"(?P<what>\S+) invoked oom-killer", "the kernel had no memory left for {what}, and killed a process of it", _OOM),
    _row("process-died", ABOUT, "oom-killed", "OOMKilled", r"OOMKilled", "Kubernetes killed a container, since its memory was full", _OOM),
    _row("process-died", ABOUT, "evicted", "node was low on resource", r"node was low on resource: (?P<what>[\w-]+)", "Kubernetes evicted a pod, since its node ran out of {what}",
         "ask for as much of it as the pod needs, in `resources`"),
    _row("process-died", ABOUT, "exit-137", "137", r"(?i:exit code)\W{1,12}137\b", "a container or its process was killed (137: signal 9)", _OOM),
    _row("process-died", ABOUT, "ray-actor-died", "class_name: ", r"class_name: (?!.{0,900}because its (?:owner|node) has died)(?:\S{1,200}\.)?(?P<name2>\S{1,80})\s+actor_id: \S+\s+pid: (?P<pid>\d+)"
         r"(?:\s+name: (?P<name>\S+))?(?:\s+namespace: \S+)?(?:\s+ip: (?P<host>\S+))?",
         "Ray says that the actor {process} died", "its log is in /tmp/ray/session_latest/logs on that node; " + _OOM, lines=8),
    _row("process-died", ABOUT, "ray-owner-died", "its owner has died", r"its owner has died.{0,200}?Ip address: (?P<host>[\w.:-]+?)\.?\s.{0,200}?detail: (?P<error>[^.]{1,80})",
         "Ray says that the process which had made an actor, on {host}, died: {error}", "see whether {host} is up, and raylet.out there"),
    _row("process-died", ABOUT, "ray-node-dead", "node it was running on is dead", r"is dead or unavailable\. Node IP: (?P<host>[\w.:-]+?),", "Ray says that the node {host} is dead",
         "see whether {host} is up, and raylet.out there"),
    _row("process-died", FOLLOWS, "ray-process-died", "because its worker process has died", r"The actor is dead because its worker process has died",
         "Ray says that the process of an actor has died", _OOM),
    _row("process-died", ABOUT, "ray-worker-died", "A worker died or was killed", r"Worker IP address: (?P<host>\S+) .*?Worker PID: (?P<pid>\d+)(?:.*(?P<many>repeated \d+x across cluster))?",
         "Ray says that the worker {process} died", _OOM),
    _row("process-died", ABOUT, "ray-memory", "killed due to ", r"(?:\b\d{1,9} Workers? \(tasks / actors\) killed|Task was killed) due to (?:memory pressure|the node running low on memory)(?:.{0,300}?\bIP: (?P<host>[\d.]+))?",
         "Ray killed workers of {host}, since the memory of the host was full", _OOM),
    _row("process-died", ABOUT, "ray-node", "has been marked dead because", r"node with (?:node id: \w+ and address: (?P<host>[\w.:-]+)|client ID (?P<name>\w+))", "Ray says that the node {process} is dead", "see whether {host} is up, and raylet.out there"),
    _row("process-died", ENDS, "ray-crashed", "WorkerCrashedError", r"WorkerCrashedError", "Ray says that a worker died unexpectedly", _OOM),
    _row("rendezvous", ABOUT, "ray-gcs", "onnect to GCS", r"[Ff]ailed to connect to GCS", "a process of Ray cannot reach its head node", "see `ray status`, and whether the head node and its port can be reached"),
    _row("process-died", ABOUT, "ray-node-died", "The actor died because its node has died", r"its node has died", "Ray says that the node of an actor has died"),
    _row("process-died", ABOUT, "engine-died", "died unexpectedly, shutting down", r"[Ee]ngine core proc (?P<name>\S+) died unexpectedly",
         "vLLM says that its engine {process} died", "its own error stands above, with its name before it"),
    _row("process-died", FOLLOWS, "rpc-lost", "RPC agent for ", r"RPC agent for (?P<one>\w+) encountered error when .{5,40} (?:from|to) (?P<far>\w+): .{0,80}(?P<error>reset by peer|[Bb]roken pipe|eof)", "{one} lost {far} ({error}): that one has ended"),
    _row("process-died", FOLLOWS, "engine-dead", "EngineDeadError", r"EngineDeadError", "{who} lost vLLM's engine: its own error stands above"),
    _row("never-arrived", ABOUT, "engine-silent", "RPC call to ", r"RPC call to (?P<call>\w+) timed out", "vLLM's workers did not answer its engine ({call}): one of them hangs",
         "take the stacks of all its workers (`py-spy dump`), those that say nothing first"),
    _row("process-died", ENDS, "horovod-exit", "exit with status code", r"Process (?P<culprits>\d{1,7}) exit with status code (?P<number>[1-9]\d{0,3})",
         "Horovod's launcher says that {culprits} ended with code {number} (128 and a signal's number, or the code of its script)"),
    _row("process-died", ABOUT, "horovod-down", "Horovod has been shut down", r"Horovod has been shut down", "Horovod ended: a rank raised an error, or finished before the others", "see the error before the first such line"),
)  # fmt: skip
_HOROVOD = (
    _row("never-arrived", ABOUT, "horovod-missing", "[missing ranks:", rf"(?P<tensor>[^\s\[\]]{{1,200}}) \[missing ranks: (?P<culprits>{_LIST})\]",
         "Horovod says that {culprits} did not submit {tensor}"),
    _row("never-arrived", ABOUT, "horovod-stalled", "Missing ranks:", r"Missing ranks:(?P<listed>(?:\s+\d{1,7}!?: \[[^\n]*)+)",
         "Horovod says that {culprits} did not submit {what}", lines=9),
    _row("mismatch", ABOUT, "horovod-mismatch", "Mismatched ", r"Mismatched (?P<what>[\w ]{1,60}): One (?:or more )?rank",
         "Horovod says that ranks disagree on {what}"),
)  # fmt: skip
_OTHERS = (
    _row("process-died", ABOUT, "jax-heartbeat", "heartbeat timeout", r"Task /job:\w+/replica:\d+/(?P<name>task:\d+) heartbeat timeout", "JAX's coordinator lost {process}"),
    _row("never-arrived", WAITS, "xla-rendezvous", "waiting for all participants", r"\{rank=(?P<by>\d{1,7}), .{0,300}waiting for all participants to arrive", "{who} waits in a collective of XLA's"),
    _row("never-arrived", WAITS, "deepep", "DeepEP timeout", r"DeepEP timeout.{0,80}?rank = (?P<by>\d{1,7})", "{who} waits in DeepEP"),
    _row("never-arrived", ABOUT, "hccl-notify", "the Notify record from remote", r"Notify record from remote rank: \[(?P<theirs>\d+)\]", "{who} waits for rank {theirs} of its group of HCCL's"),
    _row("rendezvous", FOLLOWS, "xla-master", "connect to client mesh master", r"Waiting to connect to client mesh master \(\d+ seconds\) (?P<store>\S+)", "{who} waits for the mesh master at {store}", _REACH),
    _row("process-died", ABOUT, "paddle", "Container rank ", r"Container rank (?P<culprits>\d+) status failed .{0,999}code (?P<code>-?\d+) log (?P<log>\S+)", "Paddle's launcher says that {culprits} ended with {exit}", "read the end of {log}"),
)  # fmt: skip
"""What other frameworks say of a process. Nothing else of theirs is read."""
PHRASES = (*_TORCH, *_NCCL, *_DEVICE, *_DIED, *_HOROVOD, *_OTHERS)
"""In this order, each that matches a line says something of it."""
WORDS = tuple(dict.fromkeys(one.word.encode() for one in PHRASES))
"""What a line must have, that is to be looked at."""
