"""Made-up packs: a copy of one of our fixes under another id, and what goes with it."""

import json
import shutil
from pathlib import Path
from typing import Any

from support.checkout import COMPAT, REPOSITORY

MODEL, ID = "critic-microbatch-scale", "acme-scale"
"""The fix of ours that is copied, for verl 0.7.1, and the id of the copy."""


def pack(folder: Path, *fixes: str, model: str = MODEL, **about: Any) -> Path:
    """Write a pack whose fixes are copies of one of ours; return its folder. ``about`` changes its pack.json."""
    for name in ("codemods", "compat/data", "prove"):
        (folder / name).mkdir(parents=True)
    for fix in fixes or (ID,):
        ours, theirs = (name.replace("-", "_") for name in (model, fix))
        shutil.copytree(REPOSITORY / "patches" / model, folder / "patches" / fix)
        change(folder, fix, id=fix)
        for source, copies in (
            (f"codemods/{ours}.py", f"codemods/{theirs}.py"),
            (f"src/unhang/prove/fixes/{ours}.py", f"prove/{theirs}.py"),
        ):
            (folder / copies).write_text((REPOSITORY / source).read_text().replace(model, fix))
        shutil.copy(COMPAT / "data" / f"{model}.json", folder / "compat" / "data" / f"{fix}.json")
    document = {"schema": 1, "name": "acme", "version": "1.2", "requires-unhang": ">=0.1"}
    (folder / "pack.json").write_text(json.dumps({**document, **about}))
    return folder


def change(folder: Path, fix: str, **keys: Any) -> None:
    """Change keys of a fix's manifest."""
    path = folder / "patches" / fix / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def retarget(folder: Path, file: str, fix: str = ID) -> None:
    """Let the fix rewrite another file."""
    (target,) = json.loads((folder / "patches" / fix / "manifest.json").read_text())["targets"]
    change(folder, fix, targets=[{**target, "file": file}])


def distribution(site: Path, folder: Path, module: str = "acme_pack") -> None:
    """Lay out a pack as an installed distribution of this import name."""
    shutil.copytree(folder, site / module)
    info = site / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[unhang.packs]\nacme = {module}\n")
