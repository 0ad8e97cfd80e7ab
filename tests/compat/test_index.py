"""What is read from a package index: which releases, which wheel of each, and what is in that wheel."""

from pathlib import Path

import pytest

from support import fake_index
from support.fake_index import FakeIndex
from unhang.compat import index
from unhang.compat.index import Offer
from unhang.errors import UnhangError


def offers(project: str, floor: str = "0", pinned: dict[str, str] | None = None) -> list[Offer]:
    with index.client() as session:
        return index.offers(session, project, floor, pinned or {})


def test_all_releases_from_the_floor_on_in_the_order_of_pep_440(served: FakeIndex) -> None:
    versions = "0.18.0 0.9.0 0.10.0 0.16.0rc0.dev9 0.16.0rc0.dev10 0.16.0 0.10.0rc1 0.10.0.post1"
    for version in versions.split():
        served.add("megatron-core", version, yanked=version == "0.18.0")
    served.pages["megatron-core"].append('<a href="mc-0.19.0.tar.gz#sha256=00">megatron_core-0.19.0.tar.gz</a>')
    found = offers("megatron-core", "0.10")
    wanted = ["0.10.0", "0.10.0.post1", "0.16.0rc0.dev9", "0.16.0rc0.dev10", "0.16.0", "0.18.0"]
    assert [offer.version for offer in found] == wanted
    assert [offer.version for offer in found if offer.yanked] == ["0.18.0"]
    assert {(offer.project, offer.python) for offer in found} == {("megatron-core", "3.12")}


@pytest.mark.parametrize(
    ("tags", "chosen"),
    [
        (["cp313-none-linux_x86_64", "cp310-none-linux_x86_64", "cp312-none-linux_x86_64"], "cp312-none-linux_x86_64"),
        (["cp311-none-linux_x86_64", "cp310-none-linux_x86_64", "cp39-none-linux_aarch64"], "cp310-none-linux_x86_64"),
        (["cp312-none-linux_aarch64", "cp310-none-linux_x86_64"], "cp310-none-linux_x86_64"),
        (["cp312-none-linux_aarch64", "cp310-none-linux_aarch64"], "cp312-none-linux_aarch64"),
        (["py2.py3-none-any"], "py2.py3-none-any"),
    ],
)
def test_one_wheel_stands_for_a_release(served: FakeIndex, tags: list[str], chosen: str) -> None:
    for tag in tags:
        served.add("megatron-core", "0.17.0", tag=tag)
    (offer,) = offers("megatron-core")
    assert offer.file == f"megatron_core-0.17.0-{chosen}.whl"
    served.pages["megatron-core"].reverse()
    (again,) = offers("megatron-core")
    assert again[:6] == offer[:6], "whatever order the index gives"


def test_a_pinned_wheel_goes_on_standing_for_its_release(served: FakeIndex) -> None:
    pin = served.add("megatron-core", "0.17.0", tag="cp310-cp310-linux_aarch64")
    served.add("megatron-core", "0.17.0", tag="cp312-cp312-linux_x86_64")
    (offer,) = offers("megatron-core", pinned={"0.17.0": pin})
    assert (offer.file, offer.python) == (pin, "3.10")


def test_an_index_without_the_project_or_an_answer_is_an_error(
    served: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (served.url, "http://127.0.0.1:9/simple/"):
        monkeypatch.setenv("UNHANG_INDEX", url)
        with pytest.raises(UnhangError, match="no answer about verl") as caught:
            offers("verl")
        assert caught.value.code == "index-failed"
        assert "UNHANG_INDEX" in (caught.value.hint or "")


def test_the_users_index_is_read_ours_first(served: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    served.add("verl", "0.7.1")
    with fake_index.serving(FakeIndex()) as other:
        other.add("verl", "0.9.9")
        monkeypatch.setenv("PIP_INDEX_URL", other.url)
        assert [offer.version for offer in offers("verl")] == ["0.7.1"]
        monkeypatch.delenv("UNHANG_INDEX")
        assert [offer.version for offer in offers("verl")] == ["0.9.9"]


def test_a_download_that_breaks_off_is_tried_again(served: FakeIndex, tmp_path: Path) -> None:
    name = served.add("verl", "0.7.2")
    served.cut[name] = 2
    (offer,) = offers("verl")
    with index.client() as client:
        index.download(client, offer, str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == served.wheels[name]
    assert served.asked.count(name) == 3


def test_the_files_of_a_wheel(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(fake_index.wheel({"a.py": "a", "megatron/training/b.py": "b"}))
    assert index.read_wheel(str(path), ["a.py", "c.py"]) == ({"a.py": b"a", "c.py": None}, ["megatron-lm"])
    path.write_bytes(fake_index.wheel({"megatron/core/training/b.py": "b"}))
    assert index.read_wheel(str(path), []) == ({}, [])
    path.write_bytes(
        fake_index.wheel({"a-1.data/purelib/": "", "a-1.data/purelib/a.py": "a", "a-1.data/scripts/b.py": "b"})
    )
    assert index.read_wheel(str(path), ["a.py", "b.py"]).files == {"a.py": b"a", "b.py": None}
    path.write_bytes(b"no zip")
    with pytest.raises(UnhangError, match=r"a\.whl cannot be read") as caught:
        index.read_wheel(str(path), [])
    assert caught.value.code == "fetch-failed"
