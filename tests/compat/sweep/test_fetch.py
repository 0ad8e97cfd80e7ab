"""How wheels are fetched: several at once, verified, each only once."""

import threading
from pathlib import Path

import pytest

from support.fake_index import FakeIndex
from unhang.compat import index
from unhang.compat.sweep import fetch
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.sources import Release, content
from unhang.errors import UnhangError
from unhang.tell.progress import Step, silent


def fetched(served: FakeIndex, cache: Path, step: Step = silent) -> list[Release]:
    """Fetch what the index offers, as the sweep does."""
    wanted = {"megatron-core": ["a.py"], "megatron-lm": ["b.py"], "verl": ["a.py"]}
    with index.client(fetch.CONNECTIONS) as client:
        offered = [offer for project in served.pages for offer in index.offers(client, project, "0", {})]
        return fetch.releases(client, offered, wanted, Cache(cache), step=step)[0]


def test_a_wheel_of_megatron_core_may_be_two_releases(served: FakeIndex, tmp_path: Path) -> None:
    served.add("megatron-core", "0.16.0", {"a.py": "a"})
    served.add("megatron-core", "0.17.0", {"a.py": "a", "megatron/training/c.py": ""}, yanked=True)
    assert fetched(served, tmp_path) == [
        Release("megatron-core", "0.16.0", False, {"a.py": content(b"a")}),
        Release("megatron-core", "0.17.0", True, {"a.py": content(b"a")}),
        Release("megatron-lm", "0.17.0", True, {"b.py": None}),
    ]


def test_wheels_are_fetched_several_at_once_and_each_is_a_step(served: FakeIndex, tmp_path: Path) -> None:
    said: list[object] = []
    for minor in range(3):
        served.add("verl", f"0.{minor}")
    served.together = threading.Barrier(3)
    assert [release.version for release in fetched(served, tmp_path, said.append)] == ["0.0", "0.1", "0.2"]
    assert served.together.broken is False, "all three were under way at one time"
    assert said == [f"fetched {number} of 3 wheels" for number in (1, 2, 3)]


def test_what_was_fetched_before_a_failure_is_not_fetched_again(
    served: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "CONNECTIONS", 1)
    names = [served.add("verl", f"0.{minor}") for minor in range(4)]
    served.refused.add(names[1])
    with pytest.raises(UnhangError, match=f"{names[1]} cannot be downloaded") as caught:
        fetched(served, tmp_path)
    assert caught.value.code == "fetch-failed"
    assert names[0] in served.asked
    assert names[3] not in served.asked, "it stops at once"
    served.refused.clear()
    before = len(served.asked)
    assert len(fetched(served, tmp_path)) == 4
    assert names[0] not in served.asked[before:]


def test_nothing_of_a_wheel_with_another_digest_is_kept(served: FakeIndex, tmp_path: Path) -> None:
    name = served.add("verl", "0.7.2", sha256="0" * 64)
    with pytest.raises(UnhangError, match=f"{name} .* has sha256 [0-9a-f]+, and the index says 0000") as caught:
        fetched(served, tmp_path)
    assert caught.value.code == "wrong-digest"
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_is_opened_again_for_a_file_that_the_cache_lacks(served: FakeIndex, tmp_path: Path) -> None:
    served.add("verl", "0.7.0")
    cache = Cache(tmp_path)
    with index.client() as client:
        offered = index.offers(client, "verl", "0", {})
        for wanted, opened in (["a.py"], 1), (["a.py"], 0), (["b.py"], 1), (["a.py"], 0):
            (release,), count = fetch.releases(client, offered, {"verl": wanted}, cache)
            assert count == opened
        assert release.files == {"a.py": None}
