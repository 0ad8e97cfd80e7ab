"""The pinned wheels of ``wheels.json``, one for each release, and how the index contradicts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unhang.compat.index import Offer
from unhang.errors import UnhangError
from unhang.shapes import facts


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder's ``wheels.json``, each with its ``project``; none if there is no such file."""
    wheels = facts.known(str(folder / "wheels.json")).get("wheels", {})
    return [{"project": project, **row} for project, rows in wheels.items() for row in rows]


def hold_against(pins: Iterable[Mapping[str, Any]], offered: Sequence[Offer]) -> None:
    """Raise UnhangError ``pin-changed`` if the index has a pinned file with another digest. Pure."""
    now = {offer.file: offer for offer in offered}
    for pin in pins:
        offer = now.get(pin["file"])
        if offer is not None and offer.sha256 != pin["sha256"]:
            raise UnhangError(
                "pin-changed",
                f"the index gives {pin['file']} with sha256 {offer.sha256}; compat/wheels.json pins {pin['sha256']}",
                hint="a published file never changes: find out which of the two is genuine before anything else",
            )


def gone(pins: Iterable[Mapping[str, Any]], offered: Sequence[Offer]) -> list[str]:
    """Return the pinned releases that the index no longer has, each as ``PROJECT VERSION``. Pure."""
    now = {(offer.project, offer.version) for offer in offered}
    return [f"{pin['project']} {pin['version']}" for pin in pins if (pin["project"], pin["version"]) not in now]
