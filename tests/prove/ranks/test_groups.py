"""Names and backends of process groups. They need torch."""

from __future__ import annotations

from support.jobs import checked, dist, needs_torch, tensor


@needs_torch
def test_groups_made_only_by_their_members_pass() -> None:
    def job(rank: int) -> None:
        ranks = [0, 1] if rank < 2 else [2, 3]
        for _ in range(rank // 2 + 1):
            dist().all_reduce(tensor(), group=dist().new_group(ranks, use_local_synchronization=True))

    assert checked(job, 4).findings == []


@needs_torch
def test_groups_made_in_another_order_have_other_members() -> None:
    def job(rank: int) -> None:
        for group in [dist().new_group(ranks) for ranks in sorted([[0, 1], [0, 1, 2]], reverse=rank > 0)]:
            if group is not dist().GroupMember.NON_GROUP_MEMBER:
                dist().all_reduce(tensor(), group=group)

    first = checked(job, 3).findings[0]
    assert first.kind == "mismatch"
    assert "a group of 0, 1, and of 0-2" in first.text()


@needs_torch
def test_groups_report_the_backend_they_pose_as() -> None:
    def backends(rank: int) -> tuple[str, str]:
        return dist().get_backend(), dist().get_backend(dist().new_group([0, 1], backend="gloo"))

    assert checked(backends, backend="cpu:gloo,cuda:nccl").values[0] == ("cpu:gloo,cuda:nccl", "gloo")
