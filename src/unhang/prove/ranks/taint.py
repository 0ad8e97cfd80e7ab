"""Follows the values that a recording does not know: what an operation would have brought from another rank.

A tensor that holds or is computed from such a value is tainted. It may be passed on, but where a rank reads it, so that
it may decide what the rank does next, the recording ends. So it does at an operation that is not known to pass such a
value on and no more, and at any error of an operation that has one. Not followed: raw memory (``data_ptr``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .followed import is_followed, is_opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_READERS = ("tolist", "numpy", "__dlpack__", "__reduce_ex__", "__deepcopy__", "storage", "_typed_storage")


class Taint:
    """Which tensors are tainted, by their memory."""

    def __init__(self, unseen: Callable[[str], Any], read: Callable[..., Any]) -> None:
        """``unseen`` is told of a collective that was not recorded; ``read`` of a read, and returns what was read."""
        self._unseen, self._read = unseen, read
        self._memory: dict[Any, Any] = {}  # with the objects themselves: memory may be reused once they are gone
        self._is_paused = False

    def mark(self, tensors: Iterable[Any]) -> None:
        """Taint these tensors."""
        self._memory.update(entry for tensor in tensors for entry in _memory(tensor))

    def has(self, tensors: Iterable[Any]) -> bool:
        """Return whether one of these tensors is tainted."""
        return bool(self._memory) and any(key in self._memory for tensor in tensors for key, _ in _memory(tensor))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Neither follow nor report anything: the harness itself fills outputs."""
        self._is_paused, before = True, self._is_paused
        try:
            yield
        finally:
            self._is_paused = before

    def install(self) -> None:
        """Watch the methods that read a tensor or communicate without torch's dispatcher. For the life of a fork."""
        import torch

        for name in _READERS:
            setattr(torch.Tensor, name, self._reader(name, getattr(torch.Tensor, name)))
        backend = torch._C._distributed_c10d.Backend
        for name in vars(backend):
            plain = name.strip("_").partition("_")[0]
            if plain.startswith(("all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier")):
                setattr(backend, name, self._direct(name))

    def _reader(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def reader(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_paused and self.has([tensor]):
                return self._read(name)
            return real(tensor, *args, **kwargs)

        return reader

    def _direct(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self._unseen(f"a backend's own method {name}")

    def mode(self) -> Any:
        """Return a context in which every operation on tensors is watched, also those that C++ calls."""
        return _Both(self._functions(), self._operations())

    def _functions(self) -> Any:
        """Return a mode that sees each function of torch before torch composes it of others."""
        from torch.overrides import TorchFunctionMode

        taint = self

        class Functions(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                if taint._is_paused or not taint.has(tensors((args, kwargs))):
                    return func(*args, **kwargs)
                name = getattr(func, "__name__", "")
                if is_opaque(name):
                    taint._unseen(f"{name} of a value of another rank")
                return func(*args, **kwargs)

        return Functions()

    def _operations(self) -> Any:
        """Return a mode that sees the operations that each function ends in."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils._python_dispatch import TorchDispatchMode

        taint = self
        plain = {torch.Tensor, torch.nn.Parameter}
        shapes = torch.Tag.dynamic_output_shape

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # or torch imports its compiler in every fork, which takes a second

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                if taint._is_paused or any(issubclass(kind, FakeTensor) for kind in types):  # which holds no values
                    return func(*args, **kwargs)
                if func.namespace in _COLLECTIVES and "wait" not in func.__name__ and "_wrap" not in func.__name__:
                    taint._unseen(f"{func.namespace}.{func.__name__}, called without a function of torch.distributed")
                if not plain.issuperset(types):
                    return NotImplemented  # a subclass calls operations on plain tensors
                given = list(tensors((args, kwargs)))
                if not taint.has(given):
                    return func(*args, **kwargs)
                if torch.Tag.data_dependent_output in func.tags or shapes in func.tags:
                    value = taint._read(str(func.__name__), is_value=shapes not in func.tags)
                    return value if func.__name__ == "_local_scalar_dense.default" else bool(value)
                what = f"{func.__name__.partition('.')[0]} of a value of another rank"
                if not is_followed(func, [tensor for tensor in given if taint.has([tensor])]):
                    taint._unseen(what)
                try:
                    result = func(*args, **kwargs)
                except Exception:  # another value might not have raised
                    return taint._unseen(f"an error of {what}")
                taint.mark(tensors(result))
                taint.mark(_written(func, args, kwargs))
                return result

        return Mode()


class _Both:
    """Two contexts as one that can be entered again."""

    def __init__(self, *contexts: Any) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def _written(func: Any, args: Any, kwargs: Any) -> Iterable[Any]:
    """Return the tensors that an operation writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors(args[place] if place < len(args) else kwargs.get(argument.name))


def tensors(items: Any) -> Iterator[Any]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    import torch

    if isinstance(items, torch.Tensor):
        yield items
    elif isinstance(items, (list, tuple)):
        for item in items:
            yield from tensors(item)
    elif isinstance(items, dict):
        yield from tensors(list(items.values()))


def _memory(tensor: Any) -> Iterator[tuple[Any, Any]]:
    """Return the key of a tensor's memory, and what keeps it alive."""
    import torch

    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            for part in tensors(getattr(tensor, name)):  # a DTensor names its mesh too
                yield from _memory(part)
        return
    try:
        memory = torch._C.TensorBase.untyped_storage(tensor)
        yield memory._cdata, memory
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        yield ("tensor", id(tensor)), tensor
