"""A small tensor for all stand-ins: values in a shape, of a dtype, on a device, and what they were computed from."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from unhang.compat.endstates.standin import StandIn

UNINITIALISED = "uninitialised memory"
DTYPES = ("bool", "uint8", "int32", "int64", "bfloat16", "float32", "float64")
"""In the order in which one gives way to another."""
Watch = Callable[[str, "Tensor"], None]


class Misfit(Exception):
    """Tensors that do not fit together, or that a kernel does not take: a real function fails there."""


class Float64(float):
    """A ``numpy.float64``."""


_INFERRED = {Float64: "float64", float: "float32", int: "int64", bool: "bool"}
"""The dtype of a tensor that is made without one, by the types of its values."""


def unwatched(event: str, of: Tensor) -> None:
    """Watch nothing."""


def _operation(combine: Callable[[Any, Any], Any], dtype: str | None = None) -> Any:
    """Return the method of an operator."""

    def method(self: Tensor, other: Any) -> Any:
        return self._with(other, combine, dtype)

    return method


_MOST = 1 << 20


class Tensor(StandIn):
    """``origin`` is what it was computed from, as in an autograd graph; ``watch`` is told of what the host waits for.

    ``watch`` is called with ``fetch`` for each value that the host reads from a device, and with ``backward``.
    """

    is_nested = False

    def __init__(
        self,
        values: Any,
        dtype: str = "float32",
        device: Any = "cuda",
        origin: Iterable[str | int] = (),
        shape: Sequence[int] | None = None,
        watch: Watch = unwatched,
        requires_grad: bool = True,
    ) -> None:
        """Take nested lists; or, with a shape, one list of all values or a single value for each place."""
        if shape is None:
            self.shape, flat = _shape_of(values), _flat(values)
        else:
            self.shape = tuple(shape)
            size = math.prod(self.shape)
            if size > _MOST:
                raise Misfit(f"{size} values in the shape {self.shape}: a stand-in holds {_MOST}")
            flat = list(values) if isinstance(values, (list, range)) else [values] * size
            if len(flat) != size:
                raise Misfit(f"{len(flat)} values in the shape {self.shape}")
        self.values_, self.dtype, self.device, self.origin = flat, dtype, device, frozenset(origin)
        self.watch, self.requires_grad = watch, requires_grad

    # -- what it is

    @property
    def data(self) -> Tensor:
        return self

    @data.setter
    def data(self, other: Tensor) -> None:
        vars(self).update(vars(other))

    @property
    def T(self) -> Tensor:
        rows, columns = self.shape
        return self._like([value for at in range(columns) for value in self.values_[at::columns]], (columns, rows))

    @property
    def is_cuda(self) -> bool:
        return str(self.device).startswith("cuda")

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return len(self.values_)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(self.shape[0]))

    def described(self) -> object:
        """Return all that there is to see, which can be compared."""
        return self.dtype, self.shape, tuple(self.values_), tuple(sorted(map(str, self.origin))), self.device

    def __repr__(self) -> str:
        return f"Tensor{self.described()}"

    # -- its values, for which the host waits

    def tolist(self) -> Any:
        self.watch("fetch", self)
        return _nested(self.values_, self.shape)

    def item(self) -> Any:
        self.watch("fetch", self)
        if len(self.values_) != 1:
            raise Misfit(f"one item of {len(self.values_)}")
        (value,) = self.values_
        if value == UNINITIALISED:
            raise Misfit("a value is read that nobody wrote")
        return value

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def backward(self) -> None:
        self.watch("backward", self)

    # -- the same values

    def to(self, *given: Any, device: Any = None, dtype: str | None = None, non_blocking: bool = False) -> Tensor:
        for it in given:
            dtype, device = (it, device) if isinstance(it, str) and it in DTYPES else (dtype, it)
        moved = self._like(self.values_, self.shape)
        moved.dtype, moved.device = dtype or self.dtype, self.device if device is None else device
        if device == "cpu" != self.device:
            self.watch("fetch", self)
        return moved

    def cuda(self, device: Any = "cuda", non_blocking: bool = False) -> Tensor:
        return self.to(device, non_blocking=non_blocking)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def float(self) -> Tensor:
        return self.to("float32")

    def long(self) -> Tensor:
        return self.to("int64")

    def contiguous(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self.to()

    def detach(self) -> Tensor:
        alone = self.to()
        alone.origin, alone.requires_grad = frozenset(), False
        return alone

    def view(self, *shape: Any) -> Tensor:
        wanted = list(shape[0] if isinstance(shape[0], (tuple, list)) else shape)
        if -1 in wanted:
            known = -math.prod(wanted)
            if not known:
                raise Misfit(f"{self.shape} as {wanted} is ambiguous")
            wanted[wanted.index(-1)] = len(self.values_) // known
        return self._like(self.values_, wanted)

    reshape = view

    def unsqueeze(self, dim: int) -> Tensor:
        shape = list(self.shape)
        shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, 1)
        return self._like(self.values_, shape)

    # -- other values

    def new_full(self, size: Any, value: Any, dtype: str | None = None, device: Any = None) -> Tensor:
        size = (size,) if isinstance(size, int) else size
        return Tensor(value, dtype or self.dtype, device or self.device, shape=size, watch=self.watch)

    def new_zeros(self, *size: Any, dtype: str | None = None, device: Any = None) -> Tensor:
        return self.new_full(size[0] if isinstance(size[0], (tuple, list)) else size, 0.0, dtype, device)

    def new_ones(self, *size: Any, dtype: str | None = None, device: Any = None) -> Tensor:
        return self.new_full(size[0] if isinstance(size[0], (tuple, list)) else size, 1.0, dtype, device)

    def new_empty(self, *size: Any, dtype: str | None = None, device: Any = None) -> Tensor:
        return self.new_full(size[0] if isinstance(size[0], (tuple, list)) else size, UNINITIALISED, dtype, device)

    def fill_(self, value: Any) -> Tensor:
        self.values_[:] = [value] * len(self.values_)
        return self

    def zero_(self) -> Tensor:
        return self.fill_(0.0)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        low, high = -math.inf if min is None else min, math.inf if max is None else max
        return self._like([sorted((low, value, high))[1] for value in self.values_], self.shape)

    def masked_select(self, mask: Tensor) -> Tensor:
        chosen = [value for value, wanted in zip(self.values_, mask.values_) if wanted]
        return self._like(chosen, (len(chosen),))

    def __getitem__(self, part: Any) -> Tensor:
        if isinstance(part, slice) and part.step is None:  # rows, as most often
            first, last, _ = part.indices(self.shape[0])
            row, last = math.prod(self.shape[1:]), max(first, last)
            return self._like(self.values_[first * row : last * row], (last - first, *self.shape[1:]))
        places = part if isinstance(part, tuple) else (part,)
        if (at := next((at for at, place in enumerate(places) if place is Ellipsis), -1)) >= 0:
            filler = (slice(None),) * (len(self.shape) - len(places) + 1)
            places = (*places[:at], *filler, *places[at + 1 :])
        strides = [math.prod(self.shape[index + 1 :]) for index in range(len(self.shape))]
        chosen, shape = [], []
        for size, place in zip(self.shape, (*places, *[slice(None)] * (len(self.shape) - len(places)))):
            if isinstance(place, slice):
                chosen.append([*range(size)[place]])
            elif isinstance(place, list) or (isinstance(place, Tensor) and place.shape):
                chosen.append([int(it) for it in getattr(place, "values_", place)])
            else:
                chosen.append([range(size)[operator.index(place)]])
                continue
            shape.append(len(chosen[-1]))
        flat = [self.values_[sum(map(operator.mul, at, strides))] for at in itertools.product(*chosen)]
        return self._like(flat, shape)

    def sum(self, dim: int | None = None) -> Tensor:
        if dim is None:
            return self._like([sum(self.values_)], ())
        rows, columns = self.shape
        if dim % 2:
            return self._like([sum(self.values_[at * columns :][:columns]) for at in range(rows)], (rows,))
        return self._like([sum(self.values_[at::columns]) for at in range(columns)], (columns,))

    def mean(self) -> Any:
        return self.sum() / len(self.values_)

    def max(self) -> Tensor:
        return self._like([max(self.values_)], ())

    def diff(self) -> Tensor:
        return self._like([two - one for one, two in zip(self.values_, self.values_[1:])], (len(self.values_) - 1,))

    __add__ = __radd__ = _operation(operator.add)
    __mul__ = __rmul__ = _operation(operator.mul)
    __sub__, __truediv__ = _operation(operator.sub), _operation(operator.truediv)
    __rsub__ = _operation(lambda mine, other: other - mine)
    __eq__, __ne__ = _operation(operator.eq, "bool"), _operation(operator.ne, "bool")
    __lt__, __gt__ = _operation(operator.lt, "bool"), _operation(operator.gt, "bool")
    __le__, __ge__ = _operation(operator.le, "bool"), _operation(operator.ge, "bool")
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return self * -1

    def _like(self, values: Any, shape: Sequence[int]) -> Tensor:
        return Tensor([*values], self.dtype, self.device, self.origin, shape, self.watch, self.requires_grad)

    def _with(self, other: Any, combine: Callable[[Any, Any], Any], dtype: str | None) -> Any:
        """Combine two tensors, or one and a number; a dimension of one stands for many."""
        if not isinstance(other, Tensor):
            if not isinstance(other, (int, float)):
                return NotImplemented
            made = self._like([combine(value, other) for value in self.values_], self.shape)
            made.dtype = dtype or made.dtype
            return made
        if self.shape and other.shape and self.device != other.device:
            raise Misfit(f"tensors on {self.device} and {other.device}")
        dims = max(len(self.shape), len(other.shape))
        one, two = ((1,) * (dims - len(it.shape)) + it.shape for it in (self, other))
        if any(a != b and 1 not in (a, b) for a, b in zip(one, two)):
            raise Misfit(f"the shapes {self.shape} and {other.shape} do not fit")
        shape = [b if a == 1 else a for a, b in zip(one, two)]
        pairs = zip(_spread(self.values_, one, shape), _spread(other.values_, two, shape))
        made = joined([self, other], [combine(a, b) for a, b in pairs], shape)
        made.dtype = dtype or made.dtype
        return made


class Nested(Tensor):
    """A nested tensor: rows of these lengths, and all values in one row."""

    is_nested = True

    def __init__(self, lengths: Sequence[int], dtype: str = "int64", device: Any = "cuda") -> None:
        super().__init__(1, dtype, device, shape=(sum(lengths),))
        self.lengths = lengths

    def values(self) -> Tensor:
        return self._like(self.values_, self.shape)

    def offsets(self) -> Tensor:
        return self._like([0, *itertools.accumulate(self.lengths)], (len(self.lengths) + 1,))

    def unbind(self) -> list[Tensor]:
        return [self._like([1] * length, (length,)) for length in self.lengths]


def joined(tensors: Sequence[Tensor], values: Any, shape: Sequence[int]) -> Tensor:
    """Return what an operation makes of tensors: of the dtype that all give way to, and from all their origins."""
    dtype = max((one.dtype for one in tensors), key=DTYPES.index)
    origin = frozenset().union(*(one.origin for one in tensors))
    grad = any(one.requires_grad for one in tensors)
    return Tensor(values, dtype, tensors[0].device, origin, shape, tensors[0].watch, grad)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Do what ``torch.cat`` does with rows. It takes several dtypes too, but no kernel takes its result."""
    if dim or len({(one.shape[1:], one.device, one.dtype) for one in tensors}) != 1:
        raise Misfit("cat: the tensors differ in width, device or dtype")
    values = [value for one in tensors for value in one.values_]
    return joined(tensors, values, (sum(map(len, tensors)), *tensors[0].shape[1:]))


