"""Whole runs of `unhang`, killed at every operation that changes the disk: an environment is old or new, never between.

`tests/store/test_transaction.py` shows the same for a transaction alone. `UNHANG_SOAK=1` (`nox -s soak`) adds the tests
that take minutes: recovery killed at every operation, real processes killed at random times and at every system call.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import cli, memory, whole
from support.transactions import KILLED, Blow, die, die_halfway
from support.whole import Stage, Tree

SOAK = bool(os.environ.get("UNHANG_SOAK"))
soak = pytest.mark.skipif(not SOAK, reason="takes minutes: UNHANG_SOAK=1, or nox -s soak")
RECOVERED = "An earlier run was interrupted"
COMMANDS = ("apply", "revert")
# Each instant to be killed at, or a sample of them.
sampled = pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(9, id="some")]
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with memory.folder(tmp_path_factory.mktemp("stage")) as home, whole.rewriting_once():
        yield whole.stage(home, *whole.RELEASES)


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Figures that are printed even if the test passes: docs/promises.md cites them."""
    figures: list[str] = []
    yield figures
    with capfd.disabled():
        for figure in figures:
            print(f"\n[measured] {figure}", file=sys.stderr)


def is_ours(name: str) -> bool:
    return name == "share" or name.startswith(("share/", ".unhang-made-share-")) or "/.unhang-" in name


def assert_whole_files(stage: Stage, found: Tree) -> None:
    """Each file is old or new, and every other file has a name of ours."""
    for name in stage.pristine:
        assert found[name] in (stage.pristine[name], stage.applied[name]), f"{name} is torn"
    assert all(is_ours(name) for name in found if name not in stage.pristine)


def assert_honest(prefix: Path, found: Tree) -> None:
    """`check` and `diff` report a journal, and change nothing."""
    halfway = whole.interrupted(prefix)
    check = whole.run(prefix, "check")
    assert ("interrupted: " in check.out) is halfway
    assert check.code in ((1,) if halfway else (0, 1))
    if halfway:
        diff = whole.run(prefix, "diff")
        assert (diff.code, "interrupted: " in diff.out, diff.operations) == (1, True, ())
    assert (check.operations, whole.tree(prefix)) == ((), found)


def assert_settled(stage: Stage, prefix: Path, command: str) -> None:
    """The next command recovers, says so, and leaves the environment wholly old or new."""
    halfway = whole.interrupted(prefix)
    ran = whole.run(prefix, command)
    assert (RECOVERED in ran.out) is halfway, ran.out
    assert ran.code == 0 or (command == "revert" and "nothing to revert" in ran.out), ran.out
    left, wanted = whole.tree(prefix), stage.applied if command == "apply" else stage.pristine
    assert set(left) - set(wanted) == set(), "litter"
    assert {name for name in wanted if left[name] != wanted[name]} == set(), "half a set"
    assert whole.stale_bytecode(prefix / "site") == []


def assert_survives(stage: Stage, prefix: Path, following: str) -> None:
    found = whole.tree(prefix)
    assert_whole_files(stage, found)
    assert whole.stale_bytecode(prefix / "site") == []
    assert_honest(prefix, found)
    assert_settled(stage, prefix, following)


def instants(operations: tuple[str, ...]) -> list[tuple[int, Blow]]:
    """Return every instant to be killed at: before each operation, and halfway through each write."""
    before = [(at, die) for at in range(len(operations))]
    return before + [(at, die_halfway) for at, name in enumerate(operations) if name == "write"]


# Nothing to do, and nothing done


def test_a_run_with_nothing_to_do_does_not_touch_the_disk(stage: Stage) -> None:
    for command, applied in (("apply", True), ("revert", False), ("check", True), ("diff", False)):
        prefix = stage.fresh(applied)
        assert whole.run(prefix, command).operations == ()
        assert whole.tree(prefix) == (stage.applied if applied else stage.pristine)


# Killed


