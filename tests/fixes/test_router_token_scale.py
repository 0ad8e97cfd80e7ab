"""router-token-scale: its anchors, and what the sessions need of it."""

from __future__ import annotations

from fuzz.subject import Fuzz
from mutants.by_hand import ByHand, Mutants, Sub, each
from proofs.others import Other, Proofs, Release, in_file, untouched, without
from support import sources
from unhang.prove.fixes.router_token_scale import CASES as PLAYED
from unhang.shapes import catalog

FIX, CORE = "router-token-scale", "megatron-core"
OLD, ATTACH, Z, SEQUENCE, GLOBAL, COUNT = (target.function for target in catalog.fix(FIX).targets)
UNSCALED, PADDED = ("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2"), ("0.16.1", "0.17.1", "0.18.2")
NEW = (*PADDED, "0.19.2")
_OF = {OLD: ("0.12.3", "0.13.1"), ATTACH: UNSCALED, Z: ("0.12.3", *UNSCALED), SEQUENCE: PADDED, GLOBAL: NEW, COUNT: NEW}
CASES = [case for name, of in _OF.items() for case in sources.cases(FIX, {CORE: [*of]}, function=name)]
_EDITED = [
    (ATTACH, "aux_loss * num_tokens", "aux_loss / num_tokens", r"\* \.\.\.\) with self.calc"),
    (ATTACH, "else activation.shape[0]", "else activation.shape[1]", "a loss times activation.shape"),
    (ATTACH, "aux_loss * num_tokens)", "aux_loss * num_tokens, None)", "with self.calculate_per_token_loss"),
    (ATTACH, "if self.calculate_per_token_loss", "if self.config.calculate_per_token_loss", "if self.calc"),
    (SEQUENCE, "valid_token_count=local_num_tokens", "valid_token_count=total_num_tokens", "valid_token_count="),
    (SEQUENCE, "valid_token_count=local", "aux_loss_scale_num_tokens=1, valid_token_count=local", "one count"),
    (SEQUENCE, "topk=self.topk * bsz", "topk=bsz", "topk="),
    (GLOBAL, "self.ga_steps += 1", "local_num_tokens = 1", "which nothing else reads"),
    (GLOBAL, "get_tokens_per_expert_and_token_count(", "other(", "get_tokens_per_expert_and_token_count"),
    (COUNT, "local_tokens_per_expert, reduce_group", "local_tokens_per_expert.clone(), reduce_group", "reduced"),
    (COUNT, "local_tokens_per_expert.sum() / topk", "routing_map.sum() / topk", "a sum of what was reduced"),
    (COUNT, "local_num_tokens * reduce_group.size()", "routing_map.numel()", "\\.\\.\\. \\* "),
]
REFUSED = [edit for name, *row in _EDITED for edit in sources.edits(sources.case(FIX, "0.18.2", function=name), [row])]


def test_a_nightly_that_divides_whole_tokens_gets_the_mean_too() -> None:
    source = sources.wheel(FIX, "0.19.2", function=COUNT)
    found = sources.rewritten(source.target, source.data.replace(b".sum() / topk", b".sum() // topk"), None)
    assert b"global_tokens_per_expert.sum() // topk / reduce_group.size()" in found


# -- for the sessions -------------------------------------------------------------------------------------------------


def _instead(old: str, *others: str) -> ByHand:
    return each({old: [it.replace("{}", old) for it in others]})


