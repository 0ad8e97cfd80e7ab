"""Whether upstream's own fix in an unknown shape is believed, by where the file is from."""

import base64
import hashlib
from pathlib import Path

import pytest

from support import gates
from support.environments import write
from support.gates import ONE, RUN
from unhang.find import metadata
from unhang.find.overlays import Module, Overlay, sha256
from unhang.judge.findings import Finding, judge
from unhang.judge.overlaid import overlaid
from unhang.shapes.catalog import Fix

FIXED = ONE.replace("    start()\n", "    start()\n    upstream_waits()\n", 1)
GATE = Fix("gate", "a gate", "cure", {}, (RUN,), "")


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gates.install(monkeypatch)
    metadata.read.cache_clear()


def row(code: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(code.encode()).digest()).rstrip(b"=").decode()
    return f"verl/one.py,sha256={digest},{len(code.encode())}"


def judged(
    root: Path, version: str | None, code: str = FIXED, rows: str | None = None, folder: str = "", **files: str
) -> Finding:
    """The finding on a package that an installer took from an index, but for what the arguments say."""
    folder = folder or f"verl-{version}.dist-info"
    beside = {"INSTALLER": "uv\n", "RECORD": f"{row(code) if rows is None else rows}\n", **files}
    write(root, {f"{folder}/{name.replace('_json', '.json')}": text for name, text in beside.items() if text})
    where = gates.lay_out(root, {"verl/one.py": code})
    record = str(root / folder / "RECORD") if beside["RECORD"].strip() else None
    (found,) = judge([where._replace(version=version, record=record)], [GATE], {})
    return found


@pytest.mark.parametrize("version", ["9.0", "2.0.1", "2.1rc1", "1.5.post1", "2.1.dev123456"])
def test_it_is_believed_in_a_release_that_the_matrix_lacks(tmp_path: Path, version: str) -> None:
    found = judged(tmp_path, version)
    assert (found.verdict.verdict, found.verdict.code) == ("fixed-upstream", "by-shape-check")
    assert (found.settled, found.result) == (True, None)


def test_it_is_believed_in_an_overlay_that_has_another_fix_of_the_file(tmp_path: Path) -> None:
    found = judged(tmp_path, "9.0")
    for code, verdict in (gates.paused(FIXED), "fixed-upstream"), (FIXED.replace("return x", "return 1"), "unlisted"):
        (tmp_path / "new.py").write_text(code)
        shas = sha256(FIXED.encode()), sha256(code.encode())
        overlay = Overlay("/overlay", {"verl.one": Module(str(tmp_path / "new.py"), *shas)}, "")
        there = overlaid(found, [overlay])
        assert (there.verdict.verdict, there.overlay) == (verdict, "/overlay")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_in_a_release_of_the_matrix_it_is_an_edit(tmp_path: Path, version: str) -> None:
    for number, rows in enumerate((None, row(ONE))):  # whatever RECORD says
        found = judged(tmp_path / str(number), version, rows=rows)
        assert (found.verdict.verdict, found.verdict.code) == ("drifted", "unknown-shape")
        assert f"; an edit: release {version} has another shape; " in found.verdict.detail
        assert "reinstall the package" in found.verdict.hint
        assert (found.settled, found.result) == (False, None), "and no token settles it"


SEEMS = "upstream's own fix seems to be there"


@pytest.mark.parametrize(
    ("version", "given", "doubt"),
    [
        ("9.0", {"rows": ""}, "no RECORD confirms it"),
        ("1.0", {"rows": ""}, "no RECORD confirms it"),
        ("9.0+acme", {}, "the version has a local label"),
        ("1.0+acme", {}, "the version has a local label"),
        ("9.0", {"folder": "verl-8.0.dist-info"}, "its RECORD is of another version"),
        ("1.0", {"folder": "verl-9.0.dist-info"}, "its RECORD is of another version"),
        (None, {"folder": "verl-9.0.dist-info"}, "its RECORD is of another version"),
        ("main", {}, "its RECORD is of another version"),
        ("9.0", {"direct_url_json": "{}"}, "it was installed from a path, an archive or a repository"),
        ("1.0", {"direct_url_json": "{}"}, "it was installed from a path, an archive or a repository"),
        ("9.0", {"INSTALLER": ""}, "no installer has put it there"),
        ("9.0", {"code": FIXED.replace("x = 1", "x = 1  # unhang pause: why")}, "unhang has rewritten its file"),
        ("9.0", {"rows": row(ONE)}, "its RECORD does not list these bytes"),
        ("9.0", {"rows": "verl/one.py,,"}, "its RECORD does not list these bytes"),
        ("9.0", {"rows": f"{row(FIXED)}\n{row(ONE)}"}, "its RECORD does not list these bytes"),
        ("9.0", {"rows": row(FIXED).replace("one.py", "two.py")}, "its RECORD does not list these bytes"),
        ("9.0", {"rows": row(FIXED).replace("verl/one.py", '"verl/one.py"')}, "its RECORD does not list these bytes"),
        ("0.9", {}, ""),
    ],
)
def test_elsewhere_it_is_a_doubt(tmp_path: Path, version: str | None, given: dict[str, str], doubt: str) -> None:
    found = judged(tmp_path, version, **given)
    is_outside = version is not None and version[0] in "09"
    assert found.verdict.verdict == ("unlisted" if is_outside else "drifted")
    assert f"{SEEMS}{', but ' if doubt else ''}{doubt}; " in found.verdict.detail
    assert "`unhang diff --unknown --fix gate`" in found.verdict.hint
    assert (found.settled, found.result) == (False, gates.shape_of(FIXED))
