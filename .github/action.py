"""The composite action's step: installs unhang in an environment of its own, runs it, and writes the summary."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "src"))

from unhang import gate  # noqa: E402 - of the action's own commit

_PLACES = ("python", "target", "source", "lock", "image")
_CHOOSING = ("fix", "skip", "kind", "upstream", "accept")
_LEFT = ("needed", "drifted", "unlisted")
"""The verdicts of what is left to do."""
_COMMANDS = ("check", "apply", "diff")
# Isolated: nothing in the workspace or on PYTHONPATH, such as a pull request's `pip.py` or `unhang.py`, is imported.
_MODULE = ("-I", "-m")


class WrongInputError(Exception):
    """An input is wrong; the message names it."""


def where(inputs: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the options that say what to look at: always one, so that no environment in the workspace is discovered.

    Raises WrongInputError if two places are given, or none is found.
    """
    named = [(place, inputs[place]) for place in _PLACES if inputs[place]]
    if len(named) > 1:
        raise WrongInputError(f"only one of {', '.join(_PLACES)} can be given, not {' and '.join(dict(named))}")
    place, value = named[0] if named else ("python", _job_python(environ))
    places = _repeated(place, value) if place == "lock" else [f"--{place}={value}"]
    choosing = (word for name in _CHOOSING for word in _repeated(name, inputs[name]))
    return [*places, *_repeated("pack", inputs["packs"]), *choosing]


def _job_python(environ: Mapping[str, str]) -> str:
    """Return the job's `python`. Raises WrongInputError if there is none, or if it is in the workspace."""
    path = environ.get("PATH")
    python = os.path.abspath(shutil.which("python", path=path) or shutil.which("python3", path=path) or "")
    if not os.path.isfile(python):
        raise WrongInputError("there is no `python` in this job: give python, target or source")
    workspace = os.path.join(environ.get("GITHUB_WORKSPACE") or os.getcwd(), "")
    folders = os.path.dirname(python), os.path.realpath(os.path.dirname(python))
    if any(os.path.join(folder, "").startswith(workspace) for folder in folders):
        raise WrongInputError(f"the job's `python` is in the workspace: give it as python if you trust it: {python}")
    return python


