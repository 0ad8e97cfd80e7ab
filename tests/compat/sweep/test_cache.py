"""The cache of what was fetched."""

from pathlib import Path

import pytest

from unhang.compat.sweep.cache import Cache, CachedWheel, default_folder
from unhang.compat.sweep.sources import content

WHEEL = CachedWheel({"a.py": content(b"a"), "b.py": None}, ["a"])


def test_a_wheel_is_read_back_by_another_run(tmp_path: Path) -> None:
    Cache(tmp_path).keep_wheel("11", WHEEL)
    assert Cache(tmp_path).wheel("11", ["a.py", "b.py"]) == WHEEL
    assert Cache(tmp_path).wheel("11", ["b.py"]) == ({"b.py": None}, ["a"])
    assert Cache(tmp_path).wheel("11", ["c.py"]) is None, "nobody looked for that file"
    assert Cache(tmp_path).wheel("22", ["a.py"]) is None
    Cache(tmp_path).keep_wheel("11", CachedWheel({"c.py": None}, ["a"]))
    assert Cache(tmp_path).wheel("11", ["a.py", "c.py"]) == ({"a.py": content(b"a"), "c.py": None}, ["a"])


@pytest.mark.parametrize("damage", ["content", "no content", "listing"])
def test_what_is_damaged_is_not_there(tmp_path: Path, damage: str) -> None:
    Cache(tmp_path).keep_wheel("11", WHEEL)
    path = tmp_path / "contents" / content(b"a").sha256
    if damage == "listing":
        path = tmp_path / "wheels" / "11.json"
    path.unlink() if damage == "no content" else path.write_bytes(b"damaged")
    assert Cache(tmp_path).wheel("11", ["a.py"]) is None
    Cache(tmp_path).keep_wheel("11", WHEEL)
    assert Cache(tmp_path).wheel("11", ["a.py"]) == ({"a.py": content(b"a")}, ["a"])


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.write("a.json", 1)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        cache.write("a.json", 2)
    assert cache.read("a.json") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_folder() == Path("/cache/unhang/sweep")
