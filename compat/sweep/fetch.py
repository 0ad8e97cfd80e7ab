"""Fetch what the sweep reads of each release's wheel: several at once, verified, each once and for all."""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unhang.compat.index import Offer
from unhang.compat.sweep.cache import Cache, Wheel
from unhang.compat.sweep.sources import Release, content, upstreams_of
from unhang.errors import UnhangError

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

CONNECTIONS = 8
_TRIES = 3
_TIMEOUT = 60
Wanted = Mapping[str, Sequence[str]]


def releases(
    index: PyPISimple, offered: Sequence[Offer], wanted: Wanted, cache: Cache, *, wheels: str | None = None
) -> tuple[list[Release], int]:
    """The releases that the index offers, in the order given, and how many wheels had to be opened for them.

    ``wanted`` gives each upstream's target files. A wheel that lies in the folder ``wheels`` is taken from there.
    Raises UnhangError ``fetch-failed`` or ``wrong-digest``; what was fetched by then stays in the cache.
    """
    read = {offer.sha256: cache.wheel(offer.sha256, _paths(offer.project, wanted)) for offer in offered}
    missing = [offer for offer in offered if read[offer.sha256] is None]
    with _progress(len(missing)) as advance, ThreadPoolExecutor(CONNECTIONS) as pool:
        jobs = {pool.submit(_fetched, index, offer, wanted, cache, wheels): offer.sha256 for offer in missing}
        try:
            for job in as_completed(jobs):
                read[jobs[job]] = job.result()
                advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    wheels_read = ((offer, read[offer.sha256]) for offer in offered)
    found = [release for offer, wheel in wheels_read if wheel for release in _releases(offer, wheel, wanted)]
    return found, len(missing)


def read_wheel(path: str, paths: Iterable[str]) -> Wheel:
    """What the sweep reads of a wheel: these files, and whether it carries Megatron-LM. Raises BadZipFile, OSError."""
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        training = any(name.startswith("megatron/training/") for name in names)
        return Wheel({name: content(wheel.read(name)) if name in names else None for name in paths}, training)


def _fetched(index: PyPISimple, offer: Offer, wanted: Wanted, cache: Cache, wheels: str | None) -> Wheel:
    with tempfile.TemporaryDirectory(prefix="unhang-") as folder:
        path = os.path.join(wheels, offer.file) if wheels else ""
        if path and os.path.exists(path):
            _verify(path, offer)
        else:
            path = os.path.join(folder, offer.file)
            _download(index, offer, path)
        try:
            wheel = read_wheel(path, _paths(offer.project, wanted))
        except (zipfile.BadZipFile, OSError) as error:
            raise UnhangError("fetch-failed", f"{offer.file} cannot be read: {error}") from error
    cache.keep_wheel(offer.sha256, wheel)
    return wheel


def _download(index: PyPISimple, offer: Offer, path: str) -> None:
    """The client retries a request; this, what breaks off half way."""
    import requests
    from pypi_simple import DigestMismatchError

    for last in [False] * (_TRIES - 1) + [True]:
        try:
            index.download_package(offer.package, path, timeout=_TIMEOUT)
            return
        except DigestMismatchError as error:
            raise _wrong(offer, error.actual_digest, "as downloaded") from error
        except (requests.RequestException, OSError) as error:
            if last:
                hint = "run it again: what was fetched by now is kept"
                raise UnhangError("fetch-failed", f"{offer.file} cannot be downloaded: {error}", hint=hint) from error
            time.sleep(0.2)


def _verify(path: str, offer: Offer) -> None:
    with open(path, "rb") as file:
        found = content(file.read()).sha256
    if found != offer.sha256:
        raise _wrong(offer, found, path)


def _wrong(offer: Offer, found: str, where: str) -> UnhangError:
    return UnhangError(
        "wrong-digest",
        f"{offer.file} ({where}) has sha256 {found}, and the index says {offer.sha256}",
        hint="nothing of it was used: take it away if it is yours, find out what stands between here and the index",
    )


def _releases(offer: Offer, wheel: Wheel, wanted: Wanted) -> Iterator[Release]:
    for upstream in upstreams_of(offer.project):
        if upstream == offer.project or wheel.training:
            files = {path: wheel.files[path] for path in wanted.get(upstream, ())}
            yield Release(upstream, offer.version, offer.yanked, files)


def _paths(project: str, wanted: Wanted) -> list[str]:
    return [path for upstream in upstreams_of(project) for path in wanted.get(upstream, ())]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, where its library is installed and there is something to wait for."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda: None
        return
    columns = (TextColumn("wheels"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=total == 0) as progress:
        task = progress.add_task("wheels", total=total)
        yield lambda: progress.advance(task)
