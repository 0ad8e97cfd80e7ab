import os
import tempfile
from pathlib import Path

import pytest

from support import made_images as make
from support.made_images import HARD, LINK, PIPE, Entry
from unhang.errors import UnhangError
from unhang.image import tree
from unhang.image.stream import Reader
from unhang.image.tree import PLAIN, File, Spool, Tree, of_archive, of_folder
from unhang.image.wanted import Wanted


def laid(folder: Path, *layers: list[Entry]) -> Tree:
    spool, found = Spool(tempfile.mkdtemp(dir=folder)), Tree()
    for layer in layers:
        found.lay(of_archive(Reader(iter([make.tar(*layer)])), Wanted(()), spool))
    return found


def shown(found: Tree) -> dict[str, object]:
    """Return what is in a tree: a file's bytes, None for one that is not read, where a link leads; no folders."""
    return {path: _shown(node) for path, node in found.everything() if not isinstance(node, dict)}


def _shown(node: object) -> object:
    return Path(node.copy).read_bytes() if isinstance(node, File) else None if node is PLAIN else node


def error(folder: Path, *layers: list[Entry]) -> str:
    with pytest.raises(UnhangError) as caught:
        laid(folder, *layers)
    return f"{caught.value.code}: {caught.value.message}"


def test_the_last_of_what_is_there_twice_counts_in_and_across_layers(tmp_path: Path) -> None:
    found = laid(tmp_path, [("verl/a.py", b"1"), ("x", b"")], [("verl/a.py", b"2"), ("./verl/a.py", b"3"), ("x", None)])
    assert shown(found) == {"verl/a.py": b"3"}


def test_a_whiteout_hides_what_is_below_and_nothing_of_its_own_layer(tmp_path: Path) -> None:
    below: list[Entry] = [("verl/a.py", b"1"), ("verl/b.py", b"1"), ("verl/s/c.py", b"1")]
    above: list[Entry] = [("verl/b.py", b"2"), ("verl/.wh.b.py", b""), ("verl/.wh.s", b""), ("verl/.wh.none", b"")]
    assert shown(laid(tmp_path, below, above)) == {"verl/a.py": b"1", "verl/b.py": b"2"}


def test_an_opaque_folder_hides_all_that_is_below(tmp_path: Path) -> None:
    below: list[Entry] = [("verl/a.py", b"1"), ("verl/s/c.py", b"1")]
    above: list[Entry] = [("verl/new.py", b"2"), ("verl/.wh..wh..opq", b""), ("verl/.wh..wh.plnk", b"")]
    assert shown(laid(tmp_path, below, above)) == {"verl/new.py": b"2"}


def test_a_layer_writes_through_the_links_of_lower_ones_but_never_out(tmp_path: Path) -> None:
    below: list[Entry] = [("usr/lib/x", b""), ("lib", (LINK, "usr/lib")), ("out", (LINK, "../../../usr/lib"))]
    found = laid(tmp_path, below, [("lib/verl/a.py", b"1")], [("out/verl/b.py", b"2")], [("lib/verl/.wh.a.py", b"")])
    assert shown(found)["usr/lib/verl/b.py"] == b"2"
    assert "usr/lib/verl/a.py" not in shown(found)


def test_a_hard_link_is_the_file_of_its_time(tmp_path: Path) -> None:
    files: list[Entry] = [("verl/a.py", b"1"), ("verl/b.py", (HARD, "verl/a.py")), ("verl/a.py", b"2")]
    assert shown(laid(tmp_path, files)) == {"verl/a.py": b"2", "verl/b.py": b"1"}
    assert shown(laid(tmp_path, [("verl/a.py", b"1")], [("x", (HARD, "/verl/a.py"))]))["x"] == b"1"


@pytest.mark.parametrize("target", ["none", "", "verl", "loop/x"])
def test_a_hard_link_to_nothing_is_an_error(target: str, tmp_path: Path) -> None:
    files: list[Entry] = [("verl/a.py", b""), ("loop", (LINK, "loop")), ("h", (HARD, target))]
    assert error(tmp_path, files).startswith("bad-image: a layer has 'h' as another name of")


def test_a_file_that_is_wanted_under_its_other_name_alone_is_named(tmp_path: Path) -> None:
    assert laid(tmp_path, [("store/1f", b"1"), ("verl/a.py", (HARD, "store/1f"))]).elsewhere == {
        "store/1f": "verl/a.py"
    }


def test_links_lead_at_the_most_to_the_top_and_loops_to_nothing(tmp_path: Path) -> None:
    loop: list[Entry] = [("a", (LINK, "b")), ("b", (LINK, "/a")), ("up", (LINK, "../../..")), ("verl/x.py", b"1")]
    found = laid(tmp_path, loop)
    assert (found.find("a"), found.find("a/x"), found.find("none/x")) == (None, None, None)
    assert found.find("up/verl/x.py") == found.find("verl/../verl/./x.py") == found.find("../../verl/x.py") is not None
    assert found.walk("../x", within="verl")[0] == ["x"]


def test_a_file_below_a_file_or_a_loop_is_an_error(tmp_path: Path) -> None:
    assert "in what is no folder" in error(tmp_path, [("a", b""), ("a/b", b"")])
    assert "in what is no folder" in error(tmp_path, [("a", (LINK, "a")), ("a/b", b"")])


def test_pipes_and_large_files_are_there_without_content(tmp_path: Path) -> None:
    found = laid(
        tmp_path, [("verl/p.py", (PIPE, "")), ("verl/big.py", bytes(17 << 20)), ("usr/bin/python3", b"\x7fELFxyz")]
    )
    assert found.find("verl/p.py") == File("")
    big, python = (found.find(name) for name in ("verl/big.py", "usr/bin/python3"))
    assert isinstance(big, File)
    assert (os.stat(big.copy).st_size, os.stat(big.copy).st_blocks) == (17 << 20, 0)
    assert isinstance(python, File)
    assert Path(python.copy).read_bytes() == b"\x7fELF\0\0\0"


@pytest.mark.parametrize(("limit", "value"), [("_ENTRIES", 3), ("_CHARACTERS", 9), ("_FILES", 1), ("_BYTES", 3)])
def test_there_is_an_end_to_what_is_read(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, limit, value)
    files: list[Entry] = [("verl/a.py", b"12"), ("verl/b.py", b"34"), ("c", b""), ("d", b"")]
    assert error(tmp_path, files).startswith("image-too-large: ")


def test_there_is_an_end_to_the_folders_that_nobody_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_ENTRIES", 5)
    assert error(tmp_path, [("a/b/c/d/e/f/g", b"")]) == "image-too-large: it has more than 5 folders"


def test_a_path_that_no_system_has_is_an_error(tmp_path: Path) -> None:
    assert "too long" in error(tmp_path, [("verl/" + "x" * 300 + ".py", b"")])
    assert "too long" in error(tmp_path, [("verl/" + "x/" * 300 + "a.py", b"")])


def test_an_unpacked_system_is_read_without_following_a_link(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "verl").mkdir(parents=True)
    (top / "verl/a.py").write_text("1")
    (top / "other").write_text("")
    (top / "link").symlink_to("/")
    os.mkfifo(top / "verl/p.py")
    (tmp_path / "files").mkdir()
    found = Tree()
    found.lay(of_folder(str(top), Wanted(()), Spool(str(tmp_path / "files"))))
    assert found.find("verl/p.py") == File("")
    assert {path: type(node) for path, node in found.top.items()} == {"verl": dict, "other": type(PLAIN), "link": str}
