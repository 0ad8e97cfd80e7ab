"""Facts about contents: cached, and computed again once the code they depend on has changed."""

import os
import shutil
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from support import cli, fake_scenes
from support.checkout import REPOSITORY
from support.fake_index import AFFECTED, CLEAN
from unhang import codemods, judge, prove, rewrite, shapes
from unhang.compat.sweep import as_written, learnt, trees
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Kind, Learnt, UnreadableError
from unhang.compat.sweep.sources import content
from unhang.judge.rows import Row
from unhang.judge.scene import SceneError
from unhang.shapes import catalog, shape
from unhang.shapes.catalog import Target
from unhang.survey.classify import Run, State

FUNCTION = "MegatronEngine.forward_backward_batch"
MTP, WARMUP, EXPERTS = "mtp-cp-deadlock", "expert-dp-warmup", "empty-expert-hang"
ROW = Row(["a"], 1, 1, 0, 0, 0, [])
SHAPES, ROWS = {Kind()}, {Kind(fix, rows=True) for fix in catalog.fixes()}
EVERY = {Kind(fix) for fix in catalog.fixes()} | SHAPES | ROWS
# What the facts may import besides what the digests cover: names, records, and code that only fetches or lists.
PLAIN = {
    "unhang",
    "unhang.compat",
    "unhang.compat.index",
    "unhang.compat.upstreams",
    "unhang.plugins",
    "unhang.plugins.entry_points",
    "unhang.errors",
    "unhang.plugins.parameters",
    "unhang.gate",
    "unhang.plugins.packs",
    "unhang.records",
    "unhang.suggest",
}
PLAIN |= {"unhang.tell", "unhang.tell.progress", "unhang.tell.terminal", "unhang.compat.sweep", "unhang.find"}
PLAIN |= {f"unhang.find.{name}" for name in ("answers", "metadata", "overlays", "probe")}
PLAIN |= {"unhang.job", "unhang.job.strikes"}
PLAIN |= {*(f"unhang.compat.sweep.{name}" for name in ("cache", "clones", "pins", "sources"))}
PROGRAM = f"""
import pathlib, sys, tempfile
from support import fake_scenes
from unhang.compat.sweep import trees
from unhang.compat.sweep.cache import Cache
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.sources import content
from unhang.judge.decide import codemod
from unhang.rewrite.one_file import Step
from unhang.shapes import catalog
targets = [target for fix in catalog.fixes().values() for target in fix.targets]
for target in targets:
    codemod(target)
found = content({AFFECTED.encode()!r})
target = next(target for target in targets if target.fix == {WARMUP!r})
trees.run = fake_scenes.run
learnt = Learnt(Cache(pathlib.Path(tempfile.mkdtemp())))
state = learnt.state(found, target)
assert state.state == "affected", state
learnt.outline_patched(found, target, state.result)
assert learnt.patched(found, [Step(target, state.result)])
print(*(name for name in sys.modules if name.split(".")[0] == "unhang"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "module", "changed"),
    [
        (shapes, "shape", EVERY),
        (codemods, "base", EVERY - SHAPES - ROWS),
        (codemods, "mtp_cp_deadlock", {Kind(MTP)}),
        (codemods, "mtp_cp_deadlock/new", {Kind(MTP)}),
        (prove, "scene", EVERY - SHAPES),
        (prove, "fixes/expert_dp_warmup", {Kind(WARMUP), Kind(WARMUP, rows=True)}),
        (judge, "decide", EVERY - SHAPES - ROWS),
        (rewrite, "deeper/new", EVERY - SHAPES - ROWS),
    ],
)
def test_changed_code_changes_the_digests_of_what_depends_on_it(
    package: ModuleType, module: str, changed: set[Kind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(package.__path__[0], tmp_path / "copy"))
    monkeypatch.setattr(package, "__path__", [str(copy)])
    before = {kind: learnt.code_digest(kind) for kind in EVERY}
    path = copy / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("# changed\n")
    assert {kind for kind in EVERY if learnt.code_digest(kind) != before[kind]} == changed
    assert len({*before.values()}) == len(EVERY)


def test_the_digests_cover_all_code_that_the_facts_depend_on() -> None:
    path = f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests'}"
    ran = cli.python("-c", PROGRAM, env={"PYTHONPATH": path})
    assert ran.code == 0, ran.err
    loaded = set(ran.out.split())
    assert {"unhang.codemods.expert_dp_warmup", "unhang.rewrite.one_file", "unhang.shapes.outline"} <= loaded
    covered = (*learnt._OF_SHAPES, *learnt._OF_FIXES)
    assert {name for name in loaded if not name.startswith(covered)} <= PLAIN


def test_facts_outlive_a_change_of_another_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {kind: f"code of {kind}" for kind in EVERY}
    monkeypatch.setattr(learnt, "code_digest", codes.__getitem__)
    asked: list[str] = []

    def classified(data: bytes, target: Target, run: Run) -> State:
        asked.append(target.fix)
        return State("fixed", None, (), "", ROW)

    monkeypatch.setattr(learnt, "classify", classified)
    targets = {target.fix: target for fix in catalog.fixes().values() for target in fix.targets}

    def ask() -> list[str]:
        asked.clear()
        known = Learnt(Cache(tmp_path))
        states = [known.state(content(b""), targets[fix]) for fix in (MTP, WARMUP)]
        assert [state.row for state in states] == [ROW, ROW]
        known.save()
        return list(asked)

    assert ask() == [MTP, WARMUP]
    assert ask() == []
    codes[Kind(MTP)] = "changed"
    assert ask() == [MTP]
    assert ask() == []
    codes[Kind()] = "changed"
    assert ask() == []
    codes[Kind(MTP)] = f"code of {Kind(MTP)}"
    assert ask() == [], "the facts of the code before, which another checkout may have, are still there"


def test_a_changed_codemod_that_gives_the_same_text_runs_no_function_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Mock(wraps=fake_scenes.run)
    monkeypatch.setattr(trees, "run", runs)
    digests, changes = learnt.code_digest, [""]
    monkeypatch.setattr(learnt, "code_digest", lambda kind: f"{digests(kind)}{'' if kind.rows else changes[-1]}")
    target = next(target for target in catalog.fix(WARMUP).targets if target.upstream == "megatron-core")
    states = []
    for change in ("", "", "changed"):
        changes.append(change)
        known = Learnt(Cache(tmp_path))
        states.append(known.state(content(AFFECTED.encode()), target))
        known.save()
    assert {state.state for state in states} == {"affected"}
    assert len({str(state) for state in states}) == runs.call_count == 1


def test_facts_that_nobody_asked_about_for_long_are_dropped(tmp_path: Path) -> None:
    known = Learnt(Cache(tmp_path))
    known.shape(content(CLEAN.encode()), FUNCTION)
    known.save()
    (kept,) = (tmp_path / "learnt").iterdir()
    old, recent = kept.with_name("old.json"), kept.with_name("recent.json")
    for path in (old, recent):
        path.write_text("{}")
    for path in (kept, old):
        os.utime(path, (0, 0))
    again = Learnt(Cache(tmp_path))
    again.shape(content(CLEAN.encode()), FUNCTION)
    again.save()
    assert sorted((tmp_path / "learnt").iterdir()) == sorted([kept, recent])


def test_a_function_that_does_not_return_is_undecided_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target,) = catalog.fix(MTP).targets
    known = Learnt(Cache(tmp_path))
    monkeypatch.setattr(learnt, "classify", Mock(side_effect=SceneError("no answer within 1 s")))
    assert known.state(content(b""), target) == State("undecided", None, (), "no answer within 1 s")
    monkeypatch.setattr(learnt, "classify", lambda *_: State("fixed", None, (), ""))
    assert known.state(content(b""), target).state == "fixed"


def test_a_fact_is_computed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Learnt(Cache(tmp_path))
    known = first.shape(content(CLEAN.encode()), FUNCTION)
    assert known == shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])
    first.save()
    monkeypatch.setattr(shape, "parse", None)
    assert Learnt(Cache(tmp_path)).shape(content(CLEAN.encode()), FUNCTION) == known
    monkeypatch.setattr(learnt, "code_digest", lambda fix: "other code")
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
