"""`unhang completion`: the script of each shell, sourced where there is a bash."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import cli
from unhang.cli.arguments import SHELLS
from unhang.cli.main import main


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ran = cli.unhang("completion", "bash")
    assert (ran.code, ran.err) == (0, "")
    path = tmp_path_factory.mktemp("completion") / "unhang"
    path.write_text(ran.out)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("unhang ch", "check"),
        ("unhang ", "check apply diff revert overlay wheel prove diagnose list explain matrix new sweep completion"),
        ("unhang apply --dr", "--dry-run"),
        ("unhang check --req", "--require"),
        ("unhang check --require m", "mtp-cp-deadlock"),
        ("unhang check --fix ", " ".join(cli.FOUR)),
        ("unhang explain sft", "sft-packed-seq-broadcast"),
        ("unhang explain not-w", "not-writable"),
        ("unhang wheel --kind ", "hang abort wrong-values"),
        ("unhang matrix --upstream mega", "megatron-bridge megatron-core megatron-lm"),
        ("unhang check --color ", "auto always never"),
        ("unhang check --target /us", "/usr"),
        ("unhang completion z", "zsh"),
    ],
)
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
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=False)
    assert sorted(word.strip() for word in done.stdout.splitlines()) == sorted(expected.split()), done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_with_all_commands_and_fixes(shell: str) -> None:
    ran = cli.unhang("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert not [word for word in ("overlay", "dry-run", *cli.FOUR) if word not in ran.out]


def test_without_shtab_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    expected = "error[no-shtab]: the completion scripts are made by shtab, which is not installed\n"
    assert capsys.readouterr() == ("", f"{expected}  hint: pip install shtab, into the environment of unhang\n")
