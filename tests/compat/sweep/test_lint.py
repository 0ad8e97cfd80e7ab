"""Lint: duplicate keys, a random sample of real wheels, and the command. The rules have tests of their own."""

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_index import CLEAN, ENGINE, FakeIndex
from unhang.compat import index, upstreams
from unhang.compat.sweep import lint, pins, sources
from unhang.compat.sweep.rules import Data, Problem
from unhang.shapes import catalog, shape

FOLDERS = [fix.folder for fix in catalog.fixes().values()]
MTP, FUNCTION = "mtp-cp-deadlock", "MegatronEngine.forward_backward_batch"


@pytest.fixture(scope="module")
def real() -> Data:
    return lint.read(sources.HERE, FOLDERS)[0]


def test_a_duplicate_key_is_found(tmp_path: Path) -> None:
    """The JSON parser would keep the last one, so no schema can see it."""
    shutil.copytree(sources.HERE, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "data" / f"{MTP}.json"
    path.write_text(path.read_text().replace('"verl 0.9.1": ', '"verl 0.9.0": '))
    _, problems = lint.read(tmp_path, FOLDERS)
    assert problems == [Problem(path.name, "verl 0.9.0", "is a duplicate key; keep one")]


def test_a_sample_has_one_of_each_upstream_and_is_the_same_for_a_seed() -> None:
    pinned = pins.read(sources.HERE)
    for seed in range(20):
        sample = lint.chosen(pinned, 6, seed)
        assert len({(pin["project"], pin["version"]) for pin in sample}) == 6
        assert {pin["project"] for pin in sample} == {*upstreams.projects()}
        assert sample == lint.chosen(pinned[::-1], 6, seed)
    assert lint.chosen(pinned, 6, 1) != lint.chosen(pinned, 6, 2)


def verified(served: FakeIndex, data: Data, shape: str) -> list[Problem]:
    """Verify a release whose wheel has `CLEAN`, if the data has this shape of it."""
    for known in data.facts.values():
        places = known["targets"].get("verl", ())
        known["releases"]["verl 0.9.1"] = [shape if name.startswith(ENGINE) else None for name in places]
    if not served.pages:
        served.add("verl", "0.9.1", {ENGINE: CLEAN})
    with index.client() as client:
        (offer,) = index.all_offers(client, {"verl": {"floor": "0.4"}})
    return list(lint.verify(data, [offer._asdict()]))


def test_a_release_or_a_state_that_is_not_what_the_data_says_is_found(served: FakeIndex, real: Data) -> None:
    known = shape.digest(shape.find(shape.parse(CLEAN.encode()), FUNCTION)[0])
    (problem,) = verified(served, copy.deepcopy(real), "0123")
    assert problem.entry.startswith("verl 0.9.1 ")
    assert f"its wheel has {known}, the data 0123" in problem.message
    for state, messages in {"not-affected": [], "fixed": ["is not-affected  by its wheel, fixed by the data"]}.items():
        data: Any = copy.deepcopy(real)
        data.facts[MTP]["shapes"][f"{FUNCTION} {known}"] = {"state": state}
        assert [problem.message.partition(";")[0] for problem in verified(served, data, known)] == messages


def test_a_release_that_the_index_lost_is_found(served: FakeIndex, real: Data) -> None:
    served.add("verl", "0.9.1", {ENGINE: CLEAN})
    pin = {"project": "verl", "version": "0.9.0", "file": "verl.whl", "sha256": "00"}
    assert list(lint.verify(real, [pin])) == [
        Problem("compat/wheels.json", "verl 0.9.0", "is not on the index any more")
    ]


def test_the_command_is_0_without_a_problem_and_1_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert lint.main(["--sample", "0"]) == 0
    assert capsys.readouterr().out.endswith(": no problem\n")
    fixes = [SimpleNamespace(folder=shutil.copytree(folder, tmp_path / Path(folder).name)) for folder in FOLDERS]
    path = tmp_path / MTP / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["as-written"][0]["function"] = "f"
    path.write_text(json.dumps(manifest))
    monkeypatch.setattr(catalog, "fixes", lambda: {str(fix.folder): fix for fix in fixes})
    assert lint.main(["--sample", "3"]) == 1, "and no wheel is fetched"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "patches/mtp-cp-deadlock/manifest.json: refs/pull/5895/head: changes no target of the fix; correct it"
    )
    assert lines[-1].startswith(f"1 problems in {len(FOLDERS)} fixes, ")
