"""The process groups of the current rank: their names, equal on all members, and the backends they pose as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operations import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Groups:
    """The groups that the current rank has made."""

    def __init__(self, backend: str) -> None:
        """``backend`` is what groups report that are made without one."""
        self._backend = backend
        self._world: tuple[int, ...] = ()
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}  # of equal tuples one, which pickles faster
        self.is_making = False
        self.made: list[tuple[int, ...]]
        """The ranks of each group that all ranks must make, in order."""
        self.start(0, 1)

    def start(self, rank: int, world: int) -> None:
        """Become this rank, with only the default group."""
        if len(self._world) != world:
            self._world = tuple(range(world))
        self._rank, self.made = rank, []
        self._alike: dict[tuple[int, ...], int] = {}
        self._known: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._backends: dict[int, str] = {}
        self._kept: list[Any] = []  # the groups themselves: an id may be reused once a group is gone

    def find(self, group: Any) -> tuple[str, tuple[int, ...]] | None:
        """Return the name and ranks of a group; None where this rank is not a member."""
        import torch.distributed as dist

        if group is None or group is dist.group.WORLD:
            return "world", self._world
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        if id(group) not in self._known:  # not made by new_group
            self._keep(group, tuple(dist.get_process_group_ranks(group)))
        return self._known[id(group)]

    def backend(self, group: Any = None) -> str:
        """Return the backend that a group poses as. Replaces ``get_backend``."""
        return self._backends.get(id(group), self._backend)

    def _keep(self, group: Any, members: tuple[int, ...]) -> None:
        """Name a group that only its members have made: the n-th of these ranks."""
        self._alike[members] = self._alike.get(members, 0) + 1
        self._known[id(group)] = f"{self._alike[members]} of {members}", members

    def maker(self, real: Callable[..., Any], local: Callable[[str, tuple[int, ...]], Any]) -> Callable[..., Any]:
        """Return what replaces ``new_group``, given the real function.

        ``local`` is told the name and ranks of a group that only its members make.
        """
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
                raise ValueError(f"a world of {len(self._world)} ranks has no group of {ranges(members)}")
            if not use_local_synchronization:  # all ranks make the group and count it, as in torch
                self.made.append(self._same.setdefault(members, members))
            if self._rank not in members:  # return before torch visits each of its ranks, which is slow at 1,024
                return None if use_local_synchronization else dist.GroupMember.NON_GROUP_MEMBER
            self.is_making = True
            try:
                group = real(list(members))
            finally:
                self.is_making = False
            if use_local_synchronization:
                self._keep(group, members)
                local(*self._known[id(group)])
            else:
                self._known[id(group)] = f"group {len(self.made)}", members
            self._backends[id(group)] = str(backend or self._backend)
            self._kept.append(group)
            return group

        return new_group
