"""pylock.toml, the lock file of PEP 751, as `packaging` reads it."""

from __future__ import annotations

from unhang.pins import origin, toml
from unhang.pins.values import DamagedError, Table, no_reader
from unhang.records import Names, Pin

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from packaging.pylock import Package


def pins(content: str, document: Table, names: Names) -> list[Pin]:
    """Return the pins of these distributions. Raises DamagedError, and UnhangError ``no-lock-reader``."""
    try:
        from packaging.pylock import Pylock, PylockValidationError
    except ImportError as error:
        raise no_reader("pylock.toml is read with packaging 26 or later, and an older one is installed") from error
    try:
        lock = Pylock.from_dict(document)
    except PylockValidationError as error:  # also of a version that it does not know
        raise DamagedError(str(error)) from error
    lines = toml.lines(content, "packages", len(lock.packages))
    found = (origin.known(_pin(*pair), names) for pair in zip(lock.packages, lines))
    return [pin for pin in found if pin is not None]


def _pin(package: Package, line: int) -> Pin:
    version, marker = str(package.version or ""), str(package.marker or "")
    pin = Pin(package.name, version, line, when=marker)
    if vcs := package.vcs:
        where, folder = vcs.url or vcs.path or "", vcs.subdirectory or ""
        where = where if vcs.type == "git" else f"{vcs.type}+{where}"
        return origin.of_git(pin, where, vcs.requested_revision or "", vcs.commit_id, folder)
    if archive := package.archive:
        return origin.of_url(pin, archive.url or archive.path or "")
    return pin._replace(source=package.directory.path) if package.directory else pin
