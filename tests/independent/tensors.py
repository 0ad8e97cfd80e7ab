"""Tensors without numbers: a shape, a dtype, what is in them, and what they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from independent.interpreter import BeyondError, Model, Names

ZEROS, GARBAGE = "zeros", "garbage"
"""What ``torch.zeros`` and ``torch.empty`` put into a tensor."""
DTYPES = ("bool", "uint8", "int32", "int64", "bfloat16", "float32")
GPU, CPU = "the GPU", "cpu"


class Tensor(Model):
    """A tensor. ``content`` is a label, or a number or list if the code may ask for it."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        content: Any = "",
        parts: frozenset[str] = frozenset(),
        device: object = GPU,
    ) -> None:
        self.shape, self.dtype, self.content = tuple(shape), dtype, content
        self.parts, self.device = parts or frozenset([str(content)]), device

    def like(self, shape: Sequence[int] | None = None, *others: Tensor, dtype: str = "") -> Tensor:
        """Return what an operation makes of this tensor and others."""
        content = self.content if shape is None and not others else ""
        parts = self.parts.union(*(other.parts for other in others))
        return Tensor(self.shape if shape is None else shape, dtype or self.dtype, content, parts, self.device)

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def item(self) -> Any:
        if isinstance(self.content, str):
            raise RuntimeError(f"the value of {self.content or 'a tensor'} is asked for")
        return self.content

    def tolist(self) -> list[Any]:
        if not isinstance(self.content, list):
            raise BeyondError("tolist")
        return list(self.content)

    def sum(self) -> Tensor:
        total = sum(self.content) if isinstance(self.content, list) else ""
        return Tensor((), self.dtype, total, self.parts, self.device)

    def cuda(self, *_: object, **__: object) -> Tensor:
        return self.to(device=GPU)

    def to(self, *args: Any, dtype: str = "", device: object = None, **_: object) -> Tensor:
        made = self.like()
        for item in args:
            dtype, device = (item, device) if item in DTYPES else (dtype, item)
        made.dtype, made.device = dtype or self.dtype, self.device if device is None else device
        return made

    def contiguous(self) -> Tensor:
        return self

    def clamp(self, **_: object) -> Tensor:
        return self.like()

    def view(self, *shape: Any) -> Tensor:
        wanted = list(shape[0] if isinstance(shape[0], tuple) else shape)
        known = Tensor([size for size in wanted if size != -1]).numel()
        if -1 in wanted:
            if known == 0:
                raise RuntimeError(f"{self.shape} as {wanted} is ambiguous")
            wanted[wanted.index(-1)] = self.numel() // known
        if Tensor(wanted).numel() != self.numel():
            raise RuntimeError(f"{self.shape} as {wanted}")
        return self.like(wanted)

    reshape = view

    def squeeze(self, dim: int) -> Tensor:
        dim %= len(self.shape)
        return self.like([size for place, size in enumerate(self.shape) if place != dim or size != 1])

    def unsqueeze(self, dim: int) -> Tensor:
        shape = list(self.shape)
        shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, 1)
        made = self.like(shape)
        made.content = self.content
        return made

    def new_zeros(self, *shape: Any, **_: object) -> Tensor:
        return Tensor(_shape(shape), self.dtype, ZEROS, device=self.device)

    def fill_(self, value: Any) -> Tensor:
        self.content = value
        return self

    def __getitem__(self, key: Any) -> Tensor:
        if isinstance(key, slice):
            return self.like([len(range(*key.indices(self.shape[0]))), *self.shape[1:]])
        raise BeyondError(f"tensor[{key!r}]")

    def _with(self, other: Any) -> Tensor:
        if not isinstance(other, Tensor):
            return self.like(self.shape)
        longest = max(len(self.shape), len(other.shape))
        left, right = ((1,) * (longest - len(it.shape)) + it.shape for it in (self, other))
        if any(a != b and 1 not in (a, b) for a, b in zip(left, right)):
            raise RuntimeError(f"{self.shape} with {other.shape}")
        dtype = max(self.dtype, other.dtype, key=DTYPES.index)
        return self.like([b if a == 1 else a for a, b in zip(left, right)], other, dtype=dtype)

    __add__ = __radd__ = __mul__ = __rmul__ = _with


def _shape(shape: Sequence[Any]) -> tuple[int, ...]:
    found = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not all(isinstance(size, int) for size in found):
        raise TypeError(f"a shape of {found!r}")
    return tuple(found)


def torch(distributed: Names, synchronize: Any = lambda: None) -> Names:
    """Return a stand-in for torch."""

    def make(content: Any) -> Any:
        def made(*shape: Any, dtype: str = "float32", device: object = CPU, **_: object) -> Tensor:
            return Tensor(_shape(shape), dtype, content, device=device)

        return made

    def full(shape: Sequence[int], value: Any, dtype: str = "float32", device: object = CPU) -> Tensor:
        return Tensor(shape, dtype, [value] * shape[0], device=device)

    def tensor(value: Any, dtype: str = "int64", device: object = CPU) -> Tensor:
        return Tensor((len(value),) if isinstance(value, list) else (), dtype, value, device=device)

    def cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        if dim not in (0, -parts[0].dim()) or len({part.shape[1:] for part in parts}) != 1:
            raise RuntimeError(f"cat of {[part.shape for part in parts]}")
        dtype = max((part.dtype for part in parts), key=DTYPES.index)
        return parts[0].like([sum(part.shape[0] for part in parts), *parts[0].shape[1:]], *parts, dtype=dtype)

    def split(whole: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
        if isinstance(sizes, Tensor) or dim != 0:
            raise TypeError("split by a tensor")
        if sum(sizes) != whole.shape[0]:
            raise RuntimeError(f"split {whole.shape[0]} rows by {sizes}")
        return [whole.like([size, *whole.shape[1:]]) for size in sizes]

    def chunk(whole: Tensor, count: int, dim: int) -> list[Tensor]:
        if dim != -1:
            raise BeyondError("chunk of rows")
        return [whole.like([*whole.shape[:-1], whole.shape[-1] // count]) for _ in range(count)]

    class Torch(Names):
        def attribute(self, name: str) -> Any:
            if name not in self.attributes:
                raise BeyondError(f"torch.{name}")
            return super().attribute(name)

    return Torch(
        {
            **{name: name for name in DTYPES},
            "distributed": distributed,
            "cuda": Torch({"current_device": lambda: GPU, "synchronize": synchronize}),
            "device": lambda *names: names[0],
            "Tensor": Tensor,
            "tensor": tensor,
            "empty": make(GARBAGE),
            "zeros": make(ZEROS),
            "ones": make("ones"),
            "full": full,
            "ones_like": lambda item: Tensor(item.shape, item.dtype, "ones", device=item.device),
            "cat": cat,
            "concat": cat,
            "split": split,
            "chunk": chunk,
        }
    )
