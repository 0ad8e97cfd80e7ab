"""requirements.txt: pins, what is not pinned, URLs, editables, and lines that are none of ours."""

from pathlib import Path

import pytest

from support.lock_files import COMMIT, NAMES, read
from unhang.errors import UnhangError
from unhang.pins import files
from unhang.records import Pin


@pytest.mark.parametrize(
    ("line", "pin"),
    [
        ("verl==0.7.1", Pin("verl", "0.7.1")),
        ("verl == 0.7.1 # a comment", Pin("verl", "0.7.1")),
        ("VERL[b, a]==0.7.1 ; python_version < '3.12'", Pin("verl", "0.7.1", 1, ("a", "b"), 'python_version < "3.12"')),
        ("megatron_core===0.16.1", Pin("megatron-core", "0.16.1")),
        ("verl==0.7.1 --hash=sha256:00 --hash=sha256:01", Pin("verl", "0.7.1")),
        ("verl==0.7.1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01", Pin("verl", "0.7.1")),
        ("verl", Pin("verl")),
        ("verl>=0.7,<0.8", Pin("verl", ref="<0.8,>=0.7")),
        ("verl==0.7.*", Pin("verl", ref="==0.7.*")),
        ("verl==0.7.1,==0.7.2", Pin("verl", ref="==0.7.1,==0.7.2")),
        (
            f"verl @ git+https://a.example/verl@{COMMIT} ; python_version < '3.12'",
            Pin("verl", when='python_version < "3.12"', repository="https://a.example/verl", commit=COMMIT),
        ),
        ("verl @ git+ssh://git@a.example/v.git@a/b", Pin("verl", repository="ssh://git@a.example/v.git", ref="a/b")),
        ("verl @ git+ssh://git@a.example/verl.git", Pin("verl", repository="ssh://git@a.example/verl.git")),
        ("-e git+https://a.b/v@v1#egg=verl[a]", Pin("verl", "", 1, ("a",), repository="https://a.b/v", ref="v1")),
        (
            "verl @ https://github.com/us/verl/archive/refs/tags/v0.7.1.tar.gz",
            Pin("verl", repository="https://github.com/us/verl", ref="v0.7.1"),
        ),
        (
            "./wheels/verl-0.7.1+a.1-py3-none-any.whl",
            Pin("verl", "0.7.1+a.1", source="./wheels/verl-0.7.1+a.1-py3-none-any.whl"),
        ),
        (
            "https://a.example/megatron_core-0.16.1.tar.gz#sha256=00",
            Pin("megatron-core", "0.16.1", source="https://a.example/megatron_core-0.16.1.tar.gz"),
        ),
        (
            "verl @ git+https://user:secret@a.example/verl@v1",
            Pin("verl", repository="https://****@a.example/verl", ref="v1"),
        ),
        ("verl @ file:///src/verl", Pin("verl", source="/src/verl")),
        ("git+https://a.example/me/verl.git@v1", Pin("verl", repository="https://a.example/me/verl.git", ref="v1")),
        (
            "-e git+ssh://git@a.example/us/Megatron-LM@a/b",
            Pin("megatron-core", repository="ssh://git@a.example/us/Megatron-LM", ref="a/b"),
        ),
        (
            "https://github.com/us/verl/archive/v0.7.1.zip",
            Pin("verl", repository="https://github.com/us/verl", ref="v0.7.1"),
        ),
        ("-e ../verl/[a,b]", Pin("verl", extras=("a", "b"), source="../verl/")),
        (
            f"git+https://a.example/mono@{COMMIT}#subdirectory=rl/verl",
            Pin("verl", repository="https://a.example/mono", commit=COMMIT, source="rl/verl"),
        ),
        ("ours @ git+https://a.example/verl@v1", Pin("verl", repository="https://a.example/verl", ref="v1")),
        ("-e hg+https://a.example/verl@tip", Pin("verl", repository="hg+https://a.example/verl", ref="tip")),
        ("verl[a]==${VERSION}; os_name == 'a'", Pin("verl", "", 1, ("a",), 'os_name == "a"', ref="${VERSION}")),
        ("./b/Megatron-LM ; os_name == 'a'", Pin("megatron-core", when="os_name == 'a'", source="./b/Megatron-LM")),
    ],
)  # fmt: skip
def test_a_requirement_of_an_upstream(line: str, pin: Pin, tmp_path: Path) -> None:
    assert read(tmp_path / "requirements.txt", f"{line}\ntorch>=2\n") == (pin,)


def test_what_may_be_any_package_is_named_apart(tmp_path: Path) -> None:
    lines = ["git+https://a.example/rl-fork@v1", "https://a.example/latest.tar.gz", "${WHAT}", "./rl", "-e .[a]"]
    path = tmp_path / "requirements.txt"
    path.write_text("\n".join(["torch-2.0-py3-none-any.whl", *lines, "rl @ git+https://a.example/rl"]))
    found = files.read(str(path), NAMES)
    assert found.pins == ()
    assert [(pin.line, pin.repository or pin.source) for pin in found.nameless] == [
        (2, "https://a.example/rl-fork"), (3, "https://a.example/latest.tar.gz"), (4, "${WHAT}"), (5, "./rl"), (6, ".")
    ]  # fmt: skip


def test_other_lines_are_passed_over_and_lines_are_counted(tmp_path: Path) -> None:
    text = (
        "# verl==0.1\n--index-url https://index.example/verl==0.2\n-e .\n./local\nverl-tools==0.3\nnot.verl==1\n"
        "${HOME_OF_VERL}\ntorch @ https://a.example/verl==0.4\ntorch \\\n  >=2\n\nverl==0.7.1\r\n"
    )
    assert read(tmp_path / "requirements.txt", text) == (Pin("verl", "0.7.1", 12),)


def test_what_is_included_is_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("verl==0.1\n")
    path = tmp_path / "requirements.txt"
    path.write_text("-r base.txt\n-c ../limits.txt\n--requirement=more.txt\nverl==0.7.1\n")
    found = files.read(str(path), NAMES)
    assert found.pins == (Pin("verl", "0.7.1", 4),)
    assert found.unread == tuple(str(tmp_path / name) for name in ("base.txt", "../limits.txt", "more.txt"))


@pytest.mark.parametrize("text", ["torch\n\x00\x01\n", "<html>\n", "verl==\n", "verl==0.7.1 ; os ==\n", "verl 0.7.1\n"])
def test_a_line_that_is_no_requirement_is_damage(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError, match=r"line \d is no requirement") as raised:
        read(tmp_path / "requirements.txt", text)
    assert raised.value.code == "bad-lock"
