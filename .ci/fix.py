"""Run each check of one fix, and stop at the first that wants a person: `nox -s fix -- ID` runs this.

    nox -s fix -- ID                    all steps: parts, lint, sweep, tests, mutants, proofs
    nox -s fix -- ID mutants proofs     only these
    nox -s fix -- ID play NAME==VERSION     the scene, on one release of an upstream

It says what a person must do then, and where. Exits with 1 then, with 2 if there is no such fix.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent


class Step(NamedTuple):
    """One check of a fix."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """What this Python runs, one after the other."""
    wants: Mapping[str, str]
    """What a person does where no line of the output says it: by the file, and perhaps the name in it after a colon."""


_NOTHING = 5  # pytest found no such test
_FAILED = 2  # one of our own commands could not run at all, and has said why
_PLACE = re.compile(r"^([\w./-]+\.(?:py|json|md)):(\d+):(?:\d+:)? ?", re.MULTILINE)
"""A frame of a traceback, or a line of ruff's or mypy's."""
_LACKS = re.compile(r"^\S*python\S*: No module named (\w+)$", re.MULTILINE)
_TOLD = re.compile(r"^(\S+/\S+\.(?:py|json|md)): (\S+): (.+)$", re.MULTILINE)
"""A problem that our own lint tells: file, entry, message."""


def files(fix: str) -> dict[str, str]:
    """Return where the parts of a fix are, by name."""
    module = fix.replace("-", "_")
    return {
        "manifest": f"patches/{fix}/manifest.json",
        "codemod": f"codemods/{module}.py",
        "scene": f"src/unhang/prove/fixes/{module}.py",
        "tests": f"tests/fixes/test_{module}.py",
    }


def steps(fix: str) -> list[Step]:
    """Return the steps, in order. The first has no command: it only reads."""
    manifest, codemod, scene, tests = files(fix).values()
    drawing, proofs_json = f"patches/{fix}/drawing.json", os.environ.get("UNHANG_PROOFS_JSON")  # which the session sets
    code = [path for path in (codemod, scene, tests) if (REPOSITORY / path).exists()]
    own = f"{fix} or {fix.replace('-', '_')}"
    quick = ("-m", "pytest", "-n", "0")
    everywhere = "rewrites", "anchors", "patches", "refusals"
    shared = ("tests/codemods/test_examples.py", *(f"tests/fixes/test_{each}.py" for each in everywhere))
    worded = "tests/job/test_evidence.py"
    signed = ("tests/diagnose/test_known.py", "tests/diagnose/test_fixes.py")
    rewrite = {f"{codemod}:CODEMODS": "the codemod rewrites each function above, or refuses it"}
    return [
        Step("parts", (), {}),
        Step(
            "lint",
            (
                ("-m", "ruff", "format", *code),
                ("-m", "ruff", "check", "--output-format", "concise", *code),
                ("-m", "mypy", *code),
            ),
            {codemod: "each line above has its place"},
        ),
        Step(
            "sweep",
            (
                ("-m", "unhang.compat.sweep.generate", "--fix", fix),
                ("-m", "unhang.compat.sweep.pages"),
                ("-m", "unhang.compat.sweep.lint", "--sample", "0"),
                ("-m", "support.architecture"),
            ),
            {
                f"{scene}:GRID": "the settings decide each shape above both ways",
                **rewrite,
                f'{manifest}:  "decisions"': 'or a row of "decisions" says what a shape is, and why no scene can',
            },
        ),
        Step(
            "tests",
            (
                (*quick, tests),
                (*quick, *shared, *signed, worded, "-k", own),
                ("-W", "ignore", "-m", "fuzz", "--fix", fix),
            ),
            {
                f"{codemod}:def plan(": "the edits give what the failure above asks for, or an anchor is refused",
                f"{codemod}:Before::": "or the example in the docstring is not what the codemod does",
            },
        ),
        Step(
            "mutants",
            (("-W", "ignore", "-m", "mutants", "--fix", fix),),
            {
                f"{scene}:GRID": "a setting tells each mutant above that survived from the rewrite",
                f"{tests}:MUTANTS": "or the error above names a mutant by hand that a release cannot have",
            },
        ),
        Step(
            "proofs",
            (
                (*quick, "tests/proofs/test_proofs.py", "tests/hangs", "-k", fix),
                *([("-m", "proofs.page", "docs/maintainers/proofs.md", proofs_json)] if proofs_json else ()),
                ("-W", "ignore", "-m", "proofs.drawn", fix),
                ("-m", "unhang.compat.sweep.pages"),
            ),
            {
                f"{scene}:CASES": "the first failure above has the case and what was seen",
                drawing: "or the error above says what of that case cannot be drawn",
            },
        ),
    ]


def place(where: str) -> str:
    """Return a file, with the line of the name in it, or the first."""
    path, _, name = where.partition(":")
    return marked(path, name, f"from {name}")


def located(file: str, entry: str) -> str:
    """Return a file that is there with its line which an entry of a problem names, the first if none has it."""
    if found := re.fullmatch(r"line (\d+)", entry):
        return f"{file}:{found[1]}"
    keys = [word for word in re.split(r"[.'\[\]]+", entry) if word and not word.isdigit()]
    return marked(file, f'"{entry}"', *(f'"{key}"' for key in reversed(keys)), f"## {entry}", entry, "CODEMODS")


def marked(file: str, *marks: str) -> str:
    """Return a file with a line that begins with a mark, the first that any has; else one that has the first; or 1."""
    path = REPOSITORY / file
    rows = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    stripped = [(at, row.strip()) for at, row in enumerate(rows, 1)]
    begins = (at for mark in marks for at, row in stripped if row.startswith(mark.strip()))
    has = (at for at, row in stripped if marks[0].strip() in row)
    lines = itertools.chain(begins, has)
    return f"{file}:{next(lines, 1)}" if rows else file


def unfinished(fix: str) -> Iterator[str]:
    """Yield what is missing or wrong in the parts of a fix, each with its line; each TODO is a line of its own."""
    from unhang.compat.sweep import parts

    for file, line, text in parts.todo(REPOSITORY, fix):
        yield f"{file}:{line}: {text}"
    for problem in parts.problems(REPOSITORY, fix):
        if problem.entry != parts.TODO:
            yield f"{located(problem.file, problem.entry)}: {problem.entry}: {problem.message}"


def run(step: Step, fix: str) -> list[str]:
    """Run a step; return what a person must do, each with its place, or nothing."""
    if not step.commands:
        return list(unfinished(fix))
    for words in step.commands:
        code, output = ran(words)
        if code == _FAILED and "unhang.compat" in words[1]:
            return ["the error above says why this step did not run"]
        if not code or (code == _NOTHING and "pytest" in words):
            continue
        if lacks := _LACKS.search(output):
            return [f"{lacks[1]} is not installed here: run this once without nox's -R, which installs it"]
        if "unhang.compat.sweep.lint" in words and (told := _TOLD.findall(output)):
            return [f"{located(file, entry)}: {entry}: {what}" for file, entry, what in told]
        if found := blamed(output, [*files(fix).values()]):
            return [f"{found}: the first failure above leads here"]
        return [f"{place(where)}: {what}" for where, what in step.wants.items()]
    return []


def ran(words: Sequence[str]) -> tuple[int, str]:
    """Run a command of this Python; return its exit code and what it printed."""
    lines = []
    with subprocess.Popen(
        [sys.executable, *words], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return child.returncode, "".join(lines)


def blamed(output: str, own: Sequence[str]) -> str:
    """Return the innermost place in the fix's own files to which the first failure leads; empty if it is not in them.

    A line of the fix's code counts before one of its tests.
    """
    end = next(
        (found.end() for found in _PLACE.finditer(output) if output[found.end() : found.end() + 1].strip()), None
    )
    places = [(str(Path(REPOSITORY, file).resolve()), line) for file, line in _PLACE.findall(output[:end])]
    mine = [f"{path}:{line}" for path in reversed(own) for file, line in places if file == str(REPOSITORY / path)]
    return mine[-1] if mine else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps. Return 1 if one of them wants a person, 2 if there is no such fix."""
    parser = argparse.ArgumentParser(
        prog="nox -s fix --", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fix", metavar="ID")
    parser.add_argument("steps", metavar="STEP", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    from unhang.compat.sweep import parts  # `--help` runs where nothing is installed yet

    if options.fix not in parts.names(REPOSITORY):
        print(f"there is no fix {options.fix} in patches/: `unhang pack new` begins one", file=sys.stderr)
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
