"""Nothing of the working directory, PYTHONPATH, the user site, a checkout or a script's folder is executed."""

import sys
import venv
from pathlib import Path

import pytest

from support import cli
from support import environments as make
from support.wheel_files import find_links

# Python itself may import these from PYTHONPATH before we start, and from the working directory for `-m`.
EARLY = ("sitecustomize", "usercustomize", "unhang", "__future__")
LATER = ("json", "argparse", "gettext", "subprocess", "typing", "hashlib", "tempfile", "libcst", "packaging", "pip")
CONSOLE = str(Path(sys.executable).parent / "unhang")
COMMANDS = {"check": 1, "diff": 1, "overlay": 0, "apply": 0, "revert": 0}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make an environment that has a user site, as a base Python has."""
    prefix = tmp_path_factory.mktemp("other") / "env"
    venv.create(prefix, system_site_packages=True, symlinks=True)
    return str(prefix / "bin" / "python")


def hostile(folder: Path, witness: Path) -> Path:
    """Fill a folder with code that says so when it is executed."""
    say = f"open({str(witness)!r}, 'a').write(__file__ + '\\n')\n"
    make.write(folder, {f"{name}.py": say for name in (*EARLY, *LATER)})
    make.write(folder, {"a.pth": f"import sys; open({str(witness)!r}, 'a').write('a.pth')\n"})
    command = f"sh -c 'echo git >> {witness}'"
    make.write(folder, {".git/config": f"[core]\n fsmonitor = {command}\n pager = {command}\n", ".git/HEAD": "x"})
    make.write(folder, {".venv/bin/python": f"#!/bin/sh\necho .venv >> {witness}\n", ".venv/pyvenv.cfg": ""})
    (folder / ".venv" / "bin" / "python").chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("python", ["own", "other"])
@pytest.mark.parametrize("start", [[CONSOLE], ["-m", "unhang"], ["-I", "-m", "unhang"]], ids=" ".join)
def test_nothing_but_the_interpreter_s_own_is_executed(
    start: list[str], python: str, other: str, tmp_path: Path
) -> None:
    if "-I" not in start and cli.COVERAGE:
        pytest.skip("coverage's own .pth file imports modules of PYTHONPATH before unhang starts")
    witness = tmp_path / "witness"
    user = Path(make.run(other, "-c", "import site; print(site.USER_SITE)", cwd=tmp_path).strip())
    user_base = tmp_path / "user"
    checkout = cli.unpack_targets(tmp_path / "checkout", ("verl", "0.7.1"))
    cwd, script, user_site = tmp_path / "cwd", tmp_path / "script", user_base.joinpath(*user.parts[-3:])
    for folder in cwd, checkout, script, user_site:
        hostile(folder, witness)
    make.write(script, {"train.py": ""})
    if "-I" not in start:
        for early in (checkout, cwd) if "-m" in start else (checkout,):
            for name in EARLY:
                (early / f"{name}.py").unlink()
    env = {"PYTHONPATH": str(checkout), "PYTHONUSERBASE": str(user_base)}
    where = ["--python", {"own": sys.executable, "other": other}[python], "--script", str(script / "train.py")]
    if start == [CONSOLE] and python == "own":
        wanted = ["-o", str(tmp_path / "out"), "verl==0.7.1", *find_links(tmp_path / "index", ("verl", "0.7.1"))]
        ran = cli.python(*start, "wheel", *wanted, cwd=cwd, env=env)
        assert (ran.code, witness.exists()) == (0, False), ran
    for command, code in COMMANDS.items():
        to = [str(tmp_path / "overlay")] if command == "overlay" else []
        ran = cli.python(*start, command, *to, *where, cwd=cwd, env=env)
        assert (ran.code, witness.exists() and witness.read_text()) == (code, False), (command, ran)
        if command == "check":
            assert f"verl 0.7.1  {checkout}\n" in ran.out
            assert (f"a job runs {user_site}/a.pth when it starts, " in ran.err) == (python == "other")
            assert (f"a job runs {checkout}/sitecustomize.py " in ran.err) == ((checkout / "sitecustomize.py").exists())
