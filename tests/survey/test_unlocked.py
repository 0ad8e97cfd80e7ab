"""A survey and its plan beside runs that write."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import cli
from unhang.errors import UnhangError
from unhang.records import Request
from unhang.rewrite import own_lines
from unhang.store.state import READY
from unhang.survey import history
from unhang.survey.unlocked import planned_without_lock


def test_a_plan_beside_a_writer_reads_again_and_only_a_damaged_original_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("megatron-core", "0.17.1"))
    dispatcher = site / "megatron/core/transformer/moe/token_dispatcher.py"
    wanted = Request(target=str(site), fixes=("allgather-empty-expert",))
    assert cli.installed("apply", "--target", site, "--fix", *wanted.fixes).code == 0
    state, genuine, lost = site / ".unhang", history.originals, list[Path]()
    kept = (state / "pristine").iterdir()  # also what it needs beside it, which came along
    (original,) = (path for path in kept if b"class MoEAllGatherTokenDispatcher" in path.read_bytes())
    plain = original.read_bytes()
    one = ["MoEAllGatherTokenDispatcher.combine_preprocess"]  # the fix rewrites two functions
    dispatcher.write_bytes(own_lines.put_back(dispatcher.read_bytes(), plain, one))

    def racing(*given: Any) -> Any:  # another run writes while this one reads, in the given ways one after the other
        if way := next(ways, None):
            way()
        return genuine(*given)

    def lose() -> None:
        lost[:] = [original]
        lost[0].rename(site / "lost")

    def replace() -> None:  # the same bytes, in another file
        (site / "lost").rename(lost[0])
        (state / "copy").write_bytes((state / "receipt.json").read_bytes())
        (state / "copy").rename(state / "receipt.json")

    def undo() -> None:
        cli.installed("revert", "--target", site)

    monkeypatch.setattr(history, "originals", racing)
    for racers, interrupted in (([lose, replace], False), ([lose, (state / READY).touch], True)):
        ways = iter(racers)
        seen, plan = planned_without_lock(wanted)
        assert (seen.interrupted, plan is None) == (interrupted, interrupted)
        assert plan is None or [file.path for file in plan.files] == [str(dispatcher)]
    (state / READY).unlink()
    with pytest.raises(UnhangError, match="are gone") as caught:
        planned_without_lock(wanted)
    assert (caught.value.code, "check" in (caught.value.hint or "")) == ("bad-receipt", True)
    ways = iter([undo])
    site.joinpath("lost").rename(lost[0])
    assert planned_without_lock(wanted)[1] is not None, "the receipt is gone now"


@pytest.mark.slow
def test_diff_and_overlay_beside_a_run_that_keeps_writing(tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    code = "import sys; from unhang.cli.main import main\n"
    code += "while True: [main([name, '--target', sys.argv[1]]) for name in ('apply', 'revert')]"
    command, nothing = [sys.executable, "-c", code, str(site)], subprocess.DEVNULL
    writer = subprocess.Popen(command, stdout=nothing, stderr=nothing, cwd="/")
    try:
        for _ in range(5):
            ran = cli.unhang("diff", "--target", site)
            assert (ran.code in (0, 1), "error[" in ran.err) == (True, False), ran.err
            ran = cli.unhang("overlay", tmp_path / "overlay", "--target", site)
            assert ran.code == 0 or "error[interrupted]" in ran.err, ran.err
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
