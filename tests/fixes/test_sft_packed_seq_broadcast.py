"""sft-packed-seq-broadcast: feed what TP rank 0 sends into the real receiving half, stage by stage."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import itertools
import math
import re
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fixes.sft_packed_seq_broadcast.mutants import MUTANTS as MUTANTS
from fixes.sft_packed_seq_broadcast.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import examples, sources, wheels
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.compat.endstates.compare import compare
from unhang.compat.endstates.endstate import Source as Endstate
from unhang.compat.endstates.sft_packed_seq_broadcast import END_STATES
from unhang.judge.decide import codemod
from unhang.shapes import catalog, shape

FIX, FUNCTION = "sft-packed-seq-broadcast", "get_batch_on_this_tp_rank"
# The head of a pull request, 2026-06-29: upstream's fix, and with it a padding mask, which the stand-ins do not have.
NOT_RUN = {"1a5108c6c76f75b8"}
CASES = sources.cases(FIX, {"megatron-lm": ["0.17.0", "0.17.1"]}, {"megatron-lm": ["0.16.0", "0.16.1"]})
# A pull request as written has the same result as the untouched shape, which a separate test checks.
UNTOUCHED = [case for case in CASES if case.values[0].kind != "pull"]
WHEELS = [case for case in CASES if case.values[0].kind == "wheel"]
METADATA = ("cu_seqlens", "max_seqlen")
UNINITIALISED = "uninitialised memory"
LENGTH = 8
FUZZ = Fuzz(CASES, 7, r"seqlen|_broadcast|args\b|is_pipeline|batch\b", examples=70)


class Tensor:
    """A tensor that knows its shape, its dtype and its values."""

    def __init__(self, shape: Any, dtype: str, values: Any) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = dtype
        self.values = values if isinstance(values, list) else [values] * math.prod(self.shape)
        assert len(self.values) == math.prod(self.shape)

    def cuda(self, non_blocking: bool = False) -> Tensor:
        return Tensor(self.shape, self.dtype, list(self.values))

    def to(self, device: int, non_blocking: bool = False) -> Tensor:
        return self.cuda()

    def contiguous(self) -> Tensor:
        return self

    def numel(self) -> int:
        return len(self.values)

    def item(self) -> Any:
        (value,) = self.values
        assert value != UNINITIALISED
        return value

    def fill_(self, value: Any) -> Tensor:
        self.values = [value] * len(self.values)
        return self

    def sent(self) -> tuple[int, str, int]:
        """Return what both sides of a broadcast must agree on. A collective sees elements, not dimensions."""
        return len(self.values), self.dtype, len(self.shape) if len(self.values) > 1 else 1

    def described(self) -> Any:
        return self.dtype, self.shape, self.values


class Setting(NamedTuple):
    """One pipeline stage of one job."""

    stages: int = 1
    stage: int = 0
    mtp: bool = False
    sft: bool = True
    dynamic: bool = False
    """hybrid_context_parallel, or dynamic_context_parallel as newer shapes call it."""
    attention_mask: bool = False
    padding_mask: bool = False
    graph: bool = False

    @property
    def place(self) -> str:
        if self.stages == 1 or self.mtp:
            return "whole"
        return "first" if self.stage == 0 else "last" if self.stage == self.stages - 1 else "middle"


class Outcome(NamedTuple):
    """The broadcasts and the batches of TP rank 0 and TP rank 1; ``error`` is what one of them raised."""

    sent: list[Any]
    received: list[Any]
    sender: dict[str, Any]
    receiver: dict[str, Any]
    error: str


class Mismatch(Exception):
    """A receiver's broadcast that its sender does not make, or makes differently: real ranks crash or hang there."""


