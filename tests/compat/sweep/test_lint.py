"""The lint of the matrix: clean as it is, and each kind of problem found in a copy that has it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import fake_index
from unhang.compat import index
from unhang.compat.sweep import lint, rules, sources
from unhang.compat.sweep.schema import Data, Problem
from unhang.shapes import catalog

HERE = Path(sources.HERE)
FOLDERS = [fix.folder for fix in catalog.fixes().values()]
MTP, SFT, EXPERTS = "mtp-cp-deadlock", "sft-packed-seq-broadcast", "empty-expert-hang"


@pytest.fixture(scope="module")
def real() -> Data:
    data, problems = lint.read(HERE, FOLDERS)
    assert problems == []
    return data


def affected(data: Any, fix: str = MTP) -> Any:
    return next(row for row in data.shapes if row["fix"] == fix and row["state"] == "affected")


def newest(data: Any) -> Any:
    return data.releases["verl"]["versions"]["0.9.1"]


def test_the_matrix_is_clean(real: Data) -> None:
    assert lint.lint(real) == []


# What is done to a copy, and what is then said: a part of the message.
BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "unknown key of a shape": (lambda data: affected(data).update(stat="x"), "'stat' is a key that nothing reads"),
    "unknown key of a manifest": (lambda data: data.manifests[MTP].update(affect={}), "'affect' is a key that nothing"),
    "unknown key of a release": (lambda data: newest(data).update(yank=True), "'yank' is a key that nothing reads"),
    "missing key of a pin": (lambda data: data.wheels["verl"][0].pop("sha256"), "'sha256' is missing"),
    "unknown key of a decision": (lambda data: data.decisions[0].update(who="me"), "'who' is a key that nothing reads"),
    "shape twice": (lambda data: data.shapes.append(affected(data)), "stands there 2 times"),
    "shape and result": (
        lambda data: data.shapes.append({**affected(data), "shape": affected(data)["result"]}),
        "the result of a rewrite of ours",
    ),
    "decided twice": (lambda data: data.decisions.append(data.decisions[0]), "is decided 2 times"),
    "affects and fixed-in": (
        lambda data: data.manifests[MTP]["affects"].update(verl=">= 0.7.1, <= 0.8.0"),
        "`affects` and `fixed-in` both cover verl 0.8.0.dev0",
    ),
    "fix of no manifest": (lambda data: affected(data).update(fix="fifth-fix"), "is of no target in any manifest"),
    "target without a shape": (
        lambda data: data.shapes.__setitem__(slice(None), [row for row in data.shapes if row["fix"] != MTP]),
        "no shape of it is on record",
    ),
    "decision of no shape": (lambda data: data.decisions[0].update(shape="0" * 16), "no shape on record is"),
    "superseded from nowhere": (
        lambda data: data.superseded.append({"fix": MTP, "function": "f", "shape": "1", "pristine": "2"}),
        "2 is no affected shape on record",
    ),
    "upstream of no name": (lambda data: data.manifests[MTP]["affects"].update(sglang="> 1"), "is no upstream"),
    "folder and id": (lambda data: data.manifests[MTP].update(id="mtp"), "is mtp, and its folder mtp-cp-deadlock"),
    "bad specifier": (lambda data: data.manifests[MTP]["affects"].update(verl="about 0.7"), "no PEP 440 specifier"),
    "bad version": (lambda data: data.manifests[MTP]["fixed-in"].update(verl="soon"), "'soon' is no version"),
    "bad floor": (lambda data: data.upstreams["verl"].update(floor="low"), "'low' is no version"),
    "bad release": (lambda data: data.releases["verl"]["versions"].update(new=newest(data)), "is no PEP 440 version"),
    "unknown state": (lambda data: affected(data).update(state="needed"), "'needed' is no state"),
    "no result": (lambda data: affected(data).pop("result"), "affected goes with result and names"),
    "no names": (lambda data: affected(data).pop("names"), "affected goes with result and names"),
    "not seen anywhere": (
        lambda data: [row.pop("first", None) or row.pop("note", None) for row in data.shapes],
        "does not say where it was seen",
    ),
    "targets of another order": (
        lambda data: data.releases["megatron-core"]["targets"].reverse(),
        "its targets are not those of the manifests",
    ),
    "release without a shape": (lambda data: newest(data)["shapes"].clear(), "has not one shape for each target"),
    "release without a verdict": (lambda data: newest(data)["shapes"].__setitem__(0, "0" * 16), "of which no verdict"),
    "digest that leads nowhere": (
        lambda data: data.files.__setitem__("ab" * 32, {"f": "0" * 16}),
        "f 0000000000000000 is not on record",
    ),
    "shape without an outline": (lambda data: data.outlines.pop(), "no outline of it is there"),
    "outline without a shape": (
        lambda data: data.outlines.append({"function": "f", "shape": "1", "outline": "2"}),
        "it is not on record",
    ),
    "release without a pin": (lambda data: data.wheels["verl"].pop(), "is missing"),
    "pin without a release": (lambda data: data.releases["verl"]["versions"].pop("0.9.1"), "is missing"),
    "two pins": (lambda data: data.wheels["verl"].append(data.wheels["verl"][0]), "pins two wheels of one version"),
    "claims too little": (
        lambda data: data.manifests[EXPERTS]["affects"].update({"megatron-core": ">= 0.10.0, < 0.19.2"}),
        "0.19.2 needs it, and `affects` says otherwise",
    ),
    "claims too much": (
        lambda data: data.manifests[SFT]["affects"].update({"megatron-lm": ">= 0.15.3, < 0.18.0"}),
        "0.15.3 does not need it, and `affects` says otherwise",
    ),
    "fixed later than it was": (
        lambda data: data.manifests[MTP]["fixed-in"].update(verl="0.9.0"),
        "0.8.0.dev0 has upstream's own fix already",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_problem_is_found(real: Data, name: str) -> None:
    change, message = BROKEN[name]
    data = copy.deepcopy(real)
    change(data)
    found = lint.lint(data)
    assert [problem for problem in found if message in problem.message], found[:3]
    assert all(problem.file and problem.entry for problem in found)


def test_every_rule_is_shown_to_find_something(real: Data) -> None:
    idle = set(rules.RULES)
    for change, _ in BROKEN.values():
        data = copy.deepcopy(real)
        change(data)
        idle -= {rule for rule in rules.RULES if rule in idle and _finds(rule, data)}
    assert idle == set()


def _finds(rule: Any, data: Data) -> bool:
    try:
        return bool(list(rule(data)))
    except (KeyError, ValueError):  # what an earlier rule has found
        return False


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"0.9.1": {', '"0.9.0": {', "stands there twice"),
        ('{"schema": 1, ', '{"schema": 1, "more": 2, ', "'more' is a key that nothing reads"),
        ('{"schema": 1, ', '{"schema": 2, ', "is 2, and this reads 1"),
    ],
)
def test_a_file_that_is_wrong_as_such(old: str, new: str, message: str, tmp_path: Path) -> None:
    """json alone would take the last of two equal keys, and say nothing."""
    shutil.copytree(HERE / "data", tmp_path / "data")
    for path in HERE.glob("*.json"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "data" / "releases.json"
    path.write_text(path.read_text().replace(old, new))
    _, problems = lint.read(tmp_path, FOLDERS)
    assert [message in problem.message for problem in problems] == [True]


# -- the sample -------------------------------------------------------------------------------------------------------


def test_a_sample_has_one_of_each_upstream_and_is_the_same_for_a_seed() -> None:
    pins = sources.pins()
    for seed in range(20):
        sample = lint.chosen(pins, 6, seed)
        assert len({(pin["project"], pin["version"]) for pin in sample}) == 6
        assert {pin["project"] for pin in sample} == {"megatron-core", "verl", "ms-swift"}
        assert sample == lint.chosen(pins[::-1], 6, seed)
    assert lint.chosen(pins, 6, 1) != lint.chosen(pins, 6, 2)


ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
CLEAN = "class MegatronEngine:\n    def forward_backward_batch(self):\n        return 1\n"


def verified(monkeypatch: pytest.MonkeyPatch, real: Data, *, shape: str | None, **row: Any) -> list[Problem]:
    """What is said of a made-up release whose wheel has `CLEAN`, where the data says this shape, and this of it."""
    pytest.importorskip("pypi_simple")
    data = copy.deepcopy(real)
    data.releases["verl"]["versions"]["0.9.1"]["shapes"][0] = shape
    for told in data.shapes:
        if (told["fix"], told["shape"]) == (MTP, shape):
            told.update(row)  # type: ignore[attr-defined]
    monkeypatch.delenv("UNHANG_WHEELS", raising=False)
    monkeypatch.setattr(index, "_RETRIES", 0)
    with fake_index.serving(fake_index.FakeIndex()) as served:
        monkeypatch.setenv("UNHANG_INDEX", served.url)
        served.add("verl", "0.9.1", {ENGINE: CLEAN})
        with index.client() as session:
            (offer,) = index.all_offers(session, {"verl": {"floor": "0.4"}}, [])
        return list(lint.verify(data, [offer._asdict()]))


def known_shape(real: Data) -> str:
    from unhang.shapes import shape

    (function,) = shape.find(shape.parse(CLEAN.encode()), "MegatronEngine.forward_backward_batch")
    return shape.digest(function)


def test_a_release_that_is_not_what_the_data_says_is_found(monkeypatch: pytest.MonkeyPatch, real: Data) -> None:
    (problem,) = verified(monkeypatch, real, shape=newest(real)["shapes"][0])
    assert problem.entry.startswith("verl 0.9.1 ")
    assert f"its wheel has {known_shape(real)}, the data " in problem.message


def test_a_state_that_is_not_what_the_data_says_is_found(monkeypatch: pytest.MonkeyPatch, real: Data) -> None:
    row = {"fix": MTP, "function": "MegatronEngine.forward_backward_batch", "shape": known_shape(real)}
    for state, problems in (("not-affected", 0), ("fixed", 1)):
        data = copy.deepcopy(real)
        data.shapes.append({**row, "state": state, "first": "here"})  # type: ignore[attr-defined]
        found = verified(monkeypatch, data, shape=known_shape(real))
        assert len(found) == problems, found
    assert "is not-affected  by its wheel, fixed by the data" in found[0].message


def test_the_command_is_0_where_all_holds_and_1_where_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert lint.main(["--sample", "0"]) == 0
    assert capsys.readouterr().out.endswith(": all holds\n")
    fixes = [SimpleNamespace(folder=shutil.copytree(folder, tmp_path / Path(folder).name)) for folder in FOLDERS]
    path = tmp_path / MTP / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "affects": {"verl": "== 0.7.0"}}))
    monkeypatch.setattr(catalog, "fixes", lambda: {str(fix.folder): fix for fix in fixes})
    assert lint.main(["--sample", "3"]) == 1, "and no wheel is fetched"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "patches/mtp-cp-deadlock/manifest.json: affects verl: 0.7.0 does not need it, and `affects` says otherwise"
    )
    assert said[-1].startswith("2 problems in 4 fixes, ")
