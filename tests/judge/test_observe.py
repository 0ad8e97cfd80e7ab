"""What a target's file contains: each way that it cannot be judged, and a file on record that is not parsed."""

import hashlib
import os
from pathlib import Path

import pytest

from support import gates
from unhang.judge.observe import Observation, below_package, file_of, observe, observe_bytes, package_of
from unhang.records import Installation
from unhang.shapes.catalog import ShapeTable, Target


def look(root: Path) -> Observation:
    return observe(gates.installation(root), gates.RUN, ShapeTable({}, {}))


def test_a_file_is_read_with_its_real_path(tmp_path: Path) -> None:
    gates.lay_out(tmp_path)
    path, data, names = str(tmp_path / "verl/one.py"), gates.ONE.encode(), frozenset({"start", "wait", "run", "Loop"})
    sha256 = hashlib.sha256(data).hexdigest()
    wanted = Observation(path, data, sha256, gates.shape_of(gates.ONE), names=names, real=path)
    assert look(tmp_path) == wanted


def test_a_missing_file_is_not_a_problem(tmp_path: Path) -> None:
    nothing = Observation(str(tmp_path / "verl/one.py"), None)
    assert look(tmp_path) == nothing
    (tmp_path / "verl").write_text("a file instead of the package\n")
    assert look(tmp_path) == nothing


def test_what_is_no_file_of_the_package_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    path = tmp_path / "verl/one.py"
    os.mkfifo(path)
    assert look(tmp_path).problem == "not-a-file"
    path.unlink()
    path.mkdir()
    assert look(tmp_path).problem == "not-a-file"
    path.rmdir()
    path.touch()
    os.truncate(path, 16 * 1024 * 1024 + 1)
    assert look(tmp_path).problem == "too-large"
    path.unlink()
    for special in ("/dev/zero", tmp_path / "pipe", tmp_path / "gone"):
        if special == tmp_path / "pipe":
            os.mkfifo(special)
        path.symlink_to(special)
        assert look(tmp_path).problem == "not-a-file"
        path.unlink()


@pytest.mark.parametrize("text", ["../verl-of-another.py", "{top}/verl-of-another.py", "{top}/chain.py"])
def test_a_link_that_leads_out_of_the_package_is_judged_by_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl-of-another.py").write_text(gates.ONE)
    (tmp_path / "chain.py").symlink_to("verl-of-another.py")
    (tmp_path / "verl/one.py").symlink_to(text.format(top=tmp_path))
    seen = look(tmp_path)
    assert (seen.problem, seen.shape) == (None, gates.shape_of(gates.ONE))
    assert (seen.real, seen.link) == (str(tmp_path / "verl/one.py"), str(tmp_path / "verl-of-another.py"))


def test_a_link_below_a_linked_folder_goes_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/moved.py").write_text(gates.ONE)
    (tmp_path / "shared/one.py").symlink_to("moved.py")
    (tmp_path / "verl").symlink_to("shared")
    seen = look(tmp_path)
    assert (seen.real, seen.link) == (str(tmp_path / "shared/moved.py"), "")


@pytest.mark.parametrize(("theirs", "problem"), [(1234, "outside"), (4321, None), (0, None)])
def test_a_link_into_another_users_files_is_not_read(tmp_path: Path, theirs: int, problem: str | None) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    (tmp_path / "site/verl").mkdir(parents=True)
    os.chown(tmp_path / "site", 4321, 4321)
    (tmp_path / "theirs.py").write_text(gates.ONE)
    os.chown(tmp_path / "theirs.py", theirs, theirs)
    for place, text in ((tmp_path / "site/verl/one.py", tmp_path / "theirs.py"), (tmp_path / "site/verl", "../theirs")):
        if place.name == "verl":  # the package itself is the link
            (tmp_path / "site/verl").rename(tmp_path / "theirs")
            (tmp_path / "theirs/one.py").unlink()
            (tmp_path / "theirs.py").rename(tmp_path / "theirs/one.py")
        place.symlink_to(text)
        found = gates.installation(tmp_path / "site")
        found = found._replace(package_dir=os.path.realpath(found.package_dir))  # as the search has it
        seen = observe(found, gates.RUN, ShapeTable({}, {}))
        assert (seen.problem, bool(seen.data)) == (problem, problem is None)
        assert problem is None or "which user 1234 owns" in seen.detail


