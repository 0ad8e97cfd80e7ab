"""The composite action of docs/ci.md: its inputs, annotations, summary, outputs and exit code."""

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support import cli, runner
from support import made_images as make

REPOSITORY = Path(__file__).parents[2]
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
INPUTS = (
    "command", "python", "target", "source", "fix", "skip", "kind", "upstream", "require", "accept",
    "packs", "expect_digest", "version", "lock", "image",
)  # fmt: skip


spec = importlib.util.spec_from_file_location("unhang_action", REPOSITORY / ".github" / "action.py")
assert spec
assert spec.loader
action = importlib.util.module_from_spec(spec)
spec.loader.exec_module(action)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))


class Job:
    """A job of a workflow that uses the action, with the unhang that is installed here."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.summary, self.output, self._capfd = folder / "summary", folder / "output", capfd
        patch.setenv("GITHUB_STEP_SUMMARY", str(self.summary))
        patch.setenv("GITHUB_OUTPUT", str(self.output))
        patch.setattr(action, "_install", lambda version, folder: sys.executable)

    def run(self, **inputs: str | Path) -> cli.Ran:
        variables = {f"INPUT_{name.upper()}": str(inputs.get(name, "")) for name in INPUTS}
        variables["INPUT_COMMAND"] = variables["INPUT_COMMAND"] or "check"
        self._capfd.readouterr()
        code = action.main({**os.environ, **variables})
        return cli.Ran(code, *self._capfd.readouterr())


@pytest.fixture
def job(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, capfd, monkeypatch)


def hijack(workspace: Path) -> dict[str, str]:
    """Write what would make every step of the action succeed into a workspace; return the variables of such a job."""
    for name in "unhang", "pip", "json", "sitecustomize", "usercustomize", "venv", "subprocess":
        (workspace / f"{name}.py").write_text("import os; print('hijacked', __file__, flush=True); os._exit(0)\n")
    commands = workspace / ".venv" / "bin"
    commands.mkdir(parents=True)
    (workspace / ".venv" / "pyvenv.cfg").write_text("")
    for name in "python", "python3", "git", "unhang":
        (commands / name).write_text(f"#!/bin/sh\necho hijacked {name}\n")
        (commands / name).chmod(0o755)
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").write_text("[core]\n\tfsmonitor = echo hijacked\n")
    path = os.pathsep.join([str(commands), "", ".", str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"GITHUB_WORKSPACE": str(workspace), "PYTHONPATH": str(workspace), "PATH": path}


def start(action: Path, workspace: Path, env: dict[str, str]) -> cli.Ran:
    """Run the script of action.yml as a runner does."""
    text = textwrap.dedent(
        (REPOSITORY / "action.yml").read_text().partition("run: |\n")[2].partition("      env:\n")[0]
    )
    (workspace.parent / "step.sh").write_text(text)
    bash = [shutil.which("bash") or "bash", "--noprofile", "--norc", "-eo", "pipefail"]
    inputs = {f"INPUT_{name.upper()}": "" for name in INPUTS}
    environ = {**os.environ, **inputs, **env, "GITHUB_ACTION_PATH": str(action)}
    done = subprocess.run(
        [*bash, str(workspace.parent / "step.sh")],
        capture_output=True,
        text=True,
        cwd=workspace,
        env=environ,
        check=False,
    )
    return cli.Ran(done.returncode, done.stdout, done.stderr)


def commands(ran: cli.Ran) -> list[str]:
    """Return what a runner takes as a command; it reads both streams at once, so neither can stop it for the other."""
    return runner.commands(ran.out) + runner.commands(ran.err)


@pytest.mark.parametrize("place", ["source", "target", "python", ""])
def test_a_gate_fails_whatever_the_workspace_holds(place: str, tmp_path: Path) -> None:
    """A pull request may write everything in it."""
    workspace = cli.unpack_targets(tmp_path / "workspace", ("verl", "0.7.1"))
    env = hijack(workspace)
    (tmp_path / "action" / ".github").mkdir(parents=True)
    (tmp_path / "action" / ".github" / "action.py").write_text(
        "import importlib.util as util, sys\n"
        f"spec = util.spec_from_file_location('action', {str(REPOSITORY / '.github' / 'action.py')!r})\n"
        "action = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(action)\n"
        f"action._install = lambda version, folder: {sys.executable!r}\n"
        "sys.exit(action.main())\n"
    )
    named = {"source": ".", "target": str(workspace), "python": sys.executable}
    inputs = {"INPUT_COMMAND": "check", "INPUT_REQUIRE": "mtp-cp-deadlock"}
    inputs |= {f"INPUT_{place.upper()}": named[place]} if place else {}
    ran = start(tmp_path / "action", workspace, {**env, **inputs})
    assert "hijacked" not in ran.out + ran.err, ran
    if place:
        assert (ran.code, "title=unhang mtp-cp-deadlock (cure)::needed" in ran.out) == (1, True), ran
    else:
        assert ran.code == 2, ran
        assert f"the job's `python` is in the workspace: give it as python if you trust it: {workspace}" in ran.out


def test_a_needed_fix_is_annotated_and_in_the_summary_and_fails(job: Job, site: Path) -> None:
    ran = job.run(target=site, require="mtp-cp-deadlock")
    assert ran.code == 1
    assert f"::error file={site / ENGINE},title=unhang mtp-cp-deadlock (cure)::needed" in ran.out
    row = "| verl | 0.7.1 | `mtp-cp-deadlock` | needed | MegatronEngine.forward&#95;backward&#95;batch |"
    assert row in job.summary.read_text()
    digest = cli.installed("check", "--target", site, "--output-format", "json").json["digest"]
    assert job.output.read_text() == f"digest={digest}\nexit-code=1\n"
    assert "required fix not in place: mtp-cp-deadlock" in ran.out
    assert commands(ran) == [line for line in ran.out.splitlines() if line.startswith("::error file=")]
    assert len(commands(ran)) == ran.out.count("  needed  "), "one each"


def test_diff_fails_until_apply_and_then_an_unexpected_digest_does(job: Job, site: Path) -> None:
    ran = job.run(command="diff", source=site)
    assert (ran.code, f"+++ b/{ENGINE}" in ran.out) == (1, True)
    assert job.run(command="apply", target=site).code == 0
    assert "| `mtp-cp-deadlock` | applied |" in job.summary.read_text(), "the summary is of the patched code"
    assert job.run(target=site).code == 0
    ran = job.run(target=site, expect_digest="0123456789abcdef")
    assert (ran.code, "::error title=unhang digest::" in ran.out) == (1, True)


def test_what_is_settled_has_no_annotation_and_what_is_required_may_come_from_the_job(
    job: Job, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job.run(command="apply", target=site, upstream="verl").code == 0
    ran = job.run(target=site)
    assert (ran.code, commands(ran)) == (0, [])
    monkeypatch.setenv("UNHANG_REQUIRE", "empty-expert-hang")
    ran = job.run(target=site)
    assert (ran.code, commands(ran)) == (1, ["::error title=unhang check::exit code 1: the log says why"])
    monkeypatch.setenv("UNHANG_SKIP", "empty-expert-hang")
    assert job.run(target=site, require="mtp-cp-deadlock").code == 0, "an input wins over the job's variable"


def test_no_diff_and_no_name_is_a_command(job: Job, tmp_path: Path) -> None:
    site = cli.unpack_targets(tmp_path / "a ::error::forged\n::error::forged", ("verl", "0.7.1"))
    source = site / ENGINE
    forged = b"# ::error::forged\n        ::error::forged ##[error]forged\r::error::forged\n"
    source.write_bytes(source.read_bytes().replace(b"# batch should be a list", b'f("""\n' + forged + b'""")', 1))
    for command in ("check", "diff", "apply"):
        ran = job.run(command=command, source=site)
        assert ran.code == 1
        assert all(line.startswith("::error file=") for line in commands(ran)), ran.out


def test_a_lock_file_is_annotated_at_each_line_that_pins_what_needs_a_fix(job: Job, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("verl==0.7.1 ; python_version < '3.12'\n\nverl==0.7.1 ; python_version >= '3.12'\nverl==0.9.1\n")
    ran = job.run(lock=lock, fix="mtp-cp-deadlock")
    assert ran.code == 1
    assert [line.partition(" (unhang")[0] for line in commands(ran)] == [
        f"::error file={lock},line={line},title=unhang mtp-cp-deadlock (cure)::needed in verl 0.7.1" for line in (1, 3)
    ]
    assert "digest" not in job.summary.read_text(), "no code was read"
    assert job.output.read_text() == "digest=\nexit-code=1\n"


def test_an_error_is_in_the_summary(job: Job, tmp_path: Path) -> None:
    assert job.run(target=tmp_path / "nowhere").code == 2
    assert "not-a-folder&#58; what --target names does not exist" in job.summary.read_text()
    assert job.output.read_text() == "digest=\nexit-code=2\n"


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"command": "revert"}, "command is 'revert', not one of check, apply, diff"),
        ({"command": "diff", "require": "x"}, "require is for check and apply"),
        ({"command": "apply", "expect_digest": "x"}, "expect-digest is for check, not for apply"),
        ({"target": "a", "source": "b"}, "only one of python, target, source, lock, image can be given, not target"),
        ({"lock": "uv.lock", "source": "b"}, "can be given, not source and lock"),
        ({"lock": "uv.lock", "command": "apply"}, "lock is for check, not for apply"),
        ({"image": "a.tar", "source": "b"}, "can be given, not source and image"),
        ({"image": "a.tar", "command": "apply"}, "image is for check, not for apply"),
    ],
)
def test_wrong_inputs_are_reported_before_anything_is_installed(
    job: Job, monkeypatch: pytest.MonkeyPatch, inputs: dict[str, str], why: str
) -> None:
    monkeypatch.delattr(action, "_install")
    ran = job.run(**inputs)
    assert (ran.code, why in ran.out) == (2, True)


def test_inputs_become_arguments_and_never_shell_code() -> None:
    inputs = {**dict.fromkeys(INPUTS, ""), "command": "check", "target": "a b; rm -rf /", "fix": "x y", "require": "z"}
    inputs |= {"accept": "1-2-3", "kind": "hang abort", "packs": "/a /b"}
    assert action.command_line(inputs, {}) == [
        "check", "--target=a b; rm -rf /", "--pack=/a", "--pack=/b", "--fix=x", "--fix=y", "--kind=hang",
        "--kind=abort", "--accept=1-2-3", "--require=z",
    ]  # fmt: skip
    job = {"PATH": os.path.dirname(sys.executable), "GITHUB_WORKSPACE": "/workspace"}
    found = action.where(dict.fromkeys(INPUTS, ""), job)
    assert found == [f"--python={os.path.dirname(sys.executable)}/python"], "the Python of the job"


def test_an_image_is_annotated_with_its_own_paths(job: Job, tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [make.base(), make.tar(*make.release("verl", "0.7.1"))])
    ran = job.run(image=path, fix="mtp-cp-deadlock")
    assert f"::error file=/{make.ENGINE},title=unhang mtp-cp-deadlock (cure)::needed" in ran.out
    assert ran.code == 1


def test_the_summary_s_table_escapes_its_cells() -> None:
    columns = ("upstream", "version", "fix", "verdict", "function", "detail")
    row = dict.fromkeys(columns, "x")
    hostile = "a | b\n| <b>`c` [d](https://e) ![f](g) **h** &lt; www.i @j #1"
    for field in "version", "detail", "function":
        text = action.summary({"digest": "d", "results": [{**row, field: hostile}]}, "check", 0)
        (line,) = text.splitlines()[4:-2]
        assert line.count("|") == 7
        cell = line.removesuffix(" |").removeprefix("| ").split(" | ")[columns.index(field)]
        assert html.unescape(cell) == hostile
        assert not re.search(r"[][<>`*!/:@|]|www\.|&[^#]", cell)
    error = action.summary({"error": {"code": "io", "message": hostile}}, "check", 2)
    assert not re.search(r"[][<>`*!/@]", error)
    assert "gave no report" in action.summary({}, "check", 2)


def test_every_input_reaches_the_script() -> None:
    text = (REPOSITORY / "action.yml").read_text()
    declared = re.findall(r"^  ([\w-]+):\n    description", text.split("outputs:")[0], flags=re.MULTILINE)
    assert {name.replace("-", "_") for name in declared} == set(INPUTS)
    for name in declared:
        assert f"INPUT_{name.replace('-', '_').upper()}: ${{{{ inputs.{name} }}}}" in text


@pytest.mark.parametrize(
    ("version", "lock", "image", "requirement"),
    [
        ("", "", "", str(REPOSITORY)),
        ("1.2", "", "", "unhang==1.2"),
        ("", "a.lock", "", f"{REPOSITORY}[lock]"),
        ("1.2", "a.lock", "", "unhang[lock]==1.2"),
        ("", "", "a.tar", f"{REPOSITORY}[image]"),
        ("1.2", "a.lock", "a.tar", "unhang[lock,image]==1.2"),
    ],
)
def test_unhang_is_installed_into_an_environment_of_its_own(
    version: str, lock: str, image: str, requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(action.venv, "create", lambda folder, **options: commands.append([str(folder)]))
    monkeypatch.setattr(action.subprocess, "run", lambda command, **options: commands.append(command))
    python = action._install(action._requirement({"version": version, "lock": lock, "image": image}), tmp_path)
    assert (commands[0], python) == ([str(tmp_path)], tmp_path / "bin" / "python")
    assert commands[1][:4] == [str(python), "-I", "-m", "pip"]
    assert commands[1][-2:] == ["install", requirement]


@pytest.mark.parametrize("has_new", [False, True])
def test_a_python_that_is_too_old_is_passed_over_and_without_another_it_says_what_is_missing(
    has_new: bool, tmp_path: Path
) -> None:
    old, new, workspace, action = (tmp_path / name for name in ("old", "new", "workspace", "action"))
    for folder, script in (old, "exit 1"), (new, 'case "$2" in -c) ;; *) echo "ran $2" ;; esac'):
        folder.mkdir()
        (folder / "python3").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "python3").chmod(0o755)
    workspace.mkdir()
    ran = start(
        action, workspace, {"PATH": f"{old}:{new}" if has_new else str(old), "GITHUB_WORKSPACE": str(workspace)}
    )
    if has_new:
        assert (ran.code, ran.out) == (0, f"ran {action}/.github/action.py\n")
    else:
        assert (ran.code, "needs a Python 3.10 or later: add actions/setup-python" in ran.out) == (2, True)


def test_a_failed_installation_is_an_annotation(job: Job, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(version: str, folder: Path) -> Path:
        raise subprocess.CalledProcessError(1, ["python", "-m", "ensurepip"])

    monkeypatch.setattr(action, "_install", fail)
    ran = job.run(target=site)
    (line,) = commands(ran)
    assert (ran.code, line.startswith("::error title=unhang::unhang could not be installed with Python 3.")) == (
        2,
        True,
    )


@pytest.mark.slow
def test_by_default_the_unhang_of_the_action_is_installed(site: Path, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    env = {"INPUT_COMMAND": "check", "INPUT_TARGET": str(site), "RUNNER_TEMP": str(tmp_path)}
    env |= hijack(tmp_path / "workspace")
    if subprocess.run([sys.executable, "-m", "ensurepip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no ensurepip, so the action cannot create its environment")
    ran = start(REPOSITORY, tmp_path / "workspace", env)
    assert "hijacked" not in ran.out
    assert (ran.code, "title=unhang mtp-cp-deadlock (cure)::needed" in ran.out) == (1, True), ran.err
    python = str(tmp_path / "unhang-action" / "bin" / "python")
    where = [python, "-c", "import unhang; print(unhang.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True, cwd="/").stdout
    assert found.startswith(str(tmp_path / "unhang-action"))
