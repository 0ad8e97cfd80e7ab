"""Facts about contents: cached, and computed again once the code they depend on has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import cli
from support.checkout import REPOSITORY
from support.fake_index import AFFECTED, CLEAN
from unhang import codemods, judge, rewrite, shapes
from unhang.compat import sweep
from unhang.compat.sweep import as_written, learnt
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Learnt, UnreadableError
from unhang.compat.sweep.sources import content
from unhang.shapes import shape

FUNCTION = "MegatronEngine.forward_backward_batch"
# What the facts may import besides the packages that the digest covers: names and records only.
PLAIN = {"unhang", "unhang.compat", "unhang.compat.index", "unhang.compat.upstreams", "unhang.errors", "unhang.records"}
PLAIN |= {"unhang.tell", "unhang.tell.progress", "unhang.tell.terminal"}
PROGRAM = f"""
import pathlib, sys, tempfile
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.gather import targets
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.sources import content
from unhang.judge.decide import codemod
for target in targets():
    codemod(target)
found = content({AFFECTED.encode()!r})
target = next(target for target in targets() if target.fix == "expert-dp-warmup")
learnt = Learnt(Cache(pathlib.Path(tempfile.mkdtemp())))
state = learnt.state(found, target)
assert state.state == "affected", state
learnt.outline_patched(found, target, state.result)
assert learnt.patched(found, target, state.result)
print(*(name for name in sys.modules if name.split(".")[0] == "unhang"))
"""


@pytest.mark.parametrize("package", [shapes, judge, codemods, rewrite, sweep], ids=lambda package: package.__name__)
def test_changed_code_changes_the_digest(package: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = learnt.code_digest()
    (folder,) = package.__path__  # type: ignore[attr-defined]
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    monkeypatch.setattr(package, "__path__", [str(copy)])
    assert learnt.code_digest() == before
    with next(copy.rglob("*.py")).open("a") as file:
        file.write("# changed\n")
    changed = learnt.code_digest()
    (copy / "deeper").mkdir()
    (copy / "deeper" / "new.py").touch()
    assert len({before, changed, learnt.code_digest()}) == 3


def test_the_digest_covers_all_code_that_the_facts_depend_on() -> None:
    ran = cli.python("-c", PROGRAM, env={"PYTHONPATH": str(REPOSITORY / "src")})
    assert ran.code == 0, ran.err
    loaded = set(ran.out.split())
    assert {"unhang.codemods.expert_dp_warmup", "unhang.rewrite.one_file", "unhang.shapes.outline"} <= loaded
    assert {name for name in loaded if not name.startswith(learnt._PACKAGES)} <= PLAIN


def test_a_fact_is_computed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Learnt(Cache(tmp_path))
    known = first.shape(content(CLEAN.encode()), FUNCTION)
    assert known == shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])
    first.save()
    monkeypatch.setattr(shape, "parse", None)
    assert Learnt(Cache(tmp_path)).shape(content(CLEAN.encode()), FUNCTION) == known
    monkeypatch.setattr(learnt, "code_digest", lambda: "other code")
    with pytest.raises(TypeError):
        Learnt(Cache(tmp_path)).shape(content(CLEAN.encode()), FUNCTION)


def test_a_content_without_one_shape_is_unreadable(tmp_path: Path) -> None:
    for text, message in (CLEAN + "def (", "it does not parse"), (CLEAN + CLEAN, "is defined 2 times"):
        with pytest.raises(UnreadableError, match=message):
            Learnt(Cache(tmp_path)).shape(content(text.encode()), FUNCTION)
    assert Learnt(Cache(tmp_path)).shape(content(b"pass\n"), FUNCTION) is None


def test_a_changed_content_that_the_cache_lost_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_written, "applied", lambda diff, data: data.replace(b"0", diff.encode()))
    found = content(CLEAN.encode())
    first = Learnt(Cache(tmp_path))
    changed = first.as_written(found, "1")
    assert changed == content(CLEAN.replace("0", "1").encode())
    assert first.as_written(found, "(") is None, "it does not parse"
    first.save()
    shutil.rmtree(tmp_path / "contents")
    assert Learnt(Cache(tmp_path)).as_written(found, "1") == changed
