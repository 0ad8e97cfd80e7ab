"""The SBOM of a rewritten wheel, or of a pack's (PEP 770): a CycloneDX document of what each fix resolves.

It has no serial number and no time, so that the same wheel gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from unhang import __version__
from unhang.deliver import archive
from unhang.deliver.wheel import Wheel
from unhang.rewrite.plan import FilePlan
from unhang.shapes import catalog
from unhang.shapes.catalog import Fix

SBOM = "sboms/unhang.cdx.json"
"""Its path in the .dist-info folder, named after the tool as other tools name theirs."""


def document(wheel: Wheel, file: str, version: str, files: Mapping[str, FilePlan]) -> bytes:
    """Return the SBOM of the wheel ``file``, of this version: the given wheel with these files, by name, rewritten.

    If the given wheel has such an SBOM already, it becomes the pedigree of the ancestor.
    Raises UnhangError ``bad-wheel`` if that member is damaged.
    """
    steps = [(name, step) for name, plan in files.items() for step in plan.steps]
    notes = [
        f"{name}, {step.target.function}: {step.target.fix}"
        + ("" if step.listed else " (a shape was unknown; a person accepted the rewrite)")
        for name, step in steps
    ]
    pedigree = {
        "ancestors": [_ancestor(wheel)],
        "patches": [_patch(catalog.fix(name)) for name in sorted({step.target.fix for _, step in steps})],
        "notes": "Functions that were rewritten, and the fix that did it:\n" + "\n".join(notes),
    }
    return _dumped({**_component(wheel.distribution, version, file), "pedigree": pedigree})


def of_pack(project: str, file: str, about: Mapping[str, Any], fixes: Sequence[Fix]) -> bytes:
    """Return the SBOM of the wheel ``file`` of a pack: the licence of its files, and what its fixes resolve.

    ``about`` is the pack's pack.json.
    """
    licence = {"licenses": [{"expression": about["licence"]}]} if "licence" in about else {}
    pedigree = {"patches": [_patch(fix) for fix in sorted(fixes, key=lambda fix: fix.id)]}
    return _dumped({**_component(project, about["version"], file), **licence, "pedigree": pedigree})


def _dumped(component: Mapping[str, Any]) -> bytes:
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "unhang", "version": __version__}]},
            "component": component,
        },
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def _component(distribution: str, version: str, file: str) -> dict[str, Any]:
    name = canonicalize_name(distribution)
    purl = f"pkg:pypi/{name}@{quote(version)}?file_name={quote(file)}"
    return {"type": "library", "name": name, "version": version, "purl": purl}


def _ancestor(wheel: Wheel) -> dict[str, Any]:
    """Return the wheel that was rewritten, with its own pedigree if unhang had rewritten it before."""
    found = {
        **_component(wheel.distribution, wheel.version, wheel.file),
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
    }
    for member in wheel.members:
        if member.name == f"{wheel.dist_info}/{SBOM}":
            try:
                found["pedigree"] = json.loads(archive.read(wheel.path, member))["metadata"]["component"]["pedigree"]
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise archive.bad_wheel(wheel.path, f"{member.name} is not an SBOM of unhang's: {error!r}") from error
    return found


def _patch(fix: Fix) -> dict[str, Any]:
    manifest = fix.manifest
    texts = " ".join(manifest.get(key) or "" for key in ("bug", "origin", "forwarded"))
    issue = {
        "type": "defect",
        "id": fix.id,
        "name": fix.title,
        "description": f"{manifest.get('symptom', fix.title)} {manifest.get('cause', f'({fix.grade})')}",
        "source": {"name": fix.pack.name},
        "references": list(dict.fromkeys(re.findall(r"https://[^\s,;)]+", texts))),
    }
    is_backport = manifest["origin"].startswith("backport,")
    return {"type": "backport" if is_backport else "unofficial", "resolves": [issue]}
