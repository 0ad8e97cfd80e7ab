"""Show that each way to build and install unhang gives the same files, and that tools see each module once.

`nox -s builds` runs this with the tools on the path. It works on a snapshot of the working tree: the tracked files, and
the new ones that git does not ignore. Exits with 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
Files = dict[str, str]
"""The sha256 of each file, by its path below site-packages."""
# pip writes these when it installs: they name the source, and each other.
WRITTEN_BY_PIP = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
# What makes compat/data: a checkout has it, and so has an editable install. A wheel need not.
OF_CHECKOUT = ("unhang/compat/sweep/",)
# Prints the folder of each package of an editable install, as `import` finds it, and the file of each module.
WALK = """
import json, pkgutil, unhang
files = {"unhang": unhang.__file__}
def walk(folders, prefix):
    for module in pkgutil.iter_modules(folders, prefix):
        spec = module.module_finder.find_spec(module.name)
        files[module.name] = spec.origin
        walk(spec.submodule_search_locations or [], module.name + ".")
walk(list(unhang.__path__), "unhang.")
print(json.dumps(files))
"""


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None, given: str = "", fails: bool = False
) -> str:
    """Run a command and return its stdout; raises SystemExit with its output if it fails, unless ``fails``."""
    words = [*map(str, command)]
    full = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1", **(env or {})}
    done = subprocess.run(words, cwd=cwd, env=full, input=given, capture_output=True, text=True, check=False)
    if done.returncode and not fails:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def take_snapshot(folder: Path) -> Path:
    """Copy the working tree into a new repository with one commit."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY)
    present = "\0".join(name for name in listed.split("\0") if name and os.path.lexists(REPOSITORY / name))
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    run("tar", "-cf", archive, "--null", "-T", "-", cwd=REPOSITORY, given=present)
    run("tar", "-xf", archive, cwd=folder)
    git = ["git", "-c", "user.name=unhang", "-c", "user.email=unhang@example.invalid", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Snapshot"]):
        run(*git, *arguments, cwd=folder)
    return folder


def install(requirement: str | Path, folder: Path) -> Files:
    """Install a requirement into a folder, and return its files."""
    folder.mkdir()
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--target", folder, requirement, cwd=folder
    )
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in WRITTEN_BY_PIP]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def install_editable(tree: Path, folder: Path, wheel: Files) -> Files:
    """Install a tree in editable mode; return its modules, and the data files that the wheel has."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "-e", tree, cwd=folder)
    files: Files = {}
    packages: dict[str, Path] = {}
    for module, origin in json.loads(run(python, "-c", WALK, cwd=folder)).items():
        place, path = module.replace(".", "/"), Path(origin)
        if path.name == "__init__.py":
            packages[place] = path.parent
            place += "/__init__"
        if f"{place}.py" in wheel or not place.startswith(OF_CHECKOUT):
            files[f"{place}.py"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in sorted(wheel):
        package = max((package for package in packages if name.startswith(f"{package}/")), key=len, default=None)
        if package and name not in files and (path := packages[package] / name[len(package) + 1 :]).is_file():
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    # the metadata and the command of an editable install are its own
    return files | {name: wheel[name] for name in wheel if not name.startswith("unhang/")}


def all_ways(tree: Path, home: Path) -> dict[str, Files]:
    """Build and install in each way."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", home / "dist", tree, cwd=home)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", home / "dist", tree, cwd=home)
    run("git", "clone", "-q", "-c", "core.symlinks=false", tree, home / "clone", cwd=home)
    assert not (home / "clone" / "src" / "unhang" / "codemods").is_symlink()
    (wheel,), (sdist,) = (home / "dist").glob("*.whl"), (home / "dist").glob("*.tar.gz")
    ways = {"wheel from the tree": install(wheel, home / "site")}
    ways["wheel from the sdist"] = install(sdist, home / "from-sdist")
    ways["pip install git+file://"] = install(f"git+file://{tree}", home / "from-git")
    ways["clone without symlinks"] = install(home / "clone", home / "from-clone")
    ways["editable install"] = install_editable(tree, home / "editable", ways["wheel from the tree"])
    return ways


def print_table(ways: dict[str, Files]) -> list[str]:
    """Print a row for each way, and return what differs from the first."""
    wrong = []
    wanted = next(iter(ways.values()))
    print(f"{'way':26}{'files':>6}  sha256 of all")
    for way, files in ways.items():
        total = hashlib.sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)).encode()).hexdigest()
        print(f"{way:26}{len(files):6}  {total[:16]}")
        different = sorted(name for name in {*wanted, *files} if wanted.get(name) != files.get(name))
        wrong += [f"{way}: {name} differs, or is on one side only" for name in different]
    return wrong


def unresolved(tree: Path) -> list[str]:
    """Return pyright's complaints about imports of unhang in a checkout in which nothing is installed."""
    (tree / "pyrightconfig.json").write_text('{"reportMissingImports": "error", "typeCheckingMode": "off"}')
    # an environment without unhang: the imports must resolve from the checkout
    venv.create(tree.parent / "bare", symlinks=True)
    python = tree.parent / "bare" / "bin" / "python"
    report = json.loads(run("basedpyright", "--outputjson", "--pythonpath", python, cwd=tree, fails=True))
    found = [item for item in report["generalDiagnostics"] if re.search(r'"unhang\b', item["message"])]
    print(f"pyright: {report['summary']['filesAnalyzed']} files, {len(found)} unresolved imports of unhang")
    return [f"{item['file']}:{item['range']['start']['line'] + 1}: {item['message']}" for item in found]


def seen_once(tree: Path, site: Path) -> list[str]:
    """Return the modules of the package that ruff, mypy or coverage reads under two names, or not at all."""
    # fails where an import does not resolve, which `nox -s typecheck` reports
    report = ["--cache-dir", os.devnull, "--linecoverage-report", str(site.parent)]
    run("mypy", *report, "-p", "unhang", cwd=tree, fails=True)
    env = {"PYTHONPATH": str(site), "COVERAGE_FILE": str(site.parent / ".coverage")}
    # coverage measures the installed package, which has no links
    run("coverage", "run", "--rcfile", os.devnull, "--source", "unhang", "-m", "unhang.errors", cwd=site, env=env)
    measured = json.loads(run("coverage", "json", "--rcfile", os.devnull, "-o", "-", cwd=site, env=env))
    seen = {
        "ruff": run("ruff", "check", "--show-files", cwd=tree).splitlines(),
        "mypy": list(json.loads((site.parent / "coverage.json").read_text())["lines"]),
        "coverage": [str(site / name) for name in measured["files"]],
    }
    wrong = []
    for tool, names in seen.items():
        folders = (
            [site]
            if tool == "coverage"
            else [tree / name for name in ("src", "codemods", "compat", "patches", "upstreams")]
        )
        ours = {path for folder in folders for path in folder.rglob("*.py")}
        files = Counter(path for name in names if (path := (tree / name).resolve()) in ours)
        wrong += [f"{tool} reads {path} {count} times" for path, count in files.items() if count > 1]
        wrong += [f"{tool} does not read {path}" for path in sorted(ours - {*files})]
        print(f"{tool}: {sum(files.values())} reads of {len(files)} modules")
    return wrong


def main() -> int:
    """Print the tables; return 1 if anything is wrong."""
    with tempfile.TemporaryDirectory(prefix="unhang-builds-") as name:
        home = Path(name).resolve()
        tree = take_snapshot(home / "tree")
        wrong = print_table(all_ways(tree, home))
        wrong += unresolved(tree)
        wrong += seen_once(tree, home / "site")
    for line in wrong:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
