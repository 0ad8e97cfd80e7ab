"""docs/support.md says what the package's metadata and the matrix say."""

import json
import re
from pathlib import Path

from packaging.version import Version

from support import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")


def test_the_pythons_are_those_of_the_package_and_of_the_release() -> None:
    listed = re.findall(r"^\| (3\.\d+) \| every release and every change \|$", PAGE, re.MULTILINE)
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (released,) = re.findall(r"python: (\[.*\])", workflow)
    assert listed == declared == json.loads(released)
    assert f'requires-python = ">={listed[0]}"' in (ROOT / "pyproject.toml").read_text()


def test_each_upstream_is_covered_from_the_release_that_the_page_names() -> None:
    first: dict[str, Version] = {}
    for row in cli.installed("matrix", "--output-format", "json").json["rows"]:
        version = Version(row["version"])
        first[row["upstream"]] = min(version, first.get(row["upstream"], version))
    listed = re.findall(rf"^\| ({'|'.join(first)})\b.* \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert {name: Version(version) for name, version in listed} == first
