"""In which release's tree a function plays."""

import hashlib
from pathlib import Path

import pytest

from support import sources
from unhang.compat.sweep import pins, trees
from unhang.judge.rows import Source

HEAD = "fused-head-no-gradient"
_SUMS = "_allreduce_non_tensor_model_parallel_grads"


@pytest.fixture(autouse=True)
def _no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "unpacked", lambda project, version: Path(project, version))
    monkeypatch.setattr(trees, "_alike", lambda source, released: released[-1][1] == "4.6.0")


def where(source: sources.Source, text: str = "") -> tuple[str, str]:
    target, (folder,) = trees.closest(source.target.fix, Source(text or source.data.decode(), source.target.function))
    return target.file, str(folder)


def test_a_function_plays_in_the_newest_release_that_has_it() -> None:
    old, new = (sources.wheel("mean-metric-dtype", version) for version in ("3.8.0", "4.6.0"))
    assert where(old) == ("swift/metrics/utils.py", "ms-swift/4.4.1") or where(old)[1] < where(new)[1]
    assert where(new) == ("swift/metrics/utils.py", "ms-swift/4.6.0")
    assert where(sources.wheel("mean-metric-dtype", "3.7.3"))[0] == "swift/plugin/metric.py"


def test_an_unknown_one_plays_in_the_release_that_has_the_closest() -> None:
    new = sources.wheel("mean-metric-dtype", "4.6.0")
    edited = new.data.decode().replace("dist.all_reduce(", "print(1)\n            dist.all_reduce(", 1)
    assert where(new, edited) == where(new)
    other = "class MeanMetric:\n    def compute(self):\n        pass\n"
    assert where(new, other)[1].startswith("ms-swift/")


def test_an_unknown_one_with_the_feature_plays_where_it_may_be() -> None:
    old = sources.wheel("merged-lora-stale-sync", "0.7.0")
    head = "def get_per_tensor_param(self, layered_summon=False, base_sync_done=False):\n"
    edits = [f"{head}        print({word})\n" for word in ("1", "merged_lora_context")]
    found = [where(old, old.data.decode().replace(head, edit, 1))[1] for edit in edits]
    assert found == ["verl/0.7.0", "verl/0.9.1"], "0.7.0 cannot merge"


def test_of_several_files_it_plays_in_the_one_that_is_most_like_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(trees, "unpacked", lambda project, version: tmp_path)
    text = "class MeanMetric:\n    def compute(self):\n        pass\n"
    for file, more in ("swift/metrics/utils.py", "import a\n"), ("swift/plugin/metric.py", "import b\n"):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(more)
    for more, file in ("import a\n", "swift/metrics/utils.py"), ("import b\n", "swift/plugin/metric.py"):
        assert trees.closest("mean-metric-dtype", Source(more + text, "MeanMetric.compute"))[0].file == file


def test_a_function_that_depends_on_another_plays_beside_a_wrong_one() -> None:
    assert where(sources.wheel(HEAD, "0.9.1"))[1] == where(sources.wheel(HEAD, "0.4.0"))[1] == "verl/0.8.0"


def test_a_function_that_is_wrong_only_with_another_plays_beside_that() -> None:
    assert where(sources.wheel("gdn-out-norm-tp", "0.13.1", "megatron-core", _SUMS))[1] == "megatron-core/0.19.2"


def test_a_function_that_no_release_has_plays_where_its_file_is() -> None:
    name = "GatedDeltaNet._torch_compiled_gated_norm"
    text = "class GatedDeltaNet:\n    def _torch_compiled_gated_norm(self):\n        pass\n"
    target, (folder,) = trees.closest("gdn-out-norm-tp", Source(text, name))
    assert (target.file, str(folder)) == ("megatron/core/ssm/gated_delta_net.py", "megatron-core/0.18.2")
    assert target.function == name, "its own text is played, and not that of what the release has"
    with pytest.raises(trees.TreeError, match="no release has None"):
        trees.closest("gdn-out-norm-tp", Source(text, "None"))


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = {"project": "verl", "version": "1", "file": "verl.whl", "sha256": hashlib.sha256(b"a").hexdigest()}
    monkeypatch.setattr(pins, "read", lambda _: [pin])
    monkeypatch.setenv("UNHANG_WHEELS", str(tmp_path))
    trees.fetch.cache_clear()
    (tmp_path / "verl.whl").write_bytes(b"a")
    assert trees.fetch("verl", "1") == tmp_path / "verl.whl"
    trees.fetch.cache_clear()
    (tmp_path / "verl.whl").write_bytes(b"b")
    with pytest.raises(trees.TreeError, match=r"but compat/wheels\.json pins"):
        trees.fetch("verl", "1")
    with pytest.raises(trees.TreeError, match="pins no verl 2"):
        trees.fetch("verl", "2")
