"""The releases that the proof of empty-expert-hang runs on, and the half patches that it must fail on."""

from __future__ import annotations

from proofs.others import AS_WRITTEN, Other, Proofs, Release, as_written, without
from unhang.prove.cases import CRASHED, HUNG

_LINES = (  # a release for each shape of the forward
    *("0.10.0", "0.11.0", "0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.0rc0", "0.15.0rc4", "0.15.3"),
    *("0.16.0rc0.dev100085", "0.16.1", "0.17.1", "0.18.2", "0.19.2"),
)
_NO_RECOMPUTE = {"recompute-cuts": "its config cannot recompute only the activation of an MoE layer"}
_NO_ON_INPUT = {"on-input-cuts": "its config cannot apply probabilities on input"}
_NO_PROBS = {"half: rows without probabilities": "its experts get no probabilities"}
_LACKING = {
    "0.10.0": {**_NO_RECOMPUTE, **_NO_ON_INPUT, **_NO_PROBS},
    "0.11.0": {**_NO_RECOMPUTE, **_NO_ON_INPUT, **_NO_PROBS},
    "0.12.0": _NO_PROBS,
}
# Up to 0.12.0 the probabilities bypass the experts, so that the router has a gradient without them. So the empty rank
# gets further: with all-gather to another collective of the same group, where gloo aborts; with data parallelism to the
# reduction of gradients, where it waits.
_BACKWARD = "tensor_parallel/mappings.py"
_PAST_THE_EXPERTS: dict[str, tuple[str, str]] = {
    "allgather-cuts": (CRASHED, _BACKWARD),
    "ddp-cuts": (HUNG, "finish_grad_sync"),
}
_ALIGNS = ("0.18.2", "0.19.2")  # here the router can pad for fp8
_OTHERS = {
    "half: rows appended, and never sliced off": Other(without(r"output = output\[:0\]", "pass"), ("alltoall-cuts",)),
    "half: rows without probabilities": Other(
        without(r"permuted_probs = torch\.cat\(.*\)", "pass"), ("alltoall-cuts", "alltoall-keeps")
    ),
    "rows appended with tokens present": Other(
        without(r"(has_no_tokens = ).*", r"\1True"), ("alltoall-tokens", "fp8-aligned-cuts")
    ),
    "an output other by a bit or so": Other(
        without(r"return output, output_bias", "return output * (1 + 2**-22), output_bias"), ("alltoall-tokens",)
    ),
    "half: one row for each expert, not aligned": Other(
        without(r"rows_per_expert = get_align_size_for_quantization\(self\.config\)", "pass"),
        ("fp8-aligned-cuts",),
        "not aligned to 16",
        _ALIGNS,
    ),
    AS_WRITTEN: Other(as_written("empty-expert-hang"), ("fp8-aligned-cuts",), "not aligned to 16", _ALIGNS),
}
PROOFS = [
    Proofs(
        "megatron-core",
        [
            Release(
                line,
                core=line == "0.19.2",
                lacking=_LACKING.get(line, {}),
                otherwise=_PAST_THE_EXPERTS if line in ("0.10.0", "0.11.0", "0.12.0") else {},
            )
            for line in _LINES
        ],
        _OTHERS,
    )
]
