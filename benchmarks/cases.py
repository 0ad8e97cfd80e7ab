"""Time whole processes and a few functions with pyperf. `benchmarks/session.py` runs this script.

Each value is one new process. What a process changed is undone before the next one, untimed; pyperf's own
`bench_command` cannot do that.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyperf

from unhang.find.environment import for_target
from unhang.find.locate import search
from unhang.judge.findings import Finding, judge
from unhang.rewrite import one_file, plan
from unhang.shapes import catalog, shape

HERE = Path(__file__).parent
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
_AST_GREP = ["--pattern", "self.is_mp_src_rank_with_outputs()", "--lang", "python", "--update-all"]
_AST_GREP += ["--rewrite", "mpu.is_pipeline_last_stage(ignore_virtual=True)"]


class Case(NamedTuple):
    """One process to time."""

    command: list[str]
    folder: Path
    stdin: Path | None = None
    undo: Callable[[], object] | None = None
    """Runs after each process, untimed."""
    codes: tuple[int, ...] = (0,)
    path: str = ""
    """The PYTHONPATH with another unhang; empty for the installed one."""


def processes(small: Path, large: Path, thirty: Path, packed: Path, diff: Path) -> dict[str, Case]:
    """Return the processes by name. All of them work on the same files; those with thirty fixes on more of them."""
    unhang = [str(Path(sys.executable).with_name("unhang"))]
    files = rewritten(small)
    kept = {name: (small / name).read_bytes() for name in files}

    def restore() -> None:
        for name, data in kept.items():
            (small / name).write_bytes(data)

    def python(code: str) -> Case:
        return Case([sys.executable, "-c", code], small)

    def check(folder: Path, path: str = "", *options: str) -> Case:
        return Case([*unhang, "check", "--target", str(folder), *options], folder, codes=(1,), path=path)

    def apply(folder: Path, path: str = "") -> Case:
        def revert() -> None:
            env = {**os.environ, "PYTHONPATH": path}
            subprocess.run([*unhang, "revert", "--target", str(folder)], capture_output=True, check=True, env=env)

        return Case([*unhang, "apply", "--target", str(folder)], folder, undo=revert, path=path)

    tool = [sys.executable, "-m", "libcst.tool", "codemod", "-x", "whole_module.Fixes", "-j", "1", "--no-format"]
    lock = locked(small.with_name("uv.lock"))
    names = "{'verl', 'megatron-core', 'ms-swift', 'mcore-bridge', 'megatron-bridge', 'trl'}"
    return {
        "python -c pass": python("pass"),
        "import argparse": python("import argparse"),
        "import importlib.metadata": python("import importlib.metadata"),
        "import libcst": python("import libcst"),
        "unhang --help": Case([*unhang, "--help"], small),
        "unhang check": check(small),
        "unhang check, crowded": check(large),
        "unhang check, thirty fixes": check(thirty / "site", str(thirty / "path")),
        "unhang check, beside no pack": check(packed / "site"),
        "unhang check, a pack of thirty": check(packed / "site", "", "--pack", str(packed / "pack")),
        "unhang check --lock": Case([*unhang, "check", "--lock", str(lock)], small, codes=(1,)),
        "reading the lock file": python(f"from unhang.pins import files; files.read({str(lock)!r}, {names})"),
        "unhang diff": Case([*unhang, "diff", "--target", str(small)], small, codes=(1,)),
        "unhang apply": apply(small),
        "unhang apply, crowded": apply(large),
        "unhang apply, thirty fixes": apply(thirty / "site", str(thirty / "path")),
        "git apply": Case(["git", "apply", "-p1"], small, diff, restore),
        "patch": Case(["patch", "-p1", "--silent", "--no-backup-if-mismatch"], small, diff, restore),
        "ast-grep, one edit": Case(
            [str(Path(sys.executable).with_name("ast-grep")), "run", *_AST_GREP, ENGINE], small, undo=restore
        ),
        "libcst.tool codemod": Case([*tool, "--hide-progress", *files], small, undo=restore),
    }


def locked(path: Path) -> Path:
    """Write a uv.lock of 200 packages, three of them upstreams, and return its path."""
    upstreams = {"megatron-core": "0.17.1", "ms-swift": "4.6.0", "verl": "0.7.1"}
    packages = {**{f"other-{number}": "1.0" for number in range(200 - len(upstreams))}, **upstreams}
    url = "https://index.example/packages/00/11/2233445566778899aabbccddeeff/NAME-py3-none-any.whl"
    wheel = f'    {{ url = "{url}", hash = "sha256:{"0" * 64}", size = 1234, upload-time = "2026-01-01T00:00:00Z" }},\n'
    path.write_text(
        "version = 1\nrevision = 3\n"
        + "".join(
            f'\n[[package]]\nname = "{name}"\nversion = "{version}"\n'
            'source = { registry = "https://index.example/simple" }\n'
            f"dependencies = [{', '.join(f'{{ name = {other!r} }}' for other in list(packages)[:5])}]\n"
            f"wheels = [\n{wheel * 5}]\n"
            for name, version in packages.items()
        ),
        encoding="ascii",
    )
    return path


def rewritten(site: Path) -> list[str]:
    """Return the files of a folder that the fixes change, by their paths in it."""
    planned = plan.plan(findings_in(site), {})
    return sorted(os.path.relpath(file.path, site) for file in planned.files)


def findings_in(site: Path) -> list[Finding]:
    """Return what `unhang check` finds in a folder."""
    return judge(search(for_target(str(site)), cwd="/").installations, list(catalog.fixes().values()), {})


COLD = ["python -c pass", "import importlib.metadata", "import libcst"]
COLD += ["unhang check", "unhang check, crowded", "unhang apply"]


def processor() -> float:
    """Return the processor time of all ended child processes, in seconds. It excludes other load and the disk."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(
    case: Case, environment: Mapping[str, str], before: Callable[[], object], clock: Callable[[], float]
) -> Callable[[int], float]:
    """Return the function that pyperf calls: it runs the process ``loops`` times and returns the seconds it took."""
    command, full = case.command, {**environment, **({"PYTHONPATH": case.path} if case.path else {})}

    def run(loops: int) -> float:
        total = 0.0
        for _ in range(loops):
            before()
            with open(case.stdin or os.devnull, "rb") as stdin:
                start = clock()
                done = subprocess.run(command, cwd=case.folder, env=full, stdin=stdin, capture_output=True, check=False)
                total += clock() - start
            if done.returncode not in case.codes:
                raise RuntimeError(f"{case.command} exited with {done.returncode}: {done.stderr.decode()}")
            if case.undo is not None:
                case.undo()
        return total

    return run


