"""What scenes show of functions that nobody has verified: edits of all fixes, and code that misbehaves.

The edits of all fixes are some 900, of which a sample is run; `UNHANG_ATTACK=all` (`nox -s attack`, weekly) runs each.
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

import pytest

from support import interpreters, sources
from support.edits import BREAKING, HARMLESS, UNDOING, edited, replaced
from support.sources import Source
from unhang.compat.sweep import trees
from unhang.judge import shows
from unhang.judge.decide import Verdict
from unhang.judge.findings import Finding
from unhang.judge.observe import observe_bytes
from unhang.judge.shows import Shown
from unhang.records import Installation
from unhang.rewrite.one_file import RewriteError, Step, rewrite
from unhang.shapes.catalog import Target


class Base(NamedTuple):
    """A release that has a function, with the defect or with upstream's own fix, and edits of it or of our rewrite."""

    fix: str
    version: str
    upstream: str
    function: str
    breaking: tuple[tuple[str, str], ...] = ()
    harmless: tuple[tuple[str, str], ...] = ()


def base(names: str, *breaking: tuple[str, str], harmless: tuple[tuple[str, str], ...] = ()) -> Base:
    """Return the base of this fix, version, upstream and function."""
    fix, version, upstream, function = names.split()
    return Base(fix, version, upstream, function, breaking, harmless)


class Edited(NamedTuple):
    """A file whose function has an edit."""

    base: Base
    form: str
    name: str
    target: Target
    data: bytes


SITES = TemporaryDirectory(prefix="unhang-")
ALL = os.environ.get("UNHANG_ATTACK") == "all"
ENGINE = "MegatronEngine.forward_backward_batch"
FUSED = ("fused=self.config.moe_permute_fusion", "fused=True")
DTYPE = (
    ("dtype=torch.float32", "dtype=torch.float32 if self.group is not None else None"),
    ("group=self.group", "group=None"),
)
BASES = [
    base(
        "allgather-empty-expert 0.19.2 megatron-core MoEAllGatherTokenDispatcher.dispatch_postprocess",
        ("item() > 0", "item() > 0 and self.num_local_experts > 1"),
        FUSED,
    ),
    base(
        "allgather-empty-expert 0.19.2 megatron-core MoEAllGatherTokenDispatcher.combine_preprocess",
        ("shape[0] > 0", "shape[0] > 1"),
        FUSED,
    ),
    base(
        "empty-expert-hang 0.19.2 megatron-core TEGroupedMLP.forward",
        ("shape[0] == 0", "shape[0] == 0 and self.num_local_experts > 1"),
        ("shape[0] == 0", "shape[0] == 0 and torch.is_grad_enabled()"),
        ("return output, output_bias", "return output, output_bias if output.shape[0] else output"),
        ("output = output[:0]", "output = output[:1]"),
        harmless=(("rows_per_expert = 1", "rows_per_expert = 2"),),
    ),
    base(
        "expert-dp-warmup 0.19.2 megatron-core initialize_model_parallel",
        ("if expert_model_parallel_size > 1:", "if expert_model_parallel_size > 1 == tensor_model_parallel_size:"),
        ("(warmup_group)\n            torch.cuda.synchronize()", "(warmup_group)"),
        harmless=(("_set_global_memory_buffer()\n", "torch.distributed.barrier()\n    _set_global_memory_buffer()\n"),),
    ),
    base(
        "expert-dp-warmup 4.1.0 ms-swift _initialize_mpu",
        ("        warmed_up_groups.append(warmup_group)", "        pass"),
        ("parallel_size > 1", "parallel_size > 2"),
    ),
    base(
        "fsdp-dynamic-bsz 0.7.1 verl DataParallelPPOActor.update_policy",
        ("max_token_len=max_token_len", "max_token_len=max_token_len, same_micro_num_in_dp=False"),
        ("max_token_len=max_token_len", "max_token_len=max_token_len, num_batches_divided_by=2"),
        ("dp_group=world", "dp_group=world if self.config.ppo_epochs > 1 else None"),
    ),
    base(
        "fsdp2-buffer-order 0.7.1 verl fsdp2_load_full_state_dict",
        ("key=lambda item: item[0]", "key=lambda item: item[0].rpartition('.')[2]"),
        ("key=lambda item: item[0]", "key=lambda item: item[0][:8]"),
        ("src=0", "src=dist.get_rank()"),
    ),
    base("fsdp2-buffer-order 0.9.1 verl fsdp2_load_full_state_dict", ("src=0", "src=dist.get_rank()")),
    base(
        "hybrid-aux-tracker-hang 0.19.2 megatron-lm training_log",
        ("num_layers=args.num_layers", "num_layers=layers"),
        ("mtp_num_layers=args.mtp_num_layers", "mtp_num_layers=None"),
        ("force_initialize=True", "force_initialize=False"),
    ),
    base(
        "infer-metric-rank0 4.6.0 ms-swift compute_rouge_bleu",
        ("if v.count else", "if preds else"),
        ("* 100, 6)", "* 100, 5)"),
        ("v.state / v.count", "v.state / len(preds)"),
    ),
    base("mean-metric-dtype 4.6.0 ms-swift MeanMetric.compute", *DTYPE, harmless=(("op=dist.ReduceOp.SUM, ", ""),)),
    base("mean-metric-dtype 4.1.0 ms-swift MeanMetric.compute", *DTYPE, harmless=(("op=dist.ReduceOp.SUM, ", ""),)),
    base("moe-aux-tracker-hang 0.19.2 megatron-core track_moe_metrics"),
    base(
        "moe-aux-tracker-hang 0.15.3 megatron-core track_moe_metrics",
        ("num_layers + (mtp_num_layers or 0)", "num_layers + 1"),
        ("(mtp_num_layers or 0)", "(writer and mtp_num_layers or 0)"),
    ),
    base(
        f"mtp-cp-deadlock 0.9.1 verl {ENGINE}",
        ("ignore_virtual=True", "ignore_virtual=False"),
        ("mtp.enable and", "mtp.enable and not forward_only and"),
    ),
    base(
        f"mtp-cp-deadlock 0.7.1 verl {ENGINE}",
        ("ignore_virtual=True", "ignore_virtual=False"),
        ("n_micro_batch > 0", "n_micro_batch > 1"),
        ("mtp.enable and", "mtp.enable and not forward_only and"),
        ("get_megatron_mtp_loss(n_micro_batch)", "get_megatron_mtp_loss(len(losses_reduced) + 1)"),
    ),
    base(
        "sft-packed-seq-broadcast 0.17.1 megatron-lm get_batch_on_this_tp_rank",
        ("_broadcast(batch['max_seqlen'])\n\n        elif", "pass\n\n        elif"),
        ("_broadcast(loss_mask)", "pass"),
    ),
    base(
        "sft-packed-seq-broadcast 0.19.2 megatron-core get_batch_on_this_tp_rank",
        ("_broadcast(batch['loss_mask'])", "_broadcast(batch['labels'])"),
        ("_broadcast(loss_mask)", "pass"),
    ),
]
PARTLY = {
    "training_log": "of this long function one statement runs, so that edits elsewhere do not",
    "track_moe_metrics": "newer forms are short, and the scene does not show what each part of their end is for",
}
KEPT = {"_initialize_mpu": "the rewrite of a body in a `try` warms up groups that were there already: a defect"}


