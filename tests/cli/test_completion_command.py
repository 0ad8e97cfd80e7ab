"""`unhang completion`: the script of each shell, and what the tab key does in those that are installed."""

import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import cli
from unhang.cli.arguments import SHELLS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "unhang"
    path.write_text(printed("bash"))
    return path


def printed(shell: str) -> str:
    ran = cli.unhang("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


LINES = [
    ("unhang ch", "check"),
    ("unhang ", "check apply revert diff diagnose explain list prove wheel overlay matrix pack completion"),
    ("unhang apply --dr", "--dry-run"),
    ("unhang pack ", "new sweep build"),
    ("unhang pack sweep --from-c", "--from-clone"),
    ("unhang sweep --from-c", "--from-clone"),
    ("unhang ne", ""),
    ("unhang check --req", "--require"),
    ("unhang check --require mtp-cp", "mtp-cp-deadlock"),
    ("unhang explain sft", "sft-packed-seq-broadcast"),
    ("unhang explain not-w", "not-writable"),
    ("unhang explain drif", "drifted"),
    ("unhang wheel --kind ", "hang abort wrong-values"),
    ("unhang matrix --upstream mega", "megatron-bridge megatron-core megatron-lm"),
    ("unhang check --color ", "auto always never"),
    ("unhang check -q --output-format s", "sarif"),
    ("unhang completion z", "zsh"),
    ("unhang --ver", "--version"),
]


@pytest.mark.parametrize(("line", "expected"), [*LINES, ("unhang check --target /us", ""), ("unhang frobnicate -", "")])
def test_what_may_follow_a_line(line: str, expected: str) -> None:
    ran = cli.called_with_all("completion", "bash", "--line", line)
    assert (ran.code, ran.out.split(), ran.err) == (0, sorted(expected.split()), "")


def test_a_fix_may_follow_each_option_that_takes_one() -> None:
    for option in "--fix", "--skip", "--require":
        line = f"unhang apply -q {option} "
        assert cli.called("completion", "zsh", "--line", line).out.split() == sorted(cli.FOUR)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("line", "expected"), [LINES[0], LINES[4], LINES[8]])
def test_bash_completes(line: str, expected: str, script: Path) -> None:
    *before, last = line.split(" ")
    words = " ".join(f"'{word}'" for word in [*before, last])
    # what readline does when the tab key is pressed
    code = f"""
        source {script}
        COMP_WORDS=({words}) COMP_CWORD={len(before)} COMP_LINE='{line}' COMP_POINT={len(line)}
        completer=$(complete -p unhang); completer=${{completer##*-F }}
        ${{completer%% *}} unhang '{last}' '{before[-1]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = cli.environ({"PATH": path})
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert sorted(word.strip() for word in done.stdout.splitlines()) == sorted(expected.split()), done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_asks_for_the_line(shell: str) -> None:
    assert f"unhang completion {shell} --line " in printed(shell)


# -- the tab key, in a shell that reads it from a terminal -------------------------------------------------------------

STARTED = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(unhang completion bash)"'),
    "fish": (["fish", "--no-config", "-i"], "unhang completion fish | source"),
    "tcsh": (["tcsh", "-f"], "unhang completion tcsh > unhang.tcsh; source unhang.tcsh"),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u; eval "$(unhang completion zsh)"'),
}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SPAWN = "import pty, sys; pty.spawn(sys.argv[1:])"


def seen(run: subprocess.Popen[bytes], expected: str) -> str:
    """Return what the terminal shows until it has this text, or nothing more comes for long."""
    assert run.stdout is not None
    shown, end = "", time.monotonic() + 30
    while expected not in shown and time.monotonic() < end:
        if select.select([run.stdout], [], [], 0.2)[0]:
            data = os.read(run.stdout.fileno(), 65536)
            if not data:
                break
            shown = CONTROL.sub("", shown + data.decode(errors="replace"))
    return shown


@pytest.mark.parametrize("shell", [*SHELLS])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unhang ch", "check "),
        ("unhang apply --fix mtp-c", "mtp-cp-deadlock "),
        ("unhang check --target ./some", "./some-folder/"),
    ],
)
def test_the_tab_key(shell: str, line: str, expected: str, tmp_path: Path) -> None:
    command, sourced = STARTED[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "some-folder").mkdir()
    (tmp_path / "empty").mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = cli.environ({"PATH": path, "TERM": "xterm", "HOME": str(tmp_path / "empty"), "LANG": "C.UTF-8"})
    with subprocess.Popen(
        [sys.executable, "-c", SPAWN, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, env=environ,
    ) as run:  # fmt: skip
        try:
            assert run.stdin is not None
            run.stdin.write(f'{sourced}; echo it is re""ady\n'.encode())
            run.stdin.flush()
            begun = seen(run, "it is ready")
            assert "it is ready" in begun
            run.stdin.write(f"{line}\t".encode())
            run.stdin.flush()
            shown = seen(run, expected)
            assert expected in shown, begun + shown
        finally:
            run.kill()
