# /// script
# requires-python = ">=3.10"
# dependencies = ["nox>=2025.2.9"]
# ///
"""The project's sessions. Without nox: `python3 .ci/nox -s demo`; with it: `nox -s demo`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "typecheck", "tests"]

HERE = Path(__file__).parent
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
GROUPS = nox.project.load_toml(HERE / "pyproject.toml")
PROOFS = ["tests/prove", "tests/cli/test_prove_command.py", "tests/proofs"]
PROOFS += ["tests/upstream/test_runner.py"]  # two ranks, which want torch
DEMO = ["verl==0.7.1", "megatron-core==0.17.1", "ms-swift==4.6.0"]


def install_proofs(session: nox.Session) -> None:
    """What the proofs import: torch, and what the upstreams import. Where an index holds both, pip may take the torch
    for CUDA: that does as well.
    """
    session.install("--quiet", "torch==2.13.0")
    session.install("--quiet", "--no-deps", "--requirement", str(HERE / "tests" / "proofs" / "requirements.txt"))


def install_wheel(session: nox.Session) -> None:
    """Build the wheel and install that: what is tested is what users get, not the source tree."""
    dist = Path(session.create_tmp()) / "dist"
    for stale in dist, HERE / "build":  # setuptools would pack a module that has left the source
        shutil.rmtree(stale, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(HERE))
    session.install("--quiet", "--force-reinstall", "--no-deps", *map(str, dist.glob("*.whl")))
    session.install("--quiet", *map(str, dist.glob("*.whl")))


def fetch(session: nox.Session) -> Path:
    """Lay out the demo's wheels in a folder of their own."""
    folder = Path(session.create_tmp()) / "site-packages"
    shutil.rmtree(folder, ignore_errors=True)
    # megatron-core 0.17 asks for Python 3.12, whatever Python this is; nothing of it is imported
    for_312 = ["--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64"]
    options = ["--quiet", "--target", str(folder), "--no-deps", "--only-binary=:all:", "--no-compile"]
    session.run("python", "-m", "pip", "install", *options, *for_312, *DEMO)
    return folder


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """Fetch verl 0.7.1, megatron-core 0.17.1 and ms-swift 4.6.0 into a folder of their own, and patch them there."""
    install_wheel(session)
    folder = fetch(session)
    session.run("unhang", "check", "--target", str(folder), success_codes=[1])
    session.run("unhang", "diff", "--target", str(folder), success_codes=[1])
    session.run("unhang", "apply", "--target", str(folder))
    session.run("unhang", "check", "--target", str(folder))
    session.log(f"patched, in {folder}; undo with: {session.bin}/unhang revert --target {folder}")


