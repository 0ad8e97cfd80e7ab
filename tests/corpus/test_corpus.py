"""The corpus: hangs of many kinds, each diagnosed from each kind of its evidence, and from all of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path

import pytest

from corpus import jobs, nvrx, pack
from hangs import inputs
from proofs import suite
from unhang.diagnose import diagnosis, intake, signature
from unhang.diagnose.answer import ANSWERS
from unhang.diagnose.diagnosis import Diagnosis
from unhang.diagnose.job import Told

_PAIRS = 4
"""So many pairs of sets are tried of each job; all of them with `UNHANG_PROOFS=all`."""
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in jobs.HANGS and jobs.HANGS[name].world() > 64 else [])
    for name in sorted(pack.read()[1])
]
_NOT_RECORDED = "real-missing-send"
"""gloo's recorder has neither send nor receive, so that only stacks show this one."""


@cache
def packed() -> tuple[Mapping[str, Mapping[str, bytes]], Mapping[str, pack.Truth]]:
    """Return the files of each job, by path, and its truth."""
    files, truths = pack.read()
    return {
        name: {path: data for path, data in files.items() if path.startswith(f"{name}/")} for name in truths
    }, truths


def diagnoses(name: str, folder: Path) -> dict[tuple[str, ...], Diagnosis]:
    """Return the diagnosis of each kind of a job's evidence, of each two kinds, and of all."""
    told = read(name, folder)
    sets = [kinds for number in (1, 2, 3) for kinds in combinations(sorted(told), number)]
    return {kinds: diagnosed(one for kind in kinds for one in told[kind]) for kinds in sets}


def read(name: str, folder: Path) -> dict[str, list[Told]]:
    """Return what each file of a job says, by its kind."""
    told: dict[str, list[Told]] = {}
    for path, data in packed()[0][name].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        told.setdefault(path.split("/")[1], []).append(intake.told_by(str(file)))
    return told


def diagnosed(told: Iterable[Told]) -> Diagnosis:
    return diagnosis.diagnose(intake.merged([*told]), signature.signatures())


@pytest.mark.parametrize("name", NAMES)
def test_a_hang_is_known_by_its_own_fix_alone_and_its_culprits_are_named(name: str, tmp_path: Path) -> None:
    truth = packed()[1][name]
    found = diagnoses(name, tmp_path)
    known = {one.fix for each in found.values() for one in each.answers if one.answer == "known"}
    assert known <= {truth.fix} - {""}
    whole = found[max(found, key=len)]
    if truth.fix:
        assert (whole.answers[0].answer, whole.answers[0].fix) == ("known", truth.fix)
        return
    assert {*whole.suspects.why} == {*truth.culprits}
    for kinds, each in found.items():  # a part of the evidence may show nobody, and never somebody else
        is_shown = name != _NOT_RECORDED or "stacks" in kinds
        assert not is_shown or {*each.suspects.why} <= {*truth.culprits}, (kinds, each.suspects)
    for smaller, larger in combinations(found, 2):
        if {*smaller} < {*larger}:
            best, better = (found[kinds].answers[0] for kinds in (smaller, larger))
            is_refuted = best.answer == "possible"  # what is added may contradict it
            assert is_refuted or ANSWERS.index(better.answer) <= ANSWERS.index(best.answer), (smaller, larger)


@pytest.mark.parametrize("name", NAMES)
def test_more_evidence_of_more_ranks_never_lowers_the_answer(name: str, tmp_path: Path) -> None:
    told = {(kind, number): one for kind, several in read(name, tmp_path).items() for number, one in enumerate(several)}
    pairs = [pair for pair in inputs.pairs(sorted(told)) if pair[0]]
    of_pieces = lru_cache(maxsize=1)(lambda pieces: diagnosed(told[piece] for piece in sorted(pieces)))
    for pair in pairs if suite.everything() else random.Random(name).sample(pairs, min(_PAIRS, len(pairs))):
        smaller, larger = diagnosed(told[piece] for piece in sorted(pair[0])), of_pieces(pair[1])
        best, better = smaller.answers[0], larger.answers[0]
        is_refuted = best.fix != packed()[1][name].fix  # what is added contradicts a fix that it is not
        # or it shows that a rank is late, of which nothing was known, not even that there is one
        is_refuted |= smaller.facts.job.size is None and bool({*larger.suspects.why} - smaller.facts.job.ranks.keys())
        # or a log says that a rank was in a collective, which its stack was taken too late to show
        is_refuted |= any(not call and larger.facts.calls.get(rank) for rank, call in smaller.facts.calls.items())
        assert is_refuted or ANSWERS.index(better.answer) <= ANSWERS.index(best.answer), pair
        assert is_refuted or best.answer != "known" or better.fix == best.fix, pair


@nvrx.needs_clone
def test_the_faulty_ranks_of_real_dumps_are_named_and_no_fix(tmp_path: Path) -> None:
    for name, folder, culprits in nvrx.hangs(tmp_path):
        found = diagnosed(intake.told_by(str(file)) for file in folder.iterdir())
        assert (*found.suspects.why,) == culprits, name
        assert {one.fix for one in found.answers} == {""}, name


def test_the_corpus_is_large_small_and_as_its_table_says() -> None:
    files, truths = pack.read()
    assert sum(not truth.fix for truth in truths.values()) >= 60
    assert pack.ARCHIVE.stat().st_size < 2 << 20
    written = {name: truth for name, truth in truths.items() if not truth.recorded}
    assert written == {name: pack.truth(hang) for name, hang in jobs.HANGS.items()}
    for name in ("oom", "gil", "device-lost-fsdp", "like-moe-aux-stages"):  # the rest would take half a minute
        made = {f"{name}/{path}": data for path, data in pack.played(jobs.HANGS[name])}
        assert made == {path: data for path, data in files.items() if path.startswith(f"{name}/")}, name
