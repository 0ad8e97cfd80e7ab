"""`unhang completion`: the script of each shell, sourced where there is a bash."""

import os
import shutil
import subprocess
import sys
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
    ("unhang ", "check apply diff revert overlay wheel prove diagnose list explain matrix new pack sweep completion"),
    ("unhang apply --dr", "--dry-run"),
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
