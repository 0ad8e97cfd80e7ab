"""Fetches the target files of each release's wheel: several wheels at once, verified, each only once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from unhang.compat import index, upstreams
from unhang.compat.index import Offer
from unhang.compat.sweep.cache import Cache, CachedWheel
from unhang.compat.sweep.sources import Release, content
from unhang.tell.progress import Step, silent

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

CONNECTIONS = 8
Wanted = Mapping[str, Sequence[str]]
"""The paths of the target files, by upstream."""


def releases(
    client: PyPISimple,
    offered: Sequence[Offer],
    wanted: Wanted,
    cache: Cache,
    *,
    wheels: str | None = None,
    step: Step = silent,
) -> tuple[list[Release], int]:
    """Return the offered releases in the order given, and how many wheels were opened for them.

    A wheel in the folder ``wheels`` is not downloaded. Raises UnhangError ``fetch-failed`` or ``wrong-digest``; the
    cache keeps what was fetched before the failure.
    """
    found = {offer.sha256: cache.wheel(offer.sha256, _paths(offer, wanted)) for offer in offered}
    missing = [offer for offer in offered if found[offer.sha256] is None]
    stopped = threading.Event()

    def fetched(offer: Offer) -> CachedWheel | None:
        if stopped.is_set():
            return None
        try:
            return _fetched(client, offer, wanted, cache, wheels)
        except BaseException:
            stopped.set()  # here, not where the result is read: this thread takes the next wheel before that
            raise

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        jobs = {pool.submit(fetched, offer): offer.sha256 for offer in missing}
        try:
            for number, job in enumerate(as_completed(jobs), 1):
                found[jobs[job]] = job.result()
                step(f"fetched {number} of {len(missing)} wheels")
        finally:
            stopped.set()
    pairs = ((offer, found[offer.sha256]) for offer in offered)
    return [release for offer, wheel in pairs if wheel for release in _releases(offer, wheel, wanted)], len(missing)


def _fetched(client: PyPISimple, offer: Offer, wanted: Wanted, cache: Cache, wheels: str | None) -> CachedWheel:
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        path = os.path.join(wheels or folder, offer.file)
        if wheels and os.path.exists(path):
            digest = content(Path(path).read_bytes()).sha256
            if digest != offer.sha256:
                raise index.wrong_digest(offer, digest, path)
        else:
            path = os.path.join(folder, offer.file)
            index.download(client, offer, path)
        files, held = index.read_wheel(path, _paths(offer, wanted))
    wheel = CachedWheel({name: None if data is None else content(data) for name, data in files.items()}, held)
    cache.keep_wheel(offer.sha256, wheel)
    return wheel


def _releases(offer: Offer, wheel: CachedWheel, wanted: Wanted) -> Iterator[Release]:
    for upstream in upstreams.of_project(offer.project, wheel.held):
        files = {path: wheel.files[path] for path in wanted.get(upstream, ())}
        yield Release(upstream, offer.version, offer.yanked, files)


def _paths(offer: Offer, wanted: Wanted) -> list[str]:
    return [path for upstream in upstreams.of_project(offer.project) for path in wanted.get(upstream, ())]