def split(whole: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    """Do what ``torch.split`` does with rows."""
    if dim or isinstance(sizes, Tensor) or sum(sizes) != len(whole):
        raise Misfit("split: the counts do not sum to the rows")
    return [whole[end - count : end] for end, count in zip(itertools.accumulate(sizes), sizes)]


def chunk(whole: Tensor, chunks: int, dim: int) -> list[Tensor]:
    """Do what ``torch.chunk`` does with the columns of a matrix."""
    width = whole.shape[-1] // chunks
    return [whole[..., part * width : part * width + width] for part in range(chunks)]


def torch(watch: Watch = unwatched, /, **others: Any) -> StandIn:
    """Return a stand-in for torch: what makes and joins tensors, which are watched, and these others."""

    def filled(value: Any) -> Callable[..., Tensor]:
        def made(*size: Any, dtype: str = "float32", device: Any = "cpu") -> Tensor:
            shape = size[0] if isinstance(size[0], (tuple, list)) else size
            return Tensor(value, dtype, device, (), shape, watch, False)

        return made

    def full(size: Sequence[int], fill_value: Any, dtype: str = "float32", device: Any = "cpu") -> Tensor:
        return Tensor(fill_value, dtype, device, (), size, watch, False)

    def tensor(data: Any, dtype: str | None = None, device: Any = "cpu") -> Tensor:
        kinds = {type(value) for value in _flat(data)}
        inferred = next((name for kind, name in _INFERRED.items() if kind in kinds), "int64")
        return Tensor(data, dtype or inferred, device, watch=watch, requires_grad=False)

    known = {
        **{dtype: dtype for dtype in DTYPES},
        **{"Tensor": Tensor, "tensor": tensor, "cat": cat, "concat": cat, "split": split, "chunk": chunk, "full": full},
        **{"zeros": filled(0.0), "ones": filled(1.0), "empty": filled(UNINITIALISED), "no_grad": nullcontext},
        "long": "int64",
        "ones_like": lambda input: input.new_full(input.shape, 1.0),
        "zeros_like": lambda input: input.new_full(input.shape, 0.0),
    }
    return StandIn("torch", **{**known, **others})


def _shape_of(values: Any) -> tuple[int, ...]:
    return (len(values), *_shape_of(values[0] if values else 0)) if isinstance(values, (list, range)) else ()


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in _flat(value)] if isinstance(values, (list, range)) else [values]


def _nested(values: list[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return values[0]
    size = math.prod(shape[1:])
    return [_nested(values[at * size : at * size + size], shape[1:]) for at in range(shape[0])]


def _spread(values: list[Any], shape: Sequence[int], wanted: Sequence[int]) -> list[Any]:
    """Repeat the values along each dimension of one."""
    if [*shape] == [*wanted]:
        return values
    strides = [math.prod(shape[index + 1 :]) if size > 1 else 0 for index, size in enumerate(shape)]
    return [values[sum(map(operator.mul, at, strides))] for at in itertools.product(*map(range, wanted))]
