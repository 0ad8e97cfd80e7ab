import os
import stat
import tempfile
from pathlib import Path

import pytest

from support import made_images as make
from support.made_images import DEVICE, LINK, Entry
from unhang.find import editable
from unhang.image.skeleton import Skeleton
from unhang.image.stream import Reader
from unhang.image.tree import Spool, Tree, of_archive
from unhang.image.wanted import Wanted

OUT = "../" * 30


def made(folder: Path, *files: Entry, workdir: str = "") -> Skeleton:
    wanted, tree = Wanted(()), Tree()
    tree.lay(of_archive(Reader(iter([make.tar(*files)])), wanted, Spool(tempfile.mkdtemp(dir=folder))))
    return Skeleton(tree, wanted, workdir)


def written(folder: Path, *files: Entry, workdir: str = "") -> Path:
    root = folder / "root"
    made(folder, *files, workdir=workdir).write(str(root))
    return root


def paths(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_only_what_is_read_is_written_and_links_that_lead_to_it(tmp_path: Path) -> None:
    root = written(
        tmp_path, ("data/env/lib/verl/a.py", b"1"), ("data/env/x.bin", b""), ("opt/env", (LINK, "/data/env")),
        ("opt/other", (LINK, "/data")), ("home/link", (LINK, "../opt")), ("var/none", (LINK, "/var/x")),
        ("a/b/lib-dynload", None), ("empty", None),
    )  # fmt: skip
    assert paths(root) == {"data/env/lib/verl/a.py", "opt/env", "opt/other", "home/link"}
    assert (root / "home/link/env/lib/verl/a.py").read_text() == "1"
    assert (root / "a/b/lib-dynload").is_dir()
    assert not (root / "empty").exists()


@pytest.mark.parametrize(
    "target", ["/verl", f"{OUT}verl", f"/x/{OUT}verl", "../verl", "s/../../verl", "/s/../verl/.", "/s/.."]
)
def test_no_link_leads_out_of_the_image(target: str, tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    files: list[Entry] = [
        ("verl/a.py", b"1"),
        ("d/s/verl/b.py", b""),
        ("s", (LINK, "d/s")),
        ("d/verl.py", (LINK, target)),
    ]
    root = written(tmp_path, *files)
    assert os.path.realpath(root / "d/verl.py").startswith(f"{root}/")
    text = os.readlink(root / "d/verl.py")
    assert ".." not in text.split("/")


@pytest.mark.parametrize("target", ["verl", "/verl", f"{OUT}etc/passwd", "/none/../etc/passwd", "/etc/../../none"])
def test_a_loop_and_a_link_to_nothing_lead_to_nothing(target: str, tmp_path: Path) -> None:
    root = written(tmp_path, ("verl", (LINK, target)))
    assert (root / "verl").is_symlink()
    assert not (root / "verl").exists()


def test_a_link_to_what_is_read_as_a_name_is_a_step_as_in_the_image(tmp_path: Path) -> None:
    root = written(tmp_path, *make.python(), *make.venv())
    assert os.readlink(root / "opt/venv/bin/python") == f"{root}/usr/local/bin/python3.12"
    assert os.readlink(root / "usr/local/bin/python") == "python3"


def test_the_home_of_an_environment_is_in_the_image(tmp_path: Path) -> None:
    root = written(tmp_path, *make.venv("a"), *make.venv("b", "../bin"), *make.venv("c", f"/{OUT}bin"))
    assert (root / "a/pyvenv.cfg").read_text().startswith(f"home = {root}/usr/local/bin\ninclude-")
    for other in "bc":
        assert (root / other / "pyvenv.cfg").read_text().startswith("include-")


def test_the_lines_of_a_pth_file_lead_into_the_image(tmp_path: Path) -> None:
    lines = f"# a\n/opt/a\nb\n{OUT}etc\n../c \nimport x\n"
    root = written(tmp_path, (f"{make.SITE}/a.pth", lines.encode()), (f"{make.SITE}/b.pth", "/é\n".encode()))
    below = f"{root}/opt/venv/lib/python3.12"
    expected = f"# a\n{root}/opt/a\n{root}/{make.SITE}/b\n{root}/etc\n{below}/c\nimport x\n"
    assert (root / make.SITE / "a.pth").read_text() == expected
    assert (root / make.SITE / "b.pth").read_text() == "\1\n"  # no reader takes it for a plain one


def finder(mapping: object, namespaces: object) -> bytes:
    """Return a finder as setuptools writes it, without its code, whose digest the test knows."""
    return (
        f"MAPPING: dict[str, str] = {mapping!r}\nNAMESPACES: dict = {namespaces!r}\nPATH_PLACEHOLDER = 'x'\n".encode()
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    code = hashlib.sha256(b"MAPPING\nNAMESPACES\nPATH_PLACEHOLDER\n").hexdigest()
    monkeypatch.setitem(editable._CODES, code, True)


@pytest.mark.usefixtures("known")
def test_the_places_of_a_finder_are_in_the_image(tmp_path: Path) -> None:
    text = finder({"verl": "/src/verl", "a": "rel"}, {"megatron": ["/src/../../megatron"]})
    root = written(tmp_path, ("__editable___verl_1_finder.py", text), workdir="w")
    found = editable.read((root / "__editable___verl_1_finder.py").read_text(), None)
    assert found is not None
    assert found.mapping == {"verl": f"{root}/src/verl", "a": f"{root}/w/rel"}
    assert found.namespaces["megatron"][0] == f"{root}/megatron"


@pytest.mark.usefixtures("known")
def test_code_under_another_name_is_named(tmp_path: Path) -> None:
    there = made(
        tmp_path, ("src/fork/a.py", b""), ("__editable___verl_1_finder.py", finder({"verl": "/src/fork"}, {})),
        ("x/core/b.py", b""), (f"{make.SITE}/megatron/core", (LINK, "/x/core")), ("x/c.py", b""),
        (f"{make.SITE}/verl/c.py", (LINK, "/x/c.py")), (f"{make.SITE}/swift", (LINK, "/opt/swift")),
        ("opt/swift", None),
    )  # fmt: skip
    assert there.elsewhere() == {
        "src/fork": "verl", "x/core": f"{make.SITE}/megatron/core", "x/c.py": f"{make.SITE}/verl/c.py",
    }  # fmt: skip


def test_a_finder_that_is_none_is_not_written_as_it_is(tmp_path: Path) -> None:
    root = written(tmp_path, ("__editable___verl_1_finder.py", b"MAPPING = {'verl': '/etc'}\n"))
    assert (root / "__editable___verl_1_finder.py").read_bytes() == b""


def test_devices_and_pipes_are_pipes(tmp_path: Path) -> None:
    root = written(tmp_path, ("verl/a.py", (DEVICE, "")), ("verl/b.pth", (DEVICE, "")))
    assert all(stat.S_ISFIFO(path.stat().st_mode) for path in (root / "verl").iterdir())


def test_nobody_else_may_look_and_nothing_is_executable(tmp_path: Path) -> None:
    root = written(tmp_path, *make.python())
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert not any(os.access(path, os.X_OK) for path in root.rglob("*") if path.is_file())
