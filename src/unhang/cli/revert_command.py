"""``unhang revert``: restore the original bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.cli.requests import request
from unhang.store import receipt
from unhang.store import revert as undo
from unhang.store.lock import exclusive
from unhang.store.state import interrupted
from unhang.store.survey import again, find, nothing_found
from unhang.store.tidy import tidy
from unhang.store.transaction import recover
from unhang.tell import console
from unhang.tell.report import Report

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Run ``unhang revert``: return 0 if the original bytes are back; 1 if an edit prevents it, or without receipt."""
    wanted = request(options)
    search = find(wanted)
    state_dir = search.environment.state_dir
    if not search.installations and not wanted.allow_none and not _has_state(state_dir):
        raise nothing_found(search, wanted)
    console.say_if(tidy(state_dir))
    if not _has_state(state_dir):
        console.results(options.output_format, Report(search, again(search, wanted).findings, frozenset(), False))
        console.say(f"nothing to revert: there is no receipt in {state_dir}")
        console.made_by_wheel(search.installations)
        return 1
    with exclusive(state_dir):
        console.say_if(recover(state_dir))
        found = receipt.load(state_dir)
        planned = None
        if found is not None:
            names = set(wanted.fixes)
            planned = undo.plan(search.environment, search, found, names, wanted.upstreams, force=options.force)
        if planned is not None and planned.remaining != found:
            undo.carry_out(search.environment, planned)
    changed = frozenset(entry.path for entry, _, _ in planned.files) if planned else frozenset()
    console.results(options.output_format, Report(search, again(search, wanted).findings, changed, False))
    if planned is None:  # there was only an interrupted run, which is now taken back
        return 0
    console.reverted(planned, len(changed))
    return 1 if planned.refused else 0


def _has_state(state_dir: str) -> bool:
    """Return whether there is something to revert or to recover, even if the upstreams were uninstalled since."""
    return interrupted(state_dir) or receipt.load(state_dir) is not None