@nox.session(python=PYTHONS, reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run the tests against the built wheel."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    # nox's own temporary folder lies in this checkout, and some tests need one that lies in none
    session.run("python", "-m", "pytest", *session.posargs, env={"TMPDIR": tempfile.gettempdir()})


@nox.session(reuse_venv=True)
def soak(session: nox.Session) -> None:
    """Kill whole runs for some minutes, wherever and whenever, and print the figures of docs/promises.md."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    env = {"TMPDIR": tempfile.gettempdir(), "UNHANG_SOAK": "1"}
    session.run("python", "-m", "pytest", "-n", "0", "tests/whole/test_killed_runs.py", *session.posargs, env=env)


@nox.session(reuse_venv=True)
def fuzz(session: nox.Session) -> None:
    """Mutate the real target functions 10,000 times and more, and print the figures of docs/promises.md."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    session.run("python", "-W", "ignore", "-m", "fuzz", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(python="3.11", reuse_venv=True)
def proofs(session: nox.Session) -> None:
    """Show each hang on untouched source, on a CPU, and that it is gone on patched source: docs/prove.md.

    Prints the table, and leaves it in the session's temporary folder, as JSON and JUnit. `UNHANG_PROOFS=core` runs
    the core set alone, which takes some minutes; all of it, more than half an hour.
    """
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    install_proofs(session)
    out = Path(session.create_tmp())
    wanted = os.environ.get("UNHANG_PROOFS", "all")
    env = {"TMPDIR": tempfile.gettempdir(), "UNHANG_PROOFS": wanted, "UNHANG_PROOFS_JSON": str(out / "proofs.json")}
    options = ["-n", "0", f"--junitxml={out / 'proofs.xml'}"]
    session.run("python", "-m", "pytest", *options, *PROOFS, *session.posargs, env=env)


@nox.session(python="3.11", reuse_venv=True)
def prove(session: nox.Session) -> None:
    """Run `unhang prove` with an interpreter that has torch, on a tree or a folder: `-- --source TREE`."""
    install_wheel(session)
    install_proofs(session)
    # what is installed untouched, and shows its defect, exits with 1, and is no failure of this session
    session.run("unhang", "prove", "--python", f"{session.bin}/python", *session.posargs, success_codes=[0, 1])


@nox.session(python="3.11", reuse_venv=True)
def upstream(session: nox.Session) -> None:
    """Run an upstream's own tests before and after the fixes, and compare: `-- megatron-lm core_v0.17.1`.

    docs/upstream.md says what it needs, and how to read the table, which is left as text, JSON and JUnit in the
    session's temporary folder, beside the environments of the upstreams.
    """
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    env = {"TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(HERE / "tests")}
    session.run("python", "-m", "upstream.run", "--tmp", session.create_tmp(), *session.posargs, env=env)


def from_checkout(session: nox.Session) -> dict[str, str]:
    """Install what the sweep imports; return the environment variables that make Python import the checkout's unhang.

    The wheel does not carry the sweep.
    """
    needs = [*GROUPS["project"]["dependencies"], *nox.project.dependency_groups(GROUPS, "sweep")]
    session.install("--quiet", *needs)
    return {"PYTHONPATH": str(HERE / "src")}


@nox.session(reuse_venv=True)
def sweep(session: nox.Session) -> None:
    """Regenerate compat/ from the package index and clones (UNHANG_{MEGATRON,VERL,SWIFT}_CLONE: paths or URLs).

    Then write the README's table and docs/matrix.svg from it.
    """
    env = from_checkout(session)
    session.run("python", "-m", "unhang.compat.sweep.generate", *session.posargs, env=env)
    session.run("python", "-m", "unhang.compat.sweep.pages", env=env)


@nox.session(reuse_venv=True)
def compat(session: nox.Session) -> None:
    """Lint the matrix and the pages made from it, and verify a random sample against real wheels.

    Offline, once the session's environment exists: `nox -R -s compat -- --sample 0`.
    """
    env = from_checkout(session)
    for schema in sorted((HERE / "compat" / "schemas").glob("*.json")):
        found = "patches/*/manifest.json" if schema.stem == "manifest" else f"compat/**/{schema.name}"
        named = [str(file) for file in sorted(HERE.glob(found)) if file.parent != schema.parent]
        session.run("check-jsonschema", "--schemafile", str(schema), *named)
    session.run("python", "-m", "unhang.compat.sweep.pages", "--check", env=env)
    session.run("python", "-m", "unhang.compat.sweep.lint", *session.posargs, env=env)


@nox.session(reuse_venv=True)
def radar(session: nox.Session) -> None:
    """Compare the matrix with what the package index offers now."""
    install_wheel(session)
    session.install("--quiet", *GROUPS["project"]["optional-dependencies"]["index"])
    session.run("unhang", "matrix", "--against-index", *session.posargs)


@nox.session(python="3.11", reuse_venv=True)
def fleet(session: nox.Session) -> None:
    """Try docs/fleets.md: a local Ray cluster of several nodes, one of them unpatched; a stand-in for Slurm's srun."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"), "ray")
    env = {"TMPDIR": tempfile.gettempdir()}
    session.run("python", "-m", "pytest", "-n", "0", "tests/test_fleet.py", *session.posargs, env=env)


@nox.session(reuse_venv=True)
def image(session: nox.Session) -> None:
    """Try docs/docker.md: build and run its images with Debian's buildah, as root; and the builds that must fail."""
    if not shutil.which("buildah"):
        session.error("this needs buildah: apt-get install buildah")
    if os.geteuid() != 0:
        session.error("buildah's chroot isolation wants root")
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test"))
    env = {"TMPDIR": tempfile.gettempdir(), "UNHANG_IMAGES": "1"}
    session.run("python", "-m", "pytest", "-n", "0", "tests/whole/test_image.py", *session.posargs, env=env)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Lint all Python files, and hold the workflows against their published schemas."""
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "lint"))
    session.run("ruff", "check", ".")
    for schema, files in ("github-workflows", "workflows/*.yml"), ("github-actions", "actions/*/action.yml"):
        found = map(str, sorted((HERE / ".github").glob(files)))
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *found)


@nox.session(reuse_venv=True)
def typecheck(session: nox.Session) -> None:
    """Check the types of the installed package, and of what CI runs, strictly."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "typecheck"))
    session.run("mypy", "--strict", "-p", "unhang")
    session.run("mypy", "--strict", ".github/actions/unhang/run.py")
    with session.chdir(".github/scripts"):
        session.run("mypy", "--strict", *(path.name for path in sorted(Path().glob("*.py"))))


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Time check, diff and apply beside imports and other tools; print the goals, and write docs/performance.md."""
    install_wheel(session)
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "bench"))
    script = str(HERE / "benchmarks" / "session.py")
    # the counting of system calls is shared with the tests
    session.run("python", script, str(fetch(session)), *session.posargs, env={"PYTHONPATH": str(HERE / "tests")})