def struck(stage: Stage, command: str, followings: tuple[str, ...], every: int = 1) -> str:
    """Kill a run at each of its instants, or at some; let the next command recover; return the figures."""
    is_apply = command == "apply"
    prefix = stage.fresh(applied=not is_apply)
    counted = whole.run(prefix, command)
    assert whole.tree(prefix) == (stage.applied if is_apply else stage.pristine)
    assert whole.stale_bytecode(prefix / "site") == []
    todo = instants(counted.operations)[::every]
    assert {"open", "write", "fsync", "rename", "replace", "link", "unlink"} <= set(counted.operations)
    killed = halfway = 0
    for number, (at, blow) in enumerate(todo):
        prefix = stage.fresh(applied=not is_apply)
        ran = whole.run(prefix, command, blow=blow, at=at)
        if ran.code != KILLED:
            # The number of operations depends on the second: this run has fewer than were counted.
            assert at >= len(ran.operations)
            continue
        killed, halfway = killed + 1, halfway + whole.interrupted(prefix)
        assert_survives(stage, prefix, followings[number % len(followings)])
    assert killed > 100 // every
    assert halfway > killed / 2
    then = " or ".join(f"`{following}`" for following in followings)
    return f"`{command}` killed at {killed} instants, {halfway} of them with a journal, then {then}: no mix"


@sampled
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_every_operation(stage: Stage, tell: list[str], command: str, every: int) -> None:
    tell.append(struck(stage, command, COMMANDS, every))


