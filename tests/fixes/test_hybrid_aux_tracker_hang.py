"""hybrid-aux-tracker-hang: run the statement that logs the MoE losses, and look at what it tells the tracker."""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.subject import Fuzz
from mutants.by_hand import Mutants, Sub
from proofs.others import Other, Proofs, Release, without
from support import sources
from support.rewrites import EveryRewrite, is_no_rewrite
from unhang.codemods.base import AnchorError
from unhang.judge.decide import codemod
from unhang.prove.fixes import hybrid_aux_tracker_hang as proof

FIX = "hybrid-aux-tracker-hang"
CASES = sources.cases(FIX, {"megatron-lm": ["0.17.1", "0.18.2", "0.19.2"]}, {"megatron-lm": ["0.16.1"]})
FIXED = sources.cases(FIX, {}, state="fixed")
NOT_AFFECTED = sources.cases(FIX, {}, state="not-affected")


def told(
    function: Any, monkeypatch: pytest.MonkeyPatch, pattern: str, mtp: int | None = None, frequency: Any = 1
) -> dict[str, Any]:
    """Return what the tracker is told in a job with 8 layers, of a hybrid model if it has a pattern."""
    seen: list[dict[str, Any]] = []
    args = SimpleNamespace(
        num_experts=4,
        num_layers=8,
        mtp_num_layers=mtp,
        mtp_use_repeated_layer=False,
        moe_layer_freq=frequency,
        moe_router_load_balancing_type="aux_loss",
        moe_z_loss_coeff=None,
        moe_per_layer_logging=False,
        is_hybrid_model=bool(pattern),
        hybrid_override_pattern=pattern or None,
        hybrid_layer_pattern=pattern or None,
    )
    allocation: Any = SimpleNamespace(
        Symbols=SimpleNamespace(MOE="E", PIPE="|"),
        get_hybrid_layer_counts=lambda whole: {"E": whole.count("E")},
        parse_hybrid_pattern=lambda whole: SimpleNamespace(main_pattern=whole, mtp_pattern=None, mtp_num_depths=0),
    )
    for name in ("ssm.mamba_hybrid_layer_allocation", "models.hybrid.hybrid_layer_allocation"):
        package = ""
        for part in f"megatron.core.{name}".split("."):
            package = f"{package}.{part}".lstrip(".")
            monkeypatch.setitem(sys.modules, package, allocation)
    (statement,) = (node for node in sources.bare(function).body if "track_names" in ast.unparse(node))
    track = lambda *_, **given: seen.append(given)  # noqa: E731
    namespace = {
        **dict.fromkeys(("iteration", "writer", "wandb_writer", "total_loss_dict", "pg_collection")),
        **{"args": args, "num_microbatches": 2, "get_num_microbatches": lambda: 2},
        **{"is_hybrid_model": lambda args: args.is_hybrid_model, "track_moe_metrics": track},
        "get_moe_metrics_tracker": lambda: SimpleNamespace(report=track),
    }
    exec(sources.compiled([statement]), namespace)
    (given,) = seen
    return given


def length(given: dict[str, Any]) -> int:
    """Return how long the entries of a stage without MoE layers are."""
    return int(given["num_layers"]) + (given.get("mtp_num_layers") or 0)


def divisor(given: dict[str, Any]) -> int:
    """Return by how many layers the tracker divides."""
    frequency = given["moe_layer_freq"]
    if not isinstance(frequency, list):
        frequency = [layer % (frequency or 1) == 0 for layer in range(given["num_layers"])]
    return int(sum(frequency) + (given["mtp_num_layers"] or 0))


# -- no-op cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIXED + NOT_AFFECTED)
def test_upstreams_own_fix_is_found_in_every_shape_that_has_it(
    case: sources.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = case.load()
    change, is_fixed = codemod(source.target), source.known.state == "fixed"
    assert change.fixed_upstream(source.function) is is_fixed
    with pytest.raises(AnchorError, match=r"^not found: if a hybrid model: layers = "):
        change.plan(source.function)
    if is_fixed:
        assert length(told(source.function, monkeypatch, "M*ME*EME")) == 8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("num_layers=layers", "num_layers=args.num_layers"),
        ("args.num_layers + (args.mtp_num_layers or 0)", "args.num_layers"),
        ("num_moe_layers=num_moe_layers", "num_moe_layers=None"),
    ],
)
def test_a_function_that_differs_is_not_taken_for_upstreams_own_fix(old: str, new: str) -> None:
    source = next(case.values[0] for case in FIXED if case.values[0].key.startswith("f5b225df")).load()
    assert codemod(source.target).fixed_upstream(source.function)
    assert not codemod(source.target).fixed_upstream(sources.mutated(source.function, old, new))


# -- the rewrite ------------------------------------------------------------------------------------------------------


# the file is long, and has had many shapes
ONLY_IN_HISTORY = [pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in CASES[4:]]


