"""Which environment is chosen; a broken one is an error, and the next one is not tried."""

import json
import os
import sys
from pathlib import Path

import pytest

from support import cli
from support.environments import Env, make_env
from unhang.errors import UnhangError
from unhang.find.environment import ask, choose, for_source, for_target
from unhang.find.locate import search
from unhang.records import Search


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Env:
    return make_env(tmp_path_factory.mktemp("chosen") / "env")


def fake(path: Path, text: str = "#!/bin/sh\nexit 3\n") -> Path:
    """Write an executable that is not an interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def refusal(python: str | None, cwd: Path, **environ: str) -> UnhangError:
    with pytest.raises(UnhangError) as caught:
        choose(python, str(cwd), environ)
    return caught.value


def test_without_options_and_variables_it_is_our_own(tmp_path: Path) -> None:
    chosen = choose(None, str(tmp_path), {"VIRTUAL_ENV": "", "PATH": "/nowhere"})
    assert chosen.choice == "the Python that runs unhang"
    assert chosen[:3] == (sys.executable, sys.prefix, "own interpreter")


def test_the_order(env: Env, tmp_path: Path) -> None:
    prefixes = {name: tmp_path / name for name in ("named", "virtual", "conda", "work/.venv")}
    for prefix in prefixes.values():
        prefix.parent.mkdir(exist_ok=True)
        prefix.symlink_to(env.prefix)
    cwd = str(tmp_path / "work")
    environ = {"VIRTUAL_ENV": str(prefixes["virtual"]), "CONDA_PREFIX": str(prefixes["conda"])}

    def chosen(python: str | None, environ: dict[str, str]) -> tuple[str, str]:
        environment = choose(python, cwd, environ)
        assert environment.python == os.path.join(environment.prefix, "bin", "python")
        return environment.found_by, environment.prefix

    assert chosen(str(prefixes["named"]), environ) == ("--python", str(prefixes["named"]))
    assert chosen(None, environ) == ("$VIRTUAL_ENV", str(prefixes["virtual"]))
    del environ["VIRTUAL_ENV"]
    assert chosen(None, environ) == ("$CONDA_PREFIX", str(prefixes["conda"]))
    assert chosen(None, {}) == (".venv", str(prefixes["work/.venv"]))
    (tmp_path / "work" / "below").mkdir()
    (tmp_path / "work" / "below" / ".venv").write_text("a file of that name is not an environment")
    cwd += "/below"
    assert chosen(None, {}) == (".venv", str(prefixes["work/.venv"]))


@pytest.mark.parametrize("spelling", ["{python}", "{prefix}", "env", "./env/", "env/bin/python", "mypython"])
def test_python_in_each_spelling(env: Env, tmp_path: Path, spelling: str) -> None:
    (tmp_path / "commands").mkdir()
    fake(tmp_path / "commands" / "mypython", f'#!/bin/sh\nexec "{env.python}" "$@"\n')
    fake(tmp_path / "others" / "env" / "bin" / "python")  # a path is not looked up on PATH
    fake(tmp_path / "commands" / "env")  # as in /usr/bin: an environment of that name is meant
    named = spelling.format(python=env.python, prefix=env.prefix)
    environ = {"PATH": f"/nowhere:{tmp_path / 'others'}:{tmp_path / 'commands'}", "VIRTUAL_ENV": "/gone"}
    chosen = choose(named, str(env.prefix.parent), environ)
    assert (chosen.found_by, chosen.prefix) == ("--python", str(env.prefix))
    assert chosen.python == str(tmp_path / "commands" / "mypython" if spelling == "mypython" else env.python)


def test_prefixes_that_are_known_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.find.environment.ask", None)
    assert choose(os.path.realpath(sys.executable), str(tmp_path), {}).prefix == sys.base_prefix
    fake(tmp_path / "bin" / "python")
    (tmp_path / "conda-meta").mkdir()
    assert choose(None, str(tmp_path), {"CONDA_PREFIX": str(tmp_path)}).prefix == str(tmp_path)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_a_variable_that_names_nothing(env: Env, tmp_path: Path, variable: str) -> None:
    (tmp_path / ".venv").symlink_to(env.prefix)  # a good one further down the order
    error = refusal(None, tmp_path, **{variable: str(tmp_path / "gone")})
    assert (error.code, error.path) == ("no-interpreter", str(tmp_path / "gone" / "bin" / "python"))
    assert f"${variable} names it" in error.message
    assert error.hint is not None
    assert error.hint.startswith(f"unset {variable}, or ")


def test_python_that_is_not_there(tmp_path: Path) -> None:
    assert refusal("no-such-python", tmp_path).code == "no-interpreter"
    (tmp_path / "plain.txt").write_text("")
    error = refusal(str(tmp_path / "plain.txt"), tmp_path)
    assert (error.code, error.message) == ("no-interpreter", "not an interpreter: the file is not executable")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    assert refusal(".venv", tmp_path).path == str(python)
    python.symlink_to(tmp_path / "gone")
    error = refusal(None, tmp_path)
    assert (error.code, error.path) == ("no-interpreter", str(python))
    assert f"a link to {tmp_path}/gone, which is gone" in error.message


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "exit status 3, and no output"),
        ("echo first >&2; printf 'libpython: \\033[31mgone' >&2; exit 1", "libpython: \\x1b[31mgone"),
        ("kill -9 $$", "exit status -9, and no output"),
        ("sleep 9", "no answer within 1 s"),
        ("exec >&- 2>&-; sleep 9", "no answer within 1 s"),
        ("exec yes", "it writes more than 1 MiB"),
        ("exec yes >&2", "it writes more than 1 MiB"),
        ("exec /no/such/python", "not found"),
        (None, "Exec format error"),
    ],
)
def test_an_interpreter_that_does_not_answer(
    script: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unhang.find.environment._TIMEOUT_S", 1)
    monkeypatch.setattr("unhang.find.environment._TOO_MUCH", 1 << 20)
    python = fake(tmp_path / "python", f"#!/bin/sh\n{script}\n" if script else "\x7fELF garbage")
    error = refusal(str(python), tmp_path)
    assert (error.code, error.path) == ("broken-interpreter", str(python))
    assert error.message.startswith("the interpreter does not answer: ")
    assert why in error.message


FOUND: dict[str, object] = {"origin": None, "folders": [], "others": []}
LOOKED: dict[str | None, object] = dict.fromkeys(
    ("megatron", "verl", "swift", "trl", "megatron.core", "megatron.training", "megatron.bridge", "mcore_bridge"), FOUND
)


@pytest.mark.parametrize(
    "answer",
    [
        None, True, 7, "{", "[" * 100_000, "9" * 5000, r'"\ud800"', "NaN", [], {}, [LOOKED, [], [], [None, "x"]],
        [[], [], [], [None, "x"], []], [{}, [], [], [None, "x"], []],
        [{**LOOKED, "more": FOUND}, [], [], [None, "x"], []], [LOOKED, [3], [], [None, "x"], []],
        [LOOKED, ["a\0b"], [], [None, "x"], []],
        [LOOKED, [], [], 1, []], [LOOKED, [], [], [None, "x"], [["x"]]],
        [LOOKED, [], [], [1, "x"], []], [LOOKED, [], [], None, []], [{**LOOKED, "verl": None}, [], [], [None, "x"], []],
        [{**LOOKED, "verl": {**FOUND, "origin": 1}}, [], [], [None, "x"], []],
        [{**LOOKED, "verl": {**FOUND, "folders": "x"}}, [], [], [None, "x"], []],
        [{**LOOKED, "verl": {**FOUND, "others": [{}]}}, [], [], [None, "x"], []],
    ],
)  # fmt: skip
def test_an_answer_of_another_form(answer: object, tmp_path: Path) -> None:
    def ask_for(answer: object) -> Search:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        (tmp_path / "answer").write_text(f"noise\nunhang-answer:{text}\nunhang-answer:later\n")
        return search(choose(str(python), "/", {}), cwd="/")

    (tmp_path / "pyvenv.cfg").write_text("")
    python = fake(tmp_path / "bin" / "python", f"#!/bin/sh\ncat {tmp_path}/answer\n")
    odd = {**FOUND, "others": [{"origin": "/x", "folders": ["/"]}]}
    assert ask_for([{**LOOKED, "verl": odd}, ["/"], [], ["/p", "x"], []]).installations == ()
    with pytest.raises(UnhangError) as caught:
        ask_for(answer)
    assert (caught.value.code, caught.value.path) == ("broken-interpreter", str(python))
    assert caught.value.message == "the interpreter does not answer: its answer is not one that Python gives"


def test_a_link_to_an_interpreter_is_asked_and_noise_is_ignored(env: Env, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "py"
    link.symlink_to(env.python)
    source = "import sys; print('noise', end=''); answer = [sys.argv[1], 'caf\\u00e9', chr(0xdce9), sys.prefix]"
    *texts, prefix = ask(str(link), source, "one", cwd=str(tmp_path), form=[str])
    assert texts == ["one", "café", "\udce9"]
    assert choose(str(link), str(tmp_path), {}).prefix == prefix != str(env.prefix)


@pytest.mark.parametrize("option", ["--target", "--source"])
def test_a_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    of_folder = {"--target": for_target, "--source": for_source}[option]
    monkeypatch.chdir(tmp_path)
    assert of_folder(".")[:3] == (None, str(tmp_path), option)
    (tmp_path / "file").write_text("")
    for name in ("file", "gone"):
        with pytest.raises(UnhangError) as caught:
            of_folder(name)
        assert (caught.value.code, caught.value.path) == ("not-a-folder", str(tmp_path / name))
        assert option in caught.value.message
    (tmp_path / "x y.whl").write_text("")
    with pytest.raises(UnhangError) as caught:
        of_folder("x y.whl")
    assert caught.value.hint == f"to patch a wheel: unhang wheel '{tmp_path}/x y.whl' -o DIR"
    (tmp_path / "pyvenv.cfg").write_text("")
    ran = cli.unhang("check", option, tmp_path)
    assert (ran.code, f"; {tmp_path} is an environment: name it with --python {tmp_path}\n" in ran.err) == (2, True)


@pytest.mark.parametrize("mode", [0o000, 0o644, 0o311])
def test_a_folder_that_the_user_cannot_read(tmp_path: Path, mode: int) -> None:
    (tmp_path / "closed").mkdir(mode=mode)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(UnhangError) as caught:
            for_target(str(tmp_path / "closed"))
    finally:
        os.seteuid(user)
    assert (caught.value.code, caught.value.path) == ("unreadable", str(tmp_path / "closed"))
    assert caught.value.message == "the folder that --target names cannot be read: Permission denied"
