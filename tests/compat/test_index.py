"""What is read of a package index: which releases, which wheel of each, and what contradicts a pin."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from support import fake_index
from support.fake_index import FakeIndex
from unhang.compat import index
from unhang.compat.index import Offer
from unhang.errors import UnhangError

pytest.importorskip("pypi_simple")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    with fake_index.serving(FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        monkeypatch.setattr(index, "_RETRIES", 0)
        yield served


def offers(project: str, floor: str = "0", pinned: dict[str, str] | None = None) -> list[Offer]:
    with index.client() as session:
        return index.offers(session, project, floor, pinned or {})


def test_all_releases_from_the_floor_on_in_the_order_of_pep_440(fake: FakeIndex) -> None:
    versions = "0.18.0 0.9.0 0.10.0 0.16.0rc0.dev9 0.16.0rc0.dev10 0.16.0 0.10.0rc1 0.10.0.post1"
    for version in versions.split():
        fake.add("megatron-core", version, yanked=version == "0.18.0")
    fake.pages["megatron-core"].append('<a href="mc-0.19.0.tar.gz#sha256=00">megatron_core-0.19.0.tar.gz</a>')
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
def test_one_wheel_stands_for_a_release(fake: FakeIndex, tags: list[str], chosen: str) -> None:
    for tag in tags:
        fake.add("megatron-core", "0.17.0", tag=tag)
    (offer,) = offers("megatron-core")
    assert offer.file == f"megatron_core-0.17.0-{chosen}.whl"
    fake.pages["megatron-core"].reverse()
    (again,) = offers("megatron-core")
    assert again[:6] == offer[:6], "whatever order the index gives"


def test_a_pinned_wheel_goes_on_standing_for_its_release(fake: FakeIndex) -> None:
    pin = fake.add("megatron-core", "0.17.0", tag="cp310-cp310-linux_aarch64")
    fake.add("megatron-core", "0.17.0", tag="cp312-cp312-linux_x86_64")
    (offer,) = offers("megatron-core", pinned={"0.17.0": pin})
    assert (offer.file, offer.python) == (pin, "3.10")


def test_a_file_that_changed_under_its_pin_is_an_error_by_name(fake: FakeIndex) -> None:
    name = fake.add("verl", "0.7.1")
    found = offers("verl")
    pin = {"project": "verl", "version": "0.7.1", "file": name, "sha256": found[0].sha256}
    index.hold_against([pin], found)
    with pytest.raises(UnhangError, match=f"{name} with sha256 {found[0].sha256}; .* pins 00") as told:
        index.hold_against([{**pin, "sha256": "00"}], found)
    assert told.value.code == "pin-changed"
    assert index.gone([pin, {**pin, "version": "0.7.2"}], found) == ["verl 0.7.2"]


def test_an_index_without_the_project_is_an_error(fake: FakeIndex) -> None:
    with pytest.raises(UnhangError, match="no answer about verl") as told:
        offers("verl")
    assert told.value.code == "index-failed"
    assert "UNHANG_INDEX" in (told.value.hint or "")


def test_an_index_that_does_not_answer_is_an_error(fake: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_index.serving(FakeIndex()) as gone:
        pass
    monkeypatch.setenv("UNHANG_INDEX", gone.url)
    with pytest.raises(UnhangError) as told:
        offers("verl")
    assert told.value.code == "index-failed"


def test_the_users_index_is_read_ours_first(fake: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.add("verl", "0.7.1")
    with fake_index.serving(FakeIndex()) as other:
        other.add("verl", "0.9.9")
        monkeypatch.setenv("PIP_INDEX_URL", other.url)
        assert [offer.version for offer in offers("verl")] == ["0.7.1"]
        monkeypatch.delenv("UNHANG_INDEX")
        assert [offer.version for offer in offers("verl")] == ["0.9.9"]


def test_without_the_client_library_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    with pytest.raises(UnhangError) as told, index.client():
        pass
    assert (told.value.code, told.value.hint) == ("no-index-client", "pip install pypi-simple")
