import os
from pathlib import Path

import pytest

from support import made_images as make
from support.made_images import HARD, LINK, Entry
from unhang.errors import UnhangError
from unhang.image.opened import Image, as_in, environments, opened, sites

SITE = make.SITE


def image(folder: Path, *files: Entry, env: tuple[str, ...] = make.VENV, **config: str) -> Image:
    path = make.saved(folder / "a.tar", [make.tar(*files)], env, **config)
    (folder / "work").mkdir()
    return opened(str(path), str(folder / "work"), ())


def prefixes(found: Image, python: str | None = None) -> list[str]:
    return [one.prefix.removeprefix(found.root) for one in environments(found, ["verl"], python)[0]]


def test_the_environments_of_a_job_come_first(tmp_path: Path) -> None:
    files = [*make.python(), *make.venv(), *make.venv("home/b"), *make.venv("home/a"), *make.python("opt/py", "3.11")]
    found = image(tmp_path, *files, env=("PATH=/opt/py/bin:/usr/local/bin", "VIRTUAL_ENV=/home/b"))
    assert prefixes(found) == ["/home/b", "/opt/py", "/usr/local", "/home/a", "/opt/venv"]
    assert prefixes(found, "/home/a") == prefixes(found, "/home/a/bin/python3") == ["/home/a"]
    with pytest.raises(UnhangError, match="no interpreter here in the image"):
        environments(found, [], "/home/c")


def test_an_interpreter_that_would_have_to_be_run_is_told(tmp_path: Path) -> None:
    found = image(tmp_path, *make.python(), *make.venv(), (f"{SITE}/odd.pth", b"import os; os.abort()\n"))
    assert [one.prefix.removeprefix(found.root) for one in environments(found, [], None)[0]] == ["/usr/local"]
    (why,) = environments(found, [], None)[1]
    assert f"{SITE}/odd.pth runs code when it starts" in why
    assert [site.removeprefix(found.root) for site in sites(found)] == [f"/{SITE}"]


def test_the_variables_of_the_image_take_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    before = dict(os.environ)
    passwd = ("etc/passwd", b"root:x:0:0::/root:/bin/sh\nme:x:7:7::/home/me:/bin/sh\n")
    found = image(tmp_path, passwd, env=("PYTHONPATH=/a:b:../../..",), WorkingDir="/w", User="7:7")
    with as_in(found):
        assert os.environ["PYTHONPATH"] == f"{found.root}/a:{found.root}/w/b:{found.root}/"
        assert os.environ["PYTHONUSERBASE"] == f"{found.root}/home/me/.local"
    assert dict(os.environ) == before
    assert found.cwd == f"{found.root}/w"


def test_code_under_another_name_is_read_in_a_second_pass(tmp_path: Path) -> None:
    files: list[Entry] = [
        ("store/1f", b"hard"), (f"{SITE}/verl/a.py", (HARD, "store/1f")),
        ("data/fork/b.py", b"link"), (f"{SITE}/swift", (LINK, "/data/fork")),
        ("data/far.py", b"far"), ("data/fork/c.py", (LINK, "../far.py")),
    ]  # fmt: skip
    found = image(tmp_path, *files)
    read = [Path(found.inside(f"/{SITE}/{name}")).read_text() for name in ("verl/a.py", "swift/b.py", "swift/c.py")]
    assert read == ["hard", "link", "far"]


def test_there_is_an_end_to_code_under_other_names(tmp_path: Path) -> None:
    many: list[Entry] = [*((f"l{number}/verl.py", (LINK, f"/x/{number}.py")) for number in range(101))]
    many += [(f"x/{number}.py", b"") for number in range(101)]
    with pytest.raises(UnhangError, match="more than 100 links") as caught:
        image(tmp_path, *many)
    assert caught.value.code == "bad-image"


def test_an_unpacked_root_file_system_is_an_image_without_a_config(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "usr/lib/python3/dist-packages/verl").mkdir(parents=True)
    (top / "usr/lib/python3/dist-packages/verl/a.py").write_text("1")
    (tmp_path / "work").mkdir()
    found = opened(str(top), str(tmp_path / "work"), ())
    assert [site.removeprefix(found.root) for site in sites(found)] == ["/usr/lib/python3/dist-packages"]
    assert (found.cwd, environments(found, [], None)) == (f"{found.root}/", ([], []))
