"""OSV advisories: valid, of exactly the releases that the matrix has as needed, and the same whenever they are made."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from osv import serve

from support import cli, made_up
from unhang.judge import matrix, pinned
from unhang.plugins import packs
from unhang.shapes import catalog
from unhang.tell import osv

MANIFEST = {"origin": "other, https://example.org/1", "targets": []}
_TEXT = {"type": "string", "minLength": 1}
_STAMP = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}


def _exactly(**properties: Any) -> Any:
    """Return the schema of an object with these keys and no others: osv-scanner drops an advisory with another one."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _list(of: Any, least: int = 0) -> Any:
    return {"type": "array", "items": of, "minItems": least}


_EVENTS = {
    "type": "array",
    "prefixItems": [_exactly(introduced=_TEXT)],
    "items": {"oneOf": [_exactly(introduced=_TEXT), _exactly(fixed=_TEXT), _exactly(last_affected=_TEXT)]},
    "not": {"allOf": [{"contains": {"required": ["fixed"]}}, {"contains": {"required": ["last_affected"]}}]},
    "minItems": 2,
}
SCHEMA = _exactly(
    schema_version={"type": "string", "pattern": r"^1\.7\.\d+$"},
    id={"type": "string", "pattern": "^x_[a-z0-9-]+$"},
    modified=_STAMP,
    aliases=_list(_TEXT),
    summary={**_TEXT, "maxLength": 120},
    details=_TEXT,
    affected=_list(
        _exactly(
            package=_exactly(ecosystem={"const": "PyPI"}, name=_TEXT, purl={"pattern": "^pkg:pypi/[a-z0-9-]+$"}),
            ranges=_list(_exactly(type={"const": "ECOSYSTEM"}, events=_EVENTS)),
            database_specific=_exactly(fixed_in={"type": "string"}),
            versions=_list(_TEXT, 1),
        ),
        1,
    ),
    references=_list(
        _exactly(type={"enum": ["FIX", "REPORT", "WEB", "PACKAGE"]}, url={"pattern": r"^https://[^\s,;()]+$"}), 1
    ),
    database_specific=_exactly(
        kinds=_list({"enum": ["hang", "abort", "wrong-values"]}),
        grade={"enum": ["cure", "safeguard", "unproved"]},
        when={"type": "string"},
        changes_numbers={"type": "boolean"},
        cure=_TEXT,
    ),
)
"""What OSV's schema 1.7 demands of the fields that an advisory of ours has, and a little more; no package has it."""


def every() -> tuple[list[matrix.Row], dict[str, Any]]:
    """Return the rows of the matrix, and all advisories by id."""
    fixes = [*catalog.fixes().values()]
    rows = matrix.rows(fixes, catalog.releases(), catalog.shape_table())
    return rows, {key: json.loads(text) for key, text in osv.advisories(rows, fixes).items()}


def of(**upstreams: Mapping[str, str]) -> Any:
    """Return what is affected by a made-up fix of these upstreams, whose releases are as in ``made_up.releases``."""
    named = {name.replace("_", "-"): versions for name, versions in upstreams.items()}
    fix = made_up.fix("hang", *named)._replace(manifest=MANIFEST)
    rows = matrix.rows([fix], made_up.releases([fix], **named), made_up.table(fix))
    made = osv.advisories(rows, [fix])
    return json.loads(made["x_unhang-hang"])["affected"] if made else None


def test_each_fix_has_a_valid_advisory() -> None:
    import jsonschema  # here, as it takes a second, and each process loads this module

    _, advisories = every()
    for key, advisory in advisories.items():
        jsonschema.Draft202012Validator(SCHEMA).validate(advisory)
        assert advisory["id"] == key
    assert [*advisories] == [f"x_unhang-{name}" for name in catalog.fixes()]


