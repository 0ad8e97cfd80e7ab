"""Run each check of one fix, and stop at the first that wants a person: `nox -s fix -- ID` runs this.

    python3 .ci/fix.py ID [STEP...]     all steps, or these; PYTHONPATH has src and tests

It says what a person must do then, and where. Exits with 1 then, with 2 if there is no such fix.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from unhang.compat.sweep import parts

REPOSITORY = Path(__file__).resolve().parent.parent


class Step(NamedTuple):
    """One check of a fix."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """What this Python runs, one after the other."""
    where: str
    """The file that a person changes then, and perhaps the name in it, after a colon."""
    what: str
    """What the person does there."""


_NOTHING = 5  # pytest found no such test
_FAILED = 2  # one of our own commands could not run at all, and has said why


def steps(fix: str) -> list[Step]:
    """Return the steps, in order. The first has no command: it only reads."""
    module = fix.replace("-", "_")
    tests, endstate = f"tests/fixes/test_{module}.py", f"compat/endstates/{module}.py"
    proof, codemod = f"src/unhang/prove/fixes/{module}.py", f"codemods/{module}.py"
    code = [path for path in (codemod, endstate, proof, tests) if (REPOSITORY / path).exists()]
    judge, judges = (f"{endstate}:END_STATES", "end state") if endstate in code else (f"{proof}:GRID", "scene")
    own = f"{fix} or {module}"
    quick = ("-m", "pytest", "-n", "0")
    shared = ("tests/codemods/test_examples.py", "tests/fixes/test_anchors.py", "tests/fixes/test_patches.py")
    signed = ("tests/diagnose/test_known.py", "tests/diagnose/test_fixes.py")
    proofs = () if is_unproved(fix) else ((*quick, "tests/proofs/test_proofs.py", "tests/hangs", "-k", fix),)
    return [
        Step("parts", (), f"patches/{fix}/manifest.json", ""),
        Step(
            "sweep",
            (("-m", "unhang.compat.sweep.generate", "--fix", fix), ("-m", "unhang.compat.sweep.pages")),
            judge,
            f"make the {judges} decide each shape that is named above, or write a row with the reason in "
            "the manifest's `decisions`",
        ),
        Step(
            "endstates",
            (
                ("-m", "unhang.compat.sweep.endstates", "--fix", fix),
                ("-m", "unhang.compat.sweep.lint", "--sample", "0"),
                ("-m", "support.architecture"),
            ),
            judge,
            f"each problem above is one of the {judges}, of the rewrite, or of what the manifest says",
        ),
        Step(
            "tests",
            ((*quick, tests), (*quick, *shared, *signed, "-k", own)),
            f"{tests}:TestRewrite",
            "the first failure above has the file and the line",
        ),
        Step(
            "mutants",
            (("-W", "ignore", "-m", "mutants", "--fix", fix),),
            f"{tests}:MUTANTS",
            f"let {judge.partition(':')[0]} notice each mutant that survived, or say in `equivalent` why it is right",
        ),
        Step(
            "fuzz",
            (("-W", "ignore", "-m", "fuzz", "--fix", fix),),
            f"{codemod}:CODEMODS",
            "the codemod must refuse each function above that it got wrong, or find its anchors in more of them",
        ),
        Step("proofs", proofs, f"{proof}:CASES", "the first failure above has the case and what was seen"),
        Step(
            "lint",
            (
                ("-m", "ruff", "format", *code),
                ("-m", "ruff", "check", *code),
                ("-m", "mypy", *code),
                ("-m", "unhang.compat.sweep.pages", "--check"),
            ),
            code[0] if code else codemod,
            "each line above has its place",
        ),
    ]


def is_unproved(fix: str) -> bool:
    """Return whether the page says why there is no proof."""
    page = REPOSITORY / "patches" / fix / "page.md"
    return page.exists() and parts.NO_PROOF in page.read_text(encoding="utf-8")


def place(where: str) -> str:
    """Return a file, with the line of the name in it where there is one."""
    path, _, name = where.partition(":")
    file = REPOSITORY / path
    rows = file.read_text(encoding="utf-8").splitlines() if name and file.is_file() else []
    starts = (name, f"class {name}", f"from {name}")
    line = next((number for number, row in enumerate(rows, 1) if row.startswith(starts) or f" as {name}" in row), 0)
    return f"{path}:{line}" if line else path


def unfinished(fix: str) -> Iterator[str]:
    """Yield what is missing or wrong in the parts of a fix, each with its place; each TODO is a line of its own."""
    for file, line, text in parts.todo(REPOSITORY, fix):
        yield f"{file}:{line}: {text}"
    for problem in parts.problems(REPOSITORY, fix):
        if problem.entry != parts.TODO:
            yield f"{problem.file}: {problem.entry}: {problem.message}"


def run(step: Step, fix: str) -> list[str]:
    """Run a step; return what a person must do, each with its place, or nothing."""
    if not step.commands and step.name == "parts":
        return list(unfinished(fix))
    for words in step.commands:
        code = subprocess.run([sys.executable, *words], cwd=REPOSITORY, check=False).returncode
        if code == _FAILED and "unhang.compat" in words[1]:
            return ["the error above says why this step did not run"]
        if code and not (code == _NOTHING and "pytest" in words):
            return [f"{place(step.where)}: {step.what}"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps. Return 1 if one of them wants a person, 2 if there is no such fix."""
    parser = argparse.ArgumentParser(prog="nox -s fix --", description=__doc__)
    parser.add_argument("fix", metavar="ID")
    parser.add_argument("steps", metavar="STEP", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    if options.fix not in parts.names(REPOSITORY):
        print(f"there is no fix {options.fix} in patches/: `unhang new` begins one", file=sys.stderr)
        return 2
    every = steps(options.fix)
    for number, step in enumerate(every, 1):
        if options.steps and step.name not in options.steps:
            continue
        print(f"[{number}/{len(every)}] {step.name}", flush=True)
        began = time.monotonic()
        if wanted := run(step, options.fix):
            print(f"stopped at step {number} of {len(every)}, {step.name}: it wants a person", flush=True)
            print("".join(f"    {line}\n" for line in wanted[:5]), end="")
            print(f"    and {len(wanted) - 5} more places\n" if len(wanted) > 5 else "", end="")
            print(f"then run `nox -s fix -- {options.fix}` again", flush=True)
            return 1
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
