"""A stand-in for an environment that needs every fix, and says of each line that it is in the function it may be in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unhang.diagnose import fixes, known
from unhang.diagnose.evidence import Frame, Job
from unhang.diagnose.fixes import Place, Standing
from unhang.diagnose.known import Answer

SIGNATURES = fixes.signatures()
NEEDED = {
    one.fix: tuple(
        Standing("upstream", "1", "/site", "needed", "", "apply it", shape)
        for shape in {shape: None for hang in one.hangs for shape in hang.shapes or ("",)}
    )
    for one in SIGNATURES
}


class Lines:
    """Tells in which function a line is, as ``tells`` does for a frame without a class."""

    def __init__(self, tells: Callable[[Place], bool | None] = lambda _: True) -> None:
        self._tells = tells

    def __call__(self, frame: Frame, place: Place) -> bool | None:
        """Return whether a frame is in a function; None where the frame itself says the class."""
        return None if "." in frame.function.replace("<locals>.", "") else self._tells(place)


def answers(job: Job, source: Lines | None = None) -> tuple[Answer, ...]:
    """Return what is said of the fixes in such an environment."""
    return known.answers(known.diagnose(job), SIGNATURES, source or Lines(), NEEDED)


def words(found: Sequence[Answer]) -> dict[str, str]:
    """Return the answer to each fix."""
    return {one.fix: one.answer for one in found}
