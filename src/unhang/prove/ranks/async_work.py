"""What asynchronous operations return in a recording, and the stand-in for the manager that coalesces them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operations import Unjudged

if TYPE_CHECKING:
    from collections.abc import Callable


class Work:
    """What an asynchronous operation returns. Asking whether it is done counts as waiting for it."""

    def __init__(self, note: Callable[[], object]) -> None:
        """``note`` records that the rank waits for the operation."""
        self._note, self._waited = note, False

    def wait(self, timeout: object = None) -> bool:
        """Record the first wait; after that the operation is complete."""
        if not self._waited:
            self._waited = True
            self._note()
        return True

    def is_completed(self) -> bool:
        """Wait, and return True."""
        return self.wait()

    is_success = is_completed
    synchronize = wait

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unjudged(f"a schedule does not show what follows from a work's {name}")


class Together:
    """The stand-in for ``_coalescing_manager``: the operations on its group inside of it are issued as one.

    None of them waits by itself. The manager waits for all at its end, or with ``async_ops`` in ``wait``.
    """

    def __init__(self, active: dict[str, Together], group: str, async_ops: bool) -> None:
        """``active`` holds the manager of each group that has one now."""
        self._active, self._group, self._async_ops = active, group, async_ops
        self._works: list[Work] = []

    def __enter__(self) -> Together:
        self._active[self._group] = self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        del self._active[self._group]
        if kind is None and not self._async_ops:
            self.wait()

    def append(self, work: Work) -> None:
        """Add an operation to wait for."""
        self._works.append(work)

    def wait(self) -> None:
        """Wait for all operations."""
        for work in self._works:
            work.wait()
