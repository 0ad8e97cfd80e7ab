"""The data of the session, and how it is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from support import environments
from unhang.errors import UnhangError
from unhang.shapes import catalog
from upstream import selection, venvs

UPSTREAMS = json.loads((selection.HERE / "releases.json").read_text())["upstreams"]
DATA = sorted(selection.PATCHES.glob("*/upstream_tests.json"))
KEYS = {
    "tests": {"upstream", "versions", "files", "ranks", "covers", "reason"},
    "disputed": {"upstream", "versions", "test", "reason"},
    "notes": {"upstream", "versions", "test", "reason"},
}


def made(tmp_path: Path, **fixes: dict[str, Any]) -> Path:
    """A made-up `patches` folder."""
    texts = {f"{fix}/upstream_tests.json": json.dumps({"schema": 1, **data}) for fix, data in fixes.items()}
    return environments.write(tmp_path / "patches", texts)


def entry(*files: str, covers: bool = True, versions: str = ">=1", ranks: int = 1) -> dict[str, Any]:
    which = {"upstream": "verl", "versions": versions, "files": list(files)}
    return {**which, "ranks": ranks, "covers": covers, "reason": "why"}


def tree(tmp_path: Path, *files: str) -> Path:
    return environments.write(tmp_path / "tree", dict.fromkeys(files, ""))


# ---- the data


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.parent.name)
def test_the_data_of_a_fix_is_complete(path: Path) -> None:
    data = json.loads(path.read_text())
    assert data["schema"] == selection.SCHEMA
    assert set(data) <= {"schema", *KEYS}
    reads = {to.upstream for to in catalog.fix(path.parent.name).targets} | {"megatron-lm"}
    for kind, keys in KEYS.items():
        for row in data.get(kind, ()):
            assert set(row) == keys
            assert row["upstream"] in UPSTREAMS
            assert row["upstream"] in reads, "a test of another upstream does not touch this fix"
            assert SpecifierSet(row["versions"])
            assert len(row["reason"]) > 10
            assert row.get("ranks", 1) in (1, 2, 4, 8)


@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_entry_of_an_upstream_is_complete(name: str) -> None:
    about = selection.upstream(name)
    assert {"clone", "url", "tag", "tests", "torch", "shims", "environments", "main"} <= set(about)
    assert about["url"].startswith("https://")
    assert isinstance(about["shims"], list)
    assert selection.environment(about, "99.0.dev0") == about["main"]
    for row in (*about["environments"], about["main"]):
        assert re.fullmatch(r"3\.\d+", row["python"])
    for sha256 in about.get("sdists", {}).values():
        assert re.fullmatch(r"[0-9a-f]{64}", sha256)


@pytest.mark.parametrize("path", sorted(venvs.REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_requirement_is_pinned_and_none_is_torch(path: Path) -> None:
    lines = [line.partition(" #")[0] for line in path.read_text().splitlines() if line and not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    assert all(re.fullmatch(r"==[\w.+]+", str(one.specifier)) for one in found)
    names = [one.name.lower() for one in found]
    assert len({*names}) == len(names)
    assert ("torch" in names, "pytest" in names) == (False, True)


# ---- how it is read


def test_the_first_environment_whose_versions_fit() -> None:
    about = {"environments": [{"versions": ">=1,<2", "n": 1}, {"versions": ">=2", "n": 2}], "main": {"n": 0}}
    assert [selection.environment(about, version)["n"] for version in ("1.5", "2.0rc1", "0.9", "2.1")] == [1, 0, 0, 2]


def test_files_that_cover_a_rewrite_come_first_and_a_file_of_two_fixes_is_run_once(tmp_path: Path) -> None:
    patches = made(
        tmp_path,
        one={"tests": [entry("tests/a.py", covers=False), entry("tests/b*.py", "tests/gone_*.py")]},
        two={"tests": [entry("tests/b1.py", "tests/b2.py", ranks=2), entry("tests/c.py", versions=">=2", ranks=4)]},
        other={"tests": [entry("tests/d.py", ranks=8)]},
    )
    where = tree(tmp_path, "tests/a.py", "tests/b1.py", "tests/b2.py", "tests/c.py", "tests/d.py")
    found = selection.select("verl", "1.5", where, ["one", "two"], patches)
    assert [(one.file, one.covers) for one in found.files] == [
        ("tests/b1.py", ("one", "two")),
        ("tests/b2.py", ("one", "two")),
        ("tests/a.py", ()),
    ]
    assert (found.absent, found.ranks) == (("tests/gone_*.py",), 2)


def test_no_test_for_a_fix_is_an_error_not_an_empty_run(tmp_path: Path) -> None:
    patches = made(tmp_path, one={"tests": [entry("tests/a.py")]})
    for name, files in ("ms-swift", ("tests/a.py",)), ("verl", ("tests/b.py",)):
        with pytest.raises(UnhangError) as caught:
            selection.select(name, "1", tree(tmp_path, *files) / ".." / "tree" / name, ["one", "two"], patches)
        assert caught.value.code == "no-tests"


def test_every_test_file_with_what_is_known_of_some(tmp_path: Path) -> None:
    patches = made(tmp_path, one={"tests": [entry("tests/a.py")]})
    where = tree(tmp_path, "tests/a.py", "tests/deep/b.py", "tests/no.txt")
    listed = selection.select("verl", "1", where, ["one"], patches)._replace(ranks=2)
    found = selection.every(["tests/**/*.py"], where, listed)
    assert [(one.file, one.covers) for one in found.files] == [("tests/a.py", ("one",)), ("tests/deep/b.py", ())]
    assert (found.ranks, selection.every(["tests/a.py"], where, None).ranks) == (2, 1)
    with pytest.raises(UnhangError) as caught:
        selection.every(["nowhere/*.py"], where, None)
    assert caught.value.code == "no-tests"


def test_an_unknown_upstream_is_refused_by_name() -> None:
    with pytest.raises(UnhangError) as caught:
        selection.upstream("deepspeed")
    assert caught.value.code == "unknown-upstream"
    assert "megatron-lm" in str(caught.value.hint)
