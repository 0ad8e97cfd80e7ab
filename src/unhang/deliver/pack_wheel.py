"""The wheel of a pack: its parts in a package, and an entry point of the group ``unhang.packs``.

The same pack gives the same bytes.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from unhang.deliver import sbom
from unhang.judge import recorded
from unhang.judge.decide import codemod
from unhang.plugins import packs
from unhang.plugins.entry_points import GROUP
from unhang.records import Pack
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix
from unhang.store import dist_info

PARTS = ("patches", "codemods", "compat", "upstreams", "prove")
"""The folders of a pack that are in its wheel: not its tests."""
TYPES = (".json", ".md", ".py")
_LICENCES = ("LICENSE", "LICENCE", "NOTICE")
_MODE = 0o100644 << 16


class Built(NamedTuple):
    """The wheel of a pack."""

    file: str
    data: bytes
    fixes: int


def build(folder: str) -> Built:
    """Return the wheel of the pack in a folder, which must be in effect.

    Raises UnhangError ``bad-pack`` for a file that a pack cannot have, a link, and a fix whose parts do not fit
    together; and as ``packs.load`` and ``catalog.fixes``.
    """
    pack = packs.load(os.path.realpath(folder))
    about = packs.document(pack, os.path.join(pack.folder, "pack.json"), "pack")
    files = dict(_files(pack))
    fixes = [fix for fix in catalog.fixes().values() if fix.pack == pack]
    for fix in fixes:
        _check(fix, files)
    module, project = f"unhang_pack_{pack.name.replace('-', '_')}", f"unhang-pack-{pack.name}"
    name = f"{project.replace('-', '_')}-{pack.version}"
    members = {f"{module}/{path}": data for path, data in files.items() if path not in _LICENCES}
    licences = {path: data for path, data in files.items() if path in _LICENCES}
    info = {
        "METADATA": _metadata(project, about, [*licences]).encode(),
        "WHEEL": b"Wheel-Version: 1.0\nGenerator: unhang\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[{GROUP}]\n{pack.name} = {module}\n".encode(),
        sbom.SBOM: sbom.of_pack(project, f"{name}-py3-none-any.whl", about, fixes),
        **{f"licenses/{path}": data for path, data in licences.items()},
    }
    members |= {f"{name}.dist-info/{path}": data for path, data in info.items()}
    record = f"{name}.dist-info/RECORD"
    members[record] = dist_info.listing(members, record)
    return Built(f"{name}-py3-none-any.whl", _zipped(members), len(fixes))


def _files(pack: Pack) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of each file that goes into the wheel, sorted. What is not ours to ship is an error."""
    folder = pack.folder
    tops = [name for name in ("pack.json", *_LICENCES) if os.path.lexists(os.path.join(folder, name))]
    found = [os.path.join(folder, name) for name in tops]
    for part in PARTS:
        for above, names, here in os.walk(os.path.join(folder, part)):
            names[:] = sorted(name for name in names if name != "__pycache__")
            if links := [name for name in names if os.path.islink(os.path.join(above, name))]:
                raise packs.bad(os.path.join(above, links[0]), "it is a link")
            found += (os.path.join(above, name) for name in sorted(here) if not name.endswith(".pyc"))
    for path in found:
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        if os.path.islink(path):
            raise packs.bad(path, "it is a link")
        if "/" in name and not name.endswith(TYPES):
            raise packs.bad(path, f"a pack has files of these kinds alone: {', '.join(TYPES)}")
        with packs.Blamed(pack, path):
            data = packs.read(path)
        yield name, data


def _check(fix: Fix, files: Mapping[str, bytes]) -> None:
    """Raise UnhangError ``bad-pack`` unless a fix has all its parts, and these fit its targets."""
    folder, module = fix.pack.folder, f"codemods/{fix.id.replace('-', '_')}"
    for name in (f"patches/{fix.id}/page.md", f"compat/data/{fix.id}.json"):
        if name not in files:
            raise packs.bad(os.path.join(folder, name), "it is missing")
    if f"{module}.py" not in files and f"{module}/__init__.py" not in files:
        raise packs.bad(os.path.join(folder, f"{module}.py"), "it is missing")
    if "TODO" in fix.title:
        raise packs.bad(os.path.join(folder, f"patches/{fix.id}/manifest.json"), "its title begins with TODO: write it")
    if fix.left:
        why = f"the diff has more than the fix: {'; '.join(fix.left)}"
        why += "; do what is left in another way, then remove it from `left`"
        raise packs.bad(os.path.join(folder, f"patches/{fix.id}/manifest.json"), why)
    if fix.grade == catalog.UNPROVED and "codemod" not in catalog.facts(fix.id):
        why = "it does not say which codemod gave its results: record them with `unhang pack sweep`"
        raise packs.bad(os.path.join(folder, f"compat/data/{fix.id}.json"), why)
    recorded.refuse_edited([fix.id])
    for target in fix.targets:
        recorded.edits(target) if target.exact else codemod(target)


def _metadata(project: str, about: Mapping[str, Any], licences: list[str]) -> str:
    rows = [
        "Metadata-Version: 2.4",
        f"Name: {project}",
        f"Version: {about['version']}",
        f"Summary: {about.get('title', 'Fixes for unhang')}",
        *([f"License-Expression: {about['licence']}"] if "licence" in about else []),
        *(f"License-File: {name}" for name in licences),
        f"Requires-Dist: unhang{about['requires-unhang']}",
    ]
    return "\n".join(rows) + "\n"


def _zipped(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)  # of 1980: no time of this run
            info.external_attr, info.compress_type = _MODE, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()
