"""Whole runs of `unhang`, killed at every operation that changes the disk: an environment is old or new, never between.

`tests/store/test_transaction.py` shows the same for a transaction alone. `UNHANG_ATTACK=1` (`nox -s attack`) adds the
tests that take minutes: recovery killed at every operation, real processes killed at random times and system calls.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import cli, whole
from support.transactions import KILLED, Blow, die, die_halfway
from support.whole import Stage

ATTACK = bool(os.environ.get("UNHANG_ATTACK"))
RECOVERED = "An earlier run was interrupted"
COMMANDS = ("apply", "revert")
# Each instant to be killed at, or a sample of them.
minutes = pytest.mark.skipif(not ATTACK, reason="takes minutes: run nox -s attack")
sampled = pytest.mark.parametrize("every", [pytest.param(1, marks=minutes, id="all"), pytest.param(9, id="some")])


def is_ours(name: str) -> bool:
    return name.startswith("site/.unhang") or "/.unhang-" in name


def assert_survives(stage: Stage, prefix: Path, following: str) -> None:
    found, halfway = whole.tree(prefix), whole.interrupted(prefix)
    for name in stage.pristine:
        assert found[name] in (stage.pristine[name], stage.applied[name]), f"{name} is torn"
    assert all(is_ours(name) for name in found if name not in stage.pristine)
    assert whole.stale_bytecode(prefix / "site") == []
    assert b"# unhang" not in stage.shared.read_bytes(), "written through a link"

    # `check` and `diff` report a journal, and change nothing.
    for command in ("check", "diff") if halfway else ("check",):
        ran = whole.run(prefix, command)
        assert ("interrupted: " in ran.out, ran.operations) == (halfway, ())
        assert ran.code == 1 or (ran.code == 0 and not halfway)
    assert whole.tree(prefix) == found

    # The next command recovers, says so, and leaves the environment wholly old or new.
    ran = whole.run(prefix, following)
    assert (RECOVERED in ran.out) is halfway, ran.out
    assert ran.code == 0 or (following == "revert" and "nothing to revert" in ran.out), ran.out
    left, wanted = whole.tree(prefix), stage.applied if following == "apply" else stage.pristine
    assert set(left) - set(wanted) == set(), "litter"
    assert {name for name in wanted if left[name] != wanted[name]} == set(), "half a set"
    assert whole.stale_bytecode(prefix / "site") == []


def instants(operations: tuple[str, ...]) -> list[tuple[int, Blow]]:
    """Return every instant to be killed at: before each operation, and halfway through each write."""
    before = [(at, die) for at in range(len(operations))]
    return before + [(at, die_halfway) for at, name in enumerate(operations) if name == "write"]


def test_a_run_with_nothing_to_do_does_not_touch_the_disk(stage: Stage) -> None:
    for command, applied in (("apply", True), ("revert", False), ("check", True), ("diff", False)):
        prefix = stage.fresh(applied)
        assert whole.run(prefix, command).operations == ()
        assert whole.tree(prefix) == (stage.applied if applied else stage.pristine)


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


@pytest.mark.slow
@sampled
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_every_operation(stage: Stage, tell: list[str], command: str, every: int) -> None:
    for followings in [("apply",), ("revert",)] if every == 1 else [COMMANDS]:
        tell.append(struck(stage, command, followings, every))


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


@pytest.mark.slow
@sampled
def test_killed_again_while_recovering(stage: Stage, tell: list[str], every: int) -> None:
    """An `apply` that was killed halfway; the attack adds the other stages, and a `revert`, at every third instant.

    UNHANG_ATTACK=all takes each instant of these too, which is half an hour more.
    """
    attack = every == 1
    if attack and os.environ["UNHANG_ATTACK"] != "all":
        every = 3
    for command in COMMANDS if attack else ("apply",):
        for name, at in halfway_at(stage, command).items():
            if attack or name == "ready":
                first = struck_twice(stage, command, at, "apply", every)
                killed = first + struck_twice(stage, command, at, "revert", every if attack else 7 * every)
                tell.append(f"`{command}` killed at stage {name}, the next run killed at {killed} instants: no mix")


# Many at once


@pytest.mark.slow
def test_thirty_two_processes_apply_at_once(stage: Stage, tell: list[str]) -> None:
    site = stage.fresh(applied=False) / "site"
    before, began = cli.tree(site), time.monotonic()
    command = [*cli.COMMAND, "apply", "--target", str(site)]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    many = [subprocess.Popen(command, cwd="/", stdout=nothing, stderr=pipe) for _ in range(32)]
    said = [one.communicate(timeout=600)[1].decode() for one in many]
    assert [one.returncode for one in many] == [0] * 32, said
    patched = sum(stage.applied[name] != data for name, data in stage.pristine.items() if name.endswith(".py"))
    ours = sum(f"patched {patched} files" in text for text in said)
    assert ours == 1, "one process patches, the others find it done, but they said:\n" + "\n".join({*said})
    check = cli.unhang("check", "--target", site, "--output-format", "json")
    found = {result["verdict"] for result in check.json["results"]}
    assert check.code == 0
    assert {"applied"} <= found <= {"applied", "fixed-upstream", "not-affected"}
    assert {path.name for path in (site / ".unhang").iterdir()} == {"receipt.json", "pristine", ".gitignore"}
    assert cli.installed("revert", "--target", site).code == 0
    assert cli.tree(site) == before
    tell.append(f"32 processes apply at once: each exit 0, one state, {time.monotonic() - began:.1f} s in all")


@pytest.mark.slow
def test_killed_at_random_while_others_work(stage: Stage, tell: list[str]) -> None:
    seconds = float(os.environ.get("UNHANG_ATTACK_SECONDS", "180")) if ATTACK else 5.0
    seed = random.randrange(10**6)
    random_, codes, halfway = random.Random(seed), [], 0
    prefix = stage.fresh(applied=False)
    began = time.monotonic()
    pause = 0.001  # so that most kills hit the writing, not the planning
    assert whole.start(prefix, "apply", pause=pause).wait().code == 0
    long = time.monotonic() - began
    # A busy machine needs many more rounds to see a kill halfway.
    while (took := time.monotonic() - began) < (seconds if halfway else 1200):
        started = [whole.start(prefix, random_.choice(COMMANDS), pause=pause) for _ in range(3)]
        for one in started[: random_.randrange(2)]:  # sometimes one alone, then all that are left, as in a power cut
            time.sleep(random_.uniform(0, long))
            os.kill(one.pid, signal.SIGKILL)
        time.sleep(random_.uniform(0, 2 * long))
        for one in started:
            os.kill(one.pid, signal.SIGKILL)
        codes += [one.wait().code for one in started]
        assert set(codes) <= {0, 1, -signal.SIGKILL}, f"seed {seed}"
        halfway += whole.interrupted(prefix)
        assert_survives(stage, prefix, random_.choice(COMMANDS))
    assert halfway > 0
    killed = f"{codes.count(-signal.SIGKILL)} of {len(codes)} runs killed at random in {took:.0f} s"
    tell.append(f"{killed}, {halfway} left a journal: no mix")


# Killed by the kernel at a system call, not by `disk.run`


def traced(site: Path, command: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run a real process under strace."""
    strace = ["strace", "-f", "-qq", "-o", os.devnull, *options]
    return subprocess.run(
        [*strace, *cli.COMMAND, command, "--target", str(site)], capture_output=True, check=False, cwd="/"
    )


@pytest.mark.slow
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
    for call, at in spots if ATTACK else [("rename", 1), ("rename", 5), ("link", 3), ("unlink", 9), ("fsync", 20)]:
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
