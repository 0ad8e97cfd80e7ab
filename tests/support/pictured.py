"""Jobs to draw: their dumps and stacks, in a folder."""

from pathlib import Path

from support import recorder_dumps

HOSTILE = "load<script>alert(1)</script>\"'&\u202e"


def write(folder: Path, ranks: int, *, late: int, dumps: bool = True) -> Path:
    """Write what a job leaves in which one rank has not come to the last collective of all; return the folder."""
    folder.mkdir()
    for rank in range(ranks):
        if dumps:
            entries = [recorder_dumps.entry(number) for number in range(30)]
            if rank != late:
                entries.append(recorder_dumps.entry(30, state="started"))
            for number, entry in enumerate(entries):
                entry["time_created_ns"] += number * 10_000_000
                entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 5_000_000 + rank
            groups = {"0": ("default_pg", range(ranks))}
            (folder / f"rank_{rank}").write_bytes(recorder_dumps.as_pickle(recorder_dumps.dump(entries, groups)))
        frame = f"{HOSTILE} (data.py:3)" if rank == late else "all_reduce (torch/distributed/distributed_c10d.py:9)"
        stack = f'Process {rank + 9}: python\n\nThread 1 (idle): "MainThread"\n    {frame}\n    step (train.py:12)\n'
        (folder / f"rank_{rank}.txt").write_text(stack)
    return folder