def data_of(setting: Setting) -> dict[str, Tensor]:
    """Return what the data loader gives on TP rank 0."""
    shape_ = (LENGTH,) if setting.dynamic else (1, LENGTH)
    values = list(range(LENGTH))
    data = {
        "tokens": Tensor(shape_, "int64", values),
        "labels": Tensor(shape_, "int64", values[::-1]),
        "loss_mask": Tensor(shape_, "float32", 1.0),
        "position_ids": Tensor(shape_, "int64", values),
    }
    if setting.attention_mask:
        data["attention_mask"] = Tensor((1, 1, LENGTH, LENGTH), "bool", True)
    if setting.padding_mask:
        data["padding_mask"] = Tensor(shape_, "bool", False)
    if setting.sft or setting.dynamic:
        data["cu_seqlens"] = Tensor((1, 3), "int32", [0, 5, LENGTH])
        data["max_seqlen"] = Tensor(1, "int32", 5)
    if setting.dynamic:
        data["local_cp_size"] = Tensor(1, "int32", 2)
    return data


def run_rank(function: Any, setting: Setting, tp_rank: int, queue: list[Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """Run the function on one TP rank: the sender fills the queue, a receiver takes its broadcasts from it."""
    events: list[Any] = []

    def broadcast(item: Tensor, source: int, group: str) -> None:
        assert (source, group) == (0, "tp")
        events.append(item.sent())
        if tp_rank == 0:
            queue.append(item.cuda())
            return
        if not queue:
            raise Mismatch("the receiver waits for a broadcast that no rank sends")
        sent = queue.pop(0)
        if sent.sent() != item.sent():
            raise Mismatch(f"sent {sent.sent()}, expected {item.sent()}")
        item.values = list(sent.values)

    torch = SimpleNamespace(
        Tensor=Tensor,
        empty=lambda shape, dtype, device: Tensor(shape, dtype, UNINITIALISED),
        tensor=lambda value, dtype, device: Tensor((), dtype, value),
        **{name: name for name in ("int64", "int32", "float32", "bool")},
        cuda=SimpleNamespace(current_device=lambda: 0),
        distributed=SimpleNamespace(broadcast=broadcast),
    )
    mpu = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: tp_rank,
        get_tensor_model_parallel_src_rank=lambda: 0,
        get_tensor_model_parallel_group=lambda: "tp",
        is_pipeline_first_stage=lambda: setting.stage == 0,
        is_pipeline_last_stage=lambda: setting.stage == setting.stages - 1,
    )
    arguments = SimpleNamespace(
        pipeline_model_parallel_size=setting.stages,
        sft=setting.sft,
        hybrid_context_parallel=setting.dynamic,
        dynamic_context_parallel=setting.dynamic,
        create_attention_mask_in_dataloader=setting.attention_mask,
        cuda_graph_impl="full_iteration" if setting.graph else "none",
        micro_batch_size=1,
        seq_length=LENGTH,
    )
    called = sources.callable_of(function, {"torch": torch, "mpu": mpu, "get_args": lambda: arguments})
    keywords = {"needs_padding_mask": True} if setting.padding_mask else {}
    data = iter([data_of(setting)]) if tp_rank == 0 else None
    return events, called(data, mtp_on_this_rank=setting.mtp, **keywords)


@functools.cache
def run(function: Any, setting: Setting) -> Outcome:
    """Run TP rank 0, and then TP rank 1 on what it sent."""
    queue: list[Tensor] = []
    sender: dict[str, Any] = {}
    try:
        sent, sender = run_rank(function, setting, 0, queue)
        received, receiver = run_rank(function, setting, 1, queue)
    except (Mismatch, AssertionError, TypeError) as error:
        return Outcome([item.sent() for item in queue], [], sender, {}, f"{type(error).__name__}: {error}")
    return Outcome(sent, received, sender, receiver, "" if not queue else "Mismatch: broadcasts are left over")


def settings(function: Any, **fixed: bool) -> Iterator[Setting]:
    """Yield every stage, with every setting that this shape of the function looks at."""
    text = sources.unparsed(function)
    flags = {
        "sft": True,
        "dynamic": True,
        "attention_mask": True,
        "padding_mask": "needs_padding_mask" in text,
        "graph": "cuda_graph_impl" in text,
    }
    choices = {name: (False, True) if there else (False,) for name, there in flags.items()}
    choices.update({name: (value,) for name, value in fixed.items()})
    places = [(1, 0, False), *((4, stage, mtp) for stage, mtp in itertools.product((0, 1, 2, 3), (False, True)))]
    for place in places:
        for values in itertools.product(*choices.values()):
            setting = Setting(*place, **dict(zip(choices, values)))
            if setting.attention_mask and setting.dynamic:
                continue  # upstream's own receiver takes [0] of an int there, in every shape: not a job that can run
            if setting.graph and (setting.sft or setting.dynamic):
                continue  # upstream asserts that there is no cu_seqlens with full-iteration graphs
            yield setting


@functools.cache
def faults(function: Any, none_elsewhere: bool = True) -> frozenset[str]:
    """Return what is wrong with a function when `args.sft` is on; nothing if it keeps the fix's promise.

    ``none_elsewhere``: whether a receiver on a middle stage must return None for every field that it did not receive.
    """
    made = (faults_in(function, setting, none_elsewhere) for setting in settings(function, sft=True))
    return frozenset().union(*made)


def faults_in(function: Any, setting: Setting, none_elsewhere: bool = True) -> set[str]:
    """Return what is wrong with a function in one setting."""
    found = set()
    outcome, place, data = run(function, setting), setting.place, data_of(setting)
    if outcome.error:
        return {f"{place}: {outcome.error.partition(':')[0]}"}
    if outcome.sent != outcome.received:
        found.add(f"{place}: sent and received differ")
    for name in METADATA:
        sent, received = outcome.sender[name], outcome.receiver[name]
        if received is None or sent is None:
            found.add(f"{place}: {name} is None")
        elif sent.described() != received.described():
            found.add(f"{place}: {name} differs")
        elif sent.described() != data[name].described():
            found.add(f"{place}: {name} is not the data's")
    metadata = sum(1 for item in outcome.sent if item[1] == "int32" and item[0] in (1, 3))
    if metadata != 2 + (2 if setting.dynamic and place == "whole" else 1 if setting.dynamic else 0):
        found.add(f"{place}: the metadata is broadcast {metadata} times")
    wanted = wanted_fields(setting)
    for name, item in outcome.receiver.items():
        kept = setting.padding_mask and name == "padding_mask"
        if none_elsewhere and place == "middle" and name not in METADATA and (item is None) == kept:
            found.add(f"middle: {name} is {'lost' if item is None else 'not None'}")
        if name in wanted and item is None:
            found.add(f"{place}: {name} is None")
        elif name in wanted and item.described() != data[name].described():
            found.add(f"{place}: {name} differs")
    return found


def wanted_fields(setting: Setting) -> set[str]:
    """Return the fields that a receiver needs on this stage, without the metadata."""
    fields = {
        "whole": {"tokens", "labels", "loss_mask", "position_ids", "attention_mask", "padding_mask", "local_cp_size"},
        "first": {"tokens", "position_ids", "attention_mask", "padding_mask"},
        "last": {"labels", "loss_mask", "attention_mask", "padding_mask"},
        "middle": {"padding_mask"},
    }
    return fields[setting.place] & set(data_of(setting))


def described(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: item if item is None else item.described() for name, item in batch.items()}


def is_trailing(function: Any) -> bool:
    """Return whether this is a shape of 0.16, which broadcasts the metadata after the arms."""
    return sources.unparsed(function).count("def _broadcast_cu_seqlens(cu_seqlens)") == 2


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "version", "folder", "state"),
    [
        ("wheel", "0.18.2", "core", "fixed"),
        ("wheel", "0.19.2", "core", "fixed"),
        # source trees before packed sequences
        ("tree", "0.10.0", "training", "not-affected"),
        ("tree", "0.15.3", "training", "not-affected"),
    ],
)
def test_a_release_without_the_defect_is_known_as_such(kind: str, version: str, folder: str, state: str) -> None:
    (target,) = (item for item in catalog.fix(FIX).targets if item.file == f"megatron/{folder}/utils.py")
    source = sources.Case(kind, target, version).load()
    assert (source.known.state, source.known.result) == (state, None)
    assert codemod(target).fixed_upstream(source.function) is (state == "fixed")


