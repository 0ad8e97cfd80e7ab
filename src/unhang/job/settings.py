"""The settings of a job, by the names that its user sets them by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

Value = str | int | float | bool | None
"""The value of a setting; None where it is set to nothing, or has no default."""


class Setting(NamedTuple):
    """A setting, and where it was found."""

    value: Value
    source: str
    """``train.sh:12``, ``--setting``, ``default of verl 0.8.0``."""
    key: str = ""
    """The name that the job's user sets it by, where a condition has another one for it."""


class Job(NamedTuple):
    """What a job is started with, as far as it could be read."""

    settings: Mapping[str, Setting] = MappingProxyType({})
    """By name: ``tensor_model_parallel_size`` for an option, ``actor_rollout_ref.actor.strategy`` for a key."""
    unknown: Mapping[str, str] = MappingProxyType({})
    """The settings whose value cannot be told, such as that of a variable, and why."""
    ranks: Setting | None = None
    """The number of all ranks; None if nothing says it."""
    notes: tuple[str, ...] = ()
    """What could not be read, a sentence each."""
    program: str = ""
    """What it runs: ``verl.trainer.main_ppo``, ``pretrain_gpt.py``, ``megatron sft``; empty if nothing says it."""
    rest: str = ""
    """Why a setting that is not here may be set all the same; empty if it then has its default."""
    parts: tuple[Job, ...] = ()
    """The commands that it is started with, each a job of its own, if there are several."""


def parsed(text: str) -> Value:
    """Return the value that a user has written: a number, ``true``, ``null``, or else the text itself.

    Numbers are read as Python and YAML have them (``1e-3``); quotes around the whole are dropped.
    """
    word = text.strip()
    lowered = word.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("", "null", "none", "~"):
        return None
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
