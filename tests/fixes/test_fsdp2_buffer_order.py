"""fsdp2-buffer-order: its anchors, and what the sessions need of it."""

from __future__ import annotations

from functools import partial

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import hung_jobs, sources
from support.hung_jobs import C10D, WORLD, HungJob, issued, job, rank, sizes
from unhang.codemods.base import AnchorError
from unhang.diagnose.evidence import Job
from unhang.judge.decide import codemod

FIX = "fsdp2-buffer-order"
CASES = sources.cases(FIX, {"verl": ["0.7.1"]})
FIXED = sources.cases(FIX, {"verl": ["0.8.0"]}, state="fixed")


UNLIKE_UPSTREAM = sources.edits(
    FIXED[0],
    [
        ("key=lambda x: x[0]", "key=lambda x: x[1].numel()"),
        ("dist.broadcast(buf, src=0)", "dist.broadcast(buf, src=1)"),
        ("in bufs:", "in model.named_buffers():"),
    ],
)


_BY_NAME = "sorted(model.named_buffers(), key=lambda item: item[0])"


def test_a_loop_that_differs_or_stands_twice_is_no_anchor() -> None:
    source = sources.first(CASES)
    change, loop = codemod(source.target), "for name, buf in model.named_buffers():\n        dist.broadcast(buf, src=0)"
    # another call's buffers, no broadcast of them, and an order of one's own
    for old, new in (
        ("named_buffers", "named_parameters"),
        ("dist.broadcast", "print"),
        ("model.", "sorted(x) and model."),
    ):
        with pytest.raises(AnchorError, match="not found"):
            change.plan(sources.mutated(source.function, loop, loop.replace(old, new)))
    with pytest.raises(AnchorError, match="found 2 times"):
        change.plan(sources.mutated(source.function, loop, f"{loop}\n    {loop}"))


_order = partial(Sub, _BY_NAME)
_BY_HAND = {
    "as registered": _order("list(model.named_buffers())"),
    "reversed": _order("list(model.named_buffers())[::-1]"),
    "by size": _order("sorted(model.named_buffers(), key=lambda item: item[1].numel())"),
    "by size and name's length": _order(
        "sorted(model.named_buffers(), key=lambda item: (item[1].numel(), len(item[0])))"
    ),
    "by the last part of the name": _order(
        "sorted(model.named_buffers(), key=lambda item: item[0].rpartition('.')[0])"
    ),
    **{
        f"by {part}": _order(f"sorted(model.named_buffers(), key=lambda item: item[0]{part})")
        for part in (".rpartition('.')[2]", "[:8]", "[-8:]", ".lower()", ".split('.')[:3]", ".split('.')[-2:]")
    },
    "by the name's hash": _order("sorted(model.named_buffers(), key=lambda item: len(item[0]) % 2)"),
    "by identity": _order("sorted(model.named_buffers(), key=lambda item: id(item[1]))"),
    "by tensor": _order("sorted(model.named_buffers(), key=lambda item: item[1])"),
    "a set": _order("{name: buf for name, buf in model.named_buffers()}.items()"),
    "on the master alone": _order(f"{_BY_NAME} if dist.get_rank() == 0 else model.named_buffers()"),
    "on the others alone": _order(f"{_BY_NAME} if dist.get_rank() else model.named_buffers()"),
    "turned around on odd ranks": _order(f"{_BY_NAME}[:: 1 - 2 * (dist.get_rank() % 2)]"),
    "without the first": _order(f"{_BY_NAME}[1:]"),
    "without the last": _order(f"{_BY_NAME}[:-1]"),
    "the first alone": _order(f"{_BY_NAME}[:1]"),
    "twice": _order(f"{_BY_NAME} * 2"),
    "of one size once": _order(f"{{buf.numel(): (name, buf) for name, buf in {_BY_NAME}}}.values()"),
    "parameters": _order("sorted(full_state.items())"),
    "not by the master": _order(f"{_BY_NAME} if dist.get_rank() else []"),
    "from the last": Sub(_BY_NAME, f"reversed({_BY_NAME})"),
    "from rank 1": Sub("src=0", "src=1"),
    "from each rank": Sub("src=0", "src=dist.get_rank()"),
    "a copy": Sub("dist.broadcast(buf, src=0)", "dist.broadcast(type(buf)(name, buf.numel()), src=0)"),
    "no broadcast": Sub("dist.broadcast(buf, src=0)", "pass"),
    "with offload alone": _order(f"{_BY_NAME} if cpu_offload else model.named_buffers()"),
    "without offload alone": _order(f"model.named_buffers() if cpu_offload else {_BY_NAME}"),
}
MUTANTS = [Mutants("verl", ("0.4.0", "0.7.1"), _BY_HAND)]
PROOFS = [
    Proofs(
        "verl",
        [Release("0.7.1", core=True), Release("0.5.0"), Release("0.4.1"), Release("0.4.0")],
        {
            "half: sorted on rank 0 alone": Other(
                without(r"item\[0\]\)", "item[0]) if dist.get_rank() == 0 else model.named_buffers()"),
                ("same-size-2", "other-size-2"),
                "of another buffer|crashed: rank 1 died",
            ),
            "sorted by size": Other(
                without(r"item\[0\]\)", "item[1].numel())"), ("same-size-2",), "differs: rank 1 holds values of another"
            ),
        },
    )
]
FUZZ = Fuzz(CASES, 2, r"named_buffers|broadcast|sorted", examples=60)

_LOAD = ("verl/utils/fsdp_utils.py::fsdp2_load_full_state_dict",)


def _tables(*ranks: tuple[int, ...]) -> Job:
    """Return a job whose ranks broadcast tables of these sizes, one after the other."""
    return job(
        [rank(*[issued(WORLD, 300 + at, "broadcast", size, at=_LOAD) for at, size in enumerate(one)]) for one in ranks]
    )


HANGS = [
    HungJob("two orders", _tables((256, 128), (128, 256), (128,), (256, 128))),
    HungJob("the first table alone", sizes(WORLD, "broadcast", _LOAD, 256, 128, 128, 256, number=300)),
    HungJob("another model on one rank", _tables(*[(256, 128)] * 3, (64, 32))),
    HungJob("one more table on one rank", _tables(*[(256, 128)] * 3, (64, 256))),
    HungJob("two orders, and one rank not heard of", hung_jobs.without(_tables(*[(256, 128), (128, 256)] * 2), 3)),
    HungJob(
        "one stack is elsewhere",
        job(
            [
                rank(issued(WORLD, 3, "broadcast", size), at=(C10D, *at))
                for size, at in ((128, ("job/load.py::share",)), *[(64, _LOAD)] * 3)
            ]
        ),
        "also",
    ),
]
