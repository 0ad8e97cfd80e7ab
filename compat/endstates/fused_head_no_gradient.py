"""fused-head-no-gradient: which gradients backward returns, and whether what forward saves keeps the flag."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from unhang.compat.endstates.endstate import EndState, Outcome, Source, called
from unhang.compat.endstates.standin import StandIn, strict
from unhang.compat.endstates.tensors import Tensor, Watch, torch, unwatched
from unhang.shapes.shape import Function

VIEW, COPY, FLAT = "view", "copy", "2-D"
"""How hidden states flatten, or that they are flat: a copy, as also the view of another function, loses the flag."""
_WIDTH, _WORDS = 2, 3


class Setting(NamedTuple):
    """One loss of one micro-batch."""

    layout: str = COPY
    right: bool = False
    """Whether forward gives the flag back to what it saves. The target is about one that does not."""
    backbone: bool = True
    """Whether the hidden states need a gradient, and so on."""
    head: bool = True
    losses: tuple[bool, bool] = (True, True)
    """Whether log-probabilities and entropy are in the loss."""
    rows: tuple[int, int] = (2, 3)
    chunk: int = 4
    temperature: float = 0.5
    dtype: str = "float32"
    rank: int = 0

    @property
    def keeps(self) -> bool:
        """Whether what is saved still has the flag."""
        return self.right or self.layout != COPY


class Matrix(Tensor):
    """A tensor that flattens, and whose rows are written."""

    def __init__(
        self,
        values: Any,
        dtype: str = "float32",
        device: Any = "cuda",
        origin: Any = (),
        shape: Sequence[int] | None = None,
        watch: Watch = unwatched,
        requires_grad: bool = False,
        keeps: bool = True,
    ) -> None:
        super().__init__(values, dtype, device, origin, shape, watch, requires_grad)
        self.keeps = keeps

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        last = end_dim % self.ndim + 1
        flat = self.view(*self.shape[:start_dim], -1, *self.shape[last:])
        flat.requires_grad &= self.keeps
        return flat

    def requires_grad_(self, requires_grad: bool = True) -> Matrix:
        self.requires_grad = requires_grad
        return self

    def new_zeros(
        self, *size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False
    ) -> Matrix:
        return Matrix(0.0, dtype or self.dtype, device or self.device, shape=size, requires_grad=requires_grad)

    def __setitem__(self, part: slice, new: Tensor) -> None:
        wide = len(self.values_) // self.shape[0]
        first, last, _ = part.indices(self.shape[0])
        assert new.shape == (last - first, *self.shape[1:])
        self.values_[first * wide : last * wide] = new.values_

    def _like(self, values: Any, shape: Sequence[int]) -> Matrix:
        return Matrix([*values], self.dtype, self.device, (), shape, requires_grad=self.requires_grad, keeps=self.keeps)


def _torch(rank: int = 0) -> StandIn:
    def zeros(*size: int, device: str, dtype: str, requires_grad: bool = False) -> Matrix:
        return Matrix(0.0, dtype, device, shape=size, requires_grad=requires_grad)

    return torch(
        zeros=zeros,
        zeros_like=lambda input: Matrix(0.0, input.dtype, input.device, shape=input.shape),
        distributed=StandIn("torch.distributed", get_rank=lambda group=None: rank),
    )


def _ids(setting: Setting) -> list[int]:
    return [place % _WORDS for place in range(setting.rows[0] * setting.rows[1])]


def _given(setting: Setting, shape: Sequence[int], start: float, dtype: str) -> Matrix:
    """Return the gradient of an output, which is the sum over what comes after it."""
    return Matrix([start + place for place in range(len(_ids(setting)))], dtype, shape=shape)


def _inputs(setting: Setting) -> tuple[Matrix, Matrix, Matrix]:
    """Return hidden states, weights and ids, as forward gets them."""
    shape = setting.rows if setting.layout != FLAT else (len(_ids(setting)),)
    hidden = [1.0 + place for place in range(len(_ids(setting)) * _WIDTH)]
    words = [5.0 - place for place in range(_WORDS * _WIDTH)]
    return (
        Matrix(hidden, setting.dtype, shape=(*shape, _WIDTH), requires_grad=setting.backbone, keeps=setting.keeps),
        Matrix(words, setting.dtype, shape=(_WORDS, _WIDTH), requires_grad=setting.head),
        Matrix(_ids(setting), "int64", shape=shape),
    )


def _gradients(
    dlog_probs: Tensor | None,
    dentropy: Tensor | None,
    hidden_states: Tensor,
    vocab_weights: Tensor,
    input_ids: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of some rows: no head's own, but one that all inputs have a part in."""
    rows, outputs = len(input_ids), ((dlog_probs, 1.0), (dentropy, 64.0))
    hidden, words = hidden_states.values_, vocab_weights.values_
    dhidden, dwords = [0.0] * (rows * _WIDTH), [0.0] * len(words)
    for row, word in enumerate(input_ids.values_):
        parts = [given.values_[row] * times for given, times in outputs if given is not None]
        scale = sum(parts) / temperature
        for at in range(_WIDTH):
            dhidden[row * _WIDTH + at] = scale * words[word * _WIDTH + at]
            dwords[word * _WIDTH + at] += scale * hidden[row * _WIDTH + at]
    return (
        Matrix(dhidden, hidden_states.dtype, shape=(rows, _WIDTH)),
        Matrix(dwords, hidden_states.dtype, shape=vocab_weights.shape),
    )


