"""The frame that a stack is reported by."""

from __future__ import annotations

from unhang.prove.ranks import gloo, shims, sites, stacks


def test_the_frame_is_upstreams_not_torchs_or_ours() -> None:
    ours = [sites.site(shims.__file__, 34, "averaging")]
    torch = ["torch/distributed/distributed_c10d.py:1 in all_reduce", "torch/distributed/c10d_logger.py:2 in wrapper"]
    stack = [*torch, *ours, "megatron/core/multi.py:3 in reduce_loss", "verl/engine.py:4 in step"]
    assert stacks.place(stack) == "all_reduce at megatron/core/multi.py:3 in reduce_loss"


def test_the_stack_in_a_collective_is_taken_of_several_threads() -> None:
    main = 'Thread 0x1 (most recent call first):\n  File "/lib/threading.py", line 1 in wait\n'
    other = 'Thread 0x2 (most recent call first):\n  File "/torch/distributed_c10d.py", line 2 in all_reduce\n'
    assert stacks.of_dump(other + main) == ["/torch/distributed_c10d.py:2 in all_reduce"]
    assert stacks.of_dump(main) == ["/lib/threading.py:1 in wait"]
    assert stacks.of_dump("") == []


def test_a_collective_of_the_proof_itself_is_named_as_that() -> None:
    barrier = ["torch/distributed/distributed_c10d.py:1 in barrier", "torch/distributed/c10d_logger.py:2 in wrapper"]
    steps = sites.site(f"{stacks._HERE}/fixes/some.py", 5, "_steps")
    around = [sites.site(gloo.__file__, 9, "_body"), "multiprocessing/process.py:108 in run", "<string>:3 in <module>"]
    assert stacks.place([*barrier, steps, *around]) == "the harness's own barrier, in _steps"
    upstream = "megatron/core/multi.py:3 in reduce_loss"
    assert stacks.place([*barrier, steps, upstream, *around]) == f"barrier at {upstream}"
