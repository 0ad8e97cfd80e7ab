"""An image is judged as the tree that it unpacks to."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support import cli
from support import made_images as make
from support.made_images import ENGINE, LINK, SITE, Entry

VERL = make.release("verl", "0.7.1")
CORE = make.release("megatron-core", "0.17.1")


def check(path: Path, *options: str) -> cli.Ran:
    return cli.called("check", "--image", path, "--output-format", "json", *options)


def results(document: Any, root: str = "") -> list[Any]:
    """Return what is said of each fix, with paths below a folder as those of an image, and without commands."""
    text = json.dumps([{**row, "hint": None} for row in document["results"]]).replace(root or "\0", "")
    found: list[Any] = json.loads(text)
    return found


def unpacked(folder: Path, *layers: bytes) -> Path:
    folder.mkdir()
    for layer in layers:
        (folder.parent / "layer.tar").write_bytes(layer)
        with tarfile.open(folder.parent / "layer.tar") as archive:
            archive.extractall(folder, filter="fully_trusted")
    return folder


@pytest.mark.parametrize(
    "what", ["applied", *(pytest.param(it, marks=pytest.mark.slow) for it in ("untouched", "edited", "gone"))]
)
def test_the_answers_are_those_for_the_unpacked_tree(what: str, tmp_path: Path) -> None:
    layers = [make.base(), make.tar(*VERL, *CORE)]
    tree = unpacked(tmp_path / "tree", *layers)
    if what == "applied":
        cli.applied("--target", tree / SITE, "--fix", "mtp-cp-deadlock")
        changed: list[Entry] = [
            (str(path.relative_to(tree)), path.read_bytes())
            for path in (tree / SITE).rglob("*")
            if path.is_file() and (".unhang" in path.parts or path.name == "RECORD" or str(path) == f"{tree}/{ENGINE}")
        ]
        layers.append(make.tar(*changed))
    elif what == "edited":
        old = (tree / ENGINE).read_bytes()
        new = old.replace(b"def forward_backward_batch(self,", b"def forward_backward_batch(self, more,")
        assert old != new
        (tree / ENGINE).write_bytes(new)
        layers.append(make.tar((ENGINE, new)))
    elif what == "gone":
        (tree / ENGINE).unlink()
        layers.append(make.tar((f"{ENGINE.rpartition('/')[0]}/.wh.{ENGINE.rpartition('/')[2]}", b"")))
    target = cli.called("check", "--target", tree / SITE, "--output-format", "json")
    for path in make.saved(tmp_path / "a.tar", layers), tree:
        ran = check(path)
        assert (ran.code, ran.json["digest"]) == (target.code, target.json["digest"])
        assert results(ran.json) == results(target.json, str(tree))
        assert ran.json["warnings"] == target.json["warnings"]
    assert str(tmp_path / "work") not in ran.out


def test_paths_are_those_of_the_image_and_so_are_the_commands(tmp_path: Path) -> None:
    ran = check(make.saved(tmp_path / "a.tar", [make.base(), make.tar(*VERL)]), "--fix", "mtp-cp-deadlock")
    assert ran.json["environment"] == {"python": None, "prefix": str(tmp_path / "a.tar"), "found_by": "--image"}
    (row,) = ran.json["results"]
    assert (row["location"], row["verdict"], row["hint"]) == (
        f"/{SITE}", "needed", "unhang apply --python /opt/venv/bin/python --fix mtp-cp-deadlock",
    )  # fmt: skip
    assert "unhang-image-" not in ran.out + ran.err


def stub(site: str, version: str = "0.7.1") -> list[Entry]:
    """Return a stand-in for verl, without its functions."""
    names = {"__init__.py": "", "protocol.py": "", "version/version": version}
    return [(f"{site}/verl/{name}", text.encode()) for name, text in names.items()]


def locations(ran: cli.Ran) -> list[str]:
    return list(dict.fromkeys(row["location"] for row in ran.json["results"]))


OTHER = "usr/lib/python3/dist-packages"


def test_all_site_packages_are_judged_and_those_of_the_job_first(tmp_path: Path) -> None:
    user = "home/me/.local/lib/python3.12/site-packages"
    files = [*make.python(), *make.venv(), *stub(SITE), *stub(OTHER, "0.6.0"), *stub(user), *stub("src/verl")]
    ran = check(make.saved(tmp_path / "a.tar", [make.tar(*files)], WorkingDir="/src/verl"))
    assert locations(ran) == [f"/{SITE}", f"/{user}", f"/{OTHER}"]
    assert "no environment of the image imports the copy in /src/verl, which is not judged" in " ".join(
        ran.json["warnings"]
    )
    assert locations(check(tmp_path / "a.tar", "--python", "/opt/venv")) == [f"/{SITE}"]
    assert locations(check(tmp_path / "a.tar", "--target", f"/{OTHER}")) == [f"/{OTHER}"]
    assert locations(check(tmp_path / "a.tar", "--source", ".")) == ["/src/verl"]


def test_pythonpath_pth_files_and_the_system_s_site_are_followed_inside_of_the_image(tmp_path: Path) -> None:
    settings = b"home = /usr/local/bin\ninclude-system-site-packages = true\nversion = 3.12.3\n"
    swift: list[Entry] = [
        (f"lib/swift/{name}", b"") for name in ("__init__.py", "version.py", "tuners/a.py", "trainers/a.py")
    ]
    files = [
        *make.python(), *make.venv(), ("opt/venv/pyvenv.cfg", settings), (f"{SITE}/a.pth", b"/code/link\n"),
        ("code/link", (LINK, "../data")), *stub("data"), *swift,
        *stub("usr/local/lib/python3.12/site-packages", "0.6.0"),
    ]  # fmt: skip
    path = make.saved(tmp_path / "a.tar", [make.tar(*files)], [*make.VENV, "PYTHONPATH=/lib"])
    assert locations(check(path)) == ["/code/link", "/lib", "/usr/local/lib/python3.12/site-packages"]


def test_nothing_of_this_machine_is_read(tmp_path: Path) -> None:
    """Each way that an image may name a path leads to one of its own."""
    site = cli.unpack_targets(tmp_path / "site", ("verl", "0.7.1"))
    up = "../" * 30
    files = [
        *make.python(), *make.venv(), (f"{SITE}/a.pth", f"{site}\n{up}{site}\n".encode()),
        (f"{SITE}/verl", (LINK, f"{site}/verl")), (f"{OTHER}/verl", (LINK, f"{up}{site}/verl")),
    ]  # fmt: skip
    env = [*make.VENV, f"PYTHONPATH={site}:{up}{site}", f"CONDA_PREFIX={site}"]
    ran = check(make.saved(tmp_path / "a.tar", [make.tar(*files)], env, WorkingDir=str(site)), "--allow-none")
    assert (ran.code, ran.json["results"]) == (0, [])


def test_nothing_of_the_image_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')\n".encode()
    program = b"#!/bin/sh\ntouch " + os.fsencode(mark) + b"\n"
    files = [
        *make.python(), ("usr/local/bin/python3.12", program), *make.venv(), *stub(SITE),
        (f"{SITE}/sitecustomize.py", code), (f"{SITE}/x.pth", b"import os; " + code),
        (f"{SITE}/verl/__init__.py", code),
    ]  # fmt: skip
    ran = check(make.saved(tmp_path / "a.tar", [make.tar(*files)]))
    assert (locations(ran), mark.exists()) == ([f"/{SITE}"], False)
    assert "only running it would tell what it imports" in " ".join(ran.json["warnings"])


def test_without_an_upstream_it_is_an_error_that_names_the_image(tmp_path: Path) -> None:
    path = make.saved(tmp_path / "a.tar", [make.base()])
    ran = check(path)
    assert (ran.code, ran.json["error"]["code"]) == (2, "no-upstream")
    assert str(path) in ran.json["error"]["message"]
    assert check(path, "--allow-none").code == 0
    assert check(tmp_path / "none.tar").json["error"]["code"] == "io"
