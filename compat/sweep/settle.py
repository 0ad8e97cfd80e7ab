"""Settles the state of each collected shape: by evidence, or by a person's recorded decision. It never guesses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from packaging.version import Version

from unhang.compat.sweep.collect import Collection, Key, Row
from unhang.compat.sweep.learnt import Learnt
from unhang.compat.sweep.sources import Content
from unhang.judge.decide import DRIFTED, REPAIRED, RIGHT
from unhang.shapes.catalog import Target
from unhang.survey.classify import State
from unhang.tell.progress import Step


class Settled(NamedTuple):
    """The shapes of the matrix."""

    rows: list[dict[str, Any]]
    results: dict[Key, str]
    """The shape of our rewrite of each affected shape."""
    undecided: list[str]
    """A line for each shape that a person must decide."""
    by_person: list[Key]
    """The shapes that a person decided."""
    states: dict[Key, State]
    """What evidence says of each row, and of each shape that a person must decide."""


def as_written(collection: Collection, learnt: Learnt, target: Target, diff: str, note: str) -> None:
    """Collect the shapes that an upstream pull request, as written, makes of the known ones it still applies to."""
    rows = collection.rows.items()
    bases = {key[2]: row for key, row in rows if key[:2] == (target.fix, target.function) and not row.note}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda row: _fixed_as_written(row, learnt, target, diff), bases.values()))
    for before, changed in zip(bases, found):
        if changed is not None:
            collection.change(target, before, changed, note)


def _fixed_as_written(row: Row, learnt: Learnt, target: Target, diff: str) -> Content | None:
    """Return a content with a pull request, if that fixes it, or our rewrite makes of both the same."""
    changed = learnt.as_written(row.content, diff)
    if changed is None:
        return None
    state, untouched = learnt.state(changed, target), learnt.state(row.content, target)
    same = state.state == "affected" and state.result == untouched.result
    return changed if same or state.state in ("fixed", REPAIRED, RIGHT) else None


def settle(collection: Collection, learnt: Learnt, decisions: Sequence[Mapping[str, str]], step: Step) -> Settled:
    """Return the rows of the matrix. ``decisions`` are those of ``sources.decisions``."""
    decided = {(item["fix"], item["shape"]): item for item in decisions}
    by_key = {(target.fix, target.function): target for target in collection.targets}
    done = Settled([], {}, list(collection.problems), [], {})
    rows = sorted(collection.rows.items(), key=lambda item: item[0])
    states: list[State] = []
    step(lambda: f"deciding what each shape is: {len(states)} of {len(rows)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a child process
        for state in pool.map(lambda it: learnt.state(it[1].content, by_key[it[0][:2]]), rows):
            states.append(state)
    for (key, row), state in zip(rows, states):
        fix, function, shape = key
        entry: dict[str, Any] = {"fix": fix, "function": function, "shape": shape, "state": state.state}
        chosen = decided.get((fix, shape))
        if chosen is not None and chosen["state"] != DRIFTED:
            entry["state"], entry["note"] = chosen["state"], chosen["why"]
            done.by_person.append(key)
        elif state.state == "undecided" and (chosen is not None or not row.supported):
            continue  # a person leaves it drifted, or it is older than the floor
        done.states[key] = state
        if entry["state"] == "undecided":
            done.undecided.append(f"{fix} {function} {shape}, {_places(row).get('first', '')}: {state.why}")
            continue
        if entry["state"] == "affected" and state.result is not None:
            entry |= {"result": state.result, "names": list(state.names)}
            done.results[key] = state.result
        if row.note and "note" not in entry:
            entry["note"] = row.note
        done.rows.append(entry | _places(row))
    return done


def _places(row: Row) -> dict[str, str]:
    """Return the first and last commit that introduced a shape; for one that only wheels have, their releases."""
    if row.commits:
        return {"first": min(row.commits), "last": max(row.commits)}
    released = sorted(row.releases, key=lambda release: (Version(release[1]), release[0]))
    return {"first": " ".join(released[0]), "last": " ".join(released[-1])} if released else {}
