"""What the package index offers: the releases of an upstream from the floor on, and one wheel of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from unhang.errors import UnhangError

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

_RETRIES = 4
_TIMEOUT = 30


class Offer(NamedTuple):
    """One release that the index offers, and the wheel of it that stands for it."""

    project: str
    version: str
    yanked: bool
    file: str
    sha256: str
    python: str
    """A Python that the wheel is for: ``3.12`` for one that is for all."""
    package: DistributionPackage
    """The client library's own object, to download it by."""


@contextmanager
def client(connections: int = 1) -> Iterator[PyPISimple]:
    """A client of the user's index (``UNHANG_INDEX``, else ``PIP_INDEX_URL``), else of the library's default one.

    ``connections`` is how many threads will use it at once. Raises UnhangError ``no-index-client`` where the client
    library is not installed.
    """
    try:
        import pypi_simple
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry
    except ImportError as error:
        raise UnhangError(
            "no-index-client", f"reading the package index needs {error.name}", hint="pip install pypi-simple"
        ) from error
    adapter = HTTPAdapter(
        pool_maxsize=connections,
        max_retries=Retry(_RETRIES, backoff_factor=0.3, status_forcelist=(429, 500, 502, 503, 504)),
    )
    url = os.environ.get("UNHANG_INDEX") or os.environ.get("PIP_INDEX_URL")
    with requests.Session() as session:
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        endpoint = {"endpoint": url} if url else {}
        with pypi_simple.PyPISimple(session=session, **endpoint) as found:
            yield found


def offers(index: PyPISimple, project: str, floor: str, pinned: Mapping[str, str]) -> list[Offer]:
    """The releases of a project from the floor version on, in the order of PEP 440; pre-releases and yanked as well.

    ``pinned`` gives the file that stands for a version so far: it goes on doing so as long as the index has it.
    Raises UnhangError ``index-failed`` where the index does not answer, or has no such project.
    """
    import requests
    from pypi_simple import NoSuchProjectError, UnsupportedContentTypeError

    try:
        page = index.get_project_page(project, timeout=_TIMEOUT)
    except (requests.RequestException, NoSuchProjectError, UnsupportedContentTypeError) as error:
        raise UnhangError(
            "index-failed",
            f"the index has no answer about {project}: {error}",
            hint="check the network, UNHANG_INDEX and PIP_INDEX_URL, then run it again",
        ) from error
    by_version: dict[Version, list[DistributionPackage]] = {}
    for package in page.packages:
        version = _version(package)
        if version is not None and version >= Version(floor):
            by_version.setdefault(version, []).append(package)
    return [_offer(project, str(version), by_version[version], pinned) for version in sorted(by_version)]


def all_offers(index: PyPISimple, upstreams: Mapping[str, Any], pins: Iterable[Mapping[str, Any]]) -> list[Offer]:
    """The offers of these projects, with the floors of upstreams.json. Raises UnhangError ``index-failed``."""
    pinned: dict[str, dict[str, str]] = {project: {} for project in upstreams}
    for pin in pins:
        pinned.setdefault(pin["project"], {})[pin["version"]] = pin["file"]
    found = (offers(index, project, about["floor"], pinned[project]) for project, about in upstreams.items())
    return [offer for offered in found for offer in offered]


def hold_against(pins: Iterable[Mapping[str, Any]], offered: Sequence[Offer]) -> None:
    """Raises UnhangError ``pin-changed`` where the index now gives a pinned file with another digest. Pure."""
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
    """The pinned releases that the index no longer has, by project and version. Pure."""
    now = {(offer.project, offer.version) for offer in offered}
    return [f"{pin['project']} {pin['version']}" for pin in pins if (pin["project"], pin["version"]) not in now]


def _version(package: DistributionPackage) -> Version | None:
    """The version of a wheel; None for anything else, and for one without a digest: that could not be verified."""
    if package.package_type != "wheel" or package.version is None or "sha256" not in package.digests:
        return None
    try:
        return Version(package.version)
    except InvalidVersion:
        return None


def _offer(project: str, version: str, packages: Sequence[DistributionPackage], pinned: Mapping[str, str]) -> Offer:
    chosen = min(packages, key=lambda package: (package.filename != pinned.get(version), *_preference(package)))
    yanked = all(package.is_yanked for package in packages)
    python = _python(chosen.filename) or "3.12"
    return Offer(project, version, yanked, chosen.filename, chosen.digests["sha256"], python, chosen)


def _preference(package: DistributionPackage) -> tuple[Any, ...]:
    """Wheels of one release differ in a compiled helper alone: x86_64 first, then Python 3.12, then the oldest."""
    python = _python(package.filename)
    minor = int(python.split(".")[1]) if python else 0
    return "x86_64" not in package.filename and python is not None, minor not in (0, 12), minor, package.filename


def _python(filename: str) -> str | None:
    """``3.12`` for a wheel of CPython 3.12 alone; None for one of any Python."""
    interpreters = {tag.interpreter for tag in parse_wheel_filename(filename)[3]}
    minors = sorted(int(name[3:]) for name in interpreters if name.startswith("cp3") and name[3:].isdigit())
    return f"3.{minors[0]}" if minors else None
