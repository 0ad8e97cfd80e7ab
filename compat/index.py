"""The package index: an upstream's releases from its floor on, and one wheel for each."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from unhang.compat import upstreams
from unhang.errors import UnhangError
from unhang.find import metadata

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

_RETRIES = 4
_DOWNLOADS = 3
_TIMEOUT = 30


class Offer(NamedTuple):
    """One release on the index, and the wheel that stands for it."""

    project: str
    version: str
    yanked: bool
    file: str
    sha256: str
    python: str
    """A Python that the wheel is for; ``3.12`` if it is for any."""
    package: DistributionPackage
    """The client library's object, needed to download the wheel."""


class Wheel(NamedTuple):
    """The files of interest in one wheel."""

    files: Mapping[str, bytes | None]
    """Each file's bytes by path; None if the wheel has no such file."""
    held: Sequence[str]
    """The upstreams of other projects that the wheel carries too."""


@contextmanager
def client(connections: int = 1) -> Iterator[PyPISimple]:
    """Open a client of the index in ``UNHANG_INDEX``, else ``PIP_INDEX_URL``, else the client library's default.

    ``connections`` is how many threads use it at once. Raises UnhangError ``no-index-client`` if the client library is
    not installed.
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
    """Return a project's releases from the floor version on, in PEP 440 order, pre-releases and yanked ones included.

    ``pinned`` maps versions to the wheels that stand for them now; a pinned wheel is kept while the index has it.
    Raises UnhangError ``index-failed`` if the index does not answer or has no such project.
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


def all_offers(index: PyPISimple, projects: Mapping[str, Any], pins: Iterable[Mapping[str, Any]] = ()) -> list[Offer]:
    """Return the offers of these projects, above their floors. Raises UnhangError ``index-failed``.

    ``pins`` are rows of wheels.json.
    """
    pinned: dict[str, dict[str, str]] = {project: {} for project in projects}
    for pin in pins:
        pinned.setdefault(pin["project"], {})[pin["version"]] = pin["file"]
    found = (offers(index, project, entry["floor"], pinned[project]) for project, entry in projects.items())
    return [offer for offered in found for offer in offered]


def download(index: PyPISimple, offer: Offer, path: str) -> None:
    """Download an offer's wheel to this path. Raises UnhangError ``wrong-digest`` or ``fetch-failed``.

    The client retries a request; this retries a download that broke off half way.
    """
    import requests
    from pypi_simple import DigestMismatchError

    for last in [False] * (_DOWNLOADS - 1) + [True]:
        try:
            index.download_package(offer.package, path, timeout=_TIMEOUT)
            return
        except DigestMismatchError as error:
            raise wrong_digest(offer, error.actual_digest, "as downloaded") from error
        except (requests.RequestException, OSError) as error:
            if last:
                hint = "check the network, then run it again"
                raise UnhangError("fetch-failed", f"{offer.file} cannot be downloaded: {error}", hint=hint) from error
            time.sleep(0.2)


def wrong_digest(offer: Offer, found: str, where: str) -> UnhangError:
    """Return the error for a wheel whose sha256 differs from the index's."""
    return UnhangError(
        "wrong-digest",
        f"{offer.file} ({where}) has sha256 {found}, and the index says {offer.sha256}",
        hint="nothing of it was used; delete the file if it is yours, else look for a proxy that changes downloads",
    )


def read_wheel(path: str, files: Iterable[str]) -> Wheel:
    """Read these files of a wheel. Raises UnhangError ``fetch-failed`` if it is damaged."""
    try:
        with zipfile.ZipFile(path) as wheel:
            members = {metadata.installed(name): name for name in wheel.namelist()}
            found = {name: wheel.read(members[name]) if name in members else None for name in files}
            return Wheel(found, upstreams.held({*members}))
    except (zipfile.BadZipFile, OSError) as error:
        raise UnhangError("fetch-failed", f"{os.path.basename(path)} cannot be read: {error}") from error


def _version(package: DistributionPackage) -> Version | None:
    """Return a wheel's version; None for other files, and for a wheel without a digest: nothing could verify it."""
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
    """Order a release's wheels, which differ in a compiled helper only: x86_64, then Python 3.12, then the oldest."""
    python = _python(package.filename)
    minor = int(python.split(".")[1]) if python else 0
    return "x86_64" not in package.filename and python is not None, minor not in (0, 12), minor, package.filename


def _python(filename: str) -> str | None:
    """Return ``3.12`` for a wheel of CPython 3.12 only; None for a wheel of any Python."""
    interpreters = {tag.interpreter for tag in parse_wheel_filename(filename)[3]}
    minors = sorted(int(name[3:]) for name in interpreters if name.startswith("cp3") and name[3:].isdigit())
    return f"3.{minors[0]}" if minors else None