@soak
@pytest.mark.parametrize("following", COMMANDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_every_operation_and_then_each_command(
    stage: Stage, tell: list[str], command: str, following: str
) -> None:
    tell.append(struck(stage, command, (following,)))


def halfway_at(stage: Stage, command: str) -> dict[str, int]:
    """Return, for each stage of the journal, an operation before which a kill leaves it at that stage."""
    names = whole.run(stage.fresh(applied=command == "revert"), command).operations
    ready, done = (at for at, name in enumerate(names) if name == "rename" and at > names.index("rename"))
    return {"intent": ready - 3, "ready": (ready + done) // 2, "done": done + 4}


def struck_twice(stage: Stage, command: str, at: int, second: str, every: int) -> int:
    """Kill a run, then the run that recovers from it at each instant, and let a third recover; return the kills."""

    def hurt() -> Path:
        prefix = stage.fresh(applied=command == "revert")
        assert whole.run(prefix, command, blow=die, at=at).code == KILLED
        assert whole.interrupted(prefix)
        return prefix

    killed, todo = 0, instants(whole.run(hurt(), second).operations)[::every]
    for number, (at_second, blow) in enumerate(todo):
        prefix = hurt()
        ran = whole.run(prefix, second, blow=blow, at=at_second)
        if ran.code != KILLED:
            assert at_second >= len(ran.operations)  # as in `struck`
            continue
        killed += 1
        assert_survives(stage, prefix, COMMANDS[number % 2])
    return killed


@sampled
def test_killed_again_while_recovering(stage: Stage, tell: list[str], every: int) -> None:
    at = halfway_at(stage, "apply")["ready"]
    killed = struck_twice(stage, "apply", at, "apply", every) + struck_twice(stage, "apply", at, "revert", 7 * every)
    tell.append(f"an `apply` killed halfway, then the run that recovers killed too, at {killed} instants: no mix")


@soak
@pytest.mark.parametrize("second", COMMANDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_again_wherever_it_began(stage: Stage, tell: list[str], command: str, second: str) -> None:
    for name, at in halfway_at(stage, command).items():
        killed = struck_twice(stage, command, at, second, every=1)
        tell.append(f"`{command}` killed at stage {name}, then `{second}` killed at {killed} instants: no mix")


# What another program does between the plan and the write


def edited(path: Path) -> None:
    path.write_bytes(b"# edited\n" + path.read_bytes())


@pytest.mark.parametrize(
    ("hurt", "code"), [(edited, "changed-underneath"), (Path.unlink, "vanished")], ids=["edited", "vanished"]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_changes_between_plan_and_write(
    stage: Stage, command: str, hurt: Callable[[Path], None], code: str
) -> None:
    operations = whole.run(stage.fresh(applied=command == "revert"), command).operations
    link = operations.index("link")  # the first backup: the plan was made and compared with the disk
    for at in (link, operations.index("replace")):
        prefix = stage.fresh(applied=command == "revert")
        before, victim = whole.tree(prefix), prefix / "site" / whole.ENGINE

        def blow(operation: object, arguments: object, victim: Path = victim) -> None:
            hurt(victim)

        ran = whole.run(prefix, command, blow=blow, at=at)
        assert ran.code == 2, ran.out
        assert f"error[{code}]" in ran.out or "error[changed-underneath]" in ran.out
        assert str(victim) in ran.out
        assert "run the same command again" in ran.out
        after, name = whole.tree(prefix), f"site/{whole.ENGINE}"
        assert after.pop(name, None) == (b"# edited\n" + (before[name] or b"") if hurt is edited else None)
        del before[name]
        assert after == before
        again = whole.run(prefix, command)
        assert again.code in (0, 1), "the same command starts from the current files"
        assert RECOVERED not in again.out


# Many at once


def settled(stage: Stage, prefix: Path) -> str:
    """Return the state of the environment, `applied` or `pristine`; fail for a mix or litter."""
    left = whole.tree(prefix)
    assert left in (stage.pristine, stage.applied), "a mix, or litter"
    assert whole.stale_bytecode(prefix / "site") == []
    return "applied" if left == stage.applied else "pristine"


@pytest.mark.slow
def test_thirty_two_processes_apply_at_once(stage: Stage, tell: list[str]) -> None:
    site = stage.fresh(applied=False) / "site"
    before, began = cli.tree(site), time.monotonic()
    command = [sys.executable, "-m", "unhang", "apply", "--target", str(site)]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    many = [subprocess.Popen(command, cwd="/", stdout=nothing, stderr=pipe) for _ in range(32)]
    said = [one.communicate(timeout=120)[1].decode() for one in many]
    assert [one.returncode for one in many] == [0] * 32, said
    assert sum("patched 5 files" in told for told in said) == 1, "one process patches, the others find it done"
    assert {told["verdict"] for told in results(site)} == {"applied", "not-affected"}
    assert {path.name for path in (site / ".unhang").iterdir()} == {"receipt.json", "pristine", ".gitignore"}
    assert cli.unhang("revert", "--target", site).code == 0
    assert cli.tree(site) == before
    tell.append(f"32 processes apply at once: each exit 0, one state, {time.monotonic() - began:.1f} s in all")


def results(site: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = cli.unhang("check", "--target", site, "--output-format", "json").json["results"]
    return found


@pytest.mark.parametrize("applied", [False, True])
def test_apply_and_revert_at_once_end_in_one_of_the_two(stage: Stage, applied: bool) -> None:
    ends = set()
    for round_ in range(40 if SOAK else 4):
        prefix = stage.fresh(applied)
        started = [whole.start(prefix, COMMANDS[(number + round_) % 2]) for number in range(8)]
        for ran in [one.wait() for one in started]:
            assert ran.code == 0 or "nothing to revert" in ran.out, ran.out
        ends.add(settled(stage, prefix))
    assert ends <= {"applied", "pristine"}


def test_a_run_that_is_killed_with_the_lock_blocks_nobody(stage: Stage) -> None:
    at = halfway_at(stage, "apply")["ready"]
    prefix = stage.fresh(applied=False)
    holder = whole.start(prefix, "apply", blow=whole.stop, at=at)
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        waiting = whole.start(prefix, "apply")
        time.sleep(0.3)
        assert os.waitpid(waiting.pid, os.WNOHANG) == (0, 0), "it waits while the other is alive"
        assert whole.run(prefix, "check").code == 1
    finally:
        os.kill(holder.pid, signal.SIGKILL)
    began = time.monotonic()
    ran = waiting.wait()
    assert (ran.code, RECOVERED in ran.out) == (0, True)
    assert time.monotonic() - began < 20
    assert holder.wait().code == -signal.SIGKILL
    assert settled(stage, prefix) == "applied"


def test_killed_at_random_while_others_work(stage: Stage, tell: list[str]) -> None:
    seconds = float(os.environ.get("UNHANG_SOAK_SECONDS", "180")) if SOAK else 5.0
    seed = random.randrange(10**6)
    random_, killed, runs, halfway = random.Random(seed), 0, 0, 0
    ends: set[str] = set()
    until = time.monotonic() + seconds
    at_most = until + 60  # a slow machine needs more time to see a kill halfway, and both ends
    prefix = stage.fresh(applied=False)
    began = time.monotonic()
    pause = 0.001  # so that most kills hit the writing, not the planning
    assert whole.start(prefix, "apply", pause=pause).wait().code == 0
    long = time.monotonic() - began
    while time.monotonic() < (until if halfway and len(ends) == 2 else at_most):
        started = [whole.start(prefix, random_.choice(COMMANDS), pause=pause) for _ in range(3)]
        for one in started[: random_.randrange(2)]:  # sometimes one alone, then all that are left, as in a power cut
            time.sleep(random_.uniform(0, long))
            os.kill(one.pid, signal.SIGKILL)
        time.sleep(random_.uniform(0, 2 * long))
        for one in started:
            os.kill(one.pid, signal.SIGKILL)
        codes = [one.wait().code for one in started]
        runs, killed = runs + 3, killed + codes.count(-signal.SIGKILL)
        assert set(codes) <= {0, 1, -signal.SIGKILL}, f"seed {seed}"
        halfway += whole.interrupted(prefix)
        assert_whole_files(stage, whole.tree(prefix))
        assert whole.stale_bytecode(prefix / "site") == [], f"seed {seed}"
        assert_settled(stage, prefix, random_.choice(COMMANDS))
        ends.add(settled(stage, prefix))
    assert ends == {"applied", "pristine"}
    assert halfway > 0
    took = time.monotonic() - began
    tell.append(f"{killed} of {runs} runs killed at random in {took:.0f} s, {halfway} left a journal: no mix")


# Killed by the kernel at a system call, not by `disk.run`


def traced(site: Path, command: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run a real process under strace."""
    strace = ["strace", "-f", "-qq", "-o", os.devnull, *options, sys.executable, "-m", "unhang"]
    return subprocess.run([*strace, command, "--target", str(site)], capture_output=True, check=False, cwd="/")


def test_killed_at_a_system_call(stage: Stage, tell: list[str]) -> None:
    if shutil.which("strace") is None:
        pytest.skip("this machine has no strace")
    prefix = stage.fresh(applied=False)
    site = prefix / "site"
    pristine = whole.tree(site)
    ran = traced(site, "apply")
    if ran.returncode != 0:
        pytest.skip(f"strace may not trace here: {ran.stderr.decode().splitlines()[-1:]}")
    applied = whole.tree(site)
    killed = 0
    # The interpreter itself makes some of these calls too: of those, only late ones.
    spots = [("rename", at) for at in range(1, 12)] + [("link", 3), ("unlink", 9), ("fsync", 20), ("mkdir", 2)]
    for call, at in spots if SOAK else [("rename", 1), ("rename", 5), ("link", 3), ("unlink", 9), ("fsync", 20)]:
        site = stage.fresh(applied=False) / "site"
        ran = traced(site, "apply", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}")
        if ran.returncode == 0:
            continue  # it makes fewer of these calls
        killed += 1
        now = whole.tree(site)
        assert all(now[name] in (pristine[name], applied[name]) for name in pristine), f"torn at {call} {at}"
        assert cli.unhang("apply", "--target", site).code == 0
        assert whole.tree(site) == applied, f"{call} {at}"
    assert killed >= 4
    tell.append(f"killed by strace at {killed} system calls: no mix")
