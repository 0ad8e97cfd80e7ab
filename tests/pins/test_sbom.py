"""SBOMs: CycloneDX and SPDX, nested, and components of other ecosystems that share a name."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.lock_files import COMMIT, read
from unhang.errors import UnhangError
from unhang.records import Pin


def cyclonedx(*components: dict[str, Any]) -> str:
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": components}, indent=1)


def test_components_of_cyclonedx_nested_ones_and_the_application_itself(tmp_path: Path) -> None:
    inner = {"name": "megatron_core", "version": "0.16.1"}
    outer = {"name": "app", "version": "1", "components": [{"name": "b", "components": [inner]}]}
    document = json.loads(cyclonedx({"name": "verl", "version": "0.7.1", "purl": "pkg:pypi/verl@0.7.1"}, outer))
    document["metadata"] = {"component": {"name": "ms-swift", "version": "4.3.0"}}
    found = read(tmp_path / "bom.json", json.dumps(document, indent=1))
    assert {pin._replace(line=0) for pin in found} == {
        Pin("verl", "0.7.1", 0), Pin("megatron-core", "0.16.1", 0), Pin("ms-swift", "4.3.0", 0)
    }  # fmt: skip
    lines = (tmp_path / "bom.json").read_text().splitlines()
    assert all(pin.distribution in lines[pin.line - 1].replace("_", "-") for pin in found)


@pytest.mark.parametrize(
    ("purl", "expected"),
    [
        ("pkg:pypi/verl@0.7.1", Pin("verl", "0.7.1")),
        ("pkg:PyPI/VERL@0.7.1%2Bcu12?file_name=a.whl#b", Pin("verl", "0.7.1+cu12")),
        ("pkg:conda/conda-forge/verl@0.7.1?build=py312_0", Pin("verl", "0.7.1")),
        ("pkg:pypi/verl", Pin("verl", "9")),
        (
            f"pkg:pypi/verl@0.8.0.dev0?vcs_url=git%2Bhttps://a.example/verl%40{COMMIT}",
            Pin("verl", "0.8.0.dev0", repository="https://a.example/verl", commit=COMMIT),
        ),
        ("pkg:github/us/verl@v1", Pin("verl", repository="https://github.com/us/verl", ref="v1")),
        ("pkg:generic/verl@0.7.1", Pin("verl", "0.7.1")),
        ("pkg:npm/verl@0.7.1", None),
        ("pkg:pypi/verl-tools@0.7.1", None),
        ("pkg:", None),
        ("", Pin("verl", "9")),
    ],
)
def test_the_package_url_decides_which_ecosystem_it_is(purl: str, expected: Pin | None, tmp_path: Path) -> None:
    text = cyclonedx({"name": "verl", "version": "9", "purl": purl})
    found = [pin._replace(line=1) for pin in read(tmp_path / "bom.json", text)]
    assert found == ([expected] if expected else [])


def test_components_of_one_name_have_lines_of_their_own(tmp_path: Path) -> None:
    inner = {"name": "verl", "version": "0.6.0"}
    rows: list[dict[str, Any]] = [
        {"name": "verl", "version": "0.7.1"},
        {"name": "app", "components": [inner]},
        {"name": "verl", "bom-ref": "verl"},
    ]
    found = read(tmp_path / "bom.json", text := cyclonedx(*rows))
    lines = text.splitlines()
    assert [pin.version for pin in found] == ["0.7.1", "0.6.0", ""]
    assert [number for number, line in enumerate(lines, 1) if '"name": "verl"' in line] == [pin.line for pin in found]


def test_spdx_2_and_3(tmp_path: Path) -> None:
    purl = {"referenceType": "purl", "referenceLocator": "pkg:pypi/verl@0.7.1"}
    two = {"spdxVersion": "SPDX-2.3", "packages": [{"name": "verl", "versionInfo": "0.7.1", "externalRefs": [purl]}]}
    three = {
        "@context": "https://spdx.example/context.jsonld",
        "@graph": [
            {"type": "SpdxDocument", "name": "verl"},
            {"type": "software_Package", "name": "verl", "software_packageVersion": "0.7.1",
             "software_packageUrl": "pkg:pypi/verl@0.7.1"},
        ],
    }  # fmt: skip
    for document in two, three, {"sbom": two}:  # the last as GitHub's REST API answers
        (pin,) = read(tmp_path / "image.spdx.json", json.dumps(document))
        assert pin == Pin("verl", "0.7.1")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        "{",
        '{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": {}}',
        '{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": 1}]}',
        '{"spdxVersion": 2, "packages": [1]}',
        '{"a":' * 100_000,
        '{"a": ' + "1" * 10_000 + "}",
    ],
)
def test_what_is_no_sbom_is_damage(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnhangError) as raised:
        read(tmp_path / "bom.json", text)
    assert raised.value.code == "bad-lock"


@pytest.mark.parametrize(
    "document",
    [
        {"bomFormat": "CycloneDX", "specVersion": "2.0", "components": []},
        {"spdxVersion": "SPDX-4.0", "packages": []},
        {"@context": "", "@graph": [{"type": "CreationInfo", "specVersion": "4.0"}]},
    ],
)
def test_an_unknown_version_of_a_format_is_an_error(document: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UnhangError, match="its format has version"):
        read(tmp_path / "sbom.json", json.dumps(document))