def command_line(inputs: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return unhang's arguments. Raises WrongInputError if the inputs do not fit together."""
    command = inputs["command"]
    if command not in _COMMANDS:
        raise WrongInputError(f"command is {command!r}, not one of {', '.join(_COMMANDS)}")
    if inputs["require"] and command == "diff":
        raise WrongInputError("require is for check and apply, not for diff")
    if inputs["expect_digest"] and command != "check":
        raise WrongInputError(f"expect-digest is for check, not for {command}")
    if inputs["lock"] and command != "check":
        raise WrongInputError(f"lock is for check, not for {command}")
    if inputs["image"] and command != "check":
        raise WrongInputError(f"image is for check, not for {command}")
    require = _repeated("require", inputs["require"])
    expect = ["--expect-digest", inputs["expect_digest"]] if inputs["expect_digest"] else []
    return [command, *where(inputs, environ), *require, *expect]


def annotated(document: Mapping[str, Any], expected: str) -> list[str]:
    """Return a line for the runner for each fix that is left to do somewhere, and for each warning.

    ``expected`` is the digest that the code must have, or empty.
    """
    left: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in document.get("results", ()):
        if row["verdict"] in _LEFT and not row["accepted"]:
            left.setdefault((row["location"], _line(row), row["upstream"], row["fix"]), []).append(row)
    lines = []
    for rows in left.values():
        row = min(rows, key=lambda row: _LEFT.index(row["verdict"]))
        of = f" in {row['upstream']} {row['version'] or '(no version)'}" if "pin" in row else ""
        what = ": ".join(filter(None, (row["verdict"] + of, row["detail"])))
        message = "\n".join([f"{what} ({row['hint']})" if row["hint"] else what, *row["notes"]])
        # of a lock file, the line that pins the release
        at = {"line": line} if (line := _line(row)) else {}
        path = row["location"] if at else os.path.join(row["location"], row["file"])
        lines.append(gate.command("error", message, file=path, **at, title=f"unhang {row['fix']} ({row['grade']})"))
    if expected and document.get("digest") not in (None, expected):
        other = f"the code has digest {document['digest']}, not {expected} as expected"
        lines.append(gate.command("error", other, title="unhang digest"))
    return lines + [gate.command("warning", text, title="unhang") for text in document.get("warnings", ())]


def _line(row: Mapping[str, Any]) -> str:
    return str(row["pin"]["line"]) if "pin" in row else ""


def summary(document: Mapping[str, Any], command: str, code: int) -> str:
    """Return the step's summary in Markdown: a table of the verdicts after the command.

    ``document`` is empty if unhang did not end as it should.
    """
    cell = gate.markdown
    rows = [
        f"| {cell(row['upstream'])} | {cell(row['version'] or '')} | `{row['fix']}` | {cell(row['verdict'])} | "
        f"{cell(row['function'])} | {cell(row['detail'])} |"
        for row in document.get("results", ())
    ]
    error = document.get("error")
    lines = [f"### unhang {command}: exit code {code}", ""]
    if error:
        return "\n".join([*lines, cell(f"{error['code']}: {error['message']}"), ""])
    if "results" not in document:
        return "\n".join([*lines, "unhang gave no report", ""])
    head = ["| upstream | version | fix | verdict | function | |", "|---|---|---|---|---|---|"]
    digest = [f"digest `{document['digest']}`", ""] if document["digest"] else []
    return "\n".join([*lines, *head, *rows, "", *digest])


def _repeated(name: str, words: str) -> list[str]:
    return [f"--{name}={value}" for value in words.split()]


def _requirement(inputs: Mapping[str, str]) -> str:
    extras = ",".join(name for name in ("lock", "image") if inputs[name])
    extra = f"[{extras}]" if extras else ""
    return f"unhang{extra}=={inputs['version']}" if inputs["version"] else f"{REPOSITORY}{extra}"


def _install(requirement: str, folder: Path) -> Path:
    """Install unhang into an environment of its own, apart from the one to look at; return its Python."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    pip = [str(python), *_MODULE, "pip", "--quiet", "--disable-pip-version-check"]
    # pip starts interpreters of its own, which are not isolated
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([*pip, "install", requirement], stderr=subprocess.STDOUT, check=True, cwd=folder, env=environ)
    return python


def _add(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


@contextmanager
def _without_commands() -> Iterator[None]:
    """Have the runner take nothing that is printed meanwhile as a command: anyone may have written what it quotes."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        print(f"\n::{token}::", flush=True)


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the action; return the command's exit code, or 2 for wrong input."""
    names = (*_PLACES, *_CHOOSING, "packs", "command", "require", "expect_digest", "version")
    inputs = {name: environ.get(f"INPUT_{name.upper()}", "").strip() for name in names}
    try:
        arguments = command_line(inputs, environ)
        with _without_commands():
            folder = Path(environ.get("RUNNER_TEMP", "/tmp"), "unhang-action")  # noqa: S108
            python = _install(_requirement(inputs), folder)
    except WrongInputError as error:
        print(gate.command("error", str(error), title="unhang"))
        return 2
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"unhang could not be installed with Python {sys.version.split()[0]} of {sys.executable}: {error}"
        print(gate.command("error", why, title="unhang"))
        return 2
    unhang: Sequence[str | Path] = [python, *_MODULE, "unhang"]
    with _without_commands():
        # one stream: the runner reads two at once, and the end could overtake what comes before it
        code = subprocess.run([*unhang, *arguments], stderr=subprocess.STDOUT, check=False).returncode
    check = [*unhang, "check", *where(inputs, environ), "--output-format", "json"]
    try:
        done = subprocess.run(check, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        document = json.loads(done.stdout)
    except ValueError:
        document = {}
    lines = annotated(document, inputs["expect_digest"])
    if code and not any(line.startswith("::error") for line in lines):
        why = (document.get("error") or {}).get("message", "the log says why")
        lines.append(gate.command("error", f"exit code {code}: {why}", title=f"unhang {inputs['command']}"))
    print(*lines, sep="\n", flush=True)
    _add("GITHUB_STEP_SUMMARY", summary(document, inputs["command"], code) + "\n")
    _add("GITHUB_OUTPUT", f"digest={document.get('digest') or ''}\nexit-code={code}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