MEGATRON = {"verl": "0.16.1", "ms-swift": "0.19.2"}
"""The megatron-core that they import."""


@cache
def site(project: str, version: str) -> str:
    """The folder of a release, with the megatron-core that it imports."""
    roots = [trees.unpacked(project, version)]
    if project not in MEGATRON:
        return str(roots[0])
    folder = Path(mkdtemp(prefix="unhang-", dir=SITES.name))
    for root in (*roots, trees.unpacked("megatron-core", MEGATRON[project])):
        for path in root.iterdir():
            (folder / path.name).symlink_to(path)
    return str(folder)


def run(target: Target, data: bytes, version: str) -> Shown:
    """What is shown of the target's function in this file, in the tree of a release."""
    seen = observe_bytes("/x", data, target.function, {})
    try:
        after = rewrite(data, [Step(target, None)]).data
    except RewriteError:
        after = None
    root = site(trees.project_of(target.upstream), version)
    where = Installation(target.upstream, "1", root, "", "", "wheel", None, ())
    finding = Finding(where, target, seen, Verdict("drifted"))
    return shows.run(finding, after, interpreters.with_torch())


def forms(base: Base) -> Iterator[tuple[str, Source]]:
    """The function as it is released, and with our rewrite."""
    released = sources.wheel(base.fix, base.version, base.upstream, base.function)
    yield "released", released
    if released.known.state == "affected":
        yield "rewritten", released.rewritten


def harmless(base: Base) -> Iterator[Edited]:
    """The function as it is, and with each harmless edit."""
    for form, source in forms(base):
        yield Edited(base, form, "as it is", source.target, source.data)
        texts = {name: edited(source, edit) for name, edit in HARMLESS.items()}
        texts |= {new: replaced(source, old, new) for old, new in base.harmless}
        yield from (Edited(base, form, name, source.target, text) for name, text in texts.items() if text)


def breaking(base: Base) -> Iterator[Edited]:
    """The function with each edit that breaks most functions."""
    for form, source in forms(base):
        texts = {edit.__name__: edited(source, edit) for edit in BREAKING}
        yield from (Edited(base, form, name, source.target, text) for name, text in texts.items() if text)


