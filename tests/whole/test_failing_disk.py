"""Whole runs of `unhang` on a disk that fails at any operation: all files of the root or none, and the truth about it.

`UNHANG_ATTACK=1` (`nox -s attack`) tries each operation, else every ninth is tried.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support import whole
from support.transactions import Blow
from support.whole import Stage
from unhang.store import disk

EVERY = 1 if os.environ.get("UNHANG_ATTACK") else 9


def once(number: int) -> Blow:
    """Let one operation fail."""

    def blow(operation: Any, arguments: tuple[Any, ...]) -> None:
        raise OSError(number, os.strerror(number))

    return blow


def for_good(number: int) -> Blow:
    """Let this operation and all that follow fail, as after a remount."""

    def fail(operation: Any, *arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    def blow(operation: Any, arguments: tuple[Any, ...]) -> None:
        setattr(disk, "run", fail)  # noqa: B010 (it has another type)
        fail(operation)

    return blow


def sources(tree: whole.Tree) -> whole.Tree:
    """Return what is not ours."""
    return {name: data for name, data in tree.items() if ".unhang" not in name}


def judge(stage: Stage, prefix: Path, command: str, ran: whole.Ran) -> str:
    """Check what a run left after a failure, and what it said; return how it ended."""
    old, new = (stage.pristine, stage.applied) if command == "apply" else (stage.applied, stage.pristine)
    now, halfway = whole.tree(prefix), whole.interrupted(prefix)
    assert "Traceback" not in ran.out
    assert not halfway or ran.code == 2 or sources(now) == sources(new), "an unfinished run says so"
    if sources(now) == sources(new):
        end = "done"
        assert ran.code == 0 or "nothing was changed" not in ran.out, ran.out
    elif sources(now) == sources(old):
        end = "undone"
        assert ran.code == 2, ran.out
    else:
        end = "halfway"
        assert (ran.code, halfway) == (2, True), ran.out
        assert "nothing was changed" not in ran.out
        assert "`unhang apply` or `unhang revert`" in ran.out
    again = whole.run(prefix, command)
    assert again.code == 0 or (end == "done" and "nothing to revert" in again.out), again.out
    hidden = {"site/.unhang/.gitignore": b"*"}  # a run does not fail for the lack of it; the next writer makes it
    assert {**hidden, **whole.tree(prefix)} == {**hidden, **new}, "the next run ends it, and leaves no litter"
    assert whole.stale_bytecode(prefix / "site") == []
    return end


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param(once, marks=pytest.mark.slow), for_good])
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_each_operation_fails(stage: Stage, tell: list[str], command: str, how: Any) -> None:
    ends: dict[str, int] = {"done": 0, "undone": 0, "halfway": 0}
    numbers = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
    total = len(whole.run(stage.fresh(applied=command == "revert"), command).operations)
    for at in range(0, total, EVERY):
        prefix = stage.fresh(applied=command == "revert")
        ran = whole.run(prefix, command, blow=how(numbers[at // EVERY % 4]), at=at)
        ends[judge(stage, prefix, command, ran)] += 1
    assert ends["undone"]
    assert ends["done"]
    assert how is for_good or not ends["halfway"], "one failure is always rolled back or survived"
    shown = ", ".join(f"{count} {end}" for end, count in ends.items())
    tell.append(
        f"`{command}` with failures ({how.__name__.replace('_', ' ')}) at {sum(ends.values())} operations: {shown}"
    )
