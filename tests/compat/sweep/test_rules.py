"""The rules of the matrix: the committed data satisfies them, and each kind of problem is found in a broken copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from unhang.compat.sweep import lint, rules, sources
from unhang.compat.sweep.rules import Data
from unhang.shapes import catalog

MTP, SFT, EXPERTS = "mtp-cp-deadlock", "sft-packed-seq-broadcast", "empty-expert-hang"
BATCHES = "fsdp-dynamic-bsz"


@pytest.fixture(scope="module")
def real() -> Data:
    data, problems = lint.read(sources.HERE, [fix.folder for fix in catalog.fixes().values()])
    assert problems == []
    return data


def affected(data: Any, fix: str = MTP) -> Any:
    return next(row for row in data.shapes if row["fix"] == fix and row["state"] == "affected")


def newest(data: Any) -> Any:
    return data.releases["verl"]["versions"]["0.9.1"]


def test_the_matrix_is_clean(real: Data) -> None:
    assert lint.lint(real) == []
    assert len(real.files) > 100
    assert (sources.load("decisions"), sources.load("superseded")) == (real.decisions, real.superseded)


# What is done to a copy, and a part of the message.
BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "shape twice": (lambda data: data.shapes.append(affected(data)), "is listed 2 times"),
    "shape and result": (
        lambda data: data.shapes.append({**affected(data), "shape": affected(data)["result"]}),
        "is affected, but the result of our rewrite",
    ),
    "decided twice": (lambda data: data.decisions.append(data.decisions[0]), "is decided 2 times"),
    "affects and fixed-in": (
        lambda data: data.manifests[MTP]["affects"].update(verl=">= 0.7.1, <= 0.8.0"),
        "`affects` and `fixed-in` both cover verl 0.8.0.dev0",
    ),
    "fix of no manifest": (lambda data: affected(data).update(fix="fifth-fix"), "no manifest has this target"),
    "target without a shape": (
        lambda data: data.shapes.__setitem__(slice(None), [row for row in data.shapes if row["fix"] != MTP]),
        "has no shape on record",
    ),
    "decision of no shape": (lambda data: data.decisions[0].update(shape="0" * 16), "decides no shape on record"),
    "superseded from nowhere": (
        lambda data: data.superseded.append({"fix": MTP, "function": "f", "shape": "1", "pristine": "2"}),
        "2 is no affected shape on record",
    ),
    "pull request of another function": (
        lambda data: data.manifests[MTP]["as-written"][0].update(function="f"),
        "changes no target of the fix",
    ),
    "release of no upstream": (lambda data: data.releases.update(sglang=newest(data)), "is not an upstream"),
    "upstream of no name": (lambda data: data.manifests[MTP]["affects"].update(sglang="> 1"), "is not an upstream"),
    "folder and id": (lambda data: data.manifests[MTP].update(id="mtp"), "is mtp, but the folder is mtp-cp-deadlock"),
    "bad specifier": (lambda data: data.manifests[MTP]["affects"].update(verl="about 0.7"), "no PEP 440 specifier"),
    "bad version": (lambda data: data.manifests[MTP]["fixed-in"].update(verl="soon"), "'soon' is no version"),
    "bad floor": (lambda data: data.upstreams["verl"].update(floor="low"), "'low' is no version"),
    "bad release": (lambda data: data.releases["verl"]["versions"].update(new=newest(data)), "is no PEP 440 version"),
    "targets of another order": (
        lambda data: data.releases["megatron-core"]["targets"].reverse(),
        "its targets are not those of the manifests",
    ),
    "release without a shape": (lambda data: newest(data)["shapes"].clear(), "does not have one shape for each"),
    "release without a verdict": (lambda data: newest(data)["shapes"].__setitem__(0, "0" * 16), "which has no verdict"),
    "digest that leads nowhere": (
        lambda data: data.files.__setitem__("ab" * 32, {"f": "0" * 16}),
        "f 0000000000000000 is not on record",
    ),
    "shape without an outline": (lambda data: data.outlines.pop(), "has no outline"),
    "outline without a shape": (
        lambda data: data.outlines.append({"function": "f", "shape": "1", "outline": "2"}),
        "is not on record",
    ),
    "release without a pin": (lambda data: data.wheels["verl"].pop(), "is missing"),
    "pin without a release": (lambda data: data.releases["verl"]["versions"].pop("0.9.1"), "is missing"),
    "two pins": (lambda data: data.wheels["verl"].append(data.wheels["verl"][0]), "pins two wheels of one version"),
    "claims too little": (
        lambda data: data.manifests[EXPERTS]["affects"].update({"megatron-core": ">= 0.10.0, < 0.19.2"}),
        "0.19.2 needs it, but `affects` says otherwise",
    ),
    "claims too much": (
        lambda data: data.manifests[SFT]["affects"].update({"megatron-lm": ">= 0.15.3, < 0.18.0"}),
        "0.15.3 does not need it, but `affects` says otherwise",
    ),
    "claims too much beside a right function": (
        lambda data: data.manifests[BATCHES]["affects"].update(verl=">= 0.7.0, < 0.8.0.dev0"),
        "0.7.0 does not need it, but `affects` says otherwise",
    ),
    "claims too little beside a wrong function": (
        lambda data: [row.update(state="wrong") for row in data.shapes if row["state"] == "right"],
        "0.7.0 needs it, but `affects` says otherwise",
    ),
    "function that a target depends on without a shape": (
        lambda data: data.shapes.__setitem__(slice(None), [row for row in data.shapes if row["state"] != "right"]),
        "which has no verdict",
    ),
    "fixed earlier than it was": (
        lambda data: (
            data.manifests[SFT].update({"affects": {"megatron-lm": "< 0.1"}})
            or data.manifests[SFT]["fixed-in"].update({"megatron-lm": "0.16.0"})
        ),
        "needs it, but 0.16.0 is fixed",
    ),
    "fixed later than it was": (
        lambda data: data.manifests[MTP]["fixed-in"].update(verl="0.9.0"),
        "0.8.0.dev0 already has upstream's own fix",
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
    found = set()
    for change, _ in BROKEN.values():
        data = copy.deepcopy(real)
        change(data)
        found.add(next(rule for rule in rules.RULES if any(rule(data))))
    assert found == set(rules.RULES)
