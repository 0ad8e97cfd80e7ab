"""The roots that a run writes to: each has its own lock, receipt and transaction, and one that fails stops no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from unhang.errors import UnhangError, described
from unhang.store import state
from unhang.suggest import hinted

if TYPE_CHECKING:
    from unhang.find.bytecode import Caches
    from unhang.records import Request


class Locked(NamedTuple):
    """Some roots, of which this process is the only writer."""

    failed: dict[str, UnhangError]
    """Why a root could not be locked, recovered or written, by root."""
    recovered: tuple[str, ...]
    """What was done about runs that had been killed, a sentence each."""
    left: dict[str, list[UnhangError]]
    """Why something of this run is left in a root that is otherwise as it should be; complete after the `with`."""

    @contextmanager
    def failing(self, root: str) -> Iterator[None]:
        """Note the failure of a root, of any kind, and go on with the next."""
        try:
            yield
        except Exception as error:
            self.failed[root] = described(error)

    def complete_hints(self, request: Request) -> None:
        """Put the options of the request into the commands that the errors suggest; call it after the `with`."""
        for error in (*self.failed.values(), *chain.from_iterable(self.left.values())):
            hinted(error, request)


@contextmanager
def locked(roots: Iterable[str], caches: Caches) -> Iterator[Locked]:
    """Be the only writer of these real roots for the length of a `with`, after recovery from runs that were killed.

    Takes the locks in the order of the paths, so that two runs never wait for each other. Raises nothing.
    """
    from unhang.store.lock import exclusive  # a run that finds nothing to do needs neither
    from unhang.store.recovery import recover

    failed: dict[str, UnhangError] = {}
    recovered = []
    left: dict[str, list[UnhangError]] = {}
    with ExitStack() as stack:
        for root in sorted(roots):
            try:
                with ExitStack() as one:
                    left[root] = one.enter_context(exclusive(state.folder(root)))
                    recovered.append(recover(state.folder(root), caches))
                    stack.enter_context(one.pop_all())
            except UnhangError as error:
                failed[root] = error
        yield Locked(failed, tuple(filter(None, recovered)), left)


def journal_left(left: Mapping[str, Sequence[UnhangError]]) -> bool:
    """Return whether a journal is among what a run left: `check` calls that root interrupted."""
    return any(state.interrupted(state.folder(root)) for root, errors in left.items() if errors)


def tidy(roots: Iterable[str], caches: Caches) -> tuple[str, ...]:
    """Recover what killed runs left in these roots, and remove their locks; without permission this does nothing.

    Returns what was recovered, a sentence each.
    """
    littered = [root for root in roots if state.littered(state.folder(root)) or state.interrupted(state.folder(root))]
    if not littered:
        return ()
    with locked(littered, caches) as done:
        return done.recovered
