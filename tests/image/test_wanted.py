import pytest

from unhang.image.wanted import LARGEST, Wanted

SITE = "opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/verl/a/b.py",
        f"{SITE}/verl/version/version",
        f"{SITE}/megatron/core/__pycache__/x.cpython-312.pyc",
        f"{SITE}/megatron.py",
        f"{SITE}/megatron_core-0.17.1.dist-info/RECORD",
        f"{SITE}/Megatron.Core-0.17.1.dist-info/INSTALLER",
        f"{SITE}/roll/x.py",
        f"{SITE}/a.pth",
        f"{SITE}/__editable___verl_0_7_1_finder.py",
        f"{SITE}/.unhang/receipt.json",
        f"{SITE}/sitecustomize.py",
        "opt/venv/pyvenv.cfg",
        "usr/lib/python3.12/site.py",
        "verl/x.py",
        "etc/passwd",
    ],
)
def test_what_is_read_is_known_by_its_name(path: str) -> None:
    assert Wanted(["roll"]).amount(path, 100) == 100


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/torch/x.py",
        f"{SITE}/overly/x.py",
        f"{SITE}/verl/data.bin",
        "usr/bin/verl",
        "home/etc/passwd",
        "usr/lib/os.py",
    ],
)
def test_nothing_else_is(path: str) -> None:
    assert Wanted(["roll"]).amount(path, 100) is None


def test_of_a_program_the_first_bytes_and_of_what_is_too_large_nothing_is_read() -> None:
    wanted = Wanted(())
    assert [wanted.amount(path, 100) for path in ("usr/bin/python3.12", f"{SITE}/verl/x.so")] == [4, 4]
    assert wanted.amount("verl/x.py", LARGEST + 1) == 0


def test_code_may_have_other_names() -> None:
    wanted = Wanted((), {"src/fork": f"{SITE}/verl", "store/1f": f"{SITE}/verl/x.py"})
    assert [wanted.amount(path, 9) for path in ("src/fork/a.py", "store/1f", "src/fork/x.bin", "src/forks/a.py")] == [
        9, 9, None, None,
    ]  # fmt: skip
    assert wanted.is_of_upstream("src/fork")
    assert not Wanted(()).is_of_upstream("src/fork")
