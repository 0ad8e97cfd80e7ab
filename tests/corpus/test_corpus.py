"""The corpus: hangs of many kinds, each diagnosed from each kind of its evidence, and from all of it.

Each is diagnosed beside an environment that needs every fix: what tells a look-alike from a fix's own hang is where its
ranks are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from corpus import jobs, nvrx, pack, ranks
from support import needed
from unhang.diagnose import intake, known
from unhang.diagnose.fixes import Place
from unhang.diagnose.job import Told
from unhang.diagnose.known import Answer, Diagnosis

NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in jobs.HANGS and jobs.HANGS[name].world() > 64 else [])
    for name in sorted(pack.read()[1])
]
_NOT_RECORDED = "real-missing-send"  # gloo's recorder has neither send nor receive, so that only stacks show this one
_LACKS_STACK = "empty-expert-16"  # by their stacks, its ranks have gone on to another function
_EITHER = {"like-aux-between", "like-hybrid-small"}
"""Two fixes' defects leave these sizes, and the environment needs both."""


class Found(NamedTuple):
    """What is said of some of a job's evidence."""

    diagnosis: Diagnosis
    answers: tuple[Answer, ...]

    def known(self) -> set[str]:
        return {one.fix for one in self.answers if one.answer == "known"}


@cache
def packed() -> tuple[Mapping[str, Mapping[str, bytes]], Mapping[str, pack.Truth]]:
    """Return the files of each job, by path, and its truth."""
    files, truths = pack.read()
    return {
        name: {path: data for path, data in files.items() if path.startswith(f"{name}/")} for name in truths
    }, truths


def told(files: Mapping[str, bytes], folder: Path) -> dict[str, list[Told]]:
    """Return what the files of each kind of a job's evidence say, and of ``all``."""
    kinds: dict[str, list[Told]] = {}
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        kinds.setdefault(path.split("/")[1], []).append(intake.told_by(str(file)))
    return {**kinds, "all": [one for several in kinds.values() for one in several]}


def diagnoses(name: str, folder: Path) -> dict[str, Found]:
    """Return what is said of each kind of a job's evidence, and of ``all``."""
    source = needed.Lines(_class_of(name))
    return {kind: found(several, source) for kind, several in told(packed()[0][name], folder).items()}


def found(told: Iterable[Told], source: known.Source) -> Found:
    seen = known.diagnose(intake.merged([*told]))
    return Found(seen, known.answers(seen, needed.SIGNATURES, source, needed.NEEDED))


def _class_of(name: str) -> Callable[[Place], bool | None]:
    """Return what a line tells of a job that is played: whether a function is one that its ranks call."""
    if name not in jobs.HANGS:
        return lambda _: True
    hang = jobs.HANGS[name]
    ends = ranks.play(hang.world(), jobs.LAYOUTS[hang.layout].groups, hang.body)
    steps = [step for end in ends for step in (*(work.step for work in end.works), *([end.last] if end.last else []))]
    called = {place for step in steps for place in step.at}
    names = {place.rpartition(".")[2].rpartition(":")[2] for place in called}
    return lambda place: (
        f"{place.file}::{place.function}" in called if place.function.rpartition(".")[2] in names else None
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_hang_is_known_by_its_own_fix_alone_and_its_culprits_are_named(name: str, tmp_path: Path) -> None:
    truth = packed()[1][name]
    by_kind = diagnoses(name, tmp_path)
    whole = by_kind.pop("all")
    if truth.fix:
        assert truth.fix in whole.known()
        assert all(truth.fix in each.known() for kind, each in by_kind.items() if kind == "dumps")
        assert name == _LACKS_STACK or truth.fix in by_kind["stacks"].known()
        return
    assert bool(whole.known()) is (name in _EITHER)
    assert {*whole.diagnosis.who.why} == {*truth.culprits}
    for kind, each in by_kind.items():  # a part of the evidence may show nobody, and never somebody else
        is_shown = name != _NOT_RECORDED or kind == "stacks"
        assert not is_shown or {*each.diagnosis.who.why} <= {*truth.culprits}, (kind, each.diagnosis.who)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, truth in pack.read()[1].items() if not truth.fix])
def test_an_environment_only_adds_an_answer(name: str, tmp_path: Path) -> None:
    """Who is to be looked at is the same with an environment; what is known with one is possible without."""
    for each in diagnoses(name, tmp_path).values():
        bare = known.answers(each.diagnosis, needed.SIGNATURES, needed.Lines(), {})
        assert {one.answer for one in bare} <= {"possible"}
        assert {one.fix for one in each.answers} <= {one.fix for one in bare}


@nvrx.needs_clone
def test_the_faulty_ranks_of_real_dumps_are_named_and_no_fix(tmp_path: Path) -> None:
    for name, folder, culprits in nvrx.hangs(tmp_path):
        each = found((intake.told_by(str(file)) for file in folder.iterdir()), needed.Lines())
        assert (*each.diagnosis.who.why,) == culprits, name
        assert each.answers == (), name


def test_the_corpus_is_large_small_and_as_its_table_says() -> None:
    files, truths = pack.read()
    assert sum(not truth.fix for truth in truths.values()) >= 60
    assert Counter(name in truths for name in _EITHER | {_LACKS_STACK, _NOT_RECORDED}) == {True: 4}
    assert pack.ARCHIVE.stat().st_size < 2 << 20
    written = {name: truth for name, truth in truths.items() if not truth.recorded}
    assert written == {name: pack.truth(hang) for name, hang in jobs.HANGS.items()}
    for name in ("oom", "gil", "device-lost-fsdp", "like-moe-aux-stages"):  # the rest would take half a minute
        made = {f"{name}/{path}": data for path, data in pack.played(jobs.HANGS[name])}
        assert made == {path: data for path, data in files.items() if path.startswith(f"{name}/")}, name