def undoing(base: Base) -> Iterator[Edited]:
    """The function with each edit of audit V1 and P2, which undo its fix."""
    for form, source in forms(base):
        texts = {new: replaced(source, old, new) for old, new in base.breaking}
        if form == "released" and source.known.state == "fixed" and base.fix in UNDOING:
            texts["undone"] = edited(source, UNDOING[base.fix])
        yield from (Edited(base, form, name, source.target, text) for name, text in texts.items() if text)


def chosen(edits: Iterable[Edited], count: int) -> list[Edited]:
    """So many of the edits, always the same ones; all of them if asked."""
    every = list(edits)
    return every if ALL else random.Random(28).sample(every, count)


def fits(edit: Edited) -> bool:
    """Whether a function with a harmless edit was run. It must not be judged wrong."""
    is_wrong = sources.wheel(*edit.base[:4]).known.state == "affected" and edit.form == "released"
    shown = run(edit.target, edit.data, edit.base.version)
    assert shown.shows in ("defect" if is_wrong else "no-defect", "not-run"), (edit[:3], shown)
    after = ("no-defect" if is_wrong else "not-run", "not-run")
    assert shown.after in after or edit.base.function in KEPT, (edit[:3], shown)
    assert shown.shows != "not-run" or edit.name != "as it is", (edit[:3], shown)
    return shown.shows != "not-run"


def breaks(edit: Edited) -> bool:
    """Whether a function that an edit breaks was run. It must not be judged right."""
    shown = run(edit.target, edit.data, edit.base.version)
    assert shown.shows != "no-defect", (edit[:3], shown)
    # where the edit breaks only our rewrite, a second rewrite puts the cure in again
    assert shown.after != "no-defect" or (edit.form, shown.shows) == ("rewritten", "defect"), (edit[:3], shown)
    return shown.shows != "not-run"


each_base = pytest.mark.parametrize(
    "base", [pytest.param(base, id=f"{base.fix}-{base.version}-{base.function[-9:]}") for base in BASES]
)


@pytest.mark.torch
@pytest.mark.slow
@each_base
def test_ten_harmless_edits_of_each_function_are_not_judged_wrong_and_most_are_run(base: Base) -> None:
    ran = [fits(edit) for edit in chosen(harmless(base), 1)]
    assert not ALL or sum(ran) >= (0.5 if base.function in PARTLY else 0.6) * len(ran)


@pytest.mark.torch
@pytest.mark.slow
@each_base
def test_no_defect_is_never_said_of_a_function_that_an_edit_breaks(base: Base) -> None:
    for edit in chosen(breaking(base), 1):
        breaks(edit)


@pytest.mark.torch
@pytest.mark.slow
def test_eight_in_ten_of_the_edits_that_undo_a_fix_are_run(record_property: Callable[[str, object], None]) -> None:
    every = [edit for base in BASES for edit in undoing(base)]
    assert len(every) > 20
    ran = [breaks(edit) for edit in chosen(every, 10)]
    assert sum(ran) >= 0.8 * len(ran)
    record_property("figure", f"Of {len(ran)} edits that undo a fix, {sum(ran)} were run, and none was judged right.")


COMPUTE = "MeanMetric.compute"
MEAN = Target("mean-metric-dtype", "ms-swift", "swift/metrics/utils.py", COMPUTE)
HOSTILE = {
    "while True: pass": "no answer within ",
    "import time; time.sleep(99)": "hung",
    "import sys; sys.exit(0)": "SystemExit",
    "import os; os._exit(0)": "died",
    "import os; os.abort()": "died",
    "import os; os.fork()": "os.fork",
    "import os; os.kill(os.getppid(), 9)": "os.kill",
    "import os; os.system('true')": "os.system",
    "import os; os.remove('/dev/null')": "os.remove",
    "open('/tmp/unhang', 'w')": "(open)",
    "import no_such_module": "no_such_module",
    "f = lambda: f(); f()": "RecursionError",
    "bytearray(1 << 60)": "MemoryError",
    "print('x' * 10**6)": "",
    "no_such_name()": "NameError",
}
ENDLESS = ("while True: pass", "import time; time.sleep(99)")
WEEKLY = pytest.mark.skipif(not ALL, reason="each setting waits until it is out of time: run nox -s attack")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("body", [pytest.param(it, marks=WEEKLY if it in ENDLESS else ()) for it in HOSTILE])
def test_code_that_misbehaves_is_not_called_right_and_harms_nobody(body: str) -> None:
    owner, _, name = COMPUTE.partition(".")
    text = f"class {owner}:\n    def {name}(self):\n        {body}\n        return {{self.name: 1}}\n"
    shown = run(MEAN, text.encode(), "4.6.0")
    assert shown.shows in ("not-run", "defect")
    assert HOSTILE[body] in shown.why, shown
    assert shown.after == "not-run"