class Backward(EndState):
    """The end state of FusedLinearForPPOFunction.backward."""

    varied: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("ctx.needs_input_grad", "dhidden_states", "hidden_states.requires_grad"), "backbone"),
        **dict.fromkeys(("dvocab_weights", "vocab_weights.requires_grad"), "head"),
        **dict.fromkeys(("dentropy", "dlog_probs"), "losses"),
        "orig_ndim": "layout",
    }
    without: ClassVar[dict[str, Any]] = {"right": True}

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on = (False, True)
        needs = [(backbone, head) for backbone, head in itertools.product(off_on, off_on) if backbone or head]
        losses = ((True, True), (True, False), (False, True))
        for layout, right, need, loss in itertools.product((VIEW, COPY, FLAT), off_on, needs, losses):
            for rows, chunk, rank in itertools.product(((2, 3), (1, 5)), (2, 4, 512), (0, 1)):
                for temperature, dtype in ((0.5, "float32"), (2.0, "bfloat16")):
                    yield Setting(layout, right, *need, loss, rows, chunk, temperature, dtype, rank)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.backbone and not configuration.keeps

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        hidden, weights, ids = _inputs(configuration)
        flat = hidden if hidden.ndim == 2 else hidden.flatten(0, 1)
        ctx = StandIn(
            "ctx",
            saved_tensors=(flat, weights, ids.flatten()),
            needs_input_grad=(configuration.backbone, configuration.head, False, False, False),
            orig_batch_size=configuration.rows[0] if hidden.ndim == 3 else -1,
            orig_ndim=hidden.ndim,
            temperature=configuration.temperature,
            chunk_size=configuration.chunk,
        )
        of_log_probs, of_entropy = configuration.losses
        given = (
            _given(configuration, ids.shape, 1.0, "float32") if of_log_probs else None,
            _given(configuration, ids.shape, 2.0, configuration.dtype) if of_entropy else None,
        )
        names = {
            "torch": _torch(configuration.rank),
            "_fused_linear_for_ppo_bwd": strict("_fused_linear_for_ppo_bwd", _gradients),
        }
        found = called(source, names)(ctx, *given)
        whole = _gradients(*given, hidden, weights, ids.flatten(), configuration.temperature)
        wanted = [
            whole[0].view(*hidden.shape) if configuration.backbone else None,
            whole[1] if configuration.head else None,
            *[None] * 3,
        ]
        return Outcome(frozenset(_faults(found, wanted)), repr(found))


def _faults(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> Iterator[str]:
    if len(found) != len(wanted):
        yield "another number of gradients is returned"
    for name, mine, right in zip(("the backbone", "the head", *["what has none"] * 3), found, wanted):
        if right is None or mine is None:
            if right is not mine:
                yield f"{name} gets {'no' if mine is None else 'a needless'} gradient"
        elif mine.described() != right.described():
            yield f"{name} gets another gradient"


class Forward(EndState):
    """The end state of FusedLinearForPPOFunction.forward: right if what is saved needs a gradient if the input does."""

    varied: ClassVar[dict[str, str]] = {
        "hidden_states.requires_grad": "backbone",
        "orig_ndim": "layout",
        "vocab_weights.requires_grad": "head",
    }

    def configurations(self, function: Function) -> Iterator[Setting]:
        off_on = (False, True)
        for layout, backbone, head in itertools.product((VIEW, COPY, FLAT), off_on, off_on):
            for rows, chunk in itertools.product(((2, 3), (1, 5)), (2, 4, 512)):
                for temperature, dtype in ((0.5, "float32"), (2.0, "bfloat16")):
                    yield Setting(layout, False, backbone, head, (True, True), rows, chunk, temperature, dtype)

    def concerned(self, configuration: Setting) -> bool:
        return configuration.backbone and not configuration.keeps

    def observe(self, source: Source, configuration: Setting) -> Outcome:
        hidden, weights, ids = _inputs(configuration)
        saved: list[Matrix] = []
        ctx = StandIn(
            "ctx", set_materialize_grads=lambda value: None, save_for_backward=lambda *given: saved.extend(given)
        )
        names = {"torch": _torch(), "_fused_linear_for_ppo_fwd": strict("_fused_linear_for_ppo_fwd", _outputs)}
        outputs = called(source, names)(ctx, hidden, weights, ids, configuration.temperature, configuration.chunk)
        faults = set()
        flat = _outputs(hidden, weights, ids.flatten(), configuration.temperature)
        if any(one.values_ != two.values_ or one.shape != ids.shape for one, two in zip(outputs, flat)):
            faults.add("another output")
        kept = [ctx.orig_batch_size, ctx.orig_ndim, ctx.temperature, ctx.chunk_size]
        size = configuration.rows[0] if hidden.ndim == 3 else -1
        if kept != [size, hidden.ndim, configuration.temperature, configuration.chunk]:
            faults.add("another setting is saved")
        if [one.values_ for one in saved] != [hidden.values_, weights.values_, ids.values_]:
            faults.add("another tensor is saved")
        if [one.requires_grad for one in saved[:2]] != [configuration.backbone, configuration.head]:
            faults.add("what is saved does not need a gradient, although the input does")
        return Outcome(frozenset(faults), repr((outputs, saved, kept)))


def _outputs(
    hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return two outputs of some rows, one of them in float32, that all inputs have a part in."""
    hidden, words = hidden_states.values_, vocab_weights.values_
    scores = [
        hidden[row * _WIDTH] * words[word * _WIDTH + 1] / temperature for row, word in enumerate(input_ids.values_)
    ]
    entropy = [score + 64.0 for score in scores]
    return Matrix(scores, "float32"), Matrix(entropy, hidden_states.dtype)


END_STATES = {
    "FusedLinearForPPOFunction.backward": Backward(),
    "FusedLinearForPPOFunction.forward": Forward(),
}
