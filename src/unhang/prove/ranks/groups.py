"""The process groups of the rank that runs now: their names, the same on all their ranks, and what they pose as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operations import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Groups:
    """Knows the groups that a rank has made. ``start`` forgets those of the rank before."""

    def __init__(self, backend: str) -> None:
        """``backend`` is what the groups say they are served by, where they are not made with another."""
        self._backend = backend
        self._world: tuple[int, ...] = ()
        self.start(0, 1)

    def start(self, rank: int, world: int) -> None:
        """Become this rank, with the default group alone."""
        if len(self._world) != world:
            self._world = tuple(range(world))
        self._rank, self._count = rank, 0
        self._alike: dict[tuple[int, ...], int] = {}
        self._known: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._backends: dict[int, str] = {}
        self._kept: list[Any] = []  # the groups: an id is only theirs while they live

    def find(self, group: Any) -> tuple[str, tuple[int, ...]] | None:
        """Name and ranks of a group; None where this rank is no member."""
        import torch.distributed as dist

        if group is None or group is dist.group.WORLD:
            return "world", self._world
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        if id(group) not in self._known:  # made by other ways than new_group
            self._keep(group, tuple(dist.get_process_group_ranks(group)))
        return self._known[id(group)]

    def backend(self, group: Any = None) -> str:
        """What stands for ``get_backend``: what the group poses as."""
        return self._backends.get(id(group), self._backend)

    def _keep(self, group: Any, members: tuple[int, ...]) -> None:
        """Name a group that its members alone know of: the n-th of theirs."""
        self._alike[members] = self._alike.get(members, 0) + 1
        self._known[id(group)] = f"{self._alike[members]} of {members}", members

    def maker(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for ``new_group``, the real one."""
        import torch.distributed as dist

        def new_group(
            ranks: Sequence[int] | None = None,
            timeout: object = None,
            backend: object = None,
            pg_options: object = None,
            use_local_synchronization: bool = False,
            *_: object,
            **__: object,
        ) -> Any:
            members = self._world if ranks is None else tuple(sorted(ranks))
            if len(set(members)) != len(members) or not 0 <= members[0] <= members[-1] < len(self._world):
                raise ValueError(f"no group of {ranges(members)} in a world of {len(self._world)} ranks")
            if not use_local_synchronization:  # then all ranks make it, and count it, as torch does
                self._count += 1
            if self._rank not in members:  # torch would look at each of its ranks first: at 1,024, most of the time
                return None if use_local_synchronization else dist.GroupMember.NON_GROUP_MEMBER
            group = real(list(members))
            if use_local_synchronization:
                self._keep(group, members)
            else:
                self._known[id(group)] = f"group {self._count}", members
            self._backends[id(group)] = str(backend or self._backend)
            self._kept.append(group)
            return group

        return new_group
