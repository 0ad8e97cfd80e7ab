"""A release, rehearsed: tagged, built, uploaded to an index on this machine, installed from there in each way."""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import unhang
from support import cli, images, local_index, pages, wheels

if not os.environ.get("UNHANG_RELEASE"):
    pytest.skip("it installs from an index: run nox -s release", allow_module_level=True)

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / ".ci"))
import builds  # noqa: E402

FIX = "mtp-cp-deadlock"


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> cli.Ran:
    """Run a command of this session's environment, with the given variables."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(env or {})}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    return cli.Ran(done.returncode, done.stdout, done.stderr)


def must(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed; return its stdout."""
    ran = run(*words, cwd=cwd, env=env)
    assert ran.code == 0, (words, ran.out, ran.err)
    return ran.out


@pytest.fixture(scope="module")
def tag() -> str:
    return f"v{unhang.__version__}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, tag: str) -> Path:
    """A snapshot of the working tree, prepared and tagged as docs/maintainers/release.md says."""
    tree = builds.take_snapshot(tmp_path_factory.mktemp("release") / "unhang")
    if run("python", ".ci/release.py", "check", tag, cwd=tree).code:
        must("python", ".ci/release.py", "prepare", tag[1:], cwd=tree)
    must("git", "-c", "user.name=unhang", "-c", "user.email=", "commit", "-qam", f"Release {tag[1:]}", cwd=tree)
    must("git", "tag", tag, cwd=tree)
    return tree


