"""Whether upstream's own fix in an unknown shape is believed: in a new release, in a file that its RECORD confirms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from unhang.find import metadata
from unhang.judge.decide import MARK, Verdict, believed, doubted, edited, is_new, on_record
from unhang.judge.observe import Observation
from unhang.records import Installation
from unhang.shapes import catalog
from unhang.shapes.catalog import Release, Target


def weighed(
    verdict: Verdict,
    target: Target,
    installation: Installation,
    seen: Observation,
    releases: Mapping[str, Release],
    look: Callable[[Installation, Target], Observation],
) -> Verdict:
    """Return the verdict on an unknown shape with what seems to be upstream's own fix, given where the file is from.

    A release of the matrix has another shape, so there it is an edit. A fork, a build of one's own and a checkout are
    no releases, whatever their RECORD and their number say. ``look`` observes the function that the target depends on,
    which has to be known, and from that release too.
    """
    doubt = _of_package(installation)
    release = on_record(installation, releases)
    if release is not None and not doubt:
        return edited(verdict, target.fix, release.version)
    doubt = doubt or _of_file(installation, target, seen) or _of_other(installation, target.depends_on, look)
    if doubt:
        return doubted(verdict, doubt)
    return believed(target.fix) if is_new(installation, releases) else verdict


def _of_package(installation: Installation) -> str:
    """Return why an installation is no copy of a release as an index has it; empty if nothing says so."""
    if installation.record is None:
        return "no RECORD confirms it"
    if "+" in (installation.version or ""):
        return "the version has a local label"
    if not metadata.is_of(installation.record, installation.version):
        return "its RECORD is of another version"
    if os.path.lexists(os.path.join(os.path.dirname(installation.record), "direct_url.json")):
        return "it was installed from a path, an archive or a repository"
    return ""


def _of_other(
    installation: Installation, other: Target | None, look: Callable[[Installation, Target], Observation]
) -> str:
    """Return why the function that a target depends on is in doubt."""
    if other is None:
        return ""
    seen = look(installation, other)
    if (other.fix, other.function, seen.shape or "") not in catalog.shape_table().shapes:
        return f"nobody has verified {other.function} in {other.file}, on which it depends"
    doubt = _of_file(installation, other, seen)
    return doubt and f"of {other.file}, {doubt}"


def _of_file(installation: Installation, target: Target, seen: Observation) -> str:
    """Return why a file of such a copy may not be as it was published."""
    assert seen.data is not None
    assert installation.record is not None
    if not os.path.lexists(os.path.join(os.path.dirname(installation.record), "INSTALLER")):
        return "no installer has put it there"
    if MARK in seen.data:
        return "unhang has rewritten its file"
    if not metadata.confirms(installation.record, target.file, seen.data):
        return "its RECORD does not list these bytes"
    return ""
