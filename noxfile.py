# /// script
# requires-python = ">=3.10"
# dependencies = ["nox>=2025.2.9"]
# ///
"""The project's sessions. Without nox: `python3 .ci/nox -s demo`; with it: `nox -s demo`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "typecheck", "tests"]

HERE = Path(__file__).parent
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
GROUPS = nox.project.load_toml(HERE / "pyproject.toml")
PROOFS = ["tests/prove", "tests/cli/test_prove_command.py", "tests/proofs", "tests/hangs"]
PROOFS += ["tests/upstream/test_runner.py", "tests/whole/test_live.py"]  # these need torch
SCENES = ["tests/fixes", "tests/mutants", "tests/judge", "tests/compat"]  # so do some of these: they play scenes
SCENES += ["tests/test_example_pack.py", "tests/whole/test_accept.py"]
IMAGES = ["tests/whole/test_image.py", "tests/whole/test_apptainer.py"]
DEMO = ["verl==0.7.1", "megatron-core==0.17.1", "ms-swift==4.6.0"]


def install_wheel(session: nox.Session, *groups: str) -> None:
    """Build the wheel and install it, with dependency groups: the tests run on what users get, not on the source."""
    dist = Path(session.create_tmp()) / "dist"
    for stale in dist, HERE / "build":  # setuptools would pack modules that are gone from the source
        shutil.rmtree(stale, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(HERE))
    (wheel,) = map(str, dist.glob("*.whl"))
    session.install("--quiet", "--force-reinstall", "--no-deps", wheel)
    session.install("--quiet", wheel, *nox.project.dependency_groups(GROUPS, *groups))


def install_proofs(session: nox.Session) -> None:
    """Install what the proofs import: torch, and what the upstreams import. A torch for CUDA works as well."""
    session.install("--quiet", "torch==2.13.0", "py-spy")
    session.install("--quiet", "--no-deps", "--requirement", str(HERE / "tests" / "proofs" / "requirements.txt"))


def scratch() -> str:
    """Return the folder for temporary files: in memory, where there is room and programs may run from it.

    Never nox's own temporary folder: it is in this checkout, and some tests need a folder that is in none.
    """
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & os.ST_NOEXEC:
            return str(memory)
    return tempfile.gettempdir()


def pytest(session: nox.Session, *arguments: str, **env: str) -> None:
    """Run pytest, with the arguments given after `--`."""
    session.run("python", "-m", "pytest", *arguments, *session.posargs, env={"TMPDIR": tempfile.gettempdir(), **env})


def fetch(session: nox.Session, *wanted: str) -> Path:
    """Install wheels of the upstreams into a folder of their own, and return it."""
    folder = Path(session.create_tmp()) / "site-packages"
    shutil.rmtree(folder, ignore_errors=True)
    # megatron-core 0.17 requires Python 3.12, whatever Python this is; it runs on 3.11 as well
    for_312 = ["--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64"]
    options = ["--quiet", "--target", str(folder), "--no-deps", "--only-binary=:all:", "--no-compile"]
    session.run("python", "-m", "pip", "install", *options, *for_312, *wanted)
    return folder


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """Fetch verl 0.7.1, megatron-core 0.17.1 and ms-swift 4.6.0 into a folder of their own, and patch them there."""
    install_wheel(session)
    folder = fetch(session, *DEMO)
    session.run("unhang", "check", "--target", str(folder), success_codes=[1])
    session.run("unhang", "diff", "--target", str(folder), success_codes=[1])
    session.run("unhang", "apply", "--target", str(folder))
    session.run("unhang", "check", "--target", str(folder))
    session.log(f"patched, in {folder}; undo with: {session.bin}/unhang revert --target {folder}")


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run the quick tests on the Python that runs nox: all but those marked slow, within three minutes on two cores."""
    install_wheel(session, "test")
    pytest(session, "--quick", TMPDIR=scratch())


