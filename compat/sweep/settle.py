"""Settle the state of each shape collected: by evidence, or by a person's decision that says why. No guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packaging.version import Version

from unhang.compat.sweep.collect import Collection, Key, Row
from unhang.compat.sweep.learnt import Learnt
from unhang.shapes.catalog import Target


class Settled(NamedTuple):
    """What the matrix will hold of the shapes."""

    rows: list[dict[str, Any]]
    results: dict[Key, str]
    """The shape that our rewrite of each affected shape has."""
    undecided: list[str]
    """What a person must decide, a line each."""
    by_person: list[str]
    """The shapes that a person has decided."""


def as_written(collection: Collection, learnt: Learnt, target: Target, diff: str, note: str) -> None:
    """Collect the shapes of an upstream pull request as written, applied to every shape that it still applies to."""
    for (fix, function, _), row in list(collection.rows.items()):
        if (fix, function) != (target.fix, target.function) or row.note:
            continue
        changed = learnt.as_written(row.content, diff)
        if changed is None:
            continue
        # a hunk that was rejected shows: then our rewrite of it is not what our rewrite of the untouched file is
        state, untouched = learnt.state(changed, target), learnt.state(row.content, target)
        if state.state == "fixed" or (state.state == "affected" and state.result == untouched.result):
            collection.change(target, changed, note)


def settle(
    collection: Collection,
    learnt: Learnt,
    decisions: Sequence[Mapping[str, str]],
    superseded: Sequence[Mapping[str, str]],
) -> Settled:
    """The rows of shapes.json. ``decisions`` and ``superseded`` are the entries of the files of these names."""
    decided = {(item["fix"], item["shape"]): item for item in decisions}
    older = {(item["fix"], item["function"], item["pristine"]): item["shape"] for item in superseded}
    by_key = {(target.fix, target.function): target for target in collection.targets}
    done = Settled([], {}, list(collection.problems), [])
    for key, row in sorted(collection.rows.items(), key=lambda item: item[0]):
        fix, function, shape = key
        state = learnt.state(row.content, by_key[fix, function])
        told: dict[str, Any] = {"fix": fix, "function": function, "shape": shape, "state": state.state}
        if (fix, shape) in decided:
            told["state"], told["note"] = decided[fix, shape]["state"], decided[fix, shape]["why"]
            done.by_person.append(shape)
        elif state.state == "undecided" and not row.supported:
            continue  # older than the floor: what evidence does not decide is left out
        elif state.state == "undecided":
            done.undecided.append(f"{fix} {function} {shape}, {_places(row).get('first', '')}: {state.why}")
            continue
        if told["state"] == "affected" and state.result is not None:
            told |= {"result": state.result, "names": list(state.names)}
            done.results[key] = state.result
            if key in older:
                done.rows.append({**told, "shape": older[key], "state": "superseded"})
        if row.note and "note" not in told:
            told["note"] = row.note
        done.rows.append(told | _places(row))
    return done


def _places(row: Row) -> dict[str, str]:
    """First and last commit that brought a shape; for one that only wheels have, the first and last of these."""
    if row.commits:
        return {"first": min(row.commits), "last": max(row.commits)}
    released = sorted(row.releases, key=lambda release: (Version(release[1]), release[0]))
    return {"first": " ".join(released[0]), "last": " ".join(released[-1])} if released else {}
