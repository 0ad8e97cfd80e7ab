"""Whose an interpreter must be, and every folder that leads to it, so that it may be run without being named."""

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from unhang.find import environment, metadata, trust

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
ANN = 1001


@pytest.fixture
def venv() -> Iterator[Path]:
    """A project of root's with an environment, in a folder as /tmp."""
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o1777)
        found = Path(top, "project", ".venv")
        site = found / "lib/python3.11/site-packages"
        site.mkdir(parents=True)
        (site / "x.pth").write_text(f"import os\n{top}/checkout\nbeside\n")
        for folder in (Path(top, "checkout"), site / "beside", site / "package", Path(top, "base/lib/python3.11")):
            folder.mkdir(parents=True)
        (site / "mine.py").touch()
        (found / "bin").mkdir()
        Path(top, "real").touch(mode=0o755)
        (found / "bin/python3").symlink_to(Path(top, "real"))
        (found / "bin/python").symlink_to("python3")
        (found / "pyvenv.cfg").write_text(f"Home = {top}/base/bin\n")
        (found.parent / "below").mkdir()
        yield found


def objection(venv: Path, below: str = "below") -> str:
    return trust.objection(str(venv / "bin/python"), str(venv), str(venv.parent / below))


def test_what_is_the_users_alone_may_be_run_and_the_order_of_links_does_not_matter(venv: Path) -> None:
    assert objection(venv) == ""
    (venv.parents[1] / "link").symlink_to(venv.parent)
    assert objection(venv.parents[1] / "link/.venv") == ""


@pytest.mark.parametrize(
    "path",
    [
        "", "bin", "bin/python", "bin/python3", "../../real", "lib", "lib/python3.11", "lib/python3.11/site-packages",
        "lib/python3.11/site-packages/x.pth", "lib/python3.11/site-packages/mine.py", "..", "../below", "../..",
        "../../checkout", "lib/python3.11/site-packages/beside", "lib/python3.11/site-packages/package", "pyvenv.cfg",
        "../../base", "../../base/lib/python3.11",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["given away", "open to all", "open to a group"])
def test_what_somebody_else_may_change_is_not_run(path: str, how: str, venv: Path) -> None:
    file = Path(os.path.normpath(venv / path))
    if how == "given away":
        os.lchown(file, ANN, 0)
        why = f"{file} belongs to user {ANN}"
    elif file.is_symlink():
        pytest.skip("a link has no mode")
    else:
        os.chown(file, 0, 4321)
        file.chmod(0o777 if how == "open to all" else 0o775)
        why = f"{'everybody' if how == 'open to all' else 'group 4321'} may write {file}"
    assert objection(venv) == why


def test_a_folder_as_tmp_is_fine_above_a_project_but_not_with_the_environment_in_it(venv: Path) -> None:
    assert objection(venv) == ""
    venv.parent.chmod(0o1777)
    assert objection(venv) == f"everybody may write {venv.parent}"


@pytest.mark.parametrize("path", ["", "bin", "lib/python3.11/site-packages"])
def test_a_folder_as_tmp_is_not_fine_in_an_environment(path: str, venv: Path) -> None:
    (venv / path).chmod(0o1777)
    why = f"everybody may write {venv / path}"
    assert objection(venv) == why
    (venv.parent / "link").symlink_to(venv)
    assert trust.objection(str(venv.parent / "link/bin/python"), str(venv.parent / "link"), None) == why


def test_the_packages_of_the_base_count_where_the_environment_has_them(venv: Path) -> None:
    packages = venv.parents[1] / "base/lib/python3.11/site-packages"
    packages.mkdir(mode=0o777)
    packages.chmod(0o777)
    assert objection(venv) == ""
    with (venv / "pyvenv.cfg").open("a") as settings:
        settings.write("include-system-site-packages = True\n")
    metadata.read.cache_clear()
    assert objection(venv) == f"everybody may write {packages}"


def test_an_access_control_list_may_name_others_in_the_place_of_the_users_own_group(venv: Path) -> None:
    rights = [(1, 7, -1), (2, 7, ANN), (4, 5, -1), (16, 7, -1), (32, 5, -1)]  # user, user ann, group, mask, others
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *it) for it in rights)
    try:
        os.setxattr(venv, "system.posix_acl_access", text)
    except OSError as error:
        pytest.skip(f"no such lists here: {error.strerror}")
    assert objection(venv) == f"{venv} has an access control list, which may let others write"


def test_a_name_that_no_file_can_have_is_an_objection(venv: Path) -> None:
    (venv / "lib/python3.11/site-packages/x.pth").write_text("/a\0b\n")
    assert "/a\0b: " in objection(venv)
    assert "embedded null" in objection(venv), "each Python words it in its own way"


def test_a_group_of_the_users_own_is_nobody_else(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(venv, 0, 0)
    venv.chmod(0o775)
    assert objection(venv) == ""
    monkeypatch.setattr("grp.getgrgid", lambda _: type("", (), {"gr_name": "root", "gr_mem": ["ann"]}))
    assert objection(venv) == f"group 0 may write {venv}"


def test_links_without_end_end(venv: Path) -> None:
    (venv / "bin/python3").unlink()
    (venv / "bin/python3").symlink_to("python3")
    assert objection(venv) == ""


@pytest.mark.parametrize(
    ("name", "named"), [(".venv", False), ("VIRTUAL_ENV", False), ("CONDA_PREFIX", False), ("--python", True)]
)
def test_only_what_an_option_names_is_run_whoever_owns_it(
    name: str, named: bool, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(venv, ANN, 0)
    environ = {name: str(venv)} if name.isupper() or "_" in name else {}
    place = environment.choose(str(venv) if named else None, str(venv.parent), environ)
    assert (place.objection == "", place.program is None) == (named, not named)


@pytest.mark.parametrize(
    ("cwd", "evidence", "taken", "may_run"),
    [
        ("project", ["elsewhere"], True, True),
        ("project", ["project"], False, True),
        ("project", ["project/train.log"], False, True),
        ("project", ["."], False, True),
        ("project/dumps", ["project/dumps"], True, False),
        ("project", ["project/dumps"], True, False),
        ("project/dumps", ["link"], False, True),
    ],
)
def test_no_environment_is_taken_from_the_folders_of_evidence(
    cwd: str, evidence: list[str], taken: bool, may_run: bool, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = venv.parents[1]
    (top / "project/dumps").mkdir()
    (top / "project/train.log").touch()
    (top / "elsewhere").mkdir()
    (top / "link").symlink_to("project")
    given = [str(top / path) for path in evidence]
    place = environment.choose(None, str(top / cwd), {}, given)
    assert (place.found_by == ".venv", place.objection == "") == (taken, may_run)
    assert environment.left_out(str(top / cwd), given) == (None if taken else str(venv))