def warm_environment() -> dict[str, str]:
    """Return the environment of the processes, without variables that could point Python elsewhere."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(HERE), "NO_COLOR": "1"}


def may_drop_caches() -> bool:
    """Return whether this user may empty the page cache."""
    return os.access(DROP_CACHES, os.W_OK)


def drop_caches() -> None:
    """Empty the page cache, if this user may."""
    if may_drop_caches():
        os.sync()
        DROP_CACHES.write_text("3\n")


def bench_functions(runner: pyperf.Runner, small: Path) -> None:
    """Time our own functions, in a process that has imported everything."""
    found = search(for_target(str(small)), cwd="/")
    fixes = list(catalog.fixes().values())
    findings = findings_in(small)
    planned = plan.plan(findings, {})
    table = catalog.shape_table().shapes
    file = planned.files[0]
    target, before, *_ = file.steps[0]
    step = one_file.Step(target, table[target.fix, target.function, before].result, before)
    (function,) = shape.find(shape.parse(file.before), target.function)
    runner.bench_func("shape of a function", shape.digest, function)
    runner.bench_func("search", lambda: search(for_target(str(small)), cwd="/"))
    runner.bench_func("judge", lambda: judge(found.installations, fixes, {}))
    runner.bench_func("rewrite a file", one_file.rewrite, file.before, [step])
    runner.bench_func("plan", lambda: plan.plan(findings, {}))


def main() -> None:
    """Time one group: `warm`, `processor` (the same processes by processor time), `cold` or `functions`."""

    def pass_on(command: list[str], options: argparse.Namespace) -> None:
        for name in "group", "small", "large", "thirty", "packed", "diff":
            command += [f"--{name}", getattr(options, name)]

    runner = pyperf.Runner(add_cmdline_args=pass_on)
    runner.argparser.add_argument("--group", required=True, choices=("warm", "processor", "cold", "functions"))
    for name in "small", "large", "thirty", "packed", "diff":
        runner.argparser.add_argument(f"--{name}", required=True)
    options = runner.parse_args()
    small = Path(options.small)
    if options.group == "functions":
        bench_functions(runner, small)
        return
    cases = processes(small, Path(options.large), Path(options.thirty), Path(options.packed), Path(options.diff))
    environment = warm_environment()
    clock = processor if options.group == "processor" else time.perf_counter
    with tempfile.TemporaryDirectory(prefix="unhang-no-bytecode-") as nothing:
        if options.group == "cold":
            # Python looks for bytecode in an empty folder, and writes none
            environment |= {"PYTHONPYCACHEPREFIX": nothing, "PYTHONDONTWRITEBYTECODE": "1"}
            cases = {f"{name}, cold": cases[name] for name in COLD}
        before = drop_caches if options.group == "cold" else lambda: None
        for name, case in cases.items():
            runner.bench_time_func(name, timed(case, environment, before, clock))


if __name__ == "__main__":
    main()
