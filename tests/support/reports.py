"""Runs the program of each report to an upstream, and writes what it prints into the report's page.

python -m support.reports FOLDER [--write-docs]     FOLDER has the newest wheels, installed

A report is a page and a program of the same name in docs/reports/. The docstring of a program begins with the
distribution that it is about. Besides the wheel, it runs on main of the clones that UNHANG_{MEGATRON,VERL,SWIFT}_CLONE
name. It exits with 1 where a program shows no defect: upstream has cured it, or changed what the program calls.
"""

import ast
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.pages import fill, table

REPORTS = Path(__file__).resolve().parents[2] / "docs" / "reports"
FIGURES = "<!-- figures: written by nox -s reports -->", "<!-- figures: end -->"
PROGRAM = "<!-- program -->", "<!-- program: end -->"
CLONES = {
    "megatron-core": "UNHANG_MEGATRON_CLONE",
    "verl": "UNHANG_VERL_CLONE",
    "ms-swift": "UNHANG_SWIFT_CLONE",
}
LONGEST_S = 300


class Code(NamedTuple):
    """A release or a commit, and the folders in which Python finds it."""

    name: str
    path: str


class Printed(NamedTuple):
    """What a program prints on some code."""

    code: str
    wrong: str
    right: str


def title(program: Path) -> str:
    """Return the first line of a program's docstring: the distribution, and what is wrong with it."""
    (first, *_) = (ast.get_docstring(ast.parse(program.read_bytes())) or "").splitlines()
    return first.removesuffix(".")


def run(program: Path, code: Code) -> Printed:
    """Run a program. Raises ValueError unless it prints what is wrong and what is right, and these differ."""
    line = [sys.executable, "-W", "ignore", str(program)]
    env = {**os.environ, "PYTHONPATH": code.path}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=LONGEST_S)
    found = dict(re.findall(r"^(wrong|right): (.+)$", done.stdout, re.MULTILINE))
    if done.returncode or found.keys() != {"wrong", "right"}:
        raise ValueError(f"{program.stem} does not run on {code.name}:\n{done.stdout}{done.stderr}")
    if found["wrong"] == found["right"]:
        raise ValueError(f"{program.stem} is cured in {code.name}: {found['right']}")
    return Printed(code.name, **found)


def codes(wheels: str, folder: Path) -> dict[str, list[Code]]:
    """Return the wheel of each distribution, and main of its clone, which is copied into a folder."""
    found = {}
    for distribution, variable in CLONES.items():
        (wheel, *_) = importlib.metadata.distributions(name=distribution, path=[wheels])
        found[distribution] = [Code(f"{distribution} {wheel.version}", wheels)]
        if url := os.environ.get(variable):
            tree = str(folder / distribution)
            source = Path(url).resolve().as_uri() if Path(url).exists() else url
            subprocess.run(["git", "clone", "--quiet", "--depth=1", "--branch=main", source, tree], check=True)
            log = ["git", "-C", tree, "log", "-1", "--format=main of %cs, %h"]
            name = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
            found[distribution].append(Code(name, os.pathsep.join([tree, wheels])))
    return found


def write(program: Path, rows: Sequence[Printed]) -> None:
    """Write what a program prints, and the program itself, into its page."""
    page = program.with_suffix(".md")
    date, torch = time.strftime("%Y-%m-%d", time.gmtime()), importlib.metadata.version("torch")
    made = f"Run on {date} with Python {platform.python_version()} and torch {torch}."
    fill(page, *FIGURES, f"{table(('code', 'wrong', 'right'), rows)}\n\n{made}")
    fill(page, *PROGRAM, f"```python\n{program.read_text(encoding='utf-8')}```")


def main(wheels: str, *options: str) -> int:
    """Run all programs. Return 1 where one of them shows no defect."""
    result = 0
    with tempfile.TemporaryDirectory() as folder:
        found = codes(wheels, Path(folder))
        for program in sorted(REPORTS.glob("*.py")):
            try:
                rows = [run(program, code) for code in found[title(program).partition(":")[0]]]
            except (ValueError, subprocess.TimeoutExpired) as error:
                print(error, flush=True)
                result = 1
                continue
            for row in rows:
                print(f"{program.stem}, {row.code}\n  wrong: {row.wrong}\n  right: {row.right}", flush=True)
            if "--write-docs" in options:
                write(program, rows)
    return result


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
