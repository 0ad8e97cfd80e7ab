"""What an asynchronous operation returns while a job is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recorder import Recorder


class Work:
    """What an asynchronous operation returns. To ask whether it is done counts as to wait for it."""

    def __init__(self, recorder: Recorder, operation: int) -> None:
        self._recorder, self._operation, self._waited = recorder, operation, False

    def wait(self, timeout: object = None) -> bool:
        """Wait, once: what is complete stays so."""
        if not self._waited:
            self._waited = True
            self._recorder.waited(self._operation)
        return True

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.wait()

    is_success = is_completed
    synchronize = wait
