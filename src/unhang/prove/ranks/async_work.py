"""What asynchronous operations return while a job is recorded, and what stands for the manager that coalesces them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operations import Unjudged

if TYPE_CHECKING:
    from .recorder import Recorder


class Work:
    """What an asynchronous operation returns. To ask whether it is done counts as to wait for it."""

    def __init__(self, recorder: Recorder, operation: int) -> None:
        self._recorder, self._operation, self._waited = recorder, operation, False
        self._steps = recorder.steps

    def wait(self, timeout: object = None) -> bool:
        """Wait, once: what is complete stays so. For what was issued before the recording, nothing."""
        if not self._waited and self._steps is self._recorder.steps:
            self._waited = True
            self._recorder.waited(self._operation)
        return True

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.wait()

    is_success = is_completed
    synchronize = wait

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unjudged(f"what follows from a work's {name} is not seen in a schedule")


class Together:
    """What stands for ``_coalescing_manager``: what is issued on its group inside goes out as one.

    So none of that waits by itself: it is waited for at the end, or with ``async_ops`` by ``wait``.
    """

    def __init__(self, recorder: Recorder, group: str, async_ops: bool) -> None:
        self._recorder, self._group, self._async_ops = recorder, group, async_ops
        self.works: list[Work] = []

    def __enter__(self) -> Together:
        self._recorder.together[self._group] = self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        del self._recorder.together[self._group]
        if kind is None and not self._async_ops:
            self.wait()

    def append(self, work: Work) -> None:
        """One more to wait for."""
        self.works.append(work)

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()
