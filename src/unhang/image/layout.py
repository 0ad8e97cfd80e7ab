"""What an image is made of: its config and its layers, in an archive of `docker save`, an OCI layout or a folder.

An archive is read once, from its begin to its end: it may be compressed, and its manifest may come last.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from unhang.errors import UnhangError
from unhang.image import tar
from unhang.image.stream import Chunk, Reader, bad, checked, hashed, of_file, plain, too_large
from unhang.image.tree import Change

_JSON = 4 << 20  # bytes of a manifest or a config
_DOCUMENTS = 64 << 20  # bytes of all of them
_LAYERS = 1000  # and variables, and platforms
_DEEPEST = 4  # of indexes in indexes
_PARTS = 10_000
_NAMED = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")  # by a digest
_LAYER = re.compile(r"blobs/sha256/[0-9a-f]{64}|.*\.(?:tar|tgz|tar\.gz|tar\.zst)", re.DOTALL)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_OF_A_SYSTEM = ("usr", "etc", "bin", "opt", "lib", "home")

_T = TypeVar("_T")
Read = Callable[[Reader], list[Change]]
"""Reads a layer."""


class Config(NamedTuple):
    """What an image says of its containers."""

    environ: Mapping[str, str]
    folder: str
    """The working directory."""
    user: str
    notes: tuple[str, ...] = ()
    """What was left out."""


class Contents(NamedTuple):
    """An image, with its layers from the lowest up."""

    config: Config
    layers: list[list[Change]]


def is_system(folder: str) -> bool:
    """Return whether a folder is an unpacked root file system, and no layout. Raises OSError."""
    names = os.listdir(folder)
    if {"oci-layout", "index.json"} & {*names}:
        return False
    return any(os.path.isdir(os.path.join(folder, name)) for name in names if name in _OF_A_SYSTEM)


def read(path: str, layer: Read) -> Contents:
    """Return an image in an archive, a layout or an archive of a root file system; ``layer`` reads each layer.

    Raises UnhangError ``bad-image``, ``image-too-large``, ``no-zstd``, what ``layer`` raises, and OSError.
    """
    if os.path.isdir(path):
        return _image(_Folder(path, layer))
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a device may have no end
            raise bad("it is neither a regular file nor a folder")
        if _begins_a_system(plain(of_file(file))):
            file.seek(0)
            return Contents(Config({}, "", ""), [layer(plain(of_file(file)))])
        file.seek(0)
        return _image(_Archive(plain(of_file(file)), layer))


def _begins_a_system(reader: Reader) -> bool:
    """Return whether an archive is one of a root file system, as `docker export` writes it, by its first files."""
    for member in islice(tar.members(reader), _PARTS):
        if member.path.partition("/")[0] in _OF_A_SYSTEM:
            return True
        if _LAYER.fullmatch(member.path) or member.path.endswith(".json"):
            return False
    return False


class _Store(Protocol):
    """Where the parts of an image are found by name."""

    def has(self, name: str) -> bool:
        """Return whether there is a document of this name."""
        ...

    def document(self, name: str) -> bytes:
        """Return a document."""
        ...

    def layer(self, name: str) -> tuple[list[Change], str]:
        """Return a layer, and the sha256 of what it is decompressed; empty if its name was checked."""
        ...


class _Folder:
    def __init__(self, top: str, read: Read) -> None:
        self._top = os.path.realpath(top)
        self._read = read

    def has(self, name: str) -> bool:
        return os.path.isfile(self._path(name))

    def document(self, name: str) -> bytes:
        with open(self._there(name), "rb", buffering=0) as file:
            data = Reader(_checked(of_file(file), name)).read(_JSON + 1)
        if len(data) > _JSON:
            raise too_large(f"{name} is larger than any manifest")
        return data

    def layer(self, name: str) -> tuple[list[Change], str]:
        with open(self._there(name), "rb", buffering=0) as file:
            return _layer(_checked(of_file(file), name), name, self._read)

    def _path(self, name: str) -> str:
        path = os.path.realpath(os.path.join(self._top, tar.plain(name)))
        return path if path.startswith(os.path.join(self._top, "")) else ""

    def _there(self, name: str) -> str:
        if not os.path.isfile(path := self._path(name)):
            raise bad(f"it lacks {name}")
        return path


class _Archive:
    """All parts of an archive: which of them are layers is not known before its end."""

    def __init__(self, reader: Reader, read: Read) -> None:
        self._documents: dict[str, bytes] = {}
        self._layers: dict[str, tuple[list[Change], str] | UnhangError] = {}
        self._links: dict[str, str] = {}
        size = 0
        for number, member in enumerate(tar.members(reader)):
            if number > _PARTS:
                raise bad(f"it has more than {_PARTS:,} files, and is neither from `docker save` nor an OCI layout")
            name = member.path
            if member.kind in (tar.LINK, tar.HARD):
                above = os.path.dirname(name) if member.kind == tar.LINK else ""
                self._links[name] = os.path.normpath(os.path.join(above, member.target))
            elif member.kind == tar.FILE:
                chunks = _checked(reader.parts(member.size), name)
                inner = Reader(chunks)
                if member.size <= _JSON and inner.peek(1) in (b"{", b"["):
                    size += member.size
                    if size > _DOCUMENTS:
                        raise too_large(f"it has {size >> 20} MiB of manifests")
                    self._documents[name] = inner.read(member.size)
                    inner.finish()
                elif _LAYER.fullmatch(name):
                    self._layers[name] = _kept(inner.rest(), name, read)
        reader.finish()

    def has(self, name: str) -> bool:
        return self._real(name) in self._documents

    def document(self, name: str) -> bytes:
        found = self._documents.get(self._real(name))
        if found is None:
            raise bad(f"it lacks {name}")
        return found

    def layer(self, name: str) -> tuple[list[Change], str]:
        found = self._layers.get(self._real(name))
        if found is None:
            raise bad(f"it lacks the layer {name}")
        if isinstance(found, UnhangError):
            raise found
        return found

    def _real(self, name: str) -> str:
        name = tar.plain(name)
        for _ in range(9):  # docker once made a link of a layer that is there twice
            name = self._links.get(name, name)
        return name


def _kept(chunks: Iterator[Chunk], name: str, read: Read) -> tuple[list[Change], str] | UnhangError:
    try:
        return _layer(chunks, name, read)
    except UnhangError as error:
        if error.code == "image-too-large":
            raise
        return error  # it may be of another image in this archive, or no layer at all


def _layer(chunks: Iterator[Chunk], name: str, read: Read) -> tuple[list[Change], str]:
    """Return a layer, and the sha256 of what it is decompressed; empty if its name was checked."""
    inside = plain(chunks)
    if _NAMED.fullmatch(name):
        return read(inside), ""
    digest = hashlib.sha256()
    return read(Reader(hashed(inside.rest(), digest))), digest.hexdigest()


def _checked(chunks: Iterator[Chunk], name: str) -> Iterator[Chunk]:
    """Yield these bytes. Raises UnhangError at their end if their name is a digest, and not theirs."""
    found = _NAMED.fullmatch(name)
    return checked(chunks, found[1], name) if found else chunks


def _image(store: _Store) -> Contents:
    if store.has("index.json"):
        return _of_oci(store)
    if store.has("manifest.json"):
        return _of_docker(store)
    raise bad(
        "it is no image: it has no index.json, as an OCI layout, no manifest.json, as `docker save`, and no /usr",
        "save it with docker save IMAGE -o FILE; or unpack it, and name the folder of its root file system",
    )


def _of_docker(store: _Store) -> Contents:
    images = _list(_json(store, "manifest.json", list), dict)
    if len(images) != 1:
        names = [str(name) for image in images for name in _list(image.get("RepoTags"), str)]
        raise _several(names or [str(len(images))])
    name, layers = _get(images[0], "Config", str), _list(images[0].get("Layers"), str)
    document = _json(store, name, dict)
    digests = _list(_get(document, "rootfs", dict, {}).get("diff_ids"), str)
    if digests and len(digests) != len(layers):
        raise bad(f"it has {len(layers)} layers, and its config {len(digests)}")
    return Contents(_config(document, ()), [_of(store, *pair) for pair in zip(layers, digests or [""] * len(layers))])


def _of(store: _Store, name: str, diff_id: str) -> list[Change]:
    changes, found = store.layer(name)
    if diff_id and found and diff_id != f"sha256:{found}":
        raise bad(f"{name} does not have its digest: it is damaged, or somebody has changed it")
    return changes


def _of_oci(store: _Store) -> Contents:
    found = _manifests(store, _json(store, "index.json", dict), _DEEPEST)
    here = {name: about for name, about in found.items() if store.has(name)} or found  # the others may lack
    if not here:
        raise bad("its index lists no image")
    machine = _MACHINES.get(platform.machine(), platform.machine())
    platforms = sorted({about[0] for about in here.values()})
    chosen = machine if machine in platforms else platforms[0]
    names = [name for name, about in here.items() if about[0] == chosen]
    if len(names) > 1:
        raise _several([here[name][1] or name for name in names])
    note = f"the image is for {', '.join(platforms)}; what is for {chosen} was read"
    manifest = _json(store, names[0], dict)
    layers = _list(manifest.get("layers"), dict)
    if any("encrypted" in str(layer.get("mediaType")) for layer in layers):
        raise bad("its layers are encrypted: decrypt it first, as with `skopeo copy --decryption-key`")
    config = _json(store, _blob(_get(manifest, "config", dict)), dict)
    notes = (note,) if len(platforms) > 1 else ()
    return Contents(_config(config, notes), [store.layer(_blob(layer))[0] for layer in layers])


def _manifests(store: _Store, index: Mapping[str, object], depth: int) -> dict[str, tuple[str, str]]:
    """Return the manifests of images in an index, each with its platform and name, as far as it says them."""
    found: dict[str, tuple[str, str]] = {}
    for one in _list(index.get("manifests"), dict):
        about, notes = _get(one, "platform", dict, {}), _get(one, "annotations", dict, {})
        kind = str(one.get("mediaType"))
        if kind.endswith(("index.v1+json", "manifest.list.v2+json")):
            if depth:
                below = _manifests(store, _json(store, _blob(one), dict), depth - 1)
                found |= {name: (machine, text or _name(notes)) for name, (machine, text) in below.items()}
        elif "vnd.docker.reference.type" not in notes and about.get("os", "linux") == "linux":
            machine = "/".join(str(about[key]) for key in ("architecture", "variant") if about.get(key))
            found[_blob(one)] = machine.replace("arm64/v8", "arm64"), _name(notes)
    return found


def _name(notes: Mapping[str, object]) -> str:
    return str(notes.get("io.containerd.image.name") or notes.get("org.opencontainers.image.ref.name") or "")


def _several(names: list[str]) -> UnhangError:
    what = f"it has several images: {', '.join(names[:9])}"
    return bad(what, "save one of them alone: docker save IMAGE -o FILE")


def _config(document: Mapping[str, object], notes: tuple[str, ...]) -> Config:
    config = _get(document, "config", dict, {})
    pairs = (line.partition("=") for line in _list(config.get("Env"), str))
    environ = {name: value for name, _, value in pairs if tar.is_text(value)}
    folder, user = (str(config.get(name) or "") for name in ("WorkingDir", "User"))
    return Config(environ, folder if tar.is_text(folder) else "", user, notes)


def _blob(descriptor: Mapping[str, object]) -> str:
    found = _DIGEST.fullmatch(str(descriptor.get("digest")))
    if found is None:
        raise bad(f"it names a part by what is no sha256: {str(descriptor.get('digest'))[:80]!a}")
    return f"blobs/sha256/{found[1]}"


def _json(store: _Store, name: str, kind: type[_T]) -> _T:
    try:
        found = json.loads(store.document(name))
    except (ValueError, RecursionError):
        raise bad(f"{name} is not JSON") from None
    if not isinstance(found, kind):
        raise bad(f"{name} is no manifest")
    return found


def _get(document: Mapping[str, object], key: str, kind: type[_T], default: _T | None = None) -> _T:
    found = document.get(key)
    if found is None and default is not None:
        return default
    if not isinstance(found, kind):
        raise bad(f"a manifest has no {key}")
    return found


def _list(found: object, kind: type[_T]) -> list[_T]:
    """Return a list of things of this kind; nothing is an empty one."""
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > _LAYERS or not all(isinstance(it, kind) for it in found):
        raise bad(f"a manifest has no list where one belongs, or one of more than {_LAYERS}")
    return found