def test_the_short_check_is_right_on_all_of_history() -> None:
    """It knows each shape on record; another shape that it calls fixed passes in every configuration."""
    change, seen = codemod(catalog.fix(FIX).targets[0]), set()
    for code, function in history():
        digest = shape.digest(function)
        known = catalog.shape_table().shapes.get((FIX, FUNCTION, digest))
        is_fixed = change.fixed_upstream(function)
        if known is not None:
            assert is_fixed is (known.state == "fixed"), digest
            seen.add(digest)
        elif is_fixed and digest not in NOT_RUN:
            row = compare(END_STATES[FUNCTION], Endstate(code, FUNCTION), None)
            assert (row.failed, row.problems) == (0, []), digest
    assert seen >= {row["shape"] for row in sources._ROWS if row["fix"] == FIX and "first" in row}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_without_sft_nothing_changes(case: sources.Case) -> None:
    """The same broadcasts, in the same order, and the same batch on both sides; 0.16 has fewer, and they agree."""
    source = case.load()
    changed = source.rewritten.function
    for setting in settings(source.function, sft=False):
        before, after = run(source.function, setting), run(changed, setting)
        assert described(after.sender) == described(before.sender)
        if is_trailing(source.function):
            assert after.error == ""
            assert after.sent == after.received
            assert len(after.sent) <= len(before.sent)
            if before.error:
                assert setting.dynamic
                continue
            if not setting.dynamic:
                assert len(before.sent) - len(after.sent) == (2 if setting.place in ("whole", "first") else 0)
        else:
            assert after == before._replace(sender=after.sender, receiver=after.receiver)
        assert described(after.receiver) == described(before.receiver)