def test_a_link_inside_the_package_and_a_linked_package_are_followed(tmp_path: Path) -> None:
    gates.lay_out(tmp_path / "checkout", {"verl/moved.py": gates.ONE})
    (tmp_path / "checkout/verl/one.py").symlink_to("moved.py")
    (tmp_path / "verl").symlink_to(tmp_path / "checkout/verl")
    seen = look(tmp_path)
    assert (seen.problem, seen.shape) == (None, gates.shape_of(gates.ONE))
    assert (seen.path, seen.real) == (str(tmp_path / "verl/one.py"), str(tmp_path / "checkout/verl/moved.py"))


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"def run(:\n", "line 1: "),
        (b"def run(): pass\n\0", "null bytes"),
        (b"# coding: none-such\ndef run(): pass\n", "none-such"),
        (b"def run(): pass\nx = " + b"(" * 5000 + b")" * 5000, ""),
        (b"def run(): return " + b"-" * 2000 + b"1", ""),
        (b"def run(): return a" + b".b" * 2000, ""),
    ],
)
def test_a_file_that_does_not_parse(data: bytes, detail: str) -> None:
    seen = observe_bytes("x.py", data, "run", {})
    assert (seen.problem, seen.shape, seen.names) == ("does-not-parse", None, None)
    assert detail in seen.detail
    assert (seen.path, seen.data) == ("x.py", data)


def test_a_function_that_is_defined_twice_names_its_lines() -> None:
    seen = observe_bytes("x.py", b"import a\ndef run(): pass\n\ndef run(): pass\n", "run", {})
    assert (seen.problem, seen.detail, seen.shape) == ("defined-twice", "on lines 2, 4", None)
    assert seen.names == frozenset({"a", "run"})


@pytest.mark.parametrize(("data", "names"), [(b"import a\n", None), (b"import a  # def run\n", {"a"})])
def test_a_file_without_the_function_is_parsed_only_if_it_may_define_it(data: bytes, names: set[str] | None) -> None:
    seen = observe_bytes("x.py", data, "run", {})
    assert (seen.shape, seen.problem, seen.names) == (None, None, names)


@pytest.mark.parametrize(
    ("below", "problem", "where"),
    [("run = wait(run)\n", "rebound", "on line 2"), ("wait()\n\nwait()\n", "rebound-unknown", "on lines 2, 4")],
)
def test_a_name_that_is_bound_again_names_its_lines(below: str, problem: str, where: str) -> None:
    data = b"def run(): pass\n" + below.encode()
    seen = observe_bytes("x.py", data, "run", {})
    assert (seen.problem, seen.detail, seen.shape) == (problem, where, None)
    on_record = {hashlib.sha256(data).hexdigest(): {"run": "0123"}}
    assert observe_bytes("x.py", data, "run", on_record).problem is None, "then it is known, and not parsed"


def test_a_file_on_record_is_not_parsed() -> None:
    data = b"this does not parse: def run("
    files = {hashlib.sha256(data).hexdigest(): {"run": "0123", "gone": None}}
    seen = observe_bytes("x.py", data, "run", files)
    assert (seen.shape, seen.on_record, seen.problem, seen.names) == ("0123", True, None, None)
    assert observe_bytes("x.py", data, "gone", files)[3:5] == (None, True)
    assert observe_bytes("x.py", data, "Other.run", files).problem == "does-not-parse"


def test_where_a_package_keeps_a_file() -> None:
    core = Installation("megatron-core", None, "/site", "/elsewhere", "/elsewhere/core", "editable", None, ())
    assert file_of(core, "megatron/core/models/gpt.py") == "/elsewhere/core/models/gpt.py"
    assert file_of(gates.installation(Path("/site")), "verl/one.py") == "/site/verl/one.py"
    assert below_package("megatron-lm", "megatron/training/utils.py") == ["utils.py"]
    assert below_package("ms-swift", "swift/megatron/init.py") == ["megatron", "init.py"]
    assert package_of(Target("gate", "megatron-lm", "megatron/training/utils.py", "run")) == ["megatron", "training"]
    assert package_of(gates.RUN) == ["verl"]
