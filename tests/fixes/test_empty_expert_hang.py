"""empty-expert-hang: its rewrite and anchors."""

from __future__ import annotations

from fixes.empty_expert_hang.mutants import MUTANTS as MUTANTS
from fixes.empty_expert_hang.proofs import PROOFS as PROOFS
from fuzz.subject import Fuzz
from support import hung_jobs, sources
from support.hung_jobs import WORLD, HungJob, issued, job, rank
from unhang.diagnose.evidence import Frame, Rank

FIX = "empty-expert-hang"
RELEASES = (
    *("0.10.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.0", "0.17.1", "0.18.2", "0.19.2"),
    *("0.16.0rc0.dev100093", "0.16.0rc0.dev132550"),
)
CASES = sources.cases(FIX, {"megatron-core": RELEASES})
FOCUS = r"tokens_per_expert|permuted_|output|has_no_tokens|num_rows|skip_routed|grouped|linear_fc"
FUZZ = Fuzz(CASES, 6, FOCUS, examples=110, every=3)
_TOLIST = "tokens_per_expert = tokens_per_expert.tolist()"
_RETURN = "return (output, output_bias)"
_EDITED = [
    ("0.15.3", "tokens_per_expert.tolist()", "[*tokens_per_expert]", "not found: tokens_per_expert = tokens"),
    ("0.15.3", "permuted_probs: torch.Tensor", "scale: torch.Tensor", "not found: the arguments self, "),
    ("0.15.3", _TOLIST, f"{_TOLIST}\n    {_TOLIST}", "found 2 times"),
    ("0.15.3", _RETURN, "return output", "not found: return output, output_bias, as the last statement"),
    ("0.15.3", _TOLIST, f"{_TOLIST}\n    has_no_tokens = False", "not found: .* followed by"),
    ("0.19.2", "tokens_per_expert.tolist()", "[*tokens_per_expert.tolist()]", "not found: tokens"),
    ("0.19.2", "skip_routed_expert_padding(self.config)", "self.pads", "not found: padding that is left"),
]
REFUSED = [edit for version, *row in _EDITED for edit in sources.edits(sources.case(FIX, version), [row])]


def test_rows_and_slice_of_the_pull_request_are_replaced() -> None:
    source = sources.wheel(FIX, "0.19.2")
    text, end = source.data.decode(), "        return output, output_bias\n"
    rows = "        is_dummy_forward = made_up()\n        if is_dummy_forward:\n            made_up()\n"
    (tolist,) = (line for line in text.splitlines(keepends=True) if "list[int] = tokens_per_expert.tolist()" in line)
    before, after = text.split(tolist)
    after = after.replace(end, f"        # a comment\n        if is_dummy_forward:\n            made_up()\n{end}", 1)
    changed = f"{before}{tolist}        # a comment\n{rows}{after}".encode()
    done = sources.rewritten(source.target, changed, source.known.result)  # it checks that this is the result
    assert b"# a comment" not in done


def _tokens(rows: int, columns: int) -> Rank:
    return rank(issued(_EXPERT, 9, "all_to_all", rows, 8, outputs=(columns, 8), done=True), issued(WORLD, 2, "barrier"))


_EXPERT = hung_jobs.group("11", "EXPERT_MODEL_PARALLEL_GROUP")
_BACKWARD = ("megatron/core/tensor_parallel/mappings.py::_AllToAll.backward",)
_WAITS = rank(issued(_EXPERT, 10, "all_to_all", 64, 8, outputs=(128, 8), at=_BACKWARD))
_GRADS = issued(
    hung_jobs.group("3", "DATA_PARALLEL_GROUP_WITH_CP"), 1, "reduce_scatter", 64, at=("megatron/core/a.py::sync",)
)
_LEFT = rank(_tokens(0, 64).last[0], _GRADS)
_WAITS_BEFORE = _WAITS._replace(waiting=(*_WAITS.waiting, _GRADS))
_FORWARD_STEP = "megatron/core/pipeline_parallel/schedules.py::forward_step"
_AVERAGE = "megatron/training/utils.py::average_losses_across_data_parallel_group"
_REDUCES = issued(WORLD, 1, "all_reduce", 1)
_IN_LOSS, _IN_SAVE = (
    rank(_tokens(0, 64).last[0], _REDUCES._replace(frames=at))
    for at in (
        hung_jobs.frames(_AVERAGE, "pretrain_gpt.py::loss_func", _FORWARD_STEP),
        (Frame("save", "/job/checkpoint.py", 4),),
    )
)
HANGS = [
    HungJob("no token, and on to what its peers issued", job([*[_WAITS_BEFORE] * 3, _LEFT])),
    HungJob("no token on three ranks", job([_WAITS, *[_tokens(0, 64)] * 3])),
    HungJob("no token, and still in its forward", job([*[_WAITS_BEFORE] * 3, _IN_LOSS])),
    HungJob("no token, and in a user's save", job([*[_WAITS_BEFORE] * 3, _IN_SAVE])),
    HungJob("late with tokens", job([_WAITS, *[_tokens(16, 64)] * 3]), ""),
    HungJob("no token, and then late", job([_WAITS, *[rank(*_tokens(0, 64).last)] * 3]), "also"),
]