def test_without_sft_there_are_settings_to_compare() -> None:
    """The comparison above covers jobs that run, on every stage."""
    function = sources.first(WHEELS).function
    failed = {setting: bool(run(function, setting).error) for setting in settings(function, sft=False)}
    assert {setting.place for setting in failed if not failed[setting]} == {"whole", "first", "middle", "last"}
    assert all(setting.dynamic for setting in failed if failed[setting])


# -- the rewrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
class TestRewrite(EveryRewrite):
    def test_with_sft_every_stage_has_the_metadata(self, case: sources.Case) -> None:
        source = case.load()
        # 0.16 has no arm for the middle stages, and gets none: a receiver there keeps its empty buffers, as untouched
        trailing = is_trailing(source.function)
        assert faults(source.rewritten.function, none_elsewhere=not trailing) == set()
        if trailing:
            for function in source.function, source.rewritten.function:
                made = run(function, Setting(4, 1, sft=False)).receiver
                assert made["tokens"].values == [UNINITIALISED] * LENGTH

    def test_the_same_harness_shows_the_defect(self, case: sources.Case) -> None:
        source = case.load()
        found = faults(source.function)
        if is_trailing(source.function):
            assert {fault.partition(":")[0] for fault in found} == {"whole", "first", "middle", "last"}
            return
        assert {"last: cu_seqlens is None", "last: max_seqlen is None"} <= found
        if "4150" in source.known.note:
            assert "middle: max_seqlen differs" not in found
        else:
            assert "middle: cu_seqlens is None" in found
            assert not any(fault.startswith(("whole", "first")) for fault in found)

    @pytest.mark.parametrize("half", ["body", "orelse"], ids=["receiver only", "sender only"])
    def test_one_half_is_not_enough(self, case: sources.Case, half: str) -> None:
        """With one half of the rewritten function as it was before."""
        source = case.load()
        function = copy.deepcopy(source.rewritten.function)
        (split,) = (node for node in function.body if isinstance(node, ast.If))
        (old,) = (node for node in source.function.body if isinstance(node, ast.If))
        setattr(split, half, getattr(old, half))
        places = {fault.partition(":")[0] for fault in faults(function) if "Mismatch" in fault}
        assert places
        assert is_trailing(source.function) or "last" in places
        assert is_no_rewrite(source, function)


