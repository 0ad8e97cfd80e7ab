"""fsdp2-buffer-order: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import C10D, WORLD, HungJob, issued, job, rank
from unhang.diagnose.evidence import Job

FIX = "fsdp2-buffer-order"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
_UNLIKE = [("key=lambda x: x[0]", "key=lambda x: x[1].numel()"), ("in bufs:", "in model.named_buffers():")]
UNLIKE_UPSTREAM = sources.edits(sources.case(FIX, "0.8.0"), _UNLIKE)
_BUFFERS, _SEND = "model.named_buffers()", "dist.broadcast(buf, src=0)"
_LOOP = f"for name, buf in {_BUFFERS}:\n        {_SEND}"
REFUSED = sources.edits(
    CASES[0],
    [
        (_SEND, "print(buf, src=0)", "not found"),
        (_BUFFERS, f"sorted(x) and {_BUFFERS}", "not found"),
        (_LOOP, f"{_LOOP}\n    {_LOOP}", "found 2 times"),
    ],
)

# -- for the sessions -------------------------------------------------------------------------------------------------

_BY = "sorted(model.named_buffers(), key=lambda item: {})"
_BY_NAME = _BY.format("item[0]")
_order = partial(Sub, _BY_NAME)
_BY_HAND = {
    "by the name's hash": _order(_BY.format("len(item[0]) % 2")),
    "by identity": _order(_BY.format("id(item[1])")),
    **{
        f"by {part}": _order(_BY.format(f"item[0]{part}"))
        for part in (".rpartition('.')[0]", ".rpartition('.')[2]", "[:8]", "[-8:]", ".lower()", ".split('.')[-2:]")
    },
    "on the master alone": _order(f"{_BY_NAME} if dist.get_rank() == 0 else {_BUFFERS}"),
    "without the last": _order(f"{_BY_NAME}[:-1]"),
    "of one size once": _order(f"{{buf.numel(): (name, buf) for name, buf in {_BY_NAME}}}.values()"),
    "not by the master": _order(f"{_BY_NAME} if dist.get_rank() else []"),
    "from rank 1": Sub("src=0", "src=1"),
    "with offload alone": _order(f"{_BY_NAME} if cpu_offload else {_BUFFERS}"),
    "without offload alone": _order(f"{_BUFFERS} if cpu_offload else {_BY_NAME}"),
    "of floats alone": Sub(_SEND, f"buf.is_floating_point() and {_SEND}"),
    "not of scalars": Sub(_SEND, f"buf.dim() and {_SEND}"),
    "of what no checkpoint has": Sub(_SEND, f"name not in full_state and {_SEND}"),
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.7.1"), _BY_HAND)]
_ON_RANK_0 = without(r"item\[0\]\)", "item[0]) if dist.get_rank() == 0 else model.named_buffers()")
_BY_SIZE = without(r"item\[0\]\)", "item[1].numel())")
_SAME, _ENDS = "same-size-2", "of another buffer|crashed: rank 1 died"
_HALVES = {
    "half: sorted on rank 0 alone": Other(_ON_RANK_0, (_SAME, "other-size-2"), _ENDS),
    "sorted by size": Other(_BY_SIZE, (_SAME,), "differs: rank 1 holds values of another"),
}
_RELEASES = [Release(version, core=version == "0.7.1") for version in ("0.7.1", "0.5.0", "0.4.1", "0.4.0")]
PROOFS = [Proofs("verl", _RELEASES, _HALVES)]
FUZZ = Fuzz(CASES, 2, r"named_buffers|broadcast|sorted", examples=60)

_LOAD = ("verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict",)


def _tables(*ranks: tuple[int, ...]) -> Job:
    """Return a job whose ranks broadcast tables of these sizes, one after the other."""
    return job(
        [rank(*[issued(WORLD, 300 + at, "broadcast", size, at=_LOAD) for at, size in enumerate(one)]) for one in ranks]
    )


_STACKS = ((128, "job/load.py::share"), *[(64, *_LOAD)] * 3)
_ELSEWHERE = [rank(issued(WORLD, 3, "broadcast", size), at=(C10D, place)) for size, place in _STACKS]
HANGS = [
    HungJob("two orders", _tables((256, 128), (128, 256), (128,), (256, 128))),
    HungJob("one more table on one rank", _tables(*[(256, 128)] * 3, (64, 256))),
    HungJob("two orders, and one rank not heard of", hung_jobs.without(_tables(*[(256, 128), (128, 256)] * 2), 3)),
    HungJob("one stack is elsewhere", job(_ELSEWHERE), "also"),
]