@nox.session(name="tests-all", python=PYTHONS, reuse_venv=True)
def tests_all(session: nox.Session) -> None:
    """Run all tests, on each Python. On 3.11, without arguments, the branch coverage must not fall below its floor."""
    measured = session.python == "3.11" and not session.posargs
    install_wheel(session, "test", *(["coverage"] if measured else []))
    pytest(session, *(["--cov", "--cov-report=term"] if measured else []), TMPDIR=scratch())


@nox.session(python="3.11", reuse_venv=True)
def builds(session: nox.Session) -> None:
    """Show that each way to build and install gives the same files, and what tools see of a plain checkout."""
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "builds"))
    session.run("python", ".ci/builds.py", env={"TMPDIR": scratch()})


@nox.session(reuse_venv=True)
def dist(session: nox.Session) -> None:
    """Build the sdist, and from it the wheel, into dist/, as a release has them."""
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "dist"))
    shutil.rmtree(HERE / "dist", ignore_errors=True)
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=HERE, capture_output=True, text=True)
    # whoever builds the same commit has the same wheel, to the byte
    session.run("python", "-m", "build", "--outdir", "dist", env={"SOURCE_DATE_EPOCH": committed.stdout.strip()})
    session.run("twine", "check", "--strict", *map(str, sorted((HERE / "dist").iterdir())))