def test_a_middle_receiver_of_0_17_has_uninitialised_memory() -> None:
    source = sources.first(WHEELS)
    outcome = run(source.function, Setting(4, 1))
    assert outcome.receiver["max_seqlen"].values == [UNINITIALISED]
    assert run(source.rewritten.function, Setting(4, 1)).receiver["max_seqlen"].values == [5]


def test_the_gate_is_args_sft_and_never_the_data() -> None:
    """With packed data but without `args.sft`, no stage gains a broadcast; a gate on the data behaves differently."""
    source = sources.first(WHEELS)
    setting = Setting(4, 3, sft=False, dynamic=True)
    assert "cu_seqlens" in data_of(setting)
    assert run(source.rewritten.function, setting).sent == run(source.function, setting).sent
    gated = "if {}:\n                _broadcast_cu_seqlens(batch['cu_seqlens'])"
    old, new = gated.format("args.sft"), gated.format("batch['cu_seqlens'] is not None")
    function = sources.mutated(source.rewritten.function, old, new)
    assert run(function, setting) != run(source.function, setting)


# -- half of the rewrite ----------------------------------------------------------------------------------------------


_SENDER = "            _broadcast_cu_seqlens(batch['cu_seqlens'])\n            _broadcast(batch['max_seqlen'])\n"
_TAKEN = ["cu_seqlens = _broadcast_cu_seqlens()", "_broadcast(max_seqlen)"]
_EMPTY = "            labels = None\n            loss_mask = None\n            attention_mask = None\n"
_LAST = "cu_seqlens = None\n            {}_broadcast(labels)"
_MIDDLE = "local_cp_size = None\n            {}\n            {}"
MUTATIONS = {
    "the sender's middle arm is dropped": ("        elif args.sft:\n" + _SENDER, "", "middle: Mismatch"),
    "the receiver sets max_seqlen to None on the last stage, as before": (
        _LAST.format(""),
        _LAST.format("max_seqlen = None\n            "),
        "last: Mismatch",
    ),
    "the receiver takes them in reverse order": (
        _MIDDLE.format(*_TAKEN),
        _MIDDLE.format(*_TAKEN[::-1]),
        "middle: Mismatch",
    ),
    "empty tensors on the middle stages": (_EMPTY, "", "middle: labels is not None"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_part_of_the_rewrite_is_not_enough(name: str) -> None:
    old, new, fault = MUTATIONS[name]
    source = sources.first(WHEELS)
    function = sources.mutated(source.rewritten.function, old, new)
    assert fault in faults(function)
    assert is_no_rewrite(source, function)


# -- the pull request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pull", sources.as_written(FIX))
def test_the_pull_request_as_written_is_known_and_gives_the_result_of_the_untouched_shape(
    pull: sources.Case,
) -> None:
    source = pull.load()
    assert source.known.state == "affected"
    assert source.known.note == "pull request 4150 applied as written: still broken on the last stage"
    assert [(item.state, item.note) for item in sources.same_result(source)] == [("affected", "")]


# -- anchors ----------------------------------------------------------------------------------------------------------


_NULLED = "            max_seqlen = None\n            _broadcast(labels)\n"
_PAIR = "            _broadcast_cu_seqlens(batch['cu_seqlens'])\n            _broadcast(batch['max_seqlen'])\n"
_BUFFER = "        if args.sft:\n            max_seqlen"
_HELPER = "        def _broadcast_cu_seqlens(cu_seqlens): ...\n"
_ARM = "        elif mpu.is_pipeline_last_stage():\n            _broadcast(batch['labels'])\n"
_ADDED = "        {}:\n            _broadcast(batch['padding_mask'])\n"


@pytest.mark.parametrize(
    ("example", "old", "new", "refused"),
    [
        (0, "_rank() == 0", "_rank() == 1", "not found: if mpu"),
        (
            0,
            "        if args.pipe",
            "        if args.pipeline_model_parallel_size == 1 or mtp_on_this_rank: ...\n        if args.pipe",
            "found 2 times, expected once: if args.pipe",
        ),
        (0, "elif mpu.is_pipeline_last_stage()", "elif stage == 3", "not found: .*last_stage"),
        (0, _BUFFER, _BUFFER.replace("sft", "packed"), "not found: if args.sft"),
        (0, _NULLED, _NULLED.partition("\n")[2], "not found: max_seqlen = None"),
        (0, _NULLED, "            max_seqlen = None\n" + _NULLED, "found 2 times, expected once: max_seqlen = None"),
        (0, _ARM, _ARM + _PAIR, "not found: an arm of the last stage without"),
        (0, "        batch = {", "        other = {", "not found: batch = "),
        (0, _ARM, _ARM + _ADDED.format("elif args.padded"), "no other arm but else"),
        (0, _ARM, _ARM + _ADDED.format("else"), r"not found: batch\['cu_seqlens'\] = None"),
        (0, _ARM, _ARM + _ADDED.format("else") + _PAIR, r"not found: batch\['cu_seqlens'\] = None"),
        # `del int` makes `int` local to the function, and the last stage calls the helper only when rewritten
        (0, "    return batch", "    del int\n    return batch", "that does not rebind int"),
        (0, "    return batch", "    import types as isinstance\n    return batch", "that does not rebind isinstance"),
        (1, _HELPER, "", "not found: def _broadcast_cu_seqlens"),
        (1, _PAIR, "", "not found: _broadcast_cu_seqlens"),
        (1, _PAIR, _PAIR * 2, "found 2 times, expected once: _broadcast_cu_seqlens"),
        (
            1,
            " if args.hybrid_context_parallel else None",
            "",
            "not found: max_seqlen made for args.sft, and then again",
        ),
        (1, "            tokens = None\n", "", "not found: a statement before"),
    ],
)
def test_a_missing_anchor_or_one_too_many_is_refused(example: int, old: str, new: str, refused: str) -> None:
    change = codemod(catalog.fix(FIX).targets[0])
    code = examples.examples(type(change))[example].before
    assert change.plan(examples.function_of(code))
    assert old in code
    with pytest.raises(AnchorError, match=refused):
        change.plan(examples.function_of(code.replace(old, new)))


# -- history ----------------------------------------------------------------------------------------------------------


def history() -> Iterator[tuple[str, shape.Function]]:
    """Yield the function as it ever was, and its code; skips the test without a clone."""
    git = ["git", "-C", str(wheels.clone("megatron-core"))]
    files = {target.file for target in catalog.fix(FIX).targets}
    log = [*git, "log", "--all", "-m", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", *files]
    rows = subprocess.run(log, capture_output=True, text=True, check=True).stdout.splitlines()
    code = re.compile(rf"^def {FUNCTION}\(.*?(?=^[\w@#]|\Z)", re.MULTILINE | re.DOTALL)
    seen: set[str] = set()
    for blob in {row.split()[3] for row in rows} - {"0" * 40}:
        data = subprocess.run([*git, "cat-file", "blob", blob], capture_output=True, text=True, check=True).stdout
        seen.update(code.findall(data))
    for text in seen:
        with contextlib.suppress(SyntaxError):  # heads of pull requests may have conflict markers
            yield text, examples.function_of(text)
