"""The owner that this project does not have yet: `OWNER/unhang` on GitHub, `OWNER.github.io/unhang` for its site.

    python3 .ci/placeholder.py                compare the committed files with the record, .ci/placeholder.json
    python3 .ci/placeholder.py --write        write the record
    python3 .ci/placeholder.py --fill NAME    put NAME in everywhere; the record is then empty

Exits with 1 and names each file that has more or fewer uses than its row of the record, or `OWNER` in any other form:
so whoever fills it in finds every place.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RECORD = ".ci/placeholder.json"
EXCEPT = {RECORD, ".ci/placeholder.py", "tests/ci/test_placeholder.py"}  # they are about the word
_WORD = re.compile(rb"\bOWNER\b")
_REPOSITORY = re.compile(rb"\bOWNER(?=/unhang\b)")
_SITE = re.compile(rb"\bOWNER(?=\.github\.io/unhang\b)")
# what GitHub takes as the name of a user or an organisation
_NAME = re.compile(r"[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38}")


def committed(repository: Path) -> list[Path]:
    """Return the files that git tracks, without links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    paths = [repository / name for name in listed.stdout.split("\0") if name and name not in EXCEPT]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def uses(repository: Path) -> tuple[dict[str, int], list[str]]:
    """Return how often each committed file has the placeholder, and the files that have the word in another form."""
    counts: dict[str, int] = {}
    other: list[str] = []
    for path in committed(repository):
        content, name = path.read_bytes(), str(path.relative_to(repository))
        found = len(_REPOSITORY.findall(content)) + len(_SITE.findall(content))
        if found:
            counts[name] = found
        if found != len(_WORD.findall(content)):
            other.append(name)
    return counts, other


def complaints(repository: Path) -> list[str]:
    """Return a line for each file that differs from the record, or that has the word in another form."""
    counts, other = uses(repository)
    record: dict[str, int] = json.loads((repository / RECORD).read_text(encoding="utf-8"))
    differing = sorted(name for name in {*counts, *record} if counts.get(name) != record.get(name))
    lines = [f"{name}: {counts.get(name, 0)} uses, and {record.get(name, 0)} on record" for name in differing]
    return lines + [f"{name}: OWNER that is neither OWNER/unhang nor OWNER.github.io/unhang" for name in other]


def write(repository: Path) -> None:
    """Write the record."""
    text = json.dumps(uses(repository)[0], indent=2, sort_keys=True)
    (repository / RECORD).write_text(text + "\n", encoding="utf-8")


def fill(repository: Path, name: str) -> None:
    """Put a name in place of the placeholder in every committed file, and write the record, which is then empty."""
    for path in committed(repository):
        content = path.read_bytes()
        filled = _SITE.sub(name.lower().encode(), _REPOSITORY.sub(name.encode(), content))  # host names are lower-case
        if filled != content:
            path.write_bytes(filled)
    write(repository)


def main(arguments: list[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Do what the options say; return 1 if the files differ from the record."""
    parser = argparse.ArgumentParser(description="Count the placeholder of the owner's name, or fill it in.")
    options = parser.add_mutually_exclusive_group()
    options.add_argument("--write", action="store_true", help="write the record")
    options.add_argument("--fill", metavar="NAME", help="put this name of a GitHub user or organisation in everywhere")
    asked = parser.parse_args(arguments)
    if asked.fill is not None:
        if not _NAME.fullmatch(asked.fill):
            parser.error(f"not the name of a GitHub user or organisation: {asked.fill}")
        fill(repository, asked.fill)
    elif asked.write:
        write(repository)
    found = complaints(repository)
    for line in [*found, "python3 .ci/placeholder.py --write writes the record"] if found else []:
        print(line)
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
