"""Made-up transactions, and children that are killed at any operation that changes the disk."""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from unhang.store import disk
from unhang.store.disk import Content
from unhang.store.lock import exclusive
from unhang.store.recovery import recover
from unhang.store.transaction import FileChange, commit

KILLED = 9
ORIGINAL: Any = disk.run
Blow = Callable[[Any, "tuple[Any, ...]"], None]


class Case(NamedTuple):
    """A tree, and a transaction over it that changes, creates and deletes files."""

    top: Path
    state: str
    changes: list[FileChange]

    def look(self) -> dict[str, Content]:
        return {change.path: disk.content(change.path) for change in self.changes}

    @property
    def old(self) -> dict[str, Content]:
        return {change.path: change.before for change in self.changes}

    @property
    def new(self) -> dict[str, Content]:
        return {change.path: change.after for change in self.changes}

    def names(self) -> set[str]:
        """Everything that is there, except bytecode and the lock."""
        there = (path for path in self.top.rglob("*") if path.parent.name != "__pycache__" and path.name != "lock")
        return {str(path.relative_to(self.top)) for path in there}


def make_apply(top: Path) -> Case:
    """Five files in three folders are rewritten, and the receipt is created."""
    changes = []
    for number, name in enumerate(["a/one.py", "a/two.py", "b/three.py", "b/RECORD", "c/four.py"]):
        path = top / name
        (path.parent / "__pycache__").mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"old %d\n" % number)
        (path.parent / "__pycache__" / f"{path.stem}.cpython-312.pyc").write_bytes(b"stale")
        # Long ago, or yet to come: so that the number of operations is always the same.
        os.utime(path, (number * 1e9, number * 1e9))
        changes.append(FileChange(str(path), path.read_bytes(), b"new bytes %d\n" % number))
    state = top / ".unhang"
    changes += [FileChange(str(state / name), None, name.encode()) for name in ("pristine/aa", "receipt.json")]
    return Case(top, str(state), changes)


def make_revert(top: Path) -> Case:
    """The way back: files rewritten, the receipt and its folder deleted."""
    case = make_apply(top)
    go(case)
    return case._replace(changes=[FileChange(c.path, c.after, c.before, c.before is None) for c in case.changes])


def go(case: Case) -> None:
    with exclusive(case.state):
        commit(case.changes, state_dir=case.state)


def finish(case: Case) -> str | None:
    with exclusive(case.state):
        return recover(case.state)


def in_child(work: Callable[[], Any]) -> int:
    """Run in a child; return its exit status, 1 for an exception."""
    return status(fork(work))


def fork(work: Callable[[], Any]) -> int:
    """Start a child that runs `work`; return its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def strike(number: int, blow: Blow | None, pause: float = 0) -> list[str]:
    """Have `blow` fall just before operation `number`; return a list that collects the names of the operations.

    `pause` (seconds) comes before each operation.
    """
    names: list[str] = []

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        names.append(operation.__name__)
        if blow is not None and len(names) == number + 1:
            blow(operation, arguments)
        if pause:  # `sleep(0)` gives the processor away
            time.sleep(pause)
        return operation(*arguments, **options)

    disk.run = run
    return names


def struck(case: Case, number: int, blow: Blow, work: Callable[[Case], object] = go) -> int:
    """Run `work` in a child, with `blow` before operation `number`; return its exit status."""

    def child() -> None:
        strike(number, blow)
        work(case)

    return in_child(child)


def die(operation: Any, arguments: tuple[Any, ...]) -> None:
    os._exit(KILLED)


def die_halfway(operation: Any, arguments: tuple[Any, ...]) -> None:
    if operation is os.write:
        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
    os._exit(KILLED)


def no_leftovers(case: Case) -> None:
    """Check that the files are old or new as a set, and that nothing of ours is there but a receipt of the new."""
    assert not [p for p in case.names() if ".unhang-" in p or "journal" in p]
    assert not os.path.exists(os.path.join(case.state, "lock"))
    now = case.look()
    assert now in (case.old, case.new), "half a set"
    if now[os.path.join(case.state, "receipt.json")] is None:
        sources = [os.path.relpath(change.path, case.top) for change in case.changes[:5]]
        folders = {os.path.dirname(source) for source in sources}
        assert case.names() == {*sources, *folders, *(f"{folder}/__pycache__" for folder in folders)}
    else:
        assert disk.read(os.path.join(case.state, ".gitignore")) == b"*"


def stop_in_the_middle(top: Path) -> Case:
    """Killed with two of the files replaced."""
    case = make_apply(top)
    left = [2]

    def run(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation is os.replace:
            if not left[0]:
                os._exit(KILLED)
            left[0] -= 1
        return operation(*arguments, **options)

    def child() -> None:
        disk.run = run
        go(case)

    assert in_child(child) == KILLED
    assert [case.look()[c.path] == c.after for c in case.changes] == [True, True] + [False] * 5
    return case
