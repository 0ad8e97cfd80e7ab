"""GitLab's code quality report: as its format demands, and of the same findings as SARIF."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support import cli
from support.checkout import REPOSITORY

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "minLength": 1},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}
"""What GitLab's documentation of the format demands."""


def test_each_function_with_something_left_to_do_is_an_entry_at_its_line(tmp_path: Path) -> None:
    import jsonschema  # here, as it takes a second, and each process loads this module

    site = cli.unpack_targets(tmp_path / "third party" / "site", ("megatron-core", "0.17.1"), ("verl", "0.7.1"))
    ran, asked = (
        cli.installed("check", "--target", site, "--output-format", name, cwd=tmp_path) for name in ("gitlab", "json")
    )
    report = ran.json
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    needed = [row for row in asked.json["results"] if row["verdict"] == "needed"]
    left = [entry for entry in report if entry["severity"] == "major"]
    assert ran.code == 1
    assert [entry["check_name"] for entry in left] == [f"unhang/{row['fix']}" for row in needed]
    assert len({entry["fingerprint"] for entry in report}) == len(report)
    for entry, row in zip(left, needed):
        assert entry["location"]["path"] == f"third party/site/{row['file']}"
        line = (tmp_path / entry["location"]["path"]).read_text().splitlines()[entry["location"]["lines"]["begin"] - 1]
        assert f"def {row['function'].rpartition('.')[2]}(" in line


def test_the_job_of_the_page_writes_a_report_and_an_empty_one_once_all_is_in_place(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
    (step,) = re.findall(r"- (unhang check .* --output-format gitlab .*)", page)
    tree = cli.unpack_targets(tmp_path / "third_party" / "Megatron-LM", ("megatron-core", "0.18.0"))
    env = {**cli.environ(), "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    for expected in (True, False):
        subprocess.run(["sh", "-e", "-c", step], cwd=tmp_path, env=env, check=True)
        report = json.loads((tmp_path / "unhang.json").read_bytes())
        assert any(entry["severity"] == "major" for entry in report) is expected
        assert cli.called_with_all("apply", "--source", tree).code == 0