@nox.session(name="tests-dist", python=PYTHONS)
@nox.parametrize("archive", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def tests_dist(session: nox.Session, archive: str) -> None:
    """Run the quick tests on an archive of dist/, on each Python, in a new environment."""
    (found,) = (HERE / "dist").glob(archive)
    session.install("--quiet", str(found), *nox.project.dependency_groups(GROUPS, "test"))
    pytest(session, "--quick", TMPDIR=scratch())


@nox.session(reuse_venv=True)
def release(session: nox.Session) -> None:
    """Rehearse a release: build it, upload it to an index on this machine, install it from there in each way."""
    install_wheel(session, "test", "release")
    pytest(session, "-n", "0", "tests/whole/test_release.py", UNHANG_RELEASE="1", UNHANG_IMAGES="1")


@nox.session(venv_backend="none")
def pages(session: nox.Session) -> None:
    """Write the generated pages anew, also those with conflict markers: README's table, the matrix, the architecture.

    It needs no network, and nothing that nox itself does not need: a merge of two fixes ends with it.
    """
    env = {"PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE / "tests")])}
    for module in "unhang.compat.sweep.pages", "support.architecture":
        session.run(sys.executable, "-m", module, env=env)


@nox.session(reuse_venv=True)
def screenshot(session: nox.Session) -> None:
    """Write docs/terminal.svg: what a terminal shows of `unhang check` and `unhang apply` on verl 0.7.1."""
    install_wheel(session, "test", "screenshot")
    session.run("python", "-m", "support.screenshot", env={"PYTHONPATH": "tests"})


ATTACKS = {
    "whole runs, killed": ["tests/whole/test_killed_runs.py", "-k", "not again"],
    "runs that recover, killed": ["tests/whole/test_killed_runs.py", "-k", "again"],
    "whole runs, a failing disk": ["tests/whole/test_failing_disk.py"],
    "transactions, killed or stopped": ["tests/store/test_transaction.py", "tests/store/test_recovery.py"],
    "originals that seem replaced": ["tests/store/test_proof.py"],
    "edits of fixed functions": [
        "tests/judge/test_edits.py", "tests/judge/test_pairs.py", "tests/judge/test_origin.py",
        "tests/whole/test_forks.py",
    ],
    "names that a file binds again": ["tests/shapes/test_rebound.py"],
    "defects that no rewrite cures": ["tests/whole/test_no_rewrite.py"],
    "functions with an edit, run": ["tests/judge/test_shows.py"],
    "edits beside the rewrites": ["tests/fixes/test_anchors.py", "tests/whole/test_accept.py"],
    "bytecode of other code": [
        "tests/judge/test_stale.py", "tests/store/test_bytecode.py", "tests/whole/test_stale_bytecode.py",
    ],
    "upgrades, reinstalls and edits after apply": [
        "tests/whole/test_receipts.py", "tests/store/test_remains.py", "tests/rewrite/test_own_lines.py",
    ],
    "links, and uv's link modes": ["tests/whole/test_links.py", "tests/store/test_links.py"],
    "owners, modes and groups": ["tests/whole/test_owners.py"],
    "tampered state and odd sources": [
        "tests/whole/test_hostile.py", "tests/whole/test_state.py", "tests/store/test_receipt.py",
        "tests/store/test_journal.py", "tests/store/test_untrusted.py", "tests/store/test_folder.py",
    ],
    "text from outside, at each sink": ["tests/test_gate.py", "tests/github/test_action.py", "tests/draft"],
    "damaged and hostile packs": ["tests/whole/test_damaged_packs.py", "tests/plugins/test_parameters.py"],
    "hostile archives": ["tests/deliver/test_archive.py", "tests/deliver/test_wheel.py"],
    "fake interpreters and hostile folders": [
        "tests/find/test_environment.py", "tests/find/test_own_path.py", "tests/find/test_trust.py",
        "tests/whole/test_untrusted.py", "tests/plugins/test_entry_points.py", "tests/diagnose/test_live.py",
    ],
    "environments, read and asked": ["tests/find/test_reading.py"],
}  # fmt: skip


@nox.session(reuse_venv=True)
def attack(session: nox.Session) -> None:
    """Kill and fail each operation on the disk, edit, tamper, share, link, upgrade; write docs/promises.md's figures.

    With arguments after `--`, such as `-k links`, the page stays as it is.
    """
    install_wheel(session, "test")
    env = {"UNHANG_ATTACK": os.environ.get("UNHANG_ATTACK", "1"), "TMPDIR": scratch()}
    reports = Path(session.create_tmp()) / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    for name, paths in ATTACKS.items():
        session.log(f"attack: {name}")
        family = ("-o", "junit_family=xunit1")  # the other one has no figures of a test
        pytest(session, "-n", "0", *family, f"--junitxml={reports / name}.xml", *paths, **env)
    if not session.posargs:
        session.run("python", "-m", "support.promises", str(reports), env={"PYTHONPATH": str(HERE / "tests")})


@nox.session(reuse_venv=True)
def fuzz(session: nox.Session) -> None:
    """Mutate the real target functions at least 10,000 times, and print the figures of docs/promises.md."""
    install_wheel(session, "test")
    session.run("python", "-W", "ignore", "-m", "fuzz", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(python="3.11", reuse_venv=True)
def mutants(session: nox.Session) -> None:
    """Change each rewrite in some hundred ways; show that its scene notices: `-- --fix ID`, `-- --all` prints how."""
    install_wheel(session, "test")
    install_proofs(session)
    session.run("python", "-W", "ignore", "-m", "mutants", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(python="3.11", reuse_venv=True)
def proofs(session: nox.Session) -> None:
    """Show each hang on untouched source, on a CPU, and that it is gone on patched source: docs/maintainers/proofs.md.

    Then diagnose each hang from what it leaves. Prints the table, and writes it as JSON and JUnit to the session's
    temporary folder. `UNHANG_PROOFS=core` runs the core set, which takes some
    minutes; all of it takes about an hour.
    """
    install_wheel(session, "test")
    install_proofs(session)
    out = Path(session.create_tmp())
    env = {"UNHANG_PROOFS": os.environ.get("UNHANG_PROOFS", "all")}
    env |= {"UNHANG_PROOFS_JSON": str(out / "proofs.json")}
    pytest(session, "--dist", "loadgroup", f"--junitxml={out / 'proofs.xml'}", *PROOFS, **env)
    if not session.posargs:
        pytest(session, "-m", "torch", *SCENES, UNHANG_PROOFS=env["UNHANG_PROOFS"])


@nox.session(python="3.11", reuse_venv=True)
def drawings(session: nox.Session) -> None:
    """Record what the drawings of all fixes show, by their proofs: `-- FIX...`; then write the pictures.

    `patches/FIX/drawing.json` says which case is drawn: docs/maintainers/proofs.md.
    """
    install_wheel(session, "test")
    install_proofs(session)
    env = {"TMPDIR": scratch(), "PYTHONPATH": str(HERE / "tests")}
    session.run("python", "-W", "ignore", "-m", "proofs.drawn", *session.posargs, env=env)
    pages(session)


@nox.session(python="3.11", reuse_venv=True)
def reports(session: nox.Session) -> None:
    """Run the program of each report to an upstream on the newest wheels: docs/maintainers/reports.md.

    And on main of the clones of `sweep` that are given. It fails where a program no longer shows its defect.
    `-- --write-docs` writes what they print into docs/reports/.
    """
    install_proofs(session)
    session.install("--quiet", "--no-deps", "--requirement", str(HERE / "tests" / "proofs" / "reports.txt"))
    wheels = fetch(session, "--pre", *(wanted.partition("==")[0] for wanted in DEMO))
    env = {"TMPDIR": scratch(), "PYTHONPATH": str(HERE / "tests")}
    session.run("python", "-m", "support.reports", str(wheels), *session.posargs, env=env)


@nox.session(reuse_venv=True)
def tried(session: nox.Session) -> None:
    """Try patches of NeMo-RL and slime as packs: docs/maintainers/packs-tried.md, which `-- --write-docs` writes.

    UNHANG_NEMO_RL_CLONE, UNHANG_SLIME_CLONE and UNHANG_MEGATRON_CLONE name clones; it says which are missing. It
    fetches wheels of other projects, some 600 MB, into the cache of the tests.
    """
    install_wheel(session, "test")
    session.run("python", "-m", "tried", *session.posargs, env={"PYTHONPATH": str(HERE / "tests"), "TMPDIR": scratch()})


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run every scene that has ranks on NCCL, with `python3`'s torch: docs/maintainers/gpu.md. No GPU: exit with 2.

    What such a machine lacks comes from `.gpu`, which `python tests/gpu/carry.py .gpu` fills where there is a network.
    """
    command = ["sh", ".gpu/run"] if (HERE / ".gpu").is_dir() else ["python3", "-m", "gpu"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE / "src", HERE / "tests")))}
    if code := subprocess.run([*command, *session.posargs], cwd=HERE, env=env, check=False).returncode:
        sys.exit(code)


@nox.session(python="3.11", reuse_venv=True)
def prove(session: nox.Session) -> None:
    """Run `unhang prove` with an interpreter that has torch, on a tree or a folder: `-- --source TREE`."""
    install_wheel(session)
    install_proofs(session)
    # untouched source shows its defect and exits with 1: that is no failure of this session
    session.run("unhang", "prove", "--python", f"{session.bin}/python", *session.posargs, success_codes=[0, 1])


@nox.session(python="3.11", reuse_venv=True)
def upstream(session: nox.Session) -> None:
    """Run an upstream's own tests before and after the fixes, and compare: `-- megatron-lm core_v0.17.1`.

    docs/maintainers/upstream.md says what it needs, and how to read the table. The temporary folder keeps the report as
    JSON, and the environments of the upstreams.
    """
    install_wheel(session, "test")
    env = {"TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(HERE / "tests")}
    session.run("python", "-m", "upstream.run", "--tmp", session.create_tmp(), *session.posargs, env=env)


def from_checkout(session: nox.Session) -> dict[str, str]:
    """Install what the sweep imports; return the environment variables that make Python import the checkout's unhang.

    The wheel does not carry the sweep.
    """
    needs = [*GROUPS["project"]["dependencies"], *nox.project.dependency_groups(GROUPS, "sweep")]
    session.install("--quiet", *needs)
    return {"PYTHONPATH": str(HERE / "src")}


@nox.session(python="3.11", reuse_venv=True)
def sweep(session: nox.Session) -> None:
    """Regenerate compat/ from the package index and clones, then the README's table and docs/matrix.svg from it.

    UNHANG_{MEGATRON,VERL,SWIFT,BRIDGE,MCORE_BRIDGE,TRL}_CLONE name the clones, as paths or URLs.
    """
    env = from_checkout(session)
    install_proofs(session)
    session.run("python", "-m", "unhang.compat.sweep.generate", *session.posargs, env=env)
    session.run("python", "-m", "unhang.compat.sweep.pages", env=env)


@nox.session(python="3.11", reuse_venv=True)
def compat(session: nox.Session) -> None:
    """Lint the fixes, the matrix and the pages made from it; judge history; verify a sample against real wheels.

    History is every commit and tag in the clones (those of `sweep`) that are given. Offline, once the session's
    environment exists: `nox -R -s compat -- --sample 0`.
    """
    env = from_checkout(session)
    install_proofs(session)
    session.run("python", "-m", "unhang.compat.sweep.lint", *session.posargs, env=env)
    for schema in sorted((HERE / "compat" / "schemas").glob("*.json")):
        elsewhere = {"facts": "compat/data/*.json", "upstream": "upstreams/*.json"}
        named = elsewhere.get(schema.stem, f"compat/{schema.name}")
        if files := [str(file) for file in sorted(HERE.glob(named))]:  # the lint has checked the manifests
            session.run("check-jsonschema", "--schemafile", str(schema), *files)
    session.run("python", "-m", "unhang.compat.sweep.pages", "--check", env=env)
    session.run("python", "-m", "unhang.compat.sweep.verdicts", env=env)


@nox.session(python="3.11", reuse_venv=True)
def fix(session: nox.Session) -> None:
    """Check one fix, `-- ID`: parts, lint, sweep, tests, mutants, proofs; `-- ID STEP...`: only these.

    It stops at the first that wants a person, and says what and where. The clone is that of `sweep`.
    `-- ID play NAME==VERSION`: the scene on one release, on record or not. With `nox -R` nothing is installed again.
    """
    name, *only = session.posargs or ["--help"]
    if name in ("-h", "--help"):
        session.run("python", ".ci/fix.py", "--help")  # this needs nothing that is installed
        return
    env = from_checkout(session)
    env = {"PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(HERE / "tests")]), "TMPDIR": scratch()}
    env |= {"UNHANG_PROOFS": os.environ.get("UNHANG_PROOFS", "all")}
    env |= {"UNHANG_PROOFS_JSON": str(Path(session.create_tmp()) / "proofs.json")}
    if only[:1] == ["play"]:
        install_proofs(session)
        session.run("python", "-W", "ignore", "-m", "support.play", name, *only[1:], env=env)
        return

    def run(*steps: str) -> None:
        if chosen := [step for step in steps if step in (only or steps)]:
            session.run("python", ".ci/fix.py", name, *chosen, env=env)

    run("parts")  # before anything large is installed
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "test", "lint", "typecheck"))
    install_proofs(session)
    run("lint", "sweep", "tests", "mutants", "proofs")


def build_site(session: nox.Session, *options: str) -> Path:
    """Build the site, with more options of Sphinx's, and return its folder."""
    groups = nox.project.dependency_groups(GROUPS, "docs")
    session.install("--quiet", *GROUPS["project"]["dependencies"], *groups)
    source, site = (Path(session.create_tmp()) / name for name in ("source", "site"))
    for stale in source, site:
        shutil.rmtree(stale, ignore_errors=True)
    env = {"PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE / "docs")])}  # the wheel lacks compat/sweep
    session.run("python", "-m", "sitemaker", str(source), env={**env, "COLUMNS": "80"})  # the usage lines' width
    strict = ["-q", "-W", "--keep-going", "-c", str(HERE / "docs")]
    session.run("sphinx-build", *strict, *options, str(source), str(site), env=env)
    return site


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the site of docs/, the fixes, the matrix and the code; a warning is an error. `-- -b linkcheck`: links."""
    session.log(f"built {build_site(session, *session.posargs)}")


@nox.session(name="docs-browser", reuse_venv=True)
def docs_browser(session: nox.Session) -> None:
    """Build the site, and read it in a headless Chromium: links, search, themes, keyboard, phone, pictures, axe.

    It follows no link to another site.
    """
    chromium = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if not chromium:
        session.error("this needs Chromium and two fonts: apt-get install chromium fonts-dejavu-core fonts-liberation")
    install_wheel(session, "test", "browser")
    pytest(session, "tests/browser", UNHANG_CHROMIUM=chromium, UNHANG_SITE=str(build_site(session)))


@nox.session(reuse_venv=True)
def radar(session: nox.Session) -> None:
    """Compare the matrix with what the package index offers now."""
    install_wheel(session)
    session.install("--quiet", *GROUPS["project"]["optional-dependencies"]["index"])
    session.run("unhang", "matrix", "--against-index", *session.posargs)


@nox.session(python="3.11", reuse_venv=True)
def nightly(session: nox.Session) -> None:
    """Rehearse three nights of nightly.yml against a fake GitHub: docs/maintainers/nightly.md.

    The clones are those of `sweep`; without them, the public repositories.
    """
    install_wheel(session, "test")
    env = {"TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(HERE / "tests")}
    session.run("python", "-m", "support.night", env=env)


@nox.session(python="3.11", reuse_venv=True)
def fleet(session: nox.Session) -> None:
    """Try the pages of Ray, Slurm and Kubernetes: a local Ray cluster, stand-ins for srun and for a node's volumes."""
    install_wheel(session, "test")
    session.install("--quiet", "ray", "kubernetes-validate", "py-spy")
    pytest(session, "-n", "0", "tests/test_fleet.py", "tests/whole/test_kubernetes.py", "tests/whole/test_live.py")


@nox.session(python="3.11", reuse_venv=True)
def conda(session: nox.Session) -> None:
    """Try docs/conda.md on a local channel: with rattler, and with conda where PATH or $CONDA_EXE has one."""
    install_wheel(session, "test", "conda")
    pytest(session, "-n", "0", "tests/whole/test_conda.py")


@nox.session(reuse_venv=True)
def image(session: nox.Session) -> None:
    """Try docs/docker.md and docs/apptainer.md: with buildah as root, and with Docker and Apptainer where they are."""
    if not shutil.which("buildah"):
        session.error("this needs buildah: apt-get install buildah")
    if os.geteuid() != 0:
        session.error("buildah's chroot isolation needs root")
    install_wheel(session, "test", "release")
    pytest(session, "-n", "0", "-rs", *IMAGES, UNHANG_IMAGES="1")


SCHEMAS = {
    "citation-file-format": "CITATION.cff",
    "github-actions": "action.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-workflows": ".github/workflows/*.yml",
}


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Lint all Python files, check their format, validate the files of SCHEMAS, count the owner's placeholder."""
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    for schema, files in SCHEMAS.items():
        found = map(str, sorted(HERE.glob(files)))
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *found)
    session.run("zizmor", "--quiet", "--offline", "--min-severity", "medium", ".github", "action.yml")
    session.run("python", ".ci/placeholder.py")


@nox.session(reuse_venv=True)
def typecheck(session: nox.Session) -> None:
    """Check the types of the tool, the tests, the benchmarks and the scripts."""
    session.install("--quiet", *GROUPS["project"]["dependencies"])
    session.install("--quiet", *nox.project.dependency_groups(GROUPS, "typecheck"))
    session.run("mypy", "-p", "unhang", "-p", "sitemaker")
    scripts = [*Path(".github").rglob("*.py"), *Path(".ci").glob("*.py")]
    session.run("mypy", "tests", "benchmarks", "noxfile.py", *map(str, sorted(scripts)))


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Time check, diff and apply beside imports and other tools; print the goals, and write docs/performance.md."""
    install_wheel(session, "bench")
    script = str(HERE / "benchmarks" / "session.py")
    # the tests share its counter of system calls
    session.run("python", script, str(fetch(session, *DEMO)), *session.posargs, env={"PYTHONPATH": str(HERE / "tests")})


@nox.session(reuse_venv=True)
def dumps(session: nox.Session) -> None:
    """Time `diagnose` on the dumps of 1,024 ranks, beside bare unpickling; `-- --torch PYTHON`: and torchfrtrace."""
    install_wheel(session)
    script = str(HERE / "benchmarks" / "dumps.py")
    session.run("python", script, *session.posargs, env={"PYTHONPATH": str(HERE / "tests")})
