"""The data of the session, and how it is read."""

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
WHICH = {"upstream", "versions", "reason"}
KEYS = {"tests": {*WHICH, "files", "ranks", "covers"}, "disputed": {*WHICH, "test"}, "notes": {*WHICH, "test"}}


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.parent.name)
def test_the_data_of_a_fix_is_complete(path: Path) -> None:
    data = json.loads(path.read_text())
    assert (data["schema"], set(data) <= {"schema", *KEYS}) == (selection.SCHEMA, True)
    # a test of another upstream does not touch this fix
    reads = {to.upstream for to in catalog.fix(path.parent.name).targets} | {"megatron-lm"}
    for kind, row in ((name, row) for name in KEYS for row in data.get(name, ())):
        assert (set(row), row["upstream"] in reads & {*UPSTREAMS}) == (KEYS[kind], True)
        assert SpecifierSet(row["versions"])
        assert (len(row["reason"]) > 10, row.get("ranks", 1) in (1, 2, 4, 8)) == (True, True)


@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_entry_of_an_upstream_is_complete(name: str) -> None:
    about = selection.upstream(name)
    assert {"clone", "url", "tag", "tests", "torch", "shims", "environments", "main"} <= set(about)
    assert (about["url"][:8], isinstance(about["shims"], list)) == ("https://", True)
    assert selection.environment(about, "99.0.dev0") == about["main"]
    assert all(re.fullmatch(r"3\.\d+", row["python"]) for row in (*about["environments"], about["main"]))
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in about.get("sdists", {}).values())


@pytest.mark.parametrize("path", sorted(venvs.REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_requirement_is_pinned_and_none_is_torch(path: Path) -> None:
    lines = [line.partition(" #")[0] for line in path.read_text().splitlines() if line and not line.startswith("#")]
    wanted = [Requirement(line) for line in lines]
    assert all(re.fullmatch(r"==[\w.+]+", str(it.specifier)) for it in wanted)
    names = [it.name.lower() for it in wanted]
    assert (len({*names}), "torch" in names, "pytest" in names) == (len(names), False, True)


def test_the_first_environment_whose_versions_fit() -> None:
    about = {"environments": [{"versions": ">=1,<2", "n": 1}, {"versions": ">=2", "n": 2}], "main": {"n": 0}}
    assert [selection.environment(about, version)["n"] for version in ("1.5", "2.0rc1", "0.9", "2.1")] == [1, 0, 0, 2]


def entry(*files: str, covers: bool = True, versions: str = ">=1", ranks: int = 1) -> dict[str, Any]:
    which = {"upstream": "verl", "versions": versions, "files": list(files)}
    return {**which, "ranks": ranks, "covers": covers, "reason": "why"}


def test_files_that_cover_a_rewrite_come_first_and_a_file_of_two_fixes_is_run_once(tmp_path: Path) -> None:
    fixes = {
        "one": [entry("t/a.py", covers=False), entry("t/b*.py", "t/gone_*.py")],
        "two": [entry("t/b1.py", "t/b2.py", ranks=2), entry("t/c.py", versions=">=2", ranks=4)],
        "other": [entry("t/d.py", ranks=8)],
    }
    data = {f"{it}/upstream_tests.json": json.dumps({"schema": 1, "tests": rows}) for it, rows in fixes.items()}
    patches = environments.write(tmp_path / "patches", data)
    tree = environments.write(tmp_path / "tree", dict.fromkeys(("t/a.py", "t/b1.py", "t/b2.py", "t/c.py", "t/no"), ""))
    some = selection.select("verl", "1.5", tree, ["one", "two"], patches)
    both = ("one", "two")
    assert some.files == (("t/b1.py", both), ("t/b2.py", both), ("t/a.py", ()))
    assert (some.absent, some.ranks) == (("t/gone_*.py",), 2)
    every = selection.every(["t/**/*.py"], tree, some)
    assert every.files == (("t/a.py", ()), *some.files[:2], ("t/c.py", ()))
    assert (every.ranks, every.absent, selection.every(["t/a.py"], tree, None).ranks) == (2, (), 1)
    for name, where in ("ms-swift", tree), ("verl", tmp_path), ("", tmp_path):
        with pytest.raises(UnhangError) as caught:
            selection.select(name, "1.5", where, both, patches) if name else selection.every(["t/*"], where, None)
        assert caught.value.code == "no-tests"
    with pytest.raises(UnhangError, match="deepspeed") as caught:
        selection.upstream("deepspeed")
    assert (caught.value.code, "megatron-lm" in str(caught.value.hint)) == ("unknown-upstream", True)
