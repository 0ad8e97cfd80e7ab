"""The rules of the matrix: the committed data satisfies them, and each kind of problem is found in a broken copy."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from unhang.compat.sweep import lint, rules, sources
from unhang.compat.sweep.rules import Data
from unhang.shapes import catalog

MTP, MEAN = "mtp-cp-deadlock", "mean-metric-dtype"
BATCHES, ALLGATHER = "fsdp-dynamic-bsz", "allgather-empty-expert"


@pytest.fixture(scope="module")
def real() -> Data:
    data, problems = lint.read(sources.HERE, [fix.folder for fix in catalog.fixes().values()])
    assert problems == []
    return data


def affected(data: Any) -> tuple[str, Any]:
    """The first shape of MTP that is affected: its key, and what is known of it."""
    return next((key, row) for key, row in data.facts[MTP]["shapes"].items() if row["state"] == "affected")


def test_the_matrix_is_clean(real: Data) -> None:
    assert lint.lint(real) == []
    assert sum(len(known["files"]) for known in real.facts.values()) > 100


def ours(data: Any) -> str:
    key, row = affected(data)
    return f"{key.split()[0]} {row['result']}"


# What is done to a copy, and a part of the message.
BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "facts of no fix": (
        lambda data: data.facts.update(fifth=data.facts[MTP]),
        "no manifest has this id; delete the file",
    ),
    "fix without facts": (lambda data: data.facts.pop(MTP), "has no shape on record; run nox -s sweep -- --fix mtp-cp"),
    "pull request of another function": (
        lambda data: data.manifests[MTP]["as-written"][0].update(function="f"),
        "changes no target of the fix",
    ),
    "release of no upstream": (lambda data: data.releases.update({"sglang 1.0": {}}), "has no file in upstreams/"),
    "upstream of no name": (
        lambda data: data.manifests[MTP]["targets"][0].update(upstream="sglang"),
        "sglang: has no file in upstreams/",
    ),
    "folder and id": (lambda data: data.manifests[MTP].update(id="mtp"), "is mtp, but the folder is mtp-cp-deadlock"),
    "bad floor": (lambda data: data.upstreams["verl"].update(floor="low"), "'low' is no version"),
    "bad release": (lambda data: data.releases.update({"verl new": {}}), "is no PEP 440 version"),
    "no reason": (
        lambda data: [item.pop("not-affected") for item in data.manifests[BATCHES]["targets"]],
        "say in `not-affected` why a copy has not the defect",
    ),
    "needless reason": (
        lambda data: data.manifests["empty-expert-hang"]["targets"][0].update({"not-affected": "it is not there"}),
        "no shape is `not-affected`: delete that, or let the scene's `has_feature` be False for those shapes",
    ),
    "seen together": (
        lambda data: [row.pop("beside", None) for row in data.facts[BATCHES]["shapes"].values()],
        "and its `beside` has not; run nox -s sweep -- --fix fsdp-dynamic-bsz",
    ),
    "rewritten beside": (
        lambda data: [
            row["beside"].remove("39118ea26dd2ac53")
            for row in data.facts["infer-metric-rank0"]["shapes"].values()
            if {"20292e0b8491a5c5", "39118ea26dd2ac53"} <= {*row.get("beside", ())}
        ],
        "has it beside 39118ea26dd2ac53, and its `beside` has not; run nox -s sweep -- --fix infer-metric-rank0",
    ),
    "decided twice": (
        lambda data: data.manifests[MEAN]["decisions"].append(data.manifests[MEAN]["decisions"][0]),
        "is decided 2 times",
    ),
    "decision of no shape": (
        lambda data: data.manifests[MEAN]["decisions"][0].update(shape="0" * 16),
        "decides no shape on record",
    ),
    "shape and result": (
        lambda data: data.facts[MTP]["shapes"].update({ours(data): affected(data)[1]}),
        "is affected, but the result of our rewrite",
    ),
    "targets of another fix": (
        lambda data: data.facts[MTP].update(targets=data.facts[ALLGATHER]["targets"]),
        "they are not those of the manifest",
    ),
    "function without a shape": (
        lambda data: data.facts[MTP].update(shapes={}, releases={name: [None] for name in data.facts[MTP]["releases"]}),
        "has no shape on record; run nox -s sweep -- --fix mtp-cp-deadlock",
    ),
    "release that was swept since": (
        lambda data: data.releases.update({"verl 1.0": {}}),
        "verl 1.0: is missing; run nox -s sweep -- --fix",
    ),
    "release that is not on record": (lambda data: data.releases.pop("verl 0.9.1"), "is missing; run nox -s sweep"),
    "release without a shape": (
        lambda data: data.facts[MTP]["releases"]["verl 0.9.1"].clear(),
        "does not have one shape for each",
    ),
    "release without a verdict": (
        lambda data: data.facts[MTP]["releases"].update({"verl 0.9.1": ["0" * 16]}),
        "which has no verdict",
    ),
    "function that a target depends on without a shape": (
        lambda data: [
            data.facts[BATCHES]["shapes"].pop(key)
            for key, row in [*data.facts[BATCHES]["shapes"].items()]
            if row["state"] == "right"
        ],
        "which has no verdict",
    ),
    "set that is the only one": (
        lambda data: [one.update(set="the only") for one in data.manifests[ALLGATHER]["targets"]],
        "is the only set",
    ),
    "half a set in a release": (
        lambda data: data.manifests[ALLGATHER]["targets"][0].update(set="permutation and unpermutation"),
        "megatron-core 0.19.2 has only a part of this set",
    ),
    "digest that leads nowhere": (
        lambda data: data.facts[MTP]["files"].update({"ab" * 32: {"f": "0" * 16}}),
        "f 0000000000000000: is not on record",
    ),
    "shape without an outline": (
        lambda data: [row.pop("outline", "") for row in data.facts[MTP]["shapes"].values()],
        "has no outline",
    ),
    "outline of a shape in no file": (lambda data: data.facts[MTP]["files"].clear(), "is not on record"),
    "release without a pin": (lambda data: data.wheels["verl"].pop(), "is missing"),
    "two pins": (lambda data: data.wheels["verl"].append(data.wheels["verl"][0]), "pins two wheels of one version"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_problem_is_found(real: Data, name: str) -> None:
    change, message = BROKEN[name]
    data = copy.deepcopy(real)
    change(data)
    found = lint.lint(data)
    assert [problem for problem in found if message in f"{problem.entry}: {problem.message}"], found[:3]
    assert all(problem.file and problem.entry for problem in found)


def test_every_rule_is_shown_to_find_something(real: Data) -> None:
    found = set()
    for change, _ in BROKEN.values():
        data = copy.deepcopy(real)
        change(data)
        found.add(next(rule for rule in rules.RULES if any(rule(data))))
    assert found == set(rules.RULES)
