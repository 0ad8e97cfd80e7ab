"""Images made by hand, of tar and JSON: with what builders write, and with what none does."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from support import wheels

SITE = "opt/venv/lib/python3.12/site-packages"
ENGINE = f"{SITE}/verl/workers/engine/megatron/transformer_impl.py"
VENV = ("PATH=/opt/venv/bin:/usr/local/bin", "VIRTUAL_ENV=/opt/venv")
LINK, HARD, PIPE, DEVICE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE
Entry = tuple[str, bytes | tuple[bytes, str] | None]
"""A path, and a file's content; None for a folder; the type of something else, and where it leads."""


def tar(*entries: Entry, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for path, value in entries:
            info = tarfile.TarInfo(path)
            if isinstance(value, bytes):
                info.size = len(value)
            elif value is None:
                info.type = tarfile.DIRTYPE
            else:
                info.type, info.linkname = value
            archive.addfile(info, io.BytesIO(value) if isinstance(value, bytes) else None)
    return out.getvalue()


def python(base: str = "usr/local", version: str = "3.12") -> list[Entry]:
    """Return what is read of an interpreter."""
    lib = f"{base}/lib/python{version}"
    built = f"build_time_vars = {{'EXT_SUFFIX': '.cpython-{version.replace('.', '')}-x86_64-linux-gnu.so'}}".encode()
    return [
        (f"{base}/bin/python{version}", b"\x7fELF and more"),
        (f"{base}/bin/python3", (LINK, f"python{version}")),
        (f"{base}/bin/python", (LINK, "python3")),
        (f"{lib}/os.py", b""),
        (f"{lib}/site.py", b"# as CPython has it"),
        (f"{lib}/lib-dynload", None),
        (f"{lib}/_sysconfigdata__linux_x86_64-linux-gnu.py", built),
    ]


def venv(prefix: str = "opt/venv", home: str = "/usr/local/bin") -> list[Entry]:
    """Return a virtual environment."""
    settings = f"home = {home}\ninclude-system-site-packages = false\nversion = 3.12.3\n"
    return [
        (f"{prefix}/pyvenv.cfg", settings.encode()),
        (f"{prefix}/bin/python", (LINK, f"{home}/python3.12")),
        (f"{prefix}/bin/python3", (LINK, "python")),
    ]


def release(project: str, version: str, site: str = SITE) -> list[Entry]:
    """Return the files of a release."""
    with zipfile.ZipFile(wheels.fetch(project, version)) as wheel:
        return [(f"{site}/{name}", wheel.read(name)) for name in wheel.namelist() if not name.endswith("/")]


def base() -> bytes:
    """Return the layer of an interpreter and an environment."""
    return tar(*python(), *venv())


def saved(path: Path, layers: Sequence[bytes], env: Iterable[str] = VENV, **config: str) -> Path:
    """Write an image as `docker save` did for years."""
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    about = {"config": {"Env": [*env], **config}, "rootfs": {"type": "layers", "diff_ids": digests}}
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    listing = [{"Config": "config.json", "RepoTags": ["job:1"], "Layers": names}]
    texts = {"config.json": about, "manifest.json": listing}
    parts = [(name, json.dumps(text).encode()) for name, text in texts.items()]
    path.write_bytes(tar(*zip(names, layers, strict=True), *parts))
    return path


class Layout:
    """An OCI layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def put(self, data: bytes, **more: object) -> dict[str, object]:
        """Add a part; return its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), **more}

    def image(
        self,
        layers: Sequence[bytes],
        env: Iterable[str] = VENV,
        compress: Callable[[bytes], bytes] = gzip.compress,
        **more: object,
    ) -> dict[str, object]:
        """Add an image; return the descriptor of its manifest."""
        config = self.put(json.dumps({"config": {"Env": [*env]}}).encode())
        manifest = {"schemaVersion": 2, "config": config, "layers": [self.put(compress(layer)) for layer in layers]}
        return self.put(json.dumps(manifest).encode(), **more)

    def index(self, *manifests: Mapping[str, object]) -> Path:
        """Write the index; return the folder."""
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
        return self.folder