_SIZE, _TP, _CP = "self.tp_cp_group.size()", "self.tp_group.size()", "self.cp_group.size()"
_WORLD, _CONTEXT = (f"parallel_state.get_{it}_parallel_world_size()" for it in ("tensor_and_context", "context"))
_PARTITION = "(1 if sequence_partition_group is None else sequence_partition_group.size())"
_FACTORS = (
    *("1", "1 / {}", "{} ** 2", "2", "max(2, {})", "min(2, {})", "({} + 1)", _TP, _CP, "self.tp_dp_cp_group.size()"),
    *(f"max({_TP}, {_CP})", *(f"({{}} if {one} > 1 else 1)" for one in (f"min({_TP}, {_CP})", _TP, _CP))),
    *("next(vars(self).setdefault('first', iter([{}])), 1)", "(1 if self.is_mtp_layer else {})"),
)
_GIVEN = ("({} if %s is not None else 1)", "({} if %s is None else 1)")
_HOST = "{} * int(aux_loss.item() == aux_loss.item())"
_ATTACHED = _instead(_SIZE, *_FACTORS, "reduce_group.size()", *(it % "valid_token_count" for it in _GIVEN), _HOST)
_OF_Z: ByHand = {
    **_instead(_SIZE, *_FACTORS, *(it % "padding_mask" for it in _GIVEN)),
    "all rows": Sub("num_tokens", "logits.shape[0]"),
    "in place": Sub("num_tokens", "(num_tokens if padding_mask is None else padding_mask.logical_not_().sum())"),
    "the loss that is logged too": Sub("z_loss * num_tokens", "(z_loss := z_loss * num_tokens)"),
}
_COUNTS = (
    *("{}", "{} / bsz", "{} * seq_length", "{} * self.topk", "{} * 2", "{} * (bsz + 1)", "{} * min(2, bsz)"),
    *(f"{{}} * bsz * {_SIZE}", "{} * bsz**2", "{} * bsz / 2", "{} * bsz + 1", f"{{}} * {_TP}"),
    *(f"{{}} * (bsz if {one} else 1)" for one in ("with_padding_mask", "not with_padding_mask", f"{_SIZE} > 1")),
    *("total_num_tokens * bsz", "total_num_tokens", "probs.shape[0]", "None", "{} * vars(self).setdefault('n', bsz)"),
)
_OF_SEQUENCES = each({"local_num_tokens * bsz": [it.replace("{}", "local_num_tokens") for it in _COUNTS]})
_IF, _PART = "if with_padding_mask:", f"total_num_tokens / {_SIZE}"
_OF_ALL: ByHand = {
    **_instead(_IF, "if False:", "if True:", "if not with_padding_mask:", f"if with_padding_mask and {_SIZE} > 1:"),
    **_instead(_SIZE, "self.tp_dp_cp_group.size()", _TP, _CP, "{} / self.ga_steps", "2", "min(2, {})"),
    **_instead(_PART, "total_num_tokens", f"total_num_tokens * {_SIZE}", "int({})", f"local_num_tokens / {_SIZE}"),
    "the total too": Sub("local_num_tokens = total", "local_num_tokens = total_num_tokens = total"),
    "the first total": Sub("= total_num_tokens", "= vars(self).setdefault('n', total_num_tokens)"),
}
_TOTAL, _RANKS = "global_tokens_per_expert.sum() / topk", "reduce_group.size()"
_COUNTED: ByHand = {
    **_instead(
        f"{_TOTAL} / {_RANKS}",
        *("routing_map.sum() / topk", "local_tokens_per_expert.sum() / topk", f"{_TOTAL} // {_RANKS}", "({}).long()"),
        *(_TOTAL, f"{_TOTAL} * {_RANKS}", "routing_map.shape[0]", f"{_TOTAL} / 2", "{} / topk", "{} * topk", "{} / 2"),
        "reduce_from_tensor_model_parallel_region(routing_map.sum(dim=0), reduce_group).sum() / topk",
    ),
    **_instead(_RANKS, "min(2, {})", "(reduce_group.rank() + 1)", "({} + 1)", "topk"),
    "the total too": Sub(f"total_num_tokens = {_TOTAL}", "total_num_tokens = local_num_tokens"),
    "on the host": Sub(_TOTAL, "global_tokens_per_expert.sum().item() / topk"),
}
_SCALED = _instead(_SIZE, *_FACTORS)
MUTANTS = [
    Mutants(CORE, versions, by_hand, function=function)
    for function, versions, by_hand in (
        (OLD, ("0.12.3",), _instead(_PARTITION, *_FACTORS, _WORLD, _CONTEXT)),
        *((name, (version,), _SCALED) for name, version in ((OLD, "0.13.1"), (ATTACH, "0.15.3"), (Z, "0.15.3"))),
        *((ATTACH, ("0.18.2",), _ATTACHED), (Z, ("0.18.2",), _OF_Z), (SEQUENCE, ("0.18.2",), _OF_SEQUENCES)),
        *((GLOBAL, ("0.16.1", "0.19.2"), _OF_ALL), (COUNT, ("0.19.2",), _COUNTED)),
    )
]
_LOCAL = without(r"total_num_tokens / self\.tp_cp_group\.size\(\)", "local_num_tokens")
_OWN = without(r"global\w+\.sum\(\) / topk / reduce_group\.size\(\)", "routing_map.sum() / topk")
_FIRST = without(r"local_num_tokens \* bsz", "local_num_tokens")
_OF_7481, _ENDS = "those of this rank, as pull request 7481", "differs: .* is 0.0446, right is 0.0388"
_HALVES = {
    "half: the losses alone": Other(in_file("moe_utils.py", untouched), ("aux-even", "aux-uneven"), "differs", NEW),
    "half: the count alone": Other(in_file("router.py", untouched), ("aux-even", "sequences", "z"), "differs", PADDED),
    "without the global loss": Other(in_file("router.py", _LOCAL), ("global-even", "global-dp-padded"), "differs", NEW),
    _OF_7481: Other(in_file("moe_utils.py", _OWN), ("aux-uneven",), _ENDS, NEW),
    "one sequence": Other(in_file("router.py", _FIRST), ("sequences", "sequences-alone"), "differs", PADDED),
}
_NO_PADDING = {it.name: "its routers know no padding" for it in PLAYED if any(of.padded for of in it.options["losses"])}
_NO_GLOBAL = {it.name: "it has no global loss" for it in PLAYED if it.name.startswith("global")} | _NO_PADDING
_LACKING = {"0.15.3": _NO_PADDING, **dict.fromkeys(("0.14.0", *_OF[OLD]), _NO_GLOBAL)}
_OLDER = [Release(it, lacking=_LACKING.get(it, {})) for it in (*_OF[OLD], *UNSCALED[:-1], NEW[-1])]
PROOFS = [Proofs(CORE, [Release("0.18.2", core=True), *_OLDER], _HALVES)]
FUZZ = Fuzz(CASES, 1, "num_tokens|valid_token_count|tp_cp_group|calculate_per_token_loss|topk", examples=40)
