"""A clone that cannot give what the tests read is told in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import sources, wheels
from support.fake_clone import git, repository
from unhang.compat.sweep import as_written
from unhang.errors import UnhangError
from unhang.shapes import catalog

pytest.importorskip("git")


def no_repository(folder: Path) -> None:
    shutil.rmtree(folder / "objects")


@pytest.mark.parametrize(("damage", "why"), [(lambda _: None, "lacks"), (no_repository, "gives no refs/pull/")])
def test_a_bare_clone_without_a_config_file_that_lacks_the_pull_request(
    damage: Callable[[Path], None], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--mirror", str(repository(tmp_path / "origin")), str(folder))
    (folder / "config").unlink()
    damage(folder)
    for variable in wheels.CLONES.values():
        monkeypatch.setenv(variable, str(folder))
    with pytest.raises(UnhangError, match=why) as caught:
        sources.pull_request_diff.__wrapped__(as_written.pulls()[0])
    assert (str(folder) in caught.value.message, "\n" in caught.value.message) == (True, False)


def test_a_clone_that_lacks_a_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNHANG_MEGATRON_CLONE", str(repository(tmp_path / "origin")))
    target = next(to for to in catalog.fix("sft-packed-seq-broadcast").targets if to.upstream == "megatron-lm")
    with pytest.raises(pytest.fail.Exception, match=r"origin has no core_v9\.9") as caught:
        sources.Case("tree", target, "9.9").load()
    assert not caught.value.pytrace


def test_a_file_with_another_sha256_is_refused() -> None:
    with pytest.raises(wheels.WheelError, match="sha256"):
        wheels.verify(Path(__file__), "0" * 64)