@pytest.fixture(scope="module")
def dist(tree: Path) -> Path:
    """The archives, built as the workflow builds them."""
    must(sys.executable, "-m", "nox", "-s", "dist", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def env(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What makes pip, uv and pipx use an index to which the archives were uploaded."""
    home = tmp_path_factory.mktemp("home")
    (home / "packages").mkdir()
    with local_index.serve(home / "packages") as address:
        upload = ["upload", "--non-interactive", "--disable-progress-bar", "--repository-url", address]
        must("twine", *upload, "-u", "-", "-p", "-", *sorted(dist.iterdir()), cwd=home)
        yield local_index.clients(address, home)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return cli.unpack(tmp_path / "site", ("verl", "0.7.1"))


def patches(command: list[str | Path], site: Path, env: dict[str, str], tag: str) -> None:
    """Hold that a command is the released unhang, and does the main job on a downloaded wheel."""
    cwd = site.parent
    assert must(*command, "--version", cwd=cwd, env=env) == f"unhang {tag[1:]}\n"
    before = run(*command, "check", "--target", site, "--require", FIX, cwd=cwd, env=env)
    assert before.code == 1, before
    must(*command, "apply", "--target", site, "--require", FIX, cwd=cwd, env=env)
    after = run(*command, "check", "--target", site, "--require", FIX, "--output-format", "json", cwd=cwd, env=env)
    assert after.code == 0, after
    assert [row["verdict"] for row in after.json["results"] if row["fix"] == FIX] == ["applied"]
    must(*command, "revert", "--target", site, cwd=cwd, env=env)


def test_the_tag_agrees_and_the_notes_are_the_changelog_s(tree: Path, tag: str) -> None:
    notes = must("python", ".ci/release.py", "check", tag, cwd=tree)
    assert notes.strip() in (tree / "CHANGELOG.md").read_text()
    assert run("python", ".ci/release.py", "check", "v99.0.0", cwd=tree).code == 1


def test_there_is_one_sdist_and_one_wheel_of_the_version(dist: Path, tag: str) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [
        f"unhang-{tag[1:]}-py3-none-any.whl", f"unhang-{tag[1:]}.tar.gz",
    ]  # fmt: skip


@pytest.mark.parametrize("binary", ["--only-binary=unhang", "--no-binary=unhang"])
def test_pip_install(binary: str, tmp_path: Path, site: Path, env: dict[str, str], tag: str) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    folder = tmp_path / "venv" / "bin"
    must(folder / "python", "-m", "pip", "install", "-q", binary, "unhang", cwd=tmp_path, env=env)
    patches([folder / "unhang"], site, env, tag)


def test_uvx(site: Path, env: dict[str, str], tag: str) -> None:
    patches(["uvx", "unhang"], site, env, tag)


def test_pipx_run(site: Path, env: dict[str, str], tag: str) -> None:
    patches(["pipx", "run", "unhang"], site, env, tag)


def test_uv_tool_install(site: Path, env: dict[str, str], tag: str) -> None:
    must("uv", "tool", "install", "unhang", cwd=site.parent, env=env)
    patches([Path(env["UV_TOOL_BIN_DIR"]) / "unhang"], site, env, tag)


def test_the_action_installs_a_version_from_the_index(
    tmp_path: Path, site: Path, env: dict[str, str], tag: str
) -> None:
    inputs = {"UNHANG_COMMAND": "apply", "UNHANG_TARGET": str(site), "UNHANG_VERSION": tag[1:]}
    step = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    must("python", "-I", REPOSITORY / ".github" / "action.py", cwd=tmp_path, env={**env, **inputs, **step})
    assert f"| `{FIX}` | applied |" in (tmp_path / "summary").read_text()


DOCKERFILE = """\
ARG BASE
FROM ${{BASE}}
ENV PIP_NO_INDEX= PIP_FIND_LINKS= PIP_INDEX_URL={index}
RUN pip install --no-cache-dir unhang
RUN unhang apply --fix {fix} --require {fix} 2>&1
"""


def test_an_image(tmp_path: Path, env: dict[str, str], tag: str) -> None:
    if why := images.trouble("buildah"):
        pytest.skip(f"no image is built: {why}")
    packages = tmp_path / "packages"
    must("python", "-m", "pip", "download", "-q", "-d", packages, "unhang", cwd=tmp_path, env=env)
    (tmp_path / "none").mkdir()
    with images.builder("buildah") as buildah, local_index.serve(packages, fallback=False) as address:
        images.make_base(buildah, tmp_path / "none", [wheels.fetch("verl", "0.7.1")])
        (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(index=f"{address}/simple/", fix=FIX))
        images.must_build(buildah, tmp_path / "Dockerfile", packages, "patched", network=True)
        assert buildah.in_image("patched", "unhang", "--version").out == f"unhang {tag[1:]}\n"
        assert buildah.in_image("patched", "unhang", "check", "--fix", FIX, "--require", FIX).code == 0


def config(tree: Path, hook: str) -> str:
    """Return the configuration of docs/vendored.md, or docs/lock.md, for a hook, from this tree."""
    page = "lock.md" if hook == "unhang-lock" else "vendored.md"
    block = pages.example(REPOSITORY / "docs" / page, "hooks")
    return re.sub(r"repo: \S+", f"repo: {tree}", block).replace("id: unhang-check", f"id: {hook}")


def test_the_pre_commit_hooks_on_a_vendored_tree(tree: Path, tmp_path: Path, tag: str, env: dict[str, str]) -> None:
    """As docs/vendored.md has it: unhang-apply rewrites once, and then unhang-check passes, also in a fresh clone."""
    project, engine = tmp_path / "project", "third_party/verl/verl/workers/engine/megatron/transformer_impl.py"
    (vendored,) = cli.unpack(project / "third_party" / "verl", ("verl", "0.7.1")).glob("*.dist-info")
    shutil.rmtree(vendored)
    env = {**env, "PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}

    def git(*arguments: str, cwd: Path = project) -> str:
        return must("git", "-c", "user.name=unhang", "-c", "user.email=", *arguments, cwd=cwd, env=env)

    def hook(name: str, cwd: Path = project) -> cli.Ran:
        (cwd / ".pre-commit-config.yaml").write_text(config(tree, name))
        must("pre-commit", "autoupdate", cwd=cwd, env=env)
        assert f"rev: {tag}\n" in (cwd / ".pre-commit-config.yaml").read_text()
        git("add", "-A", cwd=cwd)
        return run("pre-commit", "run", "--all-files", cwd=cwd, env=env)

    git("init", "-q", ".")
    failed = hook("unhang-check")
    assert (failed.code, "unhang check...." in failed.out, f"needed          {FIX}" in failed.out) == (1, True, True)
    rewritten = hook("unhang-apply")
    assert (rewritten.code, "files were modified by this hook" in rewritten.out) == (1, True), rewritten
    assert engine in git("diff", "--name-only").splitlines()
    assert hook("unhang-apply").code == 0
    git("commit", "-qm", "Patch verl")
    assert not [name for name in git("ls-files").splitlines() if ".unhang" in name], "the receipt hides itself"
    git("clone", "-q", str(project), str(tmp_path / "clone"), cwd=tmp_path)
    assert hook("unhang-check", tmp_path / "clone").code == 0
    (project / "uv.lock").write_text('version = 1\n\n[[package]]\nname = "verl"\nversion = "0.7.1"\n')
    failed = hook("unhang-lock")
    assert (failed.code, f"needed          {FIX}" in failed.out, "verl 0.7.1  uv.lock:4" in failed.out) == (
        1,
        True,
        True,
    )
    (project / "uv.lock").write_text("version = 1\n")
    assert hook("unhang-lock").code == 0