@pytest.mark.parametrize("case", [*CASES[:4], *ONLY_IN_HISTORY])
class TestRewrite(EveryRewrite):
    def test_entries_have_all_layers_and_the_divisor_stays(
        self, case: sources.Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = case.load()
        for mtp in None, 0, 1, 2:
            before, after = (
                told(function, monkeypatch, "M*ME*EME", mtp)
                for function in (source.function, source.rewritten.function)
            )
            assert (length(before), length(after)) == (3 + (mtp or 0), 8 + (mtp or 0))
            assert divisor(before) == divisor(after) == 3 + (mtp or 0)
            assert {**after, "num_layers": 3, "moe_layer_freq": 1} == before

    def test_other_models_are_logged_as_before(self, case: sources.Case, monkeypatch: pytest.MonkeyPatch) -> None:
        source = case.load()
        for frequency in 1, 2, None, [0, 1] * 4:
            before, after = (
                told(function, monkeypatch, "", 1, frequency)
                for function in (source.function, source.rewritten.function)
            )
            assert before == after
            assert length(after) == 9


_SIZE, _COUNT = "num_layers=args.num_layers", "[1] * layers if "


@pytest.mark.parametrize(
    ("old", "new"), [(_SIZE, "num_layers=layers"), (_COUNT, "[1] * 1 if "), (_COUNT, "[1] * args.num_layers if ")]
)
def test_half_of_the_rewrite_is_not_enough(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = sources.first(CASES)
    function = sources.mutated(source.rewritten.function, old, new)
    given = told(function, monkeypatch, "M*ME*EME")
    assert (length(given), divisor(given)) != (8, 3)
    assert is_no_rewrite(source, function)


_LAYERS = "layers = itemgetter(Symbols.MOE)(get_hybrid_layer_counts(args.hybrid_layer_pattern))"


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        (_LAYERS, "layers = 3", "if a hybrid model"),
        ("else:\n            layers = args.num_layers", "else:\n            layers = 8", "if a hybrid model"),
        ("num_layers=layers", "num_layers=len(layers)", "a call of"),
        ("moe_layer_freq=args.moe_layer_freq", "moe_layer_freq=1", "a call of"),
    ],
)
def test_a_statement_that_differs_is_no_anchor(old: str, new: str, missing: str) -> None:
    source = sources.first(CASES)
    with pytest.raises(AnchorError, match=f"^not found: {missing}"):
        codemod(source.target).plan(sources.mutated(source.function, old, new))


_HYBRID = "is_hybrid_model(args)"
_COUNTED = f"moe_layer_freq={_COUNT}{_HYBRID} else args.moe_layer_freq"
_SIZES = (
    *("layers", "args.num_layers + 1", "args.num_layers + layers", "args.num_layers - layers"),
    *("max(args.num_layers, layers)", "args.num_layers + (args.mtp_num_layers or 0)"),
    *("len(args.hybrid_layer_pattern or '')", f"args.num_layers if {_HYBRID} else layers - 1"),
    *(
        "args.num_layers if args.mtp_num_layers else layers",
        "args.num_layers if args.mtp_num_layers is None else layers",
    ),
)
_LISTS = (
    *("args.moe_layer_freq", "[1] * layers", f"[1] * layers if not {_HYBRID} else args.moe_layer_freq"),
    *(
        f"{value} if {_HYBRID} else args.moe_layer_freq"
        for value in ("[1] * args.num_layers", "[1] * (layers + 1)", "[layers] * layers", "layers", "None", "[layers]")
    ),
    *("[1] * layers if layers else args.moe_layer_freq", "[1] * layers if args.num_experts else args.moe_layer_freq"),
    f"[1] * layers if {_HYBRID} and args.moe_layer_freq == 1 else args.moe_layer_freq",
    f"[1] * layers if {_HYBRID} and not args.mtp_num_layers else args.moe_layer_freq",
    f"[1] * layers if {_HYBRID} else 1",
)
BY_HAND = {
    **{f"size {value}": (Sub(_SIZE, f"num_layers={value}"),) for value in _SIZES},
    **{f"list {value}": (Sub(_COUNTED, f"moe_layer_freq={value}"),) for value in _LISTS},
    "no MTP layers": (Sub("mtp_num_layers=args.mtp_num_layers", "mtp_num_layers=None"),),
    "not forced": (Sub("force_initialize=True", "force_initialize=False"),),
}
EQUIVALENT = {
    r"by hand: list \[layers\] if .*": "the tracker takes the sum",
}
MUTANTS = [Mutants("megatron-lm", ("0.17.1", "0.19.2"), BY_HAND, EQUIVALENT)]
_HALVES = {
    "half: the size alone": Other(
        without(r"\[1\] \* layers if .* else ", ""), ("pp3-experts-on-all-stages", "pp3"), "differs: "
    ),
    "half: the list alone": Other(without(r"num_layers=args\.num_layers", "num_layers=layers"), ("pp3", "schedule-32")),
}
# in 0.16 MTP layers need moe-aux-tracker-hang too
_WITHOUT_MTP = tuple(case for case in proof.CASES if "mtp" not in case.options)
PROOFS = [
    Proofs("megatron-lm", [Release("0.17.1", core=True), Release("0.18.2"), Release("0.19.2")], _HALVES),
    Proofs("megatron-lm", [Release("core_v0.16.1", cases=_WITHOUT_MTP)], _HALVES),
]
FUZZ = Fuzz(CASES, 3, r"num_layers|moe_layer_freq|hybrid|layers", examples=40, every=4)
