"""What a real rank makes and uses: communicators by identity, as if the device were a GPU that NCCL serves.

Every collective passes torch's dispatcher, whether a function of ``torch.distributed``, a process group's own method or
a functional collective issues it. The collectives really run, on gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Use(NamedTuple):
    """One collective that a rank issues."""

    communicator: str
    """Which of the communicators that the rank has made; empty for the default group."""
    ranks: tuple[int, ...]
    kind: str
    """The name of torch's operator, such as ``allreduce_``."""
    elements: int
    """Of its first tensor."""
    on_device: bool
    """Whether each of its tensors was made on the rank's own device."""


_GROUPS: dict[tuple[tuple[int, ...], int], Any] = {}
"""The groups of this process, each with its number among those of the same ranks."""


class Watch:
    """A context in which a rank poses as one with a GPU; it records what the rank does with its communicators.

    Use it in a rank's own process, on real groups of gloo. A group answers ``get_backend`` and ``get_backend_config``
    with the backend that it was made with, or else with the pose. Tensors asked for on a GPU are made on the CPU. A
    later watch makes the groups of an earlier one again only in name, because to connect them takes long.
    """

    def __init__(self, number: int, backend: str, device: str = "cuda") -> None:
        """``number`` is that of the rank's GPU; ``backend`` is what groups pose as, such as ``nccl``.

        ``device`` is the kind of GPU; those of another kind than ``cuda`` have nothing to do with ``torch.cuda``. With
        ``cpu`` there is none.
        """
        self.uses: list[Use] = []
        self.made: list[tuple[int, ...]] = []
        """The ranks of each group that this rank took part in making, in order, whether it is a member or not."""
        self.is_waiting: bool | None = None
        """Whether the device may still be busy with a collective; None if the rank neither used nor awaited it."""
        self._number, self._backend, self._device = number, backend, device
        self._groups: list[tuple[int, Any, str]] = []
        self._on_device: list[Any] = []
        self._modes = _modes(self)
        self._real: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Watch:
        import torch
        import torch.distributed as dist

        real = dist.new_group

        def new_group(
            ranks: Sequence[int] | None = None,
            timeout: object = None,
            backend: object = None,
            pg_options: object = None,
            use_local_synchronization: bool = False,
            *_: object,
            **__: object,
        ) -> Any:
            members = tuple(range(dist.get_world_size())) if ranks is None else tuple(sorted(ranks))
            key = members, self.made.count(members)
            if key not in _GROUPS:
                _GROUPS[key] = real(ranks, use_local_synchronization=use_local_synchronization)
            self.made.append(members)
            self._groups.append((len(self.made), _GROUPS[key], str(backend or self._backend)))
            return _GROUPS[key]

        self._replace(dist, new_group=new_group, get_backend=self._backend_of, get_backend_config=self._config_of)
        self._replace(torch.cuda, current_device=lambda: self._number, synchronize=self._synchronize)
        self._replace(torch.cuda, is_available=lambda: self._device == "cuda")
        for mode in self._modes:
            mode.__enter__()
        return self

    def _replace(self, module: Any, **new: Any) -> None:
        for name, value in new.items():
            self._real.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
        for module, name, value in self._real:
            setattr(module, name, value)

    def _backend_of(self, group: Any = None) -> str:
        return next((backend for _, own, backend in self._groups if own is group), self._backend)

    def _config_of(self, group: Any = None) -> str:
        backend = self._backend_of(group)
        if backend == "undefined":
            backend = "gloo" if self._device == "cpu" else "nccl"
        return backend if ":" in backend else f"{self._device}:{backend}"

    def _synchronize(self, *_: object, **__: object) -> None:
        self.is_waiting = self._device != "cuda" and self.is_waiting

    def asked(self, device: Any) -> bool:
        """Return whether this names a GPU."""
        return isinstance(device, int) or str(device).startswith(("cuda", self._device))

    def made_on(self, device: Any, tensor: Any) -> None:
        """Remember a tensor of the rank's own device."""
        name = f"cuda:{device}" if isinstance(device, int) else str(device)
        if name in (self._device, f"{self._device}:{self._number}"):
            self._on_device.append(tensor)

    def issued(self, kind: str, group: Any, tensors: Sequence[Any]) -> None:
        """Record a collective."""
        import torch.distributed as dist

        name = next((f"group {number}" for number, own, _ in self._groups if own is group), "")
        elements = tensors[0].numel() if tensors else 0
        on_device = all(any(tensor is own for own in self._on_device) for tensor in tensors)
        self.uses.append(Use(name, tuple(dist.get_process_group_ranks(group)), kind, elements, on_device))
        self.is_waiting = True


def _modes(watch: Watch) -> tuple[Any, Any]:
    """Return the modes of torch that see where a rank makes tensors, and what it dispatches."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Placing(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(kwargs or {})
            device = given.get("device")
            if device is not None and watch.asked(device):
                result = function(*args, **{**given, "device": "cpu"})
                watch.made_on(device, result)
                return result
            if args[1:] and isinstance(args[1], (str, torch.device)) and watch.asked(args[1]):  # Tensor.to
                result = function(args[0], "cpu", *args[2:], **given)
                watch.made_on(args[1], result)
                return result
            result = function(*args, **given)
            if function is torch.Tensor.type and isinstance(result, str):
                return result.replace("torch.", "torch.cuda.")  # Megatron's optimizer asks for it
            return result

    class Dispatching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if function.namespace in ("c10d", "_c10d_functional"):
                leaves = tree_leaves((args, given))
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                for group in filter(None, map(_group, leaves[::-1])):
                    watch.issued(function._schema.name.rpartition("::")[2], group, tensors)
                    break
            elif function is torch.ops.aten._local_scalar_dense.default:
                watch.is_waiting = False  # its value is there once all that was issued before is done
            return function(*args, **given)

    return Placing(), Dispatching()


def _group(argument: Any) -> Any:
    """Return the process group that an operator is given, as an object or by name; None for any other argument."""
    import torch
    import torch.distributed as dist

    if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
        return dist.ProcessGroup.unbox(argument)
    if isinstance(argument, str):
        try:
            return dist.distributed_c10d._resolve_process_group(argument)
        except (LookupError, RuntimeError, ValueError):  # the name of a reduction
            pass
    return None