def test_a_scanner_reports_exactly_what_the_matrix_has_as_needed() -> None:
    rows, advisories = every()
    expected: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        name = packs.upstreams()[row.upstream].distribution
        if row.upstream not in pinned.held(name, row.version):  # megatron-core 0.16 has no megatron.training
            continue
        needed = expected.setdefault((name, row.version), set())
        needed |= {f"x_unhang-{row.fix}"} if row.verdict == "needed" else set()
    assert sum(map(bool, expected.values())) > 400
    for (name, version), needed in expected.items():
        assert {*serve.affecting(advisories, name, version)} == needed, (name, version)
        listed = {
            key
            for key, advisory in advisories.items()
            for package in advisory["affected"]
            if package["package"]["name"] == name and version in package["versions"]
        }
        assert listed == needed, (name, version)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"1.0": "fixed", "1.1": "affected", "1.2": "affected", "1.3": "fixed"}, [["1.1", "fixed 1.3"]]),
        ({"1.1": "affected", "1.2": "affected"}, [["1.1", "last_affected 1.2"]]),  # nobody knows what comes next
        ({"1.1": "affected", "1.2": "edited", "1.3": "fixed"}, [["1.1", "last_affected 1.1"]]),  # drifted: not settled
        (
            {"1.0": "affected", "1.1": "fixed", "1.2": "affected", "1.3": "fixed", "1.4": "affected"},
            [["1.0", "fixed 1.1", "1.2", "fixed 1.3"], ["1.4", "last_affected 1.4"]],
        ),
        (  # nightlies of both kinds before 1.2: no range reaches over them
            {"1.1": "affected", "1.2.dev100": "affected", "1.2.dev20261101": "affected", "1.2.dev20261102": "fixed",
             "1.2.dev20261103": "affected", "1.2": "fixed"},
            [["1.1", "last_affected 1.2.dev100"]],
        ),
        ({"1.1": "affected", "1.2.dev20261101": "affected", "1.2": "fixed"}, [["1.1", "last_affected 1.1"]]),
        ({"1.1": "fixed", "1.2.dev20261101": "affected", "1.2": "fixed"}, []),
    ],
)  # fmt: skip
def test_a_range_has_nothing_in_it_that_is_not_needed(versions: dict[str, str], expected: list[list[str]]) -> None:
    (package,) = of(verl=versions)
    told = [
        [next(iter(event.values())) if "introduced" in event else " ".join(*event.items()) for event in found["events"]]
        for found in package["ranges"]
    ]
    assert told == expected
    assert package["versions"] == [version for version, word in versions.items() if word == "affected"]


def test_two_upstreams_in_one_distribution_are_one_package() -> None:
    (package,) = of(megatron_core={"1.0": "fixed", "1.1": "affected"}, megatron_lm={"1.0": "affected", "1.1": "fixed"})
    assert (package["package"]["name"], package["versions"]) == ("megatron-core", ["1.0", "1.1"])


def test_a_release_of_an_upstream_that_its_wheel_does_not_hold_is_none_of_the_package() -> None:
    (package,) = of(megatron_lm={"0.16.1": "affected", "0.17.0": "affected"})
    assert (package["package"]["name"], package["versions"]) == ("megatron-core", ["0.17.0"])
    assert package["ranges"][0]["events"][0] == {"introduced": "0.17.0"}


def test_a_pack_has_its_own_database_and_ranges_over_no_release_that_it_has_not_read() -> None:
    pack = catalog.fix("mtp-cp-deadlock").pack._replace(name="our-fixes", folder="/packs/ours")
    fix = made_up.fix("hang", "verl")._replace(manifest=MANIFEST, pack=pack)
    rows = matrix.rows([fix], made_up.releases([fix], verl={"1.0": "affected", "1.9": "affected"}), made_up.table(fix))
    ((key, text),) = osv.advisories(rows, [fix]).items()
    (package,) = json.loads(text)["affected"]
    assert (key, package["versions"], package["ranges"]) == ("x_our_fixes-hang", ["1.0", "1.9"], [])


def test_a_fix_that_no_release_needs_has_no_advisory() -> None:
    assert of(verl={"1.0": "fixed", "1.1": "edited"}) is None


def test_an_advisory_says_when_it_strikes_and_that_the_code_decides() -> None:
    _, advisories = every()
    text = advisories["x_unhang-router-token-scale"]["details"]
    for part in (
        f"It strikes {catalog.fix('router-token-scale').when}",
        "`unhang apply --fix router-token-scale` rewrites the function",
        "Where unhang has no rewrite for a release: upgrade to megatron-core 0.12",
        "Grade: cure (the defect is shown",
        "`unhang check` reads its code and decides",
        "not a security vulnerability",
    ):
        assert part in text


def test_explain_takes_the_id_that_a_scanner_prints() -> None:
    by_id, by_name = (
        cli.called_with_all("explain", name) for name in ("x_unhang-tp-logps-gradient", "tp-logps-gradient")
    )
    assert by_id == by_name
    assert by_id.code == 0
    assert cli.called_with_all("explain", "x_unhang-nothing").code == 2


@pytest.mark.parametrize("fix", ["mtp-cp-deadlock", "fsdp-size-one-no-sync", "grpo-window-scale"])
def test_it_names_the_release_that_is_right_or_says_that_none_is(fix: str) -> None:
    advisory = every()[1][f"x_unhang-{fix}"]
    ((name, version),) = matrix.droppable(catalog.fix(fix), catalog.releases(), catalog.shape_table()).items()
    (package,) = advisory["affected"]
    assert package["database_specific"] == {"fixed_in": version or ""}
    assert f"{name}: fixed in {version or 'no release yet'}." in advisory["details"]
