"""The SBOM of a rewritten wheel: valid, true, and the same whenever it is made."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from support import wheels
from support.plans import file_plan, plan_of
from support.wheel_files import DEMO, ENGINE, INFO, VERL, demo, records
from unhang.deliver import sbom, wheel, wheel_output
from unhang.errors import UnhangError
from unhang.judge import matrix
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog

PLAN = file_plan("demo.py")
SBOM = f"{INFO}/{sbom.SBOM}"


def parsed(data: bytes) -> Any:
    """Return a document that is valid, and that CycloneDX's own library can read."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # here, as in test_osv

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode())
    assert error is None, error
    return json.loads(data)


def of(path: Path, plan: FilePlan = PLAN, version: str = "1.0+unhang.1") -> Any:
    made = sbom.document(wheel.load(str(path)), f"demo-{version}-py3-none-any.whl", version, {"demo.py": plan})
    return parsed(made)["metadata"]["component"]


def written(path: Path, root: Path) -> Path:
    """Write the rewritten wheel of verl; return its path."""
    loaded = wheel.load(str(path))
    wheel.unpack(loaded, str(root))
    made = wheel_output.write(loaded, wheel_output.wheel_plan(loaded, str(root), *plan_of(root)), f"{root}-out")
    assert made is not None
    return Path(made.path)


def test_a_real_wheel_has_one_that_names_what_it_was_made_from_and_what_each_fix_resolves(tmp_path: Path) -> None:
    source, path = wheels.fetch(*VERL), written(wheels.fetch(*VERL), tmp_path / "root")
    version = f"0.7.1+unhang.{catalog.generation()}"
    name = f"verl-{version}.dist-info/sboms/unhang.cdx.json"
    assert records(path)[name][0].startswith("sha256=")
    with zipfile.ZipFile(path) as archive:
        data = archive.read(name)
    made = parsed(data)["metadata"]["component"]
    assert (made["name"], made["version"]) == ("verl", version)
    assert PackageURL.from_string(made["purl"]) == PackageURL(
        "pypi", None, "verl", version, qualifiers={"file_name": path.name}
    )
    (ancestor,) = made["pedigree"]["ancestors"]
    digest = {"alg": "SHA-256", "content": wheel.load(str(source)).sha256}
    assert (ancestor["version"], ancestor["hashes"]) == ("0.7.1", [digest])
    assert ancestor["purl"] == f"pkg:pypi/verl@0.7.1?file_name={source.name}"
    issues = {issue["id"]: issue for patch in made["pedigree"]["patches"] for issue in patch["resolves"]}
    releases = {"verl": {"0.7.1": catalog.releases()["verl"]["0.7.1"]}}
    rows = matrix.rows([*catalog.fixes().values()], releases, catalog.shape_table())
    assert {*issues} == {row.fix for row in rows if row.verdict == "needed"}
    issue = issues["fsdp2-buffer-order"]
    assert issue["type"] == "defect"
    assert issue["description"].startswith(catalog.fix("fsdp2-buffer-order").manifest["symptom"])
    assert [link.rpartition("/")[2] for link in issue["references"]] == ["6365", "6405"]
    assert f"{ENGINE}, MegatronEngine.forward_backward_batch: mtp-cp-deadlock" in made["pedigree"]["notes"]


@pytest.mark.parametrize(("fix", "kind"), [("mtp-cp-deadlock", "backport"), ("empty-expert-hang", "unofficial")])
def test_a_patch_is_a_backport_only_if_its_manifest_says_so(fix: str, kind: str, tmp_path: Path) -> None:
    (step,) = PLAN.steps
    plan = PLAN._replace(steps=(step._replace(target=step.target._replace(fix=fix)),))
    (patch,) = of(demo(tmp_path), plan)["pedigree"]["patches"]
    assert (patch["type"], patch["resolves"][0]["id"]) == (kind, fix)


def test_a_rewrite_that_a_person_accepted_is_told_from_others(tmp_path: Path) -> None:
    accepted = PLAN._replace(steps=(PLAN.steps[0]._replace(listed=False),))
    notes = [of(demo(tmp_path), plan)["pedigree"]["notes"] for plan in (PLAN, accepted)]
    assert ["a person accepted" in note for note in notes] == [False, True]


def test_a_wheel_that_was_rewritten_before_keeps_its_pedigree(tmp_path: Path) -> None:
    first = sbom.document(wheel.load(str(demo(tmp_path))), "a.whl", "1.0+unhang.1", {"demo.py": PLAN})
    again = of(demo(tmp_path / "again", add={SBOM: first}), version="1.0+unhang.2")
    (before,) = again["pedigree"]["ancestors"]
    assert before["pedigree"] == json.loads(first)["metadata"]["component"]["pedigree"]
    (published,) = before["pedigree"]["ancestors"]
    assert published["hashes"] == [{"alg": "SHA-256", "content": wheel.load(str(tmp_path / DEMO)).sha256}]


@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"metadata": {"component": []}}'])
def test_what_is_not_our_document_under_its_name_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnhangError, match=r"is not an SBOM of unhang's") as caught:
        of(demo(tmp_path, add={SBOM: content}))
    assert caught.value.code == "bad-wheel"
